"""Frames without what need not be made: columns of one value, and columns of a few texts that come again and again.

A log's frames have some forty columns, most of them with one value in all rows of a long stretch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["Coded", "Lean", "Value", "repeated", "stacked"]

_MOST_TEXTS = 1 << 13

Schema = Mapping[str, pl.DataType]
Value = str | int | float | bool | None
"""What all rows of a frame may have in a column."""


class Coded(NamedTuple):
    """A column of few texts: a row has the text that its code is the place of."""

    texts: Sequence[str | None]
    codes: NDArray[np.uint32]

    def series(self, dtype: pl.DataType) -> pl.Series:
        """The column, with `dtype` `String`, or an `Enum` of the texts."""
        whole: pl.Series = pl.Series(self.texts, dtype=dtype).gather(pl.Series(self.codes))
        return whole

    def categories(self) -> pl.Series:
        """The column as an `Enum`, or as text where there are too many texts."""
        texts = [text for text in self.texts if text is not None]
        return self.series(pl.Enum(texts) if len(texts) <= _MOST_TEXTS else pl.String())


@dataclass(frozen=True, slots=True)
class Lean:
    """A frame: what it lacks of a schema's columns is `coded`, or has the value of `same` in all rows, else null."""

    frame: pl.DataFrame
    same: Mapping[str, Value] = field(default_factory=dict)
    coded: Mapping[str, Coded] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.frame)

    def whole(self, schema: Schema) -> pl.DataFrame:
        """The frame in all columns of `schema`; those of one value as literals, which Polars keeps once."""
        if len(self.frame.columns) == len(schema):
            return self.frame
        coded = [c.series(schema[name]).alias(name) for name, c in self.coded.items()]
        frame = self.frame.with_columns(coded)
        return frame.select(
            pl.col(name) if name in frame.columns else pl.lit(self.same.get(name), dtype).alias(name)
            for name, dtype in schema.items()
        )

    def column(self, name: str, own: Mapping[str, pl.Series], dtype: pl.DataType) -> pl.Series:
        """A column that is not coded; `own` are those of the frame."""
        if name in own:
            return own[name]
        return repeated(self.same.get(name), len(self), dtype).alias(name)

    def part(self, start: int, end: int) -> Lean:
        """The rows from `start` to before `end`."""
        coded = {name: Coded(c.texts, c.codes[start:end]) for name, c in self.coded.items()}
        return Lean(self.frame[start:end], self.same, coded)

    def in_order(self, order: pl.Series) -> Lean:
        """The rows in another order."""
        places = order.to_numpy()
        coded = {name: Coded(c.texts, c.codes[places]) for name, c in self.coded.items()}
        return Lean(self.frame[order], self.same, coded)


def repeated(value: Value, size: int, dtype: pl.DataType) -> pl.Series:
    """A column of one value."""
    column: pl.Series = _single(value, dtype).new_from_index(0, size)
    return column


@lru_cache(maxsize=1 << 10, typed=True)
def _single(value: Value, dtype: pl.DataType) -> pl.Series:
    return pl.Series([value], dtype=dtype)


def stacked(frames: Sequence[Lean], schema: Schema) -> Lean:
    """Frames of the columns of `schema` as one."""
    if len(frames) == 1:
        return frames[0]
    own = [lean.frame.to_dict() for lean in frames]
    varied: list[pl.Series] = []
    same: dict[str, Value] = {}
    coded: dict[str, Coded] = {}
    for name, dtype in schema.items():
        kinds = {name in columns for columns in own}
        if any(name in lean.coded for lean in frames):
            coded[name] = _coded(name, frames, own)
        elif kinds == {False} and len({lean.same.get(name) for lean in frames}) == 1:
            same[name] = frames[0].same.get(name)
        else:
            each = [lean.column(name, c, dtype) for lean, c in zip(frames, own, strict=True)]
            varied.append(pl.concat(each))
    return Lean(pl.DataFrame(varied), same, coded)


def _coded(name: str, frames: Sequence[Lean], own: Sequence[Mapping[str, pl.Series]]) -> Coded:
    """One list of texts for a column of all frames."""
    places: dict[str | None, int] = {}
    codes = []
    for lean, columns in zip(frames, own, strict=True):
        column = lean.coded.get(name)
        if column is None and name in columns:  # a frame of single events
            texts = columns[name].drop_nulls().unique().to_list()
            kind = pl.Enum(texts)
            physical = columns[name].cast(kind).to_physical().fill_null(len(texts))
            column = Coded([*texts, None], physical.to_numpy())
        if column is None:
            place = places.setdefault(_text(lean.same.get(name)), len(places))
            codes.append(np.full(len(lean), place, np.uint32))
        else:
            mine = [places.setdefault(text, len(places)) for text in column.texts]
            codes.append(np.array(mine, np.uint32)[column.codes])
    return Coded(list(places), np.concatenate(codes))


def _text(value: Value) -> str | None:
    return None if value is None else str(value)
