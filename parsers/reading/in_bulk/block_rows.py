"""Stretches of a block that are read in bulk: each line's time and place, and at the end the frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers.reading.by_line import MAX_TEXT, SourceReader
from parsers.reading.events import Event
from parsers.reading.frames import Coded, CompactFrame, FrameBuilder, Value, columns_of
from parsers.reading.in_bulk.block import Block, Mask
from parsers.reading.in_bulk.envelope_facts import EnvelopeFacts
from parsers.reading.in_bulk.messages import BlockMessages, Memory
from parsers.reading.in_bulk.parts import Column, Part, joined, series
from parsers.reading.in_bulk.templates import Structure
from parsers.records.prefix import parse_header
from parsers.records.record import MAX_TAIL, Record, RecordText

__all__ = ["BlockRows", "Evidence"]

_NEVER = np.iinfo(np.int64).min  # NaT, which Polars takes for null

Evidence = Callable[[str, int, str], None]
"""Takes source, line and text of a statistics line."""


class BlockRows:
    """One block's lines, the first of which is line `first`; `facts` are the facts of the envelopes that were taken off them."""

    def __init__(
        self,
        reader: SourceReader,
        builder: FrameBuilder,
        first: int,
        block: Block,
        found: Structure,
        messages: BlockMessages,
        facts: EnvelopeFacts | None,
        take: Callable[[Event], None],
        memory: Memory,
    ) -> None:
        count = len(block)
        self.memory = memory
        self.reader, self.builder = reader, builder
        self.first, self.block, self.found, self.messages, self.facts = (first, block, found, messages, facts)
        self.taken = np.zeros(count, np.bool_)
        self.time = np.full(count, _NEVER)
        self.at = np.full(count, _NEVER)
        self.order = np.zeros(count, np.int64)
        self.server = np.zeros(count, np.int32)
        self.run = np.zeros(count, np.int32)
        self.warning = np.zeros(count, np.bool_)
        self.warning[list(messages.warnings)] = True
        self.take, self.owner = take, _facts_from(found, messages)
        self.outer_us = None if facts is None else facts.time_us[self.owner]

    def read(self, start: int, end: int) -> bool:
        """Take the lines from `start` to before `end`; False, with nothing done, where a stamp is no date."""
        reader, builder = self.reader, self.builder
        part = slice(start, end)
        header, event = self.found.header[part], self.messages.event[part]
        outer_us = None if self.facts is None else self.facts.time_us[part]
        times = reader.clock.resolve_all(
            self.found.stamps[part][header], None if outer_us is None else outer_us[header]
        )
        if times is None:
            return False
        self._count(part, header, event)
        self.taken[part] = True
        telling = np.flatnonzero(self.found.telling[part] & ~event)
        if not event.any():
            for row, text in self._telling(telling + start):
                self._foreign(row, text)
            return True
        family = "stats" if self.messages.serving[part].any() else "http"
        record = Record([], outer=None if self.facts is None else self.facts.outer)
        place = reader.sessions.place(reader.group, record, family, "", {})
        self.server[part], self.run[part] = place.server, place.run
        self.time[part][header] = times
        timed = event[header]  # the records that are events
        last = builder.last_us(place.server, reader.name)
        moments = np.append(_NEVER if last is None else last, times[timed])
        at = moments[np.cumsum(header & event)]
        newest = int(at[-1])
        if self.outer_us is not None:
            at = np.where(at == _NEVER, self.outer_us[part], at)
        self.at[part] = at
        numbered = np.cumsum(event)
        self.order[part] = builder.order + numbered - 1
        before = 0
        for row, text in self._telling(telling + start):  # what it says stands between events
            builder.number(int(numbered[row - start]) - before, place.server, reader.name, None)
            before = int(numbered[row - start])
            self._foreign(row, text)
        builder.number(int(numbered[-1]) - before, place.server, reader.name, None if newest == _NEVER else newest)
        return True

    def _count(self, part: slice, header: Mask, event: Mask) -> None:
        reader = self.reader
        coverage = reader.coverage
        records = int(header.sum())
        coverage.lines += len(header)
        coverage.vllm_records += records
        coverage.events += int(event.sum())
        coverage.other_records += int((header & ~event).sum())
        coverage.foreign_lines += int((~header & ~event).sum())
        for row in np.flatnonzero(self.warning[part]) + part.start:
            reader.note_warning(self.first + int(row), self.messages.warnings[int(row)])

    def _telling(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, str]]:
        """Those of the lines that may say something, with their texts."""
        mute = self.memory.mute
        return ((r, text) for r, text in zip(rows.tolist(), self.block.texts(rows), strict=True) if text not in mute)

    def _foreign(self, row: int, text: str) -> None:
        """Read a line without prefix as the reference does: with the record that it stands behind."""
        owner = int(self.owner[row])
        (begin,) = self.block.texts(np.array([owner]))
        header = parse_header(begin) if owner < row else None
        outer = None if self.facts is None else self.facts.at(owner)
        part = RecordText(self.first + row, text)
        if header is None:
            record = Record([part], outer=outer)
        else:
            first = RecordText(self.first + owner, begin[header.start :])
            record = Record([first], header, header.process, header.pid, header.actors, outer)
        reader, engines = self.reader, self.reader.coverage.other_engines
        reader.coverage.foreign_lines -= 1  # counted with the others
        before = reader.behind, sum(engines.values())
        events = list(reader.foreign(record, part))
        for event in events:
            self.take(event)
        if not events and before == (reader.behind, sum(engines.values())):
            self.memory.note_mute(text)

    def hand_over(self, evidence: Evidence | None) -> None:
        """Give the frames to the builder, and the texts of statistics lines to who asked for them."""
        for family, parts in self.messages.parts.items():
            schema = columns_of(family)
            part = joined(parts, schema)
            part = part.kept(self.taken[part.rows])
            if len(part.rows):
                self.builder.add_frame(family, self._frame(part, schema))
        if evidence is None:
            return
        rows = [row for row in sorted(self.messages.texts) if self.taken[row]]
        for row, text in zip(rows, self.block.texts(np.array(rows, np.int64)), strict=True):
            message = text[self.messages.texts[row] :]
            evidence(self.reader.name, self.first + row, message[:MAX_TEXT])

    def _frame(self, part: Part, schema: dict[str, pl.DataType]) -> CompactFrame:
        rows = part.rows
        columns = part.columns | {
            "order": pl.Series(self.order[rows]),
            "line": pl.Series(rows + self.first),
            "time": _times(self.time[rows]),
            "at": _times(self.at[rows]),
            "server": _level(self.server[rows]),
            "run": _level(self.run[rows]),
            "source": self.reader.name,
            "repeated": 1,
            **self._facts(rows),
        }
        varied: list[pl.Series] = []
        same: dict[str, Value] = {}
        coded: dict[str, Coded] = {}
        for name, column in columns.items():
            if isinstance(column, Coded):
                coded[name] = column
            elif isinstance(column, pl.Series):
                varied.append(series(column, len(rows), schema[name]).alias(name))
            else:
                same[name] = column
        return CompactFrame(pl.DataFrame(varied), same, coded)

    def _facts(self, rows: NDArray[np.int64]) -> dict[str, Column]:
        """What the envelopes say."""
        if self.facts is None or self.outer_us is None:
            return {}
        outer, codes = self.facts.outer, self.facts.codes[self.owner]
        return {
            "outer_time": _times(self.outer_us[rows]),
            "host": outer.host,
            "unit": outer.unit,
            "pod": outer.pod,
            "container": outer.container,
            "stream": Coded(self.facts.streams, codes[rows]),
        }


def _facts_from(found: Structure, messages: BlockMessages) -> NDArray[np.int64]:
    """The line from whose envelope each line's facts come.

    A line without a prefix of its own that stands among the first after a record is taken for a part of it
    (`parsers.records.record.Record.tail`), and has its facts.
    """
    places = np.arange(len(found.header))
    tagged = found.header | messages.tagged
    before = np.maximum.accumulate(np.where(tagged, places, -1))
    part = ~tagged & (before >= 0) & (places - before <= MAX_TAIL)
    part &= found.header[np.maximum(before, 0)]
    return np.where(part, before, places)


def _level(values: NDArray[np.int32]) -> pl.Series | int:
    return int(values[0]) if (values == values[0]).all() else pl.Series(values)


def _times(values: NDArray[np.int64]) -> pl.Series:
    return pl.Series(values.view("datetime64[us]"), dtype=pl.Datetime("us"))
