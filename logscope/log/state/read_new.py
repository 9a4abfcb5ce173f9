"""What is new in a set of logs since the last run: events that are settled, and those at the end of a log that may still become others.

A record is settled when the next one has begun. Until then it is read again by each run, so that a line or a record that was
cut by the end of a run counts once, and whole. A compressed file, and a file after which its set goes on, ends where it ends.

The events that are new since the last run: `new_events`.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from logscope.log.state.read_state import Entry, ReadState, check_resumable, locked, sources_with_entries
from parsers.lines import Line, TextBlock
from parsers.reading.by_line import Keep, SourceReader
from parsers.reading.events import Coverage, Event, add_coverage, event_row
from parsers.reading.in_bulk.reader import Bulk, ReadOn
from parsers.records.dates import RecordClock
from parsers.records.record import Assembler, Assemblers, Record, in_line_order, is_open, may_continue
from parsers.records.servers import Sessions
from parsers.sources.resuming import ResumePoint, RewrittenError, TailWindow

__all__ = ["COMPLETE", "OPEN", "SETTLED", "FilesRead", "Found", "new_events", "read_new"]
CONTEXT = 200
"""So many lines before the first unsettled one are read again: they show which envelopes are worn."""

_RECORDS = 4000

QUIET_S = 5.0
"""A log that nothing was written to for so long is taken to have ended its last record."""

Piece = TextBlock | list[Line]
Found = tuple[Event, Entry, str]
"""An event (its `source` is the file's id), the file it stands in, and its standing: SETTLED, COMPLETE or OPEN."""

SETTLED = "settled"
COMPLETE = "complete"
"""At the end of its log, and most likely as it will stay."""
OPEN = "open"
"""At the end of its log, where more of it may follow."""


@dataclass(slots=True)
class FilesRead:
    """What a run found out about the files themselves: those present, in reading order, and what could not be read."""

    present: list[Entry] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)


def read_new(
    sources: Sequence[Any],
    state: ReadState,
    files_read: FilesRead,
    *,
    year: int | None,
    keep: Keep,
    in_bulk: Bulk | None = None,
) -> Iterator[Found]:
    """The events that are new in `sources`; when they are taken `state` has moved on and `files_read` is filled.

    With `in_bulk` settled events go there where they can be read many at once. Raises StateError for a source that cannot be read on.
    """
    check_resumable(sources)
    sessions = Sessions.from_state(state.sessions)
    clocks: dict[str, RecordClock] = {}
    known = sources_with_entries(sources, state)
    for index, (source, entry) in enumerate(known):
        last = all(other.stream != entry.stream for _, other in known[index + 1 :])
        clock = clocks.get(entry.stream)
        if clock is None:
            clock = clocks[entry.stream] = RecordClock(year, source.modified_us)
            if entry.stream in state.clocks:
                clock.restore(state.clocks[entry.stream])
        try:
            yield from _NewInSource(source, entry, clock, sessions, keep, in_bulk, growing=last).read()
        except RewrittenError:  # which is found out before the first event
            entry = _anew(state, entry)
            known[index] = (source, entry)
            yield from _NewInSource(source, entry, clock, sessions, keep, in_bulk, growing=last).read()
        files_read.present.append(entry)
    state.sessions = sessions.state()
    state.clocks.update({stream: clock.state() for stream, clock in clocks.items()})
    files_read.problems = [
        {"source": s.name, "problem": s.loss.problem or s.problem or ""}
        for s in sources
        if s.loss.problem is not None or s.problem is not None
    ]


def _anew(state: ReadState, entry: Entry) -> Entry:
    """Another file stands under this one's name and head: what was read of the old one stays."""
    fresh = Entry(
        len(state.entries), entry.name, entry.group, entry.stream, entry.inode,
        entry.head_size, entry.head, bytes=entry.bytes,
    )  # fmt: skip
    entry.inode, entry.head_size, entry.head = None, 0, "rewritten"
    state.entries.append(fresh)
    return fresh


class _NewInSource:
    """Reads one file on."""

    def __init__(
        self,
        source: Any,
        entry: Entry,
        clock: RecordClock,
        sessions: Sessions,
        keep: Keep,
        in_bulk: Bulk | None,
        *,
        growing: bool,
    ) -> None:
        self.source, self.entry, self.clock, self.sessions = source, entry, clock, sessions
        self.keep, self.growing, self.in_bulk = keep, growing, in_bulk
        self.window = TailWindow(entry.resume_point)
        self.assemblers = Assemblers(self._assembler)
        self.starts: deque[int] = deque(maxlen=_RECORDS)
        self.last_line = entry.resume_point.lines
        self.closed = entry.resume_point.closed

    def read(self) -> Iterator[Found]:
        """The file's new events; then its entry says where it was left. Raises RewrittenError."""
        if self.closed and self.entry.seen == self.source.size:
            return
        backwards = self.clock.backwards
        yield from self._read()
        self.entry.seen = self.source.size
        self.entry.settled.out_of_order += self.clock.backwards - backwards

    def _read(self) -> Iterator[Found]:
        closed = self.closed
        self.source.window = self.window
        pieces: Iterator[Piece] = self.source.pieces()
        reader = self._reader(self.clock, self.sessions, self.entry.settled)
        lines = yield from self._settle(pieces, reader)
        first = next(lines, None)
        if closed and self.window.length <= self.entry.resume_point.end:
            return
        if self.window.whole or self.source.newest_first:
            yield from self._tail(first, lines)
        elif self.growing and not self._is_complete():
            resume_point = yield from self._resume_point(reader)
            yield from self._tail(first, lines)
            self.entry.resume_point = resume_point
        else:
            rest = chain([] if first is None else [first], lines)
            yield from self._rest(rest, reader, SETTLED)
            self.entry.tail = Coverage()
            self.entry.resume_point = self.window.resume_at(self._context(None), closed=True)

    def _is_complete(self) -> bool:
        return self.source.compression is not None and self.source.loss.problem is None

    def _reader(self, clock: RecordClock, sessions: Sessions, coverage: Coverage) -> SourceReader:
        name, stream = str(self.entry.id), self.entry.stream
        return SourceReader(name, stream, clock, sessions, coverage, self.keep)

    def _assembler(self) -> Assembler:
        made = Assembler()
        made.saw_cr = self.entry.saw_cr
        made.first = self.entry.resume_point.start == 0
        return made

    def _numbered(self, line: Line) -> Line:
        return line._replace(number=line.number + self.entry.resume_point.lines)

    def _settle(self, pieces: Iterator[Piece], reader: SourceReader) -> Generator[Found, None, Iterator[Line]]:
        """Read up to the last complete line; gives the lines after it, the first of which may be cut."""
        cut = 0
        bulk: ReadOn | None = None
        rest: Iterator[Line] = iter(())
        for piece in pieces:
            if self.window.ended and _size(piece):
                rest = chain(_lines(piece), chain.from_iterable(map(_lines, pieces)))
                break
            if self.window.known:
                cut = self.source.loss.truncated
                yield from self._one_by_one(_lines(piece), None)
                continue
            self._close_known()
            if bulk is None and self.in_bulk is not None:
                bulk = ReadOn(self.in_bulk, reader, self.assemblers, self.entry.resume_point.lines)
            if bulk is not None:
                bulk.add(piece)
            else:
                yield from self._one_by_one(_lines(piece), reader)
        self._close_known()
        if bulk is not None:
            left = bulk.rest()
            yield from self._one_by_one(left, reader)
        self._lost(cut, reader.coverage)
        return rest

    def _one_by_one(self, lines: Iterator[Line], reader: SourceReader | None) -> Iterator[Found]:
        """The events of some lines; none where they are known already (no `reader`)."""
        for line in lines:
            numbered = self._numbered(line)
            if reader is not None:
                reader.count(line)
            for record in self.assemblers.feed(numbered):
                self._note(record)
                if reader is not None:
                    yield from self._events(record, reader, SETTLED)
            self.last_line = numbered.number

    def _close_known(self) -> None:
        """Nothing was pending where a file was left for good."""
        if self.closed:
            for assembler in self.assemblers.values():
                list(assembler.end())
            self.closed = False

    def _lost(self, before: int, coverage: Coverage) -> None:
        coverage.truncated += self.source.loss.truncated - before

    def _note(self, record: Record) -> None:
        if record.header is not None:
            self.starts.append(record.number)

    def _events(self, record: Record, reader: SourceReader, standing: str) -> Iterator[Found]:
        for event in reader.events(record):
            yield event, self.entry, standing

    def _resume_point(self, reader: SourceReader) -> Generator[Found, None, ResumePoint]:
        """Where the next run begins; what has waited for its next line too long is settled."""
        self.entry.saw_cr |= any(a.saw_cr for a in self.assemblers.values())
        earliest = self.window.earliest_line()
        waiting = [(a.since, a) for a in in_line_order(self.assemblers.values()) if a.since]
        for number, assembler in waiting:
            if number < earliest:
                for record in assembler.end():
                    yield from self._events(record, reader, SETTLED)
        pending = [number for number, _ in waiting if number >= earliest]
        unsettled = min([*pending, self.last_line + 1])
        return self.window.resume_at(self._context(unsettled))

    def _context(self, unsettled: int | None) -> int:
        """A line at which a record begins, some lines before the first unsettled one."""
        first = unsettled if unsettled is not None else self.last_line + 1
        wanted = min(first, self.last_line + 1 - CONTEXT)
        earliest = self.window.earliest_line()
        fitting = [n for n in self.starts if earliest <= n <= wanted]
        if fitting:
            return max(fitting)
        at_start = self.entry.resume_point.lines + 1
        if earliest <= at_start:
            return at_start
        return min(earliest, first)

    def _tail(self, first: Line | None, lines: Iterator[Line]) -> Iterator[Found]:
        """What stands at the end, as it would be if nothing followed."""
        sessions, clock = copy.deepcopy(self.sessions), copy.deepcopy(self.clock)
        self.entry.tail = Coverage()
        reader = self._reader(clock, sessions, self.entry.tail)
        rest = chain([] if first is None else [first], lines)
        yield from self._rest(rest, reader, COMPLETE if first is None else OPEN)
        self.entry.tail.out_of_order = clock.backwards - self.clock.backwards
        self.sessions.reserve(sessions)

    def _rest(self, lines: Iterable[Line], reader: SourceReader, standing: str) -> Iterator[Found]:
        cut = self.source.loss.truncated
        for line in lines:
            reader.count(line)
            for record in self.assemblers.feed(self._numbered(line)):
                yield from self._events(record, reader, standing)
        for assembler in in_line_order(self.assemblers.values()):
            for record in assembler.end():
                may_grow = standing == COMPLETE and not self._is_quiet() and _may_grow(record)
                yield from self._events(record, reader, OPEN if may_grow else standing)
        reader.coverage.truncated += self.source.loss.truncated - cut

    def _is_quiet(self) -> bool:
        modified = self.source.modified_us
        return modified is not None and time.time() - modified / 1e6 >= QUIET_S


def _lines(piece: Piece) -> Iterator[Line]:
    return piece.lines() if isinstance(piece, TextBlock) else iter(piece)


def _size(piece: Piece) -> int:
    return len(piece)


def _may_grow(record: Record) -> bool:
    """Whether the record is one of those that vLLM prints in several lines, or has begun to."""
    return len(record.lines) > 1 or is_open(record) or may_continue(record.lines[0].text)


def new_events(
    folder: Path, sources: Sequence[Any], coverage: Coverage, *, year: int | None = None, keep: Keep
) -> Iterator[Event]:
    """Yield what no run with this `folder` gave yet; the folder takes note once all were taken, and `coverage` says what this run read.

    The last record of a log that grows is given once it looks complete; if it then turns out longer, it is given again. Raises
    StateError for a folder that cannot be used and for sources that cannot be read on.
    """
    options = {"year": year, "all": keep.other, "prompts": keep.prompts}
    with locked(folder):
        state = ReadState.load(folder, options)
        files_read = FilesRead()
        before = {entry.id: replace(entry.settled) for entry in state.entries}
        given = {entry.id: Counter(entry.given) for entry in state.entries}
        early: dict[int, list[str]] = {}
        for event, entry, standing in read_new(sources, state, files_read, year=year, keep=keep):
            if standing == OPEN:
                continue
            mark = _mark(event)
            old = given.setdefault(entry.id, Counter())
            if standing != SETTLED:
                early.setdefault(entry.id, []).append(mark)
            if old[mark]:
                old[mark] -= 1
            else:
                yield replace(event, source=entry.name)
        for entry in files_read.present:
            entry.given = early.get(entry.id, [])
            _add_news(coverage, entry.settled, before.get(entry.id))
            coverage.sources.append(entry.name)
        coverage.skipped_sources += files_read.problems
        coverage.partly = bool(files_read.problems)
        state.runs += 1
        state.save(folder)


def _mark(event: Event) -> str:
    """By what an event is known again in the next run."""
    what = event_row(replace(event, source="", server=0))
    return hashlib.sha256(repr(what).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _add_news(coverage: Coverage, now: Coverage, before: Coverage | None) -> None:
    add_coverage(coverage, now)
    if before is None:
        return
    for name in ("lines", "events", "other_records", "foreign_lines", "unrecognized_warnings"):
        setattr(coverage, name, getattr(coverage, name) - getattr(before, name))
