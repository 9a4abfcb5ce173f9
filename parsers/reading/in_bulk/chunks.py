"""A large file cut into chunks, which others read ahead.

What the lines before a chunk decide for it is a `Standing`: a chunk is read from the one that is expected, and what was found counts only
where the chunk before ended in just that. Else it is read once more, from where things really stand. So who reads what, and what
was expected, does not change what is found.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple, Protocol

import polars as pl

from parsers.envelopes.blocks import Pieces
from parsers.lines import MAX_LINE, Line, Loss, Outer, TextBlock, text_blocks
from parsers.reading.by_line import Keep, SourceReader
from parsers.reading.events import Coverage, Event
from parsers.reading.frames import CompactFrame, FrameBuilder
from parsers.reading.in_bulk.envelope_facts import KnownEnvelopes
from parsers.reading.in_bulk.messages import Memory
from parsers.reading.in_bulk.reader import SourceInBulk
from parsers.records.dates import ClockFromHere, to_epoch_us
from parsers.records.prefix import parse_header, strip_ansi
from parsers.records.record import Assembler, PlaceKey, place_of
from parsers.records.servers import Sessions
from parsers.sources.compression import BLOCK

__all__ = ["Beside", "Chunk", "Task", "read_in_chunks"]

CHUNK = 16
"""Blocks of a chunk (`parsers.sources.compression.BLOCK`)."""
_MOST_HEAD = 1000  # lines of a chunk before its first record
_MOST_WRONG = 12  # so many more chunks may be read in vain than not; behind a restart all those in hand are
_UNKNOWN = -(1 << 62)  # stands for the time of the last event before a chunk


class Beside(Protocol):
    """Who shares the work with this process (`logscope.execution.executors.Beside` is one)."""

    def begin(self) -> bool:
        """Start the others, if they are not; False where there are none."""

    def map(self, function: Callable[[Task], Chunk | None], items: Iterable[Task], /) -> Iterator[Chunk | None]:
        """The results in order; `items` are asked for as the work goes on."""


def read_in_chunks(source: Any, whole: SourceInBulk, beside: Beside, year: int | None) -> bool:
    """Read a plain file together with others; False, with nothing read, where it is none or there are none."""
    try:
        pieces = source.from_any_block() if hasattr(source, "from_any_block") else None
        if pieces is None or not beside.begin():
            return False
        file = source.path.open("rb")
    except OSError:
        return False  # whoever reads it in order says what is wrong
    with file:
        _Shared(_File(file, file.seek(0, 2)), source, pieces, whole, year).read(beside)
    return True


class _File:
    """A plain file of `size` bytes, any blocks of which can be read as lines."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.blocks = -(-size // BLOCK)

    def block(self, index: int) -> bytes:
        """One block; shorter than it was where the file was cut meanwhile."""
        self.file.seek(index * BLOCK)
        return self.file.read(min(BLOCK, self.size - index * BLOCK))

    def line_begun(self, index: int) -> bytes | None:
        """The beginning of the line within which a block begins; None where it is too long for one."""
        parts: list[bytes] = []
        for before in range(index - 1, max(-1, index - 2 - MAX_LINE // BLOCK), -1):
            _, feed, part = self.block(before).rpartition(b"\n")
            parts.append(part)
            if feed or not before:
                return b"".join(reversed(parts))
        return None if index else b""

    def lines(self, first: int, last: int, number: int, loss: Loss) -> Iterator[TextBlock] | None:
        """The lines that end in some blocks, as whoever reads all blocks finds them; `number` is the first one's. None as in `line_begun`."""
        begun = self.line_begun(first)
        if begun is None:
            return None
        blocks = chain((begun,) if begun else (), map(self.block, range(first, last)))
        return text_blocks(blocks, loss, number, is_end=last == self.blocks)


class _Counted(Iterator[TextBlock]):
    """Blocks, and how many lines those that were taken have."""

    def __init__(self, blocks: Iterator[TextBlock]) -> None:
        self.blocks, self.lines = blocks, 0

    def __next__(self) -> TextBlock:
        block = next(self.blocks)
        self.lines += len(block.ends)
        return block


class Standing(NamedTuple):
    """What the lines before decide for those from a record on behind which nothing is unfinished.

    `places` are those met, in this order, and of each whether nothing was read there and whether carriage returns were seen; `sessions` the
    servers; `year` the clock's; `timed` those servers' sources that had an event with a time.
    """

    places: tuple[tuple[PlaceKey, bool, bool], ...]
    sessions: list[dict[str, Any]]
    year: int | None
    timed: frozenset[tuple[int, str]]

    def is_like(self, other: Standing) -> bool:
        """Whether both decide the same, but for how often each server has started."""
        mine, others = ([{**server, "run": 0} for server in one.sessions] for one in (self, other))
        return self._replace(sessions=mine) == other._replace(sessions=others)

    def runs_behind(self, other: Standing) -> dict[int, int]:
        """The starts of servers that `other`, which is like this one, does not know of; none of those with none."""
        both = zip(self.sessions, other.sessions, strict=True)
        return {mine["index"]: mine["run"] - its["run"] for mine, its in both if mine["run"] != its["run"]}


class Task(NamedTuple):
    """A chunk to be read: blocks of a file, and what is expected to hold where they begin.

    The file must still be `file` (device and inode), and no shorter than `size`; `texts`: those of statistics lines are wanted.
    """

    source: Any
    file: tuple[int, int]
    size: int
    first: int
    last: int
    group: str
    year: int | None
    keep: Keep
    texts: bool
    expected: Standing


class _Numbered(NamedTuple):
    events: int
    server: int
    source: str
    last_us: int | None


class _Framed(NamedTuple):
    family: str
    lean: CompactFrame


class _Noted(NamedTuple):
    source: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """What was found in a chunk: `told` in the order in which the builder is to be told it, and where everything stands at its end.

    Its `lines` are numbered from 1.

    Its first lines, `head`, are left to who knows what stands before; from line `first` on it was read. `habits` is what is known of
    envelopes, which held all the time, `entries` are those before and at the end (`parsers.envelopes.unwrapper.Unwrapper.entry_before`).
    """

    lines: int
    head: list[Line]
    first: Line
    habits: object
    entries: tuple[tuple[Outer | None, int], tuple[Outer | None, int]]
    told: list[Event | _Numbered | _Framed | _Noted]
    coverage: Coverage
    behind: int
    clients_line: int
    loss: Loss
    clock: ClockFromHere
    sessions: list[dict[str, Any]]
    places: dict[PlaceKey, Assembler]
    here: PlaceKey


class _Shared:
    """Reads a file chunk by chunk; `whole` is where it stands."""

    def __init__(self, file: _File, source: Any, pieces: Pieces, whole: SourceInBulk, year: int | None) -> None:
        self.file, self.source, self.whole, self.year = file, source, whole, year
        self.pieces = pieces
        self.bounds = self._bounds()
        self.lines = 0  # before the chunk in hand
        self.asked: deque[Task] = deque()
        self.spare = _MOST_WRONG

    def read(self, beside: Beside) -> None:
        """Read it to its end."""
        self._read_here(self._next_task())
        for chunk in beside.map(read_chunk, self._tasks()):
            task = self.asked.popleft()
            skip = self._taken(task, chunk)
            self.spare += 1 if skip is None else -1
            if skip is not None:
                self._read_here(task, skip)
        while (left := self._next_task()) is not None:  # the others read in vain
            self._read_here(left)
        self.whole.read_part(iter((self.pieces.unwrapper.finish(),)))
        self.whole.end()
        self.source.loss.truncated += self.pieces.unwrapper.cut_lines
        self.source.loss.bytes += self.pieces.unwrapper.cut
        self.source.note_end(self.file.file, self.file.block(self.file.blocks - 1)[-1:])

    def _bounds(self) -> Iterator[tuple[int, int]]:
        """The chunks: none begins within a line that is too long."""
        first, blocks = 0, self.file.blocks
        while first < blocks:
            last = min(first + CHUNK, blocks)
            while last < blocks and self.file.line_begun(last) is None:
                last += 1
            yield first, last
            first = last

    def _tasks(self) -> Iterator[Task]:
        """What others are to read next, as long as that helps."""
        while self.spare > 0 and (task := self._next_task()) is not None:
            self.asked.append(task)
            yield task

    def _next_task(self) -> Task | None:
        """The next chunk, with what is expected to hold there: what holds here and now."""
        first, last = next(self.bounds, (0, 0))
        if first == last:
            return None
        reader, facts = self.whole.reader, os.fstat(self.file.file.fileno())
        return Task(
            self.source.elsewhere(),
            (facts.st_dev, facts.st_ino),
            self.file.size,
            first,
            last,
            reader.group,
            self.year,
            reader.keep,
            self.whole.evidence is not None,
            _standing(self.whole),
        )

    def _read_here(self, task: Task | None, skip: int = 0) -> None:
        if task is None:
            return
        blocks = _Counted(self.file.lines(task.first, task.last, self.lines + 1, self.source.loss) or iter(()))
        self.whole.read_part(map(self.pieces.of, blocks), skip)
        self.lines += blocks.lines

    def _taken(self, task: Task, chunk: Chunk | None) -> int | None:
        """Take what was found in a chunk; where that cannot be, how many of its lines are read already."""
        pieces, whole = self.pieces, self.whole
        if chunk is None or (chunk.habits, chunk.entries[0]) != (pieces.habits, pieces.unwrapper.entry_before):
            return 0
        for line in chunk.head:
            whole.feed(_later(line, self.lines))
        reader = whole.reader
        fits = whole.ends_before(_later(chunk.first, self.lines)) and all(a.is_clear for a in whole.assemblers.values())
        if not (
            fits
            and (standing := _standing(whole)).is_like(task.expected)
            and reader.clock.goes_on(chunk.clock.years)
            and chunk.first.number + self.lines != reader.clients_line + 1
        ):
            return len(chunk.head)
        runs = standing.runs_behind(task.expected)
        _tell(chunk.told, whole, self.lines, runs)
        for sample in chunk.coverage.warning_samples:
            sample["line"] += self.lines
        reader.go_on(chunk.coverage, chunk.behind, chunk.clients_line + self.lines if chunk.clients_line >= 0 else -1)
        reader.clock.go_on(chunk.clock)
        reader.sessions.go_on([{**s, "run": s["run"] + runs.get(s["index"], 0)} for s in chunk.sessions])
        for assembler in chunk.places.values():
            assembler.stand_behind(self.lines)
        whole.assemblers.go_on(chunk.places)
        whole.here = whole.assemblers.at(chunk.here)
        pieces.unwrapper.entry_before = chunk.entries[1]
        self.source.loss.truncated += chunk.loss.truncated
        self.source.loss.bytes += chunk.loss.bytes
        self.lines += chunk.lines
        return None


def _standing(whole: SourceInBulk) -> Standing:
    """What holds here, if all that is unfinished ended."""
    reader = whole.reader
    return Standing(
        tuple((place, assembler.first, assembler.saw_cr) for place, assembler in whole.assemblers.items()),
        reader.sessions.state(),
        reader.clock.state()["year"],
        frozenset(whole.builder.last_times()),
    )


def _tell(
    told: Iterable[Event | _Numbered | _Framed | _Noted], whole: SourceInBulk, lines: int, runs: Mapping[int, int]
) -> None:
    """Tell the builder, and who asked for texts, what was found in a chunk behind so many lines and starts of servers."""
    builder = whole.builder
    start, times = builder.order, builder.last_times()
    for one in told:
        if isinstance(one, Event):
            one.line += lines
            one.run += runs.get(one.server, 0)
            whole.take(one)
        elif isinstance(one, _Numbered):
            last = one.last_us if one.last_us != _UNKNOWN else times[one.server, one.source]
            builder.number(one.events, one.server, one.source, last)
        elif isinstance(one, _Framed):
            builder.add_frame(one.family, _started(_moved(one.lean, start, lines, times), runs))
        elif whole.evidence is not None:
            whole.evidence(one.source, one.line + lines, one.text)


def _later(line: Line, lines: int) -> Line:
    return line._replace(number=line.number + lines)


def _moved(lean: CompactFrame, start: int, lines: int, times: Mapping[tuple[int, str], int]) -> CompactFrame:
    """Events of which `start` others and so many lines stand before, with the `times` of the last ones."""
    frame = lean.frame.with_columns(pl.col("order") + start, pl.col("line") + lines)
    unknown = (frame["at"].to_physical() == _UNKNOWN).fill_null(value=False)
    if unknown.any():
        server = lean.column("server", frame.to_dict(), pl.Int32())
        for (number, _), last_us in times.items():
            time = pl.lit(last_us, pl.Int64()).cast(pl.Datetime("us"))
            frame = frame.with_columns(at=pl.when(unknown & (server == number)).then(time).otherwise("at"))
    return CompactFrame(frame, lean.same, lean.coded)


def _started(lean: CompactFrame, runs: Mapping[int, int]) -> CompactFrame:
    """Events with so many more starts of their servers before them."""
    if not runs:
        return lean
    own = lean.frame.to_dict()
    server, run = (lean.column(name, own, pl.Int32()) for name in ("server", "run"))
    for number, more in runs.items():
        run = run + (server == number).cast(pl.Int32()) * more
    return CompactFrame(lean.frame.with_columns(run.alias("run")), lean.same, lean.coded)


class _Recorder(FrameBuilder):
    """Stands in a builder's place: what it is told is kept for the builder that knows what stands before."""

    def __init__(self, timed: Iterable[tuple[int, str]]) -> None:
        super().__init__()
        self.told: list[Event | _Numbered | _Framed | _Noted] = []
        self._times = dict.fromkeys(timed, _UNKNOWN)

    def take(self, event: Event) -> None:
        """An event that was read by itself; the ends of tracebacks are not numbered."""
        self.told.append(event)
        if event.family == "exception":
            return
        self._order += 1
        if event.time is not None:
            self._times[event.server, event.source] = to_epoch_us(event.time)

    def last_us(self, server: int, source: str) -> int | None:
        """As a builder's; `_UNKNOWN` where the event stands before the chunk."""
        return self._times.get((server, source))

    def number(self, count: int, server: int, source: str, last_us: int | None) -> int:
        """As a builder's."""
        if last_us is not None:
            self._times[server, source] = last_us
        self.told.append(_Numbered(count, server, source, last_us))
        self._order += count
        return self._order - count

    def add_frame(self, family: str, lean: CompactFrame) -> None:
        """As a builder's."""
        self.told.append(_Framed(family, lean))

    def note(self, source: str, line: int, text: str) -> None:
        """The text of a statistics line."""
        self.told.append(_Noted(source, line, text))


@dataclass(slots=True)
class _Known:
    """What was seen of the file of which a chunk was read last: it comes again in the next one."""

    file: object = None
    pieces: Pieces | None = None
    has_begun: bool = False
    memory: Memory = field(default_factory=Memory)
    envelopes: KnownEnvelopes = field(default_factory=KnownEnvelopes)


_known = _Known()


def read_chunk(task: Task) -> Chunk | None:
    """Read a chunk from where it is expected to begin; None where it can only be read behind the one before."""
    global _known
    try:
        with task.source.path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if (facts.st_dev, facts.st_ino) != task.file or facts.st_size < task.size:
                return None
            whose = task.file, task.size, task.source.modified_us
            if _known.file != whose or _known.pieces is None or _known.pieces.habits is None:
                _known = _Known(whose, task.source.from_any_block())
            return _read_chunk(task, _File(file, task.size), _known)
    except Exception:  # of what was expected: whoever knows what stands before reads it, and says what is wrong
        _known = _Known()
        return None


def _read_chunk(task: Task, file: _File, known: _Known) -> Chunk | None:
    pieces, expected = known.pieces, task.expected
    before = next(file.lines(task.first - 1, task.first, 1, Loss()) or iter(()), None)
    begun = file.lines(task.first, task.last, 1, loss := Loss())
    if pieces is None or before is None or begun is None:
        return None
    blocks = _Counted(begun)
    for block in () if known.has_begun else file.lines(0, 1, 1, Loss()) or ():
        pieces.of(block)
        known.has_begun = True
    pieces.of(before)
    unwrapper, habits = pieces.unwrapper, pieces.habits
    entry, cut = unwrapper.entry_before, (unwrapper.cut, unwrapper.cut_lines)
    piece = next(parts := map(pieces.of, blocks), [])
    lines = list(islice(piece.lines() if isinstance(piece, TextBlock) else piece, _MOST_HEAD))
    start = next((place for place, line in enumerate(lines) if _begins_record(line)), None)
    if start is None or habits is None:
        return None
    clock = ClockFromHere(task.year, task.source.modified_us, expected.year)
    sessions, coverage = Sessions.from_state(expected.sessions), Coverage()
    reader = SourceReader(task.source.name, task.group, clock, sessions, coverage, task.keep)
    recorder = _Recorder(expected.timed)
    whole = SourceInBulk(reader, recorder, recorder.take, recorder.note if task.texts else None, chars=False)
    whole.memory, whole.envelopes = known.memory, known.envelopes
    whole.assemblers.clear()
    for place, first, saw_cr in expected.places:
        assembler = whole.assemblers.at(place)
        assembler.first, assembler.saw_cr = first, saw_cr
    whole.here = whole.assemblers.at(None if lines[start].outer is None else place_of(lines[start].outer))
    whole.read_part(chain((piece,), parts), start)
    is_same = pieces.habits == habits and (unwrapper.cut, unwrapper.cut_lines) == cut
    if not is_same or any(a.held for a in whole.assemblers.values()):
        return None
    here = next(place for place, assembler in whole.assemblers.items() if assembler is whole.here)
    return Chunk(
        blocks.lines, lines[:start], lines[start], habits, (entry, unwrapper.entry_before), recorder.told, coverage, reader.behind,
        reader.clients_line, loss, clock, sessions.state(), dict(whole.assemblers), here,
    )  # fmt: skip


def _begins_record(line: Line) -> bool:
    return line.record is None and not line.inside and parse_header(strip_ansi(line.text)) is not None
