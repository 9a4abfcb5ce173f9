"""Texts that differ in numbers alone: a shape is read once, then found in many places at the speed of comparing bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parsers.reading.in_bulk.block import MARGIN, Block, Mask, Rows
from parsers.reading.in_bulk.digits import MAX_DIGITS, numbers

__all__ = ["Found", "Hole", "Shape", "shape_of"]


class Hole(NamedTuple):
    """Where a text has a number: `name` says which one, with `fraction` it has a decimal point."""

    name: str
    start: int
    end: int
    fraction: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """`literals` are the texts before, between and after the `holes`."""

    literals: tuple[bytes, ...]
    holes: tuple[Hole, ...]

    def find(self, block: Block, places: Rows, ends: Rows) -> Found:
        """Where the text from `places` to before `ends` has this shape, and its numbers there."""
        alive = np.arange(len(places))
        at = places
        values: dict[str, NDArray[np.int64] | NDArray[np.float64]] = {}
        for literal, hole in zip(self.literals, (*self.holes, None), strict=True):
            if literal:
                alive, at, values = _kept(block.equal(at, literal), alive, at, values)
                at = at + len(literal)
            if hole is not None:
                value, size, good = _number(block, at, fraction=hole.fraction)
                values[hole.name] = value
                alive, at, values = _kept(good, alive, at + size, values)
        alive, at, values = _kept(at == ends[alive], alive, at, values)
        return Found(alive, values)


class Found(NamedTuple):
    """`which` of the places, and the numbers there, by hole."""

    which: Rows
    values: dict[str, NDArray[np.int64] | NDArray[np.float64]]


def shape_of(text: bytes, holes: Sequence[Hole]) -> Shape | None:
    """The shape of a text that has numbers at these places; None where it cannot be found by comparing."""
    literals, at = [], 0
    for hole in holes:
        whole, point, part = text[hole.start : hole.end].partition(b".")
        fits = len(whole) <= MAX_DIGITS and len(part) <= MAX_DIGITS and bool(point) == hole.fraction
        if not fits or not whole.isdigit() or (hole.fraction and not part.isdigit()):
            return None
        literals.append(text[at : hole.start])
        at = hole.end
    literals.append(text[at:])
    if not text.isascii() or max(map(len, literals)) > MARGIN // 2:
        return None
    return Shape(tuple(literals), tuple(holes))


def _kept(
    good: Mask,
    alive: Rows,
    at: Rows,
    values: dict[str, NDArray[np.int64] | NDArray[np.float64]],
) -> tuple[Rows, Rows, dict[str, NDArray[np.int64] | NDArray[np.float64]]]:
    if good.all():
        return alive, at, values
    return alive[good], at[good], {name: value[good] for name, value in values.items()}


def _number(
    block: Block, places: Rows, *, fraction: bool
) -> tuple[NDArray[np.int64] | NDArray[np.float64], Rows, Mask]:
    """The numbers at the places, their sizes in bytes, and where there are any.

    A whole number of 14 digits over a power of ten, both exact as floats, is rounded once: it is the float that Python reads.
    """
    whole, size, good = numbers(block, places)
    if not fraction:
        return whole, size, good
    part, digits, fits = numbers(block, places + size + 1, leading_zeros=True)
    good &= fits & block.equal(places + size, b".")
    scale = _POWERS[digits]
    return (whole * scale + part) / scale, size + 1 + digits, good


_POWERS = 10 ** np.arange(MAX_DIGITS + 1, dtype=np.int64)
