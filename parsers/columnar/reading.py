"""From sources to frames: blocks in bulk, and line by line where a block holds what columns cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers.columnar.block import Block, Mask, is_available
from parsers.columnar.messages import Memory, Said, messages_of
from parsers.columnar.parts import Part, joined, series
from parsers.columnar.structure import Structure, mark_tails, structure_of
from parsers.columnar.templates import alike_in
from parsers.events import Coverage, Event
from parsers.frames import FrameBuilder, columns_of
from parsers.lean import Coded, Lean, Value
from parsers.lines import Line
from parsers.prefix import parse_header
from parsers.reader import (
    KEEP_EVENTS,
    MAX_TEXT,
    Keep,
    LogSource,
    SourceReader,
    readers,
)
from parsers.records import Assembler, PlaceKey, Record, as_begun, is_open, place_of
from parsers.text_blocks import TextBlock

__all__ = ["Evidence", "read_frames"]

BLOCK = 1 << 23
_LARGEST = 31 << 20
_FEWEST = 16  # shorter stretches are read line by line
_CHUNK = 256
_NEVER = np.iinfo(np.int64).min  # NaT, which Polars takes for null

Evidence = Callable[[str, int, str], None]
"""Takes source, line and text of a statistics line."""


def read_frames(
    sources: Sequence[LogSource],
    coverage: Coverage,
    builder: FrameBuilder,
    *,
    year: int | None = None,
    keep: Keep = KEEP_EVENTS,
    take: Callable[[Event], None] | None = None,
    evidence: Evidence | None = None,
) -> None:
    """Read `sources` into `builder`; `coverage` is filled as by `parsers.reader.read_events`.

    `take` gets the events that are read one by one in the builder's stead, and may hand them on to it; `evidence` gets the
    texts of the statistics lines that are not.
    """
    bulk = is_available() and not keep.other and not keep.prompts
    bytes(_LARGEST)  # glibc gives freed memory back at once until a piece of that size was freed
    for source, reader in readers(sources, coverage, year=year, keep=keep):
        pieces = getattr(source, "pieces", None)
        if pieces is None or not bulk:
            for event in reader.read(source.lines()):
                (take or builder.add)(event)
        else:
            chars = source.size is None
            _SourceInBulk(reader, builder, take or builder.add, evidence, chars).read(pieces())


class _SourceInBulk:
    """Reads one source; `reader` keeps clock, servers and counts for both ways of reading."""

    def __init__(
        self,
        reader: SourceReader,
        builder: FrameBuilder,
        take: Callable[[Event], None],
        evidence: Evidence | None,
        chars: bool,
    ) -> None:
        self.reader, self.builder, self.take, self.evidence = reader, builder, take, evidence
        self.chars = chars
        self.assemblers: dict[PlaceKey, Assembler] = {None: Assembler()}
        self.bare = self.assemblers[None]
        self.memory = Memory()

    def read(self, pieces: Iterator[TextBlock | list[Line]]) -> None:
        held: list[TextBlock] = []  # plain ones, to be read as one
        for piece in pieces:
            if isinstance(piece, TextBlock) and piece.worn is None:
                held.append(piece)
                if sum(map(len, held)) >= BLOCK:
                    held = self._blocks(held, more=True)
            else:
                held = self._blocks(held, more=False)
                for line in piece.lines() if isinstance(piece, TextBlock) else piece:
                    self._feed(line)
        self._blocks(held, more=False)
        for assembler in as_begun(self.assemblers.values()):
            self._records(assembler.end())

    # -- line by line --------------------------------------------------------------------------------

    def _feed(self, line: Line) -> None:
        self.reader.count(line)
        key = place_of(line.outer)
        assembler = self.assemblers.get(key)
        if assembler is None:
            assembler = self.assemblers[key] = Assembler()
        self._records(assembler.feed(line))

    def _records(self, records: Iterator[Record]) -> None:
        for record in records:
            for event in self.reader.events(record):
                self.take(event)

    def _is_done(self, text: str, *, header: bool) -> bool:
        """Whether no line from `text` on belongs to what has been read line by line."""
        pending = self.bare.pending
        if self.bare.first or self.bare.held:
            return False
        if pending is None:
            return True
        if is_open(pending):
            return False
        if not header:  # an access line after an access line
            return len(self.assemblers) == 1
        prefix = parse_header(text)
        return prefix is not None and not self.bare.continues(
            pending, prefix, text[prefix.start :], None
        )

    # -- in bulk -------------------------------------------------------------------------------------

    def _blocks(self, held: Sequence[TextBlock], *, more: bool) -> list[TextBlock]:
        """Read successive blocks as one; where `more` follow, gives back the last record, which may go on there."""
        if not held:
            return []
        number, block = held[0].number, Block(held)
        found = structure_of(block, alike_in(block, self.memory.lines))
        said = messages_of(block, found, self.memory)
        last = mark_tails(found, said.request)
        stretch = _Stretch(self, number, block, found, said)
        count = last if more and last else len(block)
        self._lines(stretch, count)
        stretch.hand_over()
        if count == len(block):
            return []
        return [TextBlock(number + count, block.stretch(int(block.starts[count]), block.size))]

    def _lines(self, stretch: _Stretch, count: int) -> None:
        """Read the first `count` lines of a block, as many as possible in bulk."""
        block, number, found = stretch.block, stretch.first, stretch.found
        begins = ~found.bad & found.header
        begins[1:] |= ~found.bad[1:] & found.reached[1:] & found.reached[:-1]
        ready = np.flatnonzero(begins & _long_enough(found.bad))
        stops = np.flatnonzero(found.bad)
        at = start = 0
        chunk: list[str] = []
        while at < count:
            if not start <= at < start + len(chunk):
                chunk, start = block.texts(range(at, min(at + _CHUNK, count))), at
            if self._may_begin(at, chunk[at - start], found, ready):
                self._records(self.bare.end())
                place = np.searchsorted(stops, at)
                end = int(stops[place]) if place < len(stops) else count
                if stretch.read(at, end):
                    at = end
                    continue
            self._feed(Line(number + at, chunk[at - start]))
            at += 1

    def _may_begin(self, at: int, text: str, found: Structure, ready: NDArray[np.int64]) -> bool:
        if found.bad[at]:
            return False
        clean = self.bare.pending is None and not self.bare.held and not self.bare.first
        if at == 0 and clean:
            return True
        place = np.searchsorted(ready, at)
        if place >= len(ready) or ready[place] != at:
            return False
        return self._is_done(text, header=bool(found.header[at]))


def _long_enough(bad: Mask) -> Mask:
    """The lines after which no bad one, and not the end, comes too soon."""
    stops = np.append(np.flatnonzero(bad), len(bad))
    near = (stops[:, None] - np.arange(_FEWEST)).reshape(-1)
    long = np.ones(len(bad) + 1, np.bool_)
    long[near[near >= 0]] = False
    return long[:-1]


class _Stretch:
    """The stretches of one block that are read in bulk: each line's time and place, and at the end the frames."""

    def __init__(
        self, source: _SourceInBulk, number: int, block: Block, found: Structure, said: Said
    ) -> None:
        count = len(block)
        self.source, self.first, self.block = source, number, block
        self.found, self.said = found, said
        self.taken = np.zeros(count, np.bool_)
        self.time = np.full(count, _NEVER)
        self.at = np.full(count, _NEVER)
        self.order = np.zeros(count, np.int64)
        self.server = np.zeros(count, np.int32)
        self.run = np.zeros(count, np.int32)
        self.warning = np.zeros(count, np.bool_)
        self.warning[list(said.warnings)] = True

    def read(self, start: int, end: int) -> bool:
        """Take the lines from `start` to before `end`; False, with nothing done, where a stamp is no date."""
        reader, builder = self.source.reader, self.source.builder
        part = slice(start, end)
        header, event = self.found.header[part], self.said.event[part]
        times = reader.clock.resolve_all(self.found.stamps[part][header])
        if times is None:
            return False
        self._count(part, header, event)
        self.taken[part] = True
        events = int(event.sum())
        if not events:
            return True
        family = "stats" if self.said.serving[part].any() else "http"
        place = reader.sessions.place(reader.group, Record([]), family, "", {})
        self.server[part], self.run[part] = place.server, place.run
        self.time[part][header] = times
        timed = event[header]  # the records that are events
        last = builder.last_us(place.server, reader.name)
        moments = np.append(_NEVER if last is None else last, times[timed])
        self.at[part] = moments[np.cumsum(header & event)]
        newest = int(self.at[part][-1])
        first = builder.number(
            events, place.server, reader.name, None if newest == _NEVER else newest
        )
        self.order[part] = first + np.cumsum(event) - 1
        return True

    def _count(self, part: slice, header: Mask, event: Mask) -> None:
        reader = self.source.reader
        coverage = reader.coverage
        records = int(header.sum())
        coverage.lines += len(header)
        coverage.vllm_records += records
        coverage.events += int(event.sum())
        coverage.other_records += int((header & ~event).sum())
        coverage.foreign_lines += int((~header & ~event).sum())
        if self.source.chars:
            reader.chars += self.block.width(part.start, part.stop)
        for row in np.flatnonzero(self.warning[part]) + part.start:
            reader.note_warning(self.first + int(row), self.said.warnings[int(row)])

    def hand_over(self) -> None:
        """Give the frames to the builder, and the texts of statistics lines to who asked for them."""
        for family, parts in self.said.parts.items():
            schema = columns_of(family)
            part = joined(parts, schema)
            part = part.kept(self.taken[part.rows])
            if len(part.rows):
                self.source.builder.add_frame(family, self._frame(part, schema))
        evidence = self.source.evidence
        if evidence is None:
            return
        rows = [row for row in sorted(self.said.texts) if self.taken[row]]
        for row, text in zip(rows, self.block.texts(np.array(rows, np.int64)), strict=True):
            message = text[self.said.texts[row] :]
            evidence(self.source.reader.name, self.first + row, message[:MAX_TEXT])

    def _frame(self, part: Part, schema: dict[str, pl.DataType]) -> Lean:
        rows = part.rows
        columns = part.columns | {
            "order": pl.Series(self.order[rows]),
            "line": pl.Series(rows + self.first),
            "time": _times(self.time[rows]),
            "at": _times(self.at[rows]),
            "server": _level(self.server[rows]),
            "run": _level(self.run[rows]),
            "source": self.source.reader.name,
            "repeated": 1,
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
        return Lean(pl.DataFrame(varied), same, coded)


def _level(values: NDArray[np.int32]) -> pl.Series | int:
    return int(values[0]) if (values == values[0]).all() else pl.Series(values)


def _times(values: NDArray[np.int64]) -> pl.Series:
    return pl.Series(values.view("datetime64[us]"), dtype=pl.Datetime("us"))
