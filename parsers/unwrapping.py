"""From blocks of bytes to payload lines: what is plain stays in blocks, so that it can be read in bulk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from parsers.chronology import goes_back, inner_clocks, newest_last
from parsers.envelopes import Clock, Unwrapper
from parsers.envelopes.journal_fields import ExportReader, journal_entry
from parsers.envelopes.unwrapper import SAMPLE
from parsers.lines import Line
from parsers.terminal_rows import Rows, rows_of
from parsers.text_blocks import TextBlock, text_blocks

if TYPE_CHECKING:
    from parsers.sources import Loss

__all__ = ["is_newest_first", "turned_round", "unwrapped"]

Piece = TextBlock | list[Line]

# A line that does not begin as vLLM's records do: it may wear an envelope, and is looked at.
# The line feed before it makes the search run at the speed of a search for one byte.
_UNUSUAL = re.compile(rb"\n(?![(\n]|(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)[ :])([^\n]+)")
_SAMPLED_BYTES = 1 << 15
_EXPORT = re.compile(rb"(?:__[A-Z_]+=[^\n]*\n)+[A-Z_]")


def unwrapped(
    blocks: Iterator[bytes], loss: Loss, clock: Clock, *, by_entry: Callable[[], bool]
) -> Iterator[Piece]:
    """The pieces of a source: text in which no line wears an envelope, or lines taken out of theirs.

    `by_entry` tells, once blocks were read, whether lines are numbered by journal entry instead of by line.
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
    rows = rows_of(head.data[:_SAMPLED_BYTES].decode("utf-8", "replace").split("\n")[:-1])
    if rows is not None:
        yield from _rejoined(lines, rows, unwrapper)
        return
    for block in lines:
        if _is_plain(block, unwrapper):
            yield block
        else:
            yield unwrapper.feed_block(block.number, block.texts())
    rest = unwrapper.finish()
    if rest:
        yield rest
    loss.truncated += unwrapper.cut_lines
    loss.bytes += unwrapper.cut


def _rejoined(
    blocks: Iterator[TextBlock], rows: Rows, unwrapper: Unwrapper
) -> Iterator[list[Line]]:
    """Lines that a terminal wrapped: joined, then taken out of their envelopes."""
    for block in blocks:
        joined = list(rows.join(block.numbered()))
        unwrapper.survey([text for _, text in joined[:SAMPLE]])
        yield [line for number, text in joined for line in unwrapper.feed(number, text)]
    last = [line for number, text in rows.rest() for line in unwrapper.feed(number, text)]
    yield last + unwrapper.finish()


def _is_plain(block: TextBlock, unwrapper: Unwrapper) -> bool:
    if unwrapper.busy:
        return False
    head = block.data[:_SAMPLED_BYTES].decode("utf-8", "replace").split("\n")
    unwrapper.survey(head[:SAMPLE])
    first = block.data.partition(b"\n")[0].decode("utf-8", "replace")
    return not unwrapper.wraps(first) and not any(
        unwrapper.wraps(found[1].decode("utf-8", "replace"))
        for found in _UNUSUAL.finditer(block.data)
    )


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
    if isinstance(piece, TextBlock):
        return goes_back(inner_clocks(piece.data))
    times = [line.outer.time_us for line in piece if line.outer and line.outer.time_us is not None]
    return goes_back(times)


def turned_round(first: Piece, rest: Iterator[Piece]) -> Iterator[list[Line]]:
    """The lines of a newest-first source, oldest first."""
    lines = newest_last(line for piece in chain((first,), rest) for line in _lines(piece))
    while part := list(islice(lines, 4096)):
        yield part


def _lines(piece: Piece) -> Iterator[Line]:
    if isinstance(piece, TextBlock):
        return (Line(number, text) for number, text in piece.numbered())
    return iter(piece)
