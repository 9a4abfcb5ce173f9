"""The messages of a block's records, by family: the common ones as columns, the others one by one.

A table has a row for each record that says something known: `row` is its place in the block; `process`, `pid`, `level`,
`origin`, `variant`; the family's fields. Fields that a table lacks are null in all its rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from parsers import families
from parsers.columnar.column import WORD, Mask, extracted, rows_of
from parsers.columnar.structure import Structure, is_odd
from parsers.frames import fields_frame
from parsers.prefix import Header, strip_ansi
from parsers.reader import WARNING_LEVELS, hide_text
from parsers.records import Record, RecordText, glued_at, is_open, may_continue
from parsers.sessions import OF_A_START, engine_index

__all__ = ["Said", "messages_of"]

_PARTS = ("row", "process", "pid", "level", "origin")
_FAMILIES = ("request", "stats", "iteration")  # what they say changes no server's state
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_WHOLE = "[0-9]{1,18}"

_ID = rf"^{WORD}+$"
_LAST_ID = rf"^{WORD}*[!-\-/-9;-Z\\-~]$"  # not before a colon or a second full stop
_PARAMS = ": params: "
_STEP = (
    r"^(?:Engine (?P<engine>[0-9]{1,9}): )?Iteration\("
    rf"(?P<iteration>{_WHOLE})\): (?P<context_requests>{_WHOLE}) context requests, "
    rf"(?P<context_tokens>{_WHOLE}) context tokens, (?P<generation_requests>{_WHOLE}) generation requests, "
    rf"(?P<generation_tokens>{_WHOLE}) generation tokens, iteration elapsed time: (?P<elapsed_ms>{_NUMBER}) ms"
    rf"(?P<dummy> \(dummy\))?(?:, (?P<device>[A-Za-z]{{1,20}}) KV cache usage: (?P<gpu_kv_cache_usage_pct>{_NUMBER})%)?$"
)
_RATES = (
    rf"Avg prompt throughput: (?P<prompt_throughput>{_NUMBER}) tokens/s, "
    rf"Avg generation throughput: (?P<generation_throughput>{_NUMBER}) tokens/s, Running: (?P<running>{_WHOLE}) reqs, "
)
_V1_STATS = (
    rf"^Engine (?P<engine>[0-9]{{1,9}}): {_RATES}Waiting: (?P<waiting>{_WHOLE}) reqs, "
    rf"(?:Deferred: (?P<deferred>{_WHOLE}) reqs, )?(?P<device>[A-Z]{{3}}) KV cache usage: (?P<gpu_kv_cache_usage_pct>{_NUMBER})%"
    rf"(?:, Prefix cache hit rate: (?P<prefix_cache_hit_rate_pct>{_NUMBER})%)?"
    rf"(?:, External prefix cache hit rate: (?P<external_prefix_cache_hit_rate_pct>{_NUMBER})%)?"
    rf"(?:, MM cache hit rate: (?P<mm_cache_hit_rate_pct>{_NUMBER})%)?\.?$"
)
_V0_STATS = (
    rf"^{_RATES}Swapped: (?P<swapped>{_WHOLE}) reqs, Pending: (?P<waiting>{_WHOLE}) reqs, "
    rf"GPU KV cache usage: (?P<gpu_kv_cache_usage_pct>{_NUMBER})%, CPU KV cache usage: (?P<cpu_kv_cache_usage_pct>{_NUMBER})%\.?$"
)
_V1_VARIANT = (
    pl.when(pl.col("deferred").is_not_null())
    .then(pl.lit("v1_multi.deferred"))
    .when(pl.col("external_prefix_cache_hit_rate_pct").is_not_null())
    .then(pl.lit("v1_multi.external"))
    .when(pl.col("mm_cache_hit_rate_pct").is_not_null())
    .then(pl.lit("v1_multi.mm"))
    .otherwise(pl.lit("v1_stats_engine"))
)
_ANY_ID = "x"
_MESSAGE = pl.col("line").str.slice(pl.col("start")).alias("message")
_ACCESS_PARTS = ("process", pl.col("pid").cast(pl.Int64()), "client", "method", "path", "status")


@dataclass(slots=True)
class Said:
    """What a block's records say: `tables` by family; masks have one place a line of the block.

    `event` marks the lines that are in a table, `request` those of the family `request`, `other` the records of no family.
    `texts` are the messages of statistics lines, by row; `warnings` those of `other` at WARNING or above.
    """

    tables: dict[str, list[pl.DataFrame]]
    event: Mask
    request: Mask
    other: Mask
    texts: list[pl.DataFrame] = field(default_factory=list)
    warnings: dict[int, str] = field(default_factory=dict)


def messages_of(found: Structure) -> Said:
    """Read the messages of a block's records; those that need more than their line are marked as bad in `found`."""
    none = np.zeros(len(found.lines), np.bool_)
    said = Said({}, none, none.copy(), none.copy())
    rest: list[pl.DataFrame] = []
    for records in _by_beginning(found):
        kind = _kind_of(records["line"][0][records["start"][0] :])
        if kind is None:
            rest.append(records)
            continue
        family, read = kind
        table = read(records)
        rows = rows_of(table)
        if family == "stats":
            said.texts.append(table.select("row", _MESSAGE))
        _add(said, family, table.drop("line", "start", "message", strict=False), rows)
        if len(table) < len(records):
            rest.append(records.filter(pl.Series(~said.event[rows_of(records)])))
    if rest:
        _others(found, said, pl.concat(part.select(*_PARTS, _MESSAGE) for part in rest))
    _accesses(found, said)
    return said


def _by_beginning(found: Structure) -> Iterator[pl.DataFrame]:
    """The block's records in parts whose messages begin alike."""
    for parts in found.alike.records.values():
        yield from (part for part in parts if len(part))
    rest = found.records.with_columns(_MESSAGE)
    for likely in _BEGINNINGS:
        mask = rest["message"].str.contains(likely)
        if mask.any():
            yield rest.filter(mask).drop("message")
            rest = rest.filter(~mask)
    if len(rest):
        yield rest.drop("message")


def _kind_of(message: str) -> tuple[str, Reader] | None:
    return next((kind for begin, kind in _BEGINNINGS.items() if re.match(begin, message)), None)


def _add(said: Said, family: str, table: pl.DataFrame, rows: np.ndarray) -> None:
    if len(table):
        if "engine_index" not in table.columns:
            table = table.with_columns(_engine_index(family, table))
        said.tables.setdefault(family, []).append(table)
        said.event[rows] = True
        if family == "request":
            said.request[rows] = True


def _life(records: pl.DataFrame) -> pl.DataFrame:
    verb = records["line"][0][records["start"][0] :].split(" ")[0]
    name = pl.col("line").str.slice(pl.col("start") + len(f"{verb} request ")).str.strip_suffix(".")
    table = records.with_columns(request_id=name, variant=pl.lit(verb.lower()))
    return table.filter(pl.col("request_id").str.contains(_LAST_ID))


def _steps(records: pl.DataFrame) -> pl.DataFrame:
    table = extracted(records.with_columns(_MESSAGE), "message", _STEP, must="iteration")
    return table.with_columns(
        variant=pl.when(pl.col("engine").is_null())
        .then(pl.lit("v1_iter_core"))
        .otherwise(pl.lit("v1_iter_logger")),
        dummy=pl.col("dummy").is_not_null(),
    )


def _v1_stats(records: pl.DataFrame) -> pl.DataFrame:
    return extracted(
        records.with_columns(_MESSAGE), "message", _V1_STATS, must="running"
    ).with_columns(variant=_V1_VARIANT)


def _v0_stats(records: pl.DataFrame) -> pl.DataFrame:
    table = extracted(records.with_columns(_MESSAGE), "message", _V0_STATS, must="running")
    return table.with_columns(variant=pl.lit("v0_stats_line"))


def _received(records: pl.DataFrame) -> pl.DataFrame:
    """Requests without their prompt: all but the id depends on the parameters, and many requests have the same."""
    line, at, start = pl.col("line"), pl.col("_at"), pl.col("start") + len("Received request ")
    table = (
        records.with_columns(_at=line.str.find(_PARAMS, literal=True).cast(pl.Int64()))
        .filter(at.is_not_null())
        .with_columns(
            request_id=line.str.slice(start, at - start), said=line.str.slice(at + len(": "))
        )
        .filter(pl.col("request_id").str.contains(_ID))
        .drop("_at")
    )
    said = table["said"].unique(maintain_order=True)
    fields = [_parameters(text) for text in said]
    known = [i for i, value in enumerate(fields) if value is not None]
    meaning = fields_frame("request", [value for value in fields if value is not None])
    meaning = meaning.drop("request_id").with_columns(said[known].alias("said"))
    table = table.join(meaning, on="said", how="inner", maintain_order="left")
    return table.drop("said").with_columns(variant=pl.lit("received"))


@lru_cache(maxsize=1 << 12)
def _parameters(said: str) -> families.Fields | None:
    """The fields of `Received request x: …`; None where the line is to be read by itself."""
    message = f"Received request {_ANY_ID}: {said}"
    if "prompt: " in said or not _is_simple(message):
        return None
    match = families.match(message, prefixed=True)
    if match is None or (match.family, match.variant) != ("request", "received"):
        return None
    return match.fields


def _is_simple(message: str) -> bool:
    """Whether a record's text is one message on one line."""
    return not (
        may_continue(message)
        or "x across cluster]" in message
        or strip_ansi(message) != message
        or not message.isprintable()
        or glued_at(message, _NO_HEADER, False) >= 0
        or is_open(Record([RecordText(0, message)]))
    )


Reader = Callable[[pl.DataFrame], pl.DataFrame]
_BEGINNINGS: dict[str, tuple[str, Reader]] = {
    r"^Received request ": ("request", _received),
    r"^Added request ": ("request", _life),
    r"^Finished request ": ("request", _life),
    r"^Aborted request ": ("request", _life),
    r"^(?:Engine [0-9]+: )?Iteration\(": ("iteration", _steps),
    r"^Engine [0-9]+: Avg prompt throughput: ": ("stats", _v1_stats),
    r"^Avg prompt throughput: ": ("stats", _v0_stats),
}
_NO_HEADER = Header("INFO", (1, 1, 0, 0, 0), "", 0)


def _others(found: Structure, said: Said, records: pl.DataFrame) -> None:
    """Records that are no common ones: few, and most of them say nothing known."""
    message = pl.col("message")
    looked = records.with_columns(
        odd=is_odd(message),
        anchored=message.str.contains_any(pl.Series(families.ANCHORS).implode()),
    )
    found.bad[rows_of(looked.filter("odd"))] = True
    said.other[rows_of(looked.filter(~pl.col("odd")))] = True
    warnings = looked.filter(~pl.col("odd") & pl.col("level").is_in(WARNING_LEVELS))
    said.warnings.update(warnings.select("row", "message").iter_rows())
    telling = looked.filter(pl.col("anchored") & ~pl.col("odd"))
    if not len(telling):
        return
    rows: dict[str, list[int]] = {}
    matches: dict[str, list[families.Match]] = {}
    for index, (row, text) in enumerate(zip(telling["row"], telling["message"], strict=True)):
        if is_open(Record([RecordText(0, text)])):
            found.bad[row] = True
            continue
        match = families.match(text, prefixed=True)
        if match is None:
            continue
        said.other[row] = False
        said.warnings.pop(row, None)
        if match.family not in _FAMILIES or match.variant in OF_A_START:
            found.bad[row] = True
            continue
        hide_text(match.fields, match.prompt_fields)
        rows.setdefault(match.family, []).append(index)
        matches.setdefault(match.family, []).append(match)
    for family, places in rows.items():
        part = telling[places]
        if family == "stats":
            said.texts.append(part.select("row", "message"))
        _add(said, family, _one_by_one(family, part, matches[family]), rows_of(part))


def _one_by_one(
    family: str, records: pl.DataFrame, matches: Iterable[families.Match]
) -> pl.DataFrame:
    matches = list(matches)
    engines = [
        engine_index(Record([], process=process), family, match.fields)
        for process, match in zip(records["process"], matches, strict=True)
    ]
    own = [
        pl.Series("variant", [match.variant for match in matches], dtype=pl.String()),
        pl.Series("engine_index", engines, dtype=pl.Int32()),
    ]
    fields = fields_frame(family, [match.fields for match in matches])
    return records.select(_PARTS).with_columns(own).hstack(fields)


def _accesses(found: Structure, said: Said) -> None:
    parts = list(found.alike.access)
    if len(found.access):
        parts.append(found.access.select(pl.col("row").cast(pl.Int64()), *_ACCESS_PARTS))
    if not parts:
        return
    table = pl.concat(parts, how="vertical_relaxed").sort("row") if len(parts) > 1 else parts[0]
    table = table.select(
        "row",
        "process",
        pl.col("pid").cast(pl.Int64()),
        "client",
        "method",
        "path",
        "status",
        level=pl.lit("INFO"),
        variant=pl.lit("access"),
    )
    _add(said, "http", table, rows_of(table))


def _engine_index(family: str, table: pl.DataFrame) -> pl.Expr:
    """The data-parallel engine: as the message says, else as the process's name does."""
    expression: Any = pl.lit(None, pl.Int32())
    for process in table["process"].unique():
        index = engine_index(Record([], process=process), family, {})
        same = pl.col("process").is_null() if process is None else pl.col("process") == process
        expression = pl.when(same).then(pl.lit(index, pl.Int32())).otherwise(expression)
    if "engine" in table.columns:
        expression = pl.coalesce(pl.col("engine").cast(pl.Int32()), expression)
    return pl.Expr.alias(expression, "engine_index")
