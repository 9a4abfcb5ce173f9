"""Frames put one under another: a column may have one value in all rows of one, and categories in the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from parsers.frames import Value, repeated

__all__ = ["Lean", "stacked"]

_MOST_TEXTS = 1 << 13


class Lean(NamedTuple):
    """A frame without the columns that have one value in all rows; those have the value of `same`, else null."""

    frame: pl.DataFrame
    same: Mapping[str, Value]


def stacked(frames: Sequence[Lean], schema: Mapping[str, pl.DataType]) -> Lean:
    """Frames as one; a column that is text in one of them, or has too many categories, is text."""
    if len(frames) == 1:
        return frames[0]
    varied: list[pl.Series] = []
    same: dict[str, Value] = {}
    columns = [lean.frame.to_dict() for lean in frames]
    sizes = [len(lean.frame) for lean in frames]
    for name, dtype in schema.items():
        own = [found.get(name) for found in columns]
        values = [lean.same.get(name) for lean in frames]
        if not any(column is not None for column in own) and len({*values}) == 1:
            same[name] = values[0]
        elif any(column is not None and isinstance(column.dtype, pl.Enum) for column in own):
            varied.append(_categories(own, values, sizes).alias(name))
        else:
            varied.append(_one(own, values, sizes, dtype).alias(name))
    return Lean(pl.DataFrame(varied), same)


def _one(
    own: Sequence[pl.Series | None],
    values: Sequence[Value],
    sizes: Sequence[int],
    dtype: pl.DataType,
) -> pl.Series:
    whole: pl.Series = pl.concat(
        repeated(value, size, dtype) if column is None else column.cast(dtype)
        for column, value, size in zip(own, values, sizes, strict=True)
    )
    return whole


def _categories(
    own: Sequence[pl.Series | None], values: Sequence[Value], sizes: Sequence[int]
) -> pl.Series:
    """Categories of all columns; texts where there are too many."""
    places: dict[str, int] = {}
    codes = []
    for column, value, size in zip(own, values, sizes, strict=True):
        if column is None:
            code = None if value is None else places.setdefault(str(value), len(places))
            codes.append(repeated(code, size, pl.UInt32()))
            continue
        coded = _coded(column)
        texts = coded.dtype.categories.to_list()  # type: ignore[attr-defined]
        mine = [places.setdefault(text, len(places)) for text in texts]
        if len(places) > _MOST_TEXTS:
            return _one(own, values, sizes, pl.String())
        codes.append(pl.Series(mine, dtype=pl.UInt32()).gather(coded.to_physical()))
    texts = list(places)
    whole: pl.Series = pl.Series(texts, dtype=pl.Enum(texts)).gather(pl.concat(codes))
    return whole


def _coded(column: pl.Series) -> pl.Series:
    """A column of categories; texts were mixed with them because a frame of single events came between."""
    if isinstance(column.dtype, pl.Enum):
        return column
    coded: pl.Series = column.cast(pl.Enum(column.drop_nulls().unique()))
    return coded
