"""A log that is read on: its blocks in bulk, up to the last lines, which are left to who has to remember where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parsers.lines import TextBlock
from parsers.lines_part import Line
from parsers.reading.by_line import SourceReader
from parsers.reading.events import Event
from parsers.reading.frames import FrameBuilder
from parsers.reading.in_bulk.reader import BLOCK, Evidence, _SourceInBulk
from parsers.records.record import Assembler, PlaceKey

__all__ = ["Bulk", "ReadOn"]

LEFT = 1000
"""So many lines at least are left."""

Piece = TextBlock | list[Line]


@dataclass(frozen=True, slots=True)
class Bulk:
    """Where to put what is read in bulk: frames go to `builder`, single events to `take`, texts of statistics lines to `evidence`."""

    builder: FrameBuilder
    take: Callable[[Event], None]
    evidence: Evidence


class ReadOn(_SourceInBulk):
    """Takes the pieces of a source as they come, and reads what stands far enough before the newest.

    `assemblers` has that of the lines without a place (None); before the first piece the source had `before` lines.
    """

    def __init__(
        self,
        bulk: Bulk,
        reader: SourceReader,
        assemblers: dict[PlaceKey, Assembler],
        before: int,
    ) -> None:
        super().__init__(reader, bulk.builder, bulk.take, bulk.evidence, chars=False)
        self.assemblers, self.bare = assemblers, assemblers[None]
        self.before = self.last_line = before
        self._waiting: list[Piece] = []
        self._held: list[TextBlock] = []

    def add(self, piece: Piece) -> None:
        """Take the next piece; its lines are numbered from the first piece's."""
        self._waiting.append(piece)
        while sum(map(_size, self._waiting[1:])) >= LEFT:
            self._take(self._waiting.pop(0))

    def rest(self) -> Iterator[Line]:
        """The lines that were left."""
        self._leave_last()
        for block in self._blocks(self._held, more=True):
            yield from TextBlock(block.number - self.before, block.data).lines()
        for piece in self._waiting:
            yield from _lines(piece)

    def _leave_last(self) -> None:
        """Of a long last piece read all but the last lines."""
        spare = sum(map(_size, self._waiting)) - LEFT
        if spare <= 0:
            return
        first = self._waiting[0]
        if not isinstance(first, TextBlock) or first.worn is not None:
            return
        cut = min(spare, len(first.ends))
        at = int(first.ends[cut - 1]) + 1
        rest = [TextBlock(first.number + cut, first.data[at:])] if at < len(first) else []
        self._waiting[:1] = rest
        self._take(TextBlock(first.number, first.data[:at]))

    def _take(self, piece: Piece) -> None:
        self.last_line += _size(piece)
        if isinstance(piece, TextBlock) and piece.worn is None:
            self._held.append(TextBlock(piece.number + self.before, piece.data))
            if sum(map(len, self._held)) >= BLOCK:
                self._held = self._blocks(self._held, more=True)
            return
        self._held = self._blocks(self._held, more=False)
        for line in _lines(piece):
            self._feed(line._replace(number=line.number + self.before))


def _lines(piece: Piece) -> Iterator[Line]:
    return piece.lines() if isinstance(piece, TextBlock) else iter(piece)


def _size(piece: Piece) -> int:
    return len(piece.ends) if isinstance(piece, TextBlock) else len(piece)
