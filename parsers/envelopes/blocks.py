"""From blocks of bytes to payload lines: what is plain stays in blocks, so that it can be read in bulk.

Envelopes taken off a whole block at once, where every line wears the same ones.

A block of a stamped log becomes plain text at the speed of one substitution; the facts of a line (its
`Outer`) are made when they are asked for. Only where this gives what line by line would give: each line
wears the envelopes, and those whose payload does not begin as a record are compared one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from parsers.envelopes import Clock, Unwrapper
from parsers.envelopes.form import Envelope
from parsers.envelopes.forms import BY_START
from parsers.envelopes.journal_fields import ExportReader, journal_entry
from parsers.envelopes.rare import Rows, goes_back, inner_clocks, newest_last, rows_of
from parsers.envelopes.unwrapper import SAMPLE, merged_outer
from parsers.lines import Line, Loss, Outer, TextBlock, text_blocks

__all__ = ["Worn", "is_newest_first", "turned_round", "undressed", "undressed_again", "unwrapped"]
_LAYERS = 3
_FEWEST_LINES = 8
_MOST_UNUSUAL = 8  # one line in so many may be worth a look; with more of them line by line is as fast
_RECORD = re.compile(rb"^(?:\([A-Z]|INFO |DEBUG |WARNING |ERROR |CRITICAL )", re.M)


class Worn:
    """The envelopes that were taken off a block, and its lines as they were (`dressed`)."""

    def __init__(self, dressed: TextBlock, envelopes: tuple[Envelope, ...], clock: Clock) -> None:
        self.dressed = dressed
        self.envelopes = envelopes
        self.names = tuple(envelope.name for envelope in envelopes)
        self._clock = clock

    def of(self, dressed: TextBlock) -> Worn:
        """The same envelopes, on another block."""
        return Worn(dressed, self.envelopes, self._clock)

    def outer(self, index: int) -> Outer:
        """The facts of the block's line `index` (from 0)."""
        return self.facts(self.dressed.line(index))

    def facts(self, text: str) -> Outer:
        """The facts of a line that wears these envelopes."""
        outer: Outer | None = None
        for envelope in self.envelopes:
            peeled = envelope.peel(text, self._clock)
            if peeled is None:  # undecodable bytes in the envelope itself
                break
            outer = peeled.outer if outer is None else merged_outer(outer, peeled.outer)
            text = peeled.text
        return outer if outer is not None else Outer(self.envelopes[0].name)


def undressed(block: TextBlock, unwrapper: Unwrapper) -> TextBlock | None:
    """The block without its envelopes, or None when its lines must be looked at one by one.

    `unwrapper` has surveyed the block; it is not changed.
    """
    clock = unwrapper.clock
    data = block.data
    total = len(block.ends)
    envelopes: list[Envelope] = []
    while len(envelopes) < _LAYERS and (envelope := _first_worn(data, clock)) is not None:
        if envelope.bulk is None or total < _FEWEST_LINES:
            return None
        data, count = envelope.bulk.subn(b"\n", b"\n" + data)
        data = data[1:]
        if count != total:
            return None
        envelopes.append(envelope)
    if not envelopes or _RECORD.search(data) is None:
        return None
    worn = Worn(block, tuple(envelopes), clock)
    bare = TextBlock(block.number, data, worn)
    return bare if _as_by_line(bare, worn, unwrapper.twin()) else None


def undressed_again(block: TextBlock, before: Worn) -> TextBlock | None:
    """The block without the envelopes that the block before wore to its last line, or None where it must be looked at.

    What all lines wear that begin as records in them needs no survey: line by line each is taken to wear what the line before wore.
    """
    data = block.data
    for envelope in before.envelopes:
        if envelope.bulk is None:
            return None
        data, count = envelope.bulk.subn(b"\n", b"\n" + data)
        data = data[1:]
        if count != len(block.ends):
            return None
    bare = TextBlock(block.number, data, before.of(block))
    return None if len(bare.ends) != len(block.ends) or len(bare.unusual()) else bare


def _first_worn(data: bytes, clock: Clock) -> Envelope | None:
    line = data.partition(b"\n")[0].decode("utf-8", "replace")
    candidates = BY_START.get(line[:1], ())
    return next((e for e in candidates if e.peel(line, clock) is not None), None)


def _as_by_line(bare: TextBlock, worn: Worn, unwrapper: Unwrapper) -> bool:
    """Whether the lines that begin unlike records come out as they would line by line."""
    if len(bare.ends) != len(worn.dressed.ends):  # the last line is empty within, and unfinished
        return False
    unusual = bare.unusual()
    if len(unusual) > len(bare.ends) // _MOST_UNUSUAL:
        return False
    for index in unusual.tolist():
        lines = unwrapper.feed(index, worn.dressed.line(index))
        if len(lines) != 1 or lines[0].text != bare.line(index) or lines[0].outer is None:
            return False
    return True


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
        worn = bare.worn if last not in unusual[-1:] else None
        self._worn = worn if isinstance(worn, Worn) else None
        if bare.worn is not None:  # what follows may wear what its last line wears
            self.unwrapper.feed(bare.number + last, bare.worn.dressed.line(last))
        return bare


def _rejoined(blocks: Iterator[TextBlock], rows: Rows, unwrapper: Unwrapper) -> Iterator[list[Line]]:
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


def _entry_lines(unwrapper: Unwrapper, number: int, fields: dict[str, object], clock: Clock) -> list[Line]:
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
