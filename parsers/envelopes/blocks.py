"""From blocks of bytes to payload lines: what is plain stays in blocks, so that it can be read in bulk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from parsers.envelopes import Clock, Unwrapper
from parsers.envelopes.bulk import Worn, undressed, undressed_again
from parsers.envelopes.chronology import goes_back, inner_clocks, newest_last
from parsers.envelopes.journal_fields import ExportReader, journal_entry
from parsers.envelopes.rare import Rows, rows_of
from parsers.envelopes.unwrapper import SAMPLE
from parsers.lines import TextBlock, text_blocks
from parsers.lines_part import Line

if TYPE_CHECKING:
    from parsers.sources.source import Loss

__all__ = ["is_newest_first", "turned_round", "unwrapped"]

Piece = TextBlock | list[Line]

_CLOCKS = 2000  # so many lines show whether a clock goes back
_EXPORT = re.compile(rb"(?:__[A-Z_]+=[^\n]*\n)+[A-Z_]")


def unwrapped(
    blocks: Iterator[bytes], loss: Loss, clock: Clock, *, by_entry: Callable[[], bool], bulk: bool
) -> Iterator[Piece]:
    """The pieces of a source: text in which no line wears an envelope, or lines taken out of theirs.

    `by_entry` tells, once blocks were read, whether lines are numbered by journal entry instead of by line.
    With `bulk`, text in which all lines wear the same envelopes comes as a block too, without them.
    """
    first = next(blocks, None)
    if first is None:
        return
    blocks = chain((first,), blocks)
    if _EXPORT.match(first):
        yield from _exported(blocks, clock, by_entry=by_entry())
        return
    unwrapper = Unwrapper(clock)
    lines = text_blocks(blocks, loss)
    head = next(lines, None)
    if head is None:
        return
    lines = chain((head,), lines)
    rows = rows_of(head.head(SAMPLE)[:-1])
    if rows is not None:
        yield from _rejoined(lines, rows, unwrapper)
    else:
        pieces = _Pieces(unwrapper, bulk)
        yield from map(pieces.of, lines)
        yield unwrapper.finish()
    loss.truncated += unwrapper.cut_lines
    loss.bytes += unwrapper.cut


class _Pieces:
    """Blocks as they are, without their envelopes (`bulk`), or as lines."""

    def __init__(self, unwrapper: Unwrapper, bulk: bool) -> None:
        self.unwrapper, self.bulk = unwrapper, bulk
        self._worn: Worn | None = None  # by the last block, if its last line was a usual one

    def of(self, block: TextBlock) -> Piece:
        """The form in which a block can be read."""
        unwrapper = self.unwrapper
        if not unwrapper.busy:
            bare = undressed_again(block, self._worn) if self._worn is not None else None
            if bare is not None:
                return self._went_past(bare)
            self._worn = None
            unusual = block.unusual()
            if not len(unusual) and not unwrapper.wraps(block.line(0)):
                return block
            unwrapper.survey(block.head(SAMPLE))
            if _is_plain(block, unusual, unwrapper):
                return block
            bare = undressed(block, unwrapper) if self.bulk else None
            if bare is not None:
                return self._went_past(bare)
        self._worn = None
        return unwrapper.feed_block(block.number, block.texts())

    def _went_past(self, bare: TextBlock) -> TextBlock:
        last = len(bare.ends) - 1
        unusual = bare.unusual()
        self._worn = bare.worn if last not in unusual[-1:] else None
        if bare.worn is not None:  # what follows may wear what its last line wears
            self.unwrapper.feed(bare.number + last, bare.worn.dressed.line(last))
        return bare


def _rejoined(
    blocks: Iterator[TextBlock], rows: Rows, unwrapper: Unwrapper
) -> Iterator[list[Line]]:
    """Lines that a terminal wrapped: joined, then taken out of their envelopes."""
    for block in blocks:
        joined = list(rows.join(enumerate(block.texts(), block.number)))
        unwrapper.survey([text for _, text in joined[:SAMPLE]])
        yield [line for number, text in joined for line in unwrapper.feed(number, text)]
    last = [line for number, text in rows.rest() for line in unwrapper.feed(number, text)]
    yield last + unwrapper.finish()


def _is_plain(block: TextBlock, unusual: NDArray[np.int64], unwrapper: Unwrapper) -> bool:
    return not any(unwrapper.wraps(block.line(index)) for index in (0, *unusual.tolist()))


def _exported(blocks: Iterator[bytes], clock: Clock, *, by_entry: bool) -> Iterator[list[Line]]:
    """Entries of the journal's export format; a payload may itself wear an envelope."""
    reader, unwrapper, entry = ExportReader(), Unwrapper(clock), 0
    for block in blocks:
        lines: list[Line] = []
        for start, fields in reader.feed(block):
            entry += 1
            lines += _entry_lines(unwrapper, entry if by_entry else start, fields, clock)
        yield lines
    lines = []
    for start, fields in reader.finish():
        lines += _entry_lines(unwrapper, entry + 1 if by_entry else start, fields, clock)
    yield lines + unwrapper.finish()


def _entry_lines(
    unwrapper: Unwrapper, number: int, fields: dict[str, object], clock: Clock
) -> list[Line]:
    peeled = journal_entry(fields, clock, "journal-export")
    return unwrapper.entry(number, peeled) if peeled is not None else []


def is_newest_first(piece: Piece) -> bool:
    """Whether the clock of a source's first piece goes back nearly always."""
    if isinstance(piece, TextBlock) and piece.worn is None:
        return goes_back(inner_clocks(piece.data))
    head = islice(_lines(piece), _CLOCKS)
    times = [line.outer.time_us for line in head if line.outer and line.outer.time_us is not None]
    return goes_back(times)


def turned_round(first: Piece, rest: Iterator[Piece]) -> Iterator[list[Line]]:
    """The lines of a newest-first source, oldest first."""
    lines = newest_last(line for piece in chain((first,), rest) for line in _lines(piece))
    while part := list(islice(lines, 4096)):
        yield part


def _lines(piece: Piece) -> Iterator[Line]:
    return piece.lines() if isinstance(piece, TextBlock) else iter(piece)
