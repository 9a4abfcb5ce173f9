"""The messages of a block's records, by family: the common ones as columns, the others one by one.

A table has a row for each record that says something known: `row` is its place in the block; `process`, `pid`, `level`,
`origin`, `variant`; the family's fields. Fields that a table lacks are null in all its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from parsers.reader import hide_text
from parsers.records import Record, RecordText, glued_at, is_open, may_continue
from parsers.sessions import engine_index

__all__ = ["Said", "messages_of"]

_PARTS = ("row", "process", "pid", "level", "origin")
_FAMILIES = ("request", "stats", "iteration")  # what they say changes no server's state
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_WHOLE = "[0-9]{1,18}"

_LIFE = rf"^(?P<verb>Added|Aborted|Finished) request (?P<request_id>{WORD}*[!-\-/-9;-Z\\-~])\.?$"
_RECEIVED = rf"^(?P<start>Received request (?P<request_id>{WORD}+?): )params: "
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


@dataclass(slots=True)
class Said:
    """What a block's records say: `tables` by family; masks have one place a line of the block.

    `event` marks the lines that are in a table, `request` those of the family `request`, `other` the records of no family.
    `texts` are the messages of statistics lines, by row.
    """

    tables: dict[str, list[pl.DataFrame]]
    event: Mask
    request: Mask
    other: Mask
    texts: list[pl.DataFrame] = field(default_factory=list)


def messages_of(found: Structure) -> Said:
    """Read the messages of a block's records; those that need more than their line are marked as bad in `found`."""
    count = len(found.lines)
    none = np.zeros(count, np.bool_)
    said = Said({}, none, none.copy(), none.copy())
    rest = found.records
    for family, likely, read in (
        ("request", r"^(?:Added|Aborted|Finished) request ", _life),
        ("request", r"^Received request ", _received),
        ("iteration", r"^(?:Engine [0-9]+: )?Iteration\(", _steps),
        ("stats", r"^Engine [0-9]+: Avg prompt ", _v1_stats),
        ("stats", r"^Avg prompt ", _v0_stats),
    ):
        mask = rest["message"].str.contains(likely)
        if not mask.any():
            continue
        table = read(rest.filter(mask))
        rows = rows_of(table)
        taken = np.zeros(count, np.bool_)
        taken[rows] = True
        if family == "stats":
            said.texts.append(table.select("row", "message"))
        _add(said, family, table.drop("message"), rows)
        rest = rest.filter(pl.Series(~taken[rows_of(rest)]))
    _others(found, said, rest)
    _accesses(found, said)
    return said


def _add(said: Said, family: str, table: pl.DataFrame, rows: np.ndarray) -> None:
    if len(table):
        if "engine_index" not in table.columns:
            table = table.with_columns(_engine_index(family, table))
        said.tables.setdefault(family, []).append(table)
        said.event[rows] = True
        if family == "request":
            said.request[rows] = True


def _life(records: pl.DataFrame) -> pl.DataFrame:
    table = extracted(records, "message", _LIFE, must="verb")
    return table.with_columns(variant=pl.col("verb").str.to_lowercase()).drop("verb")


def _steps(records: pl.DataFrame) -> pl.DataFrame:
    table = extracted(records, "message", _STEP, must="iteration")
    return table.with_columns(
        variant=pl.when(pl.col("engine").is_null())
        .then(pl.lit("v1_iter_core"))
        .otherwise(pl.lit("v1_iter_logger")),
        dummy=pl.col("dummy").is_not_null(),
    )


def _v1_stats(records: pl.DataFrame) -> pl.DataFrame:
    return extracted(records, "message", _V1_STATS, must="running").with_columns(
        variant=_V1_VARIANT
    )


def _v0_stats(records: pl.DataFrame) -> pl.DataFrame:
    table = extracted(records, "message", _V0_STATS, must="running")
    return table.with_columns(variant=pl.lit("v0_stats_line"))


def _received(records: pl.DataFrame) -> pl.DataFrame:
    """Requests without their prompt: all but the id depends on the parameters, and many requests have the same."""
    table = extracted(records, "message", _RECEIVED, must="start").with_columns(
        said=pl.col("message").str.slice(pl.col("start").str.len_bytes())
    )
    said = table["said"].unique(maintain_order=True)
    fields = [_parameters(text) for text in said]
    known = [i for i, value in enumerate(fields) if value is not None]
    meaning = fields_frame("request", [value for value in fields if value is not None])
    meaning = meaning.drop("request_id").with_columns(said[known].alias("said"))
    table = table.drop("start").join(meaning, on="said", how="inner", maintain_order="left")
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
        if match.family not in _FAMILIES:
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
    table = found.access
    if not len(table):
        return
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
