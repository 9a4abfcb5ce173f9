"""Envelopes taken off a whole block at once, where every line wears the same ones.

A block of a stamped log becomes plain text at the speed of one substitution; the facts of a line (its
`Outer`) are made when they are asked for. Only where this gives what line by line would give: each line
wears the envelopes, and those whose payload does not begin as a record are compared one by one.
"""

from __future__ import annotations

import re

from parsers.envelopes import Clock, Unwrapper
from parsers.envelopes.form import Envelope
from parsers.envelopes.registry import BY_START
from parsers.envelopes.unwrapper import merged_outer
from parsers.lines import TextBlock
from parsers.lines_part import Outer

__all__ = ["Worn", "undressed", "undressed_again"]

_LAYERS = 3
_FEWEST_LINES = 8
_MOST_UNUSUAL = (
    8  # one line in so many may be worth a look; with more of them line by line is as fast
)
_RECORD = re.compile(rb"^(?:\([A-Z]|INFO |DEBUG |WARNING |ERROR |CRITICAL )", re.M)


class Worn:
    """The envelopes that were taken off a block, and its lines as they were (`dressed`)."""

    def __init__(self, dressed: TextBlock, envelopes: tuple[Envelope, ...], clock: Clock) -> None:
        self.dressed = dressed
        self.envelopes = envelopes
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
