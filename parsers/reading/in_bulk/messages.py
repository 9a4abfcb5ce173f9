"""The messages of a block's records, by family: the common ones as columns, the others one by one.

What is common is told by how a message begins, and read by `requests` and `gauges`; the access lines are complete already. All
others are few, and read as `parsers.reading.by_line` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from parsers import families
from parsers.reading.by_line import ERROR_LEVELS, EXCEPTION_END, MAX_TEXT, WARNING_LEVELS, hide_text
from parsers.reading.frames import Coded, fields_frame
from parsers.reading.in_bulk.block import Block, Mask, Rows, rows_of
from parsers.reading.in_bulk.gauges import KnownGauges, gauges
from parsers.reading.in_bulk.parts import Column, Part
from parsers.reading.in_bulk.prompts import prompted
from parsers.reading.in_bulk.requests import KnownParameters, life_lines, received
from parsers.reading.in_bulk.templates import AccessLines, AlikeRecords, Known, Structure, is_odd
from parsers.records.record import Record, RecordText, is_open
from parsers.records.servers import OF_A_START, engine_index

__all__ = ["BlockMessages", "Memory", "messages_of"]

_FAMILIES = ("request", "stats", "iteration")  # what they say changes no server's state

_MOST_MUTE = 1 << 12


@dataclass(slots=True)
class Memory:
    """What has been seen in a source: the same things come again."""

    lines: Known = field(default_factory=Known)
    parameters: KnownParameters = field(default_factory=KnownParameters)
    gauges: KnownGauges = field(default_factory=KnownGauges)
    mute: set[str] = field(default_factory=set)
    """Lines without prefix that looked as if they said something, and do not."""

    def note_mute(self, text: str) -> None:
        """Remember such a line, where it is short."""
        if len(self.mute) >= _MOST_MUTE:
            self.mute.clear()
        if len(text) <= MAX_TEXT:
            self.mute.add(text)


@dataclass(slots=True)
class BlockMessages:
    """What a block's records say: `parts` by family; masks have one place a line of the block.

    `event` marks the lines that are in a part, `request` those of the family `request`, `serving` those that only a server at
    work prints, `tagged` the access lines that name their process. `texts` has the places of the messages of statistics lines, by row;
    `warnings` are the texts of those of `other` at WARNING or above.
    """

    parts: dict[str, list[Part]]
    event: Mask
    request: Mask
    serving: Mask
    tagged: Mask
    texts: dict[int, int] = field(default_factory=dict)
    warnings: dict[int, str] = field(default_factory=dict)

    def add(self, family: str, part: Part) -> None:
        """Take the messages of a part."""
        if not len(part.rows):
            return
        self.parts.setdefault(family, []).append(part)
        self.event[part.rows] = True
        if family == "request":
            self.request[part.rows] = True
        if family in _FAMILIES:
            self.serving[part.rows] = True


def messages_of(block: Block, found: Structure, memory: Memory) -> BlockMessages:
    """Read the messages of a block's records; those that need more than their line are marked as bad in `found`."""
    none = np.zeros(len(block), np.bool_)
    messages = BlockMessages({}, none, none.copy(), none.copy(), none.copy())
    rest = [found.records]
    for group in found.alike.records:
        left = _alike_records(block, messages, group, memory)
        if len(left):
            rest.append(_records(block, group, left))
    rest = [records for records in rest if len(records)]
    if rest:
        _others(found, messages, pl.concat(rest).sort("row"))
    messages.tagged[found.tagged] = True
    for lines in found.alike.access:
        messages.add("http", _accesses(lines))
        messages.tagged[lines.rows] = lines.head.process is not None or lines.head.pid is not None
    if len(found.access):
        messages.add("http", _foreign_accesses(found.access))
        messages.tagged[rows_of(found.access.filter(pl.col("pid").is_not_null()))] = True
    return messages


def _alike_records(block: Block, messages: BlockMessages, group: AlikeRecords, memory: Memory) -> Rows:
    """Take the messages that begin alike; gives the rows that are to be read one by one."""
    beginning, rows = group
    verb, message = beginning.verb, beginning.message
    family = beginning.family
    if beginning.variant == "received":
        parts, good = received(block, rows, message, verb, memory.parameters)
        if not good.all():
            others, read = prompted(block, rows[~good], message, verb, memory.parameters)
            parts += others
            good[~good] = read
    elif family == "request":
        part, good = life_lines(block, rows, message, verb, beginning.variant)
        parts = [part]
    else:
        parts, good = gauges(block, rows, message, family, memory.gauges)
    for part in parts:
        fields: families.Fields = {n: c for n, c in part.columns.items() if not isinstance(c, Coded | pl.Series)}
        record = Record([], process=beginning.process)
        columns: dict[str, Column] = {
            "process": beginning.process,
            "pid": beginning.pid,
            "level": beginning.level,
            "origin": beginning.origin,
            "engine_index": engine_index(record, family, fields),
        }
        messages.add(family, Part(part.rows, {**columns, **part.columns}))
    if family == "stats":
        messages.texts.update((row, message) for row in rows[good].tolist())
    return rows[~good]


def _records(block: Block, group: AlikeRecords, rows: Rows) -> pl.DataFrame:
    """Records of one beginning in the columns of `Structure.records`."""
    beginning = group.beginning
    return pl.DataFrame({"row": rows, "line": block.texts(rows)}).select(
        "row",
        pl.lit(beginning.process, pl.String()).alias("process"),
        pl.lit(beginning.pid, pl.Int64()).alias("pid"),
        pl.lit(beginning.level).alias("level"),
        pl.lit(beginning.origin).alias("origin"),
        "line",
        pl.lit(beginning.message, pl.Int64()).alias("start"),
    )


def _others(found: Structure, messages: BlockMessages, records: pl.DataFrame) -> None:
    """Records that are no common ones: few, and most of them say nothing known."""
    message = pl.col("message")
    looked = records.with_columns(pl.col("line").str.slice(pl.col("start")).alias("message")).with_columns(
        odd=is_odd(message), anchored=message.str.contains_any(pl.Series(families.anchors()).implode())
    )
    found.bad[rows_of(looked.filter("odd"))] = True
    warnings = looked.filter(~pl.col("odd") & pl.col("level").is_in(WARNING_LEVELS))
    messages.warnings.update(warnings.select("row", "message").iter_rows())
    ends = warnings.filter(pl.col("level").is_in(ERROR_LEVELS) & message.str.contains(EXCEPTION_END))
    found.bad[rows_of(ends)] = True
    telling = looked.filter(pl.col("anchored") & ~pl.col("odd"))
    columns = ("row", "process", "pid", "level", "origin", "start", "message")
    places: dict[str, list[int]] = {}
    matches: dict[str, list[families.Match]] = {}
    for index, (row, _, _, _, _, start, text) in enumerate(telling.select(columns).iter_rows()):
        if is_open(Record([RecordText(0, text)])):
            found.bad[row] = True
            continue
        match = families.match(text, prefixed=True)
        if match is None:
            found.bad[row] |= found.alike.header[
                row
            ]  # it begins as a known message, and is none: what follows may be its own
            continue
        messages.warnings.pop(row, None)
        if match.family not in _FAMILIES or match.variant in OF_A_START:
            found.bad[row] = True
            continue
        hide_text(match.fields, match.prompt_fields)
        places.setdefault(match.family, []).append(index)
        matches.setdefault(match.family, []).append(match)
        if match.family == "stats":
            messages.texts[row] = start
    for family, which in places.items():
        messages.add(family, _one_by_one(family, telling[which], matches[family]))


def _one_by_one(family: str, records: pl.DataFrame, matches: Sequence[families.Match]) -> Part:
    engines = [
        engine_index(Record([], process=process), family, match.fields)
        for process, match in zip(records["process"], matches, strict=True)
    ]
    own = [
        pl.Series("variant", [match.variant for match in matches], dtype=pl.String()),
        pl.Series("engine_index", engines, dtype=pl.Int32()),
    ]
    fields = fields_frame(family, [match.fields for match in matches])
    columns = records.select("row", "process", "pid", "level", "origin").with_columns(own)
    return _part(columns.hstack(fields))


def _part(table: pl.DataFrame) -> Part:
    columns: dict[str, Column] = {column.name: column for column in table.drop("row")}
    return Part(rows_of(table), columns)


def _accesses(lines: AccessLines) -> Part:
    columns: dict[str, Column] = {
        "process": lines.head.process,
        "pid": lines.head.pid,
        "level": lines.head.level,
        "variant": "access",
        "engine_index": engine_index(Record([], process=lines.head.process), "http", {}),
        "client": lines.clients,
        **lines.end.fields,
    }
    return Part(lines.rows, columns)


def _foreign_accesses(access: pl.DataFrame) -> Part:
    engines = [engine_index(Record([], process=process), "http", {}) for process in access["process"]]
    return _part(
        access.select(
            "row", "process", pl.col("pid").cast(pl.Int64()), "level", "client", "method", "path", "status"
        ).with_columns(pl.Series("engine_index", engines, dtype=pl.Int32()), variant=pl.lit("access"))
    )
