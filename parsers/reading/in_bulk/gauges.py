"""Lines of numbers: the periodic statistics and the engine's steps. Each has few shapes, and only its numbers change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from parsers import families
from parsers.reading.frames import fields_frame
from parsers.reading.in_bulk.block import Block, Mask, Rows, Shape, shape_of
from parsers.reading.in_bulk.parts import Column, Part
from parsers.reading.in_bulk.requests import is_simple, learned_holes
from parsers.records.servers import OF_A_START

__all__ = ["KnownGauges", "gauges"]

_MOST_SHAPES = 64


class _Gauge(NamedTuple):
    """One shape, and what is the same in all lines that have it."""

    shape: Shape
    columns: dict[str, Column]


@dataclass(slots=True)
class KnownGauges:
    """The shapes seen so far in a source, by family."""

    by_family: dict[str, list[_Gauge]] = field(default_factory=dict)


def gauges(block: Block, rows: Rows, message: int, family: str, known: KnownGauges) -> tuple[list[Part], Mask]:
    """The lines of numbers of a family (`stats`, `iteration`), and which rows were read."""
    places, ends = block.starts[rows] + message, block.ends[rows]
    parts: list[Part] = []
    left = np.arange(len(rows))

    def take(gauge: _Gauge) -> bool:
        nonlocal left
        found = gauge.shape.find(block, places[left], ends[left])
        if not len(found.which):
            return False
        values = {name: pl.Series(value) for name, value in found.values.items()}
        parts.append(Part(rows[left[found.which]], {**gauge.columns, **values}))
        left = np.delete(left, found.which)
        return True

    shapes = known.by_family.setdefault(family, [])
    for gauge in shapes:
        if len(left):
            take(gauge)
    while len(left) and len(shapes) < _MOST_SHAPES:
        at = int(left[0])
        seen = _gauge_of(block.stretch(int(places[at]), int(ends[at])), family)
        if seen is None or not take(seen):
            break
        shapes.append(seen)
    done = np.ones(len(rows), np.bool_)
    done[left] = False
    return parts, done


def _gauge_of(text: bytes, family: str) -> _Gauge | None:
    """The shape of a message, learnt from the family itself: each number is varied, and the field that moves is the number's."""
    fields = _fields(text, family)
    if fields is None:
        return None
    holes = learned_holes(text, fields, lambda other: _fields(other, family), families.columns(family))
    shape = shape_of(text, holes)
    if shape is None or not holes:
        return None
    own = {hole.name for hole in holes}
    variant = str(fields.pop("variant"))
    columns = fields_frame(family, [fields]).row(0, named=True)
    kept = {name: value for name, value in columns.items() if value is not None and name not in own}
    return _Gauge(shape, {**kept, "variant": variant})


def _fields(text: bytes, family: str) -> families.Fields | None:
    """The fields of a message of the family, and its variant."""
    message = text.decode("ascii", "replace")
    if not text.isascii() or not is_simple(message):
        return None
    found = families.match(message, prefixed=True)
    if found is None or found.family != family or found.prompt_fields or found.variant in OF_A_START:
        return None
    return {**found.fields, "variant": found.variant}
