"""Frames put one under another whose text columns may be categories, other ones in each frame."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

__all__ = ["stacked", "with_texts"]

_MOST_TEXTS = 1 << 13


def stacked(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Frames with the same columns as one; a column that is text in one of them, or has too many categories, is text."""
    if len(frames) == 1:
        return frames[0]
    return pl.DataFrame([_stacked([frame[name] for frame in frames]) for name in frames[0].columns])


def with_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with texts for categories."""
    coded = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Enum)]
    return frame.with_columns(pl.col(coded).cast(pl.String())) if coded else frame


def _stacked(columns: Sequence[pl.Series]) -> pl.Series:
    if not any(isinstance(column.dtype, pl.Enum) for column in columns):
        return _one(columns)
    places: dict[str, int] = {}
    codes = []
    for column in columns:
        texts = _texts(column)
        if texts is None or len(places) > _MOST_TEXTS:
            return _one([column.cast(pl.String()) for column in columns])
        own = [places.setdefault(text, len(places)) for text in texts]
        mine = pl.Series(own, dtype=pl.UInt32())
        codes.append(mine.gather(_codes(column)))
    kind = pl.Enum(list(places))
    whole: pl.Series = pl.Series(columns[0].name, list(places), dtype=kind).gather(pl.concat(codes))
    return whole


def _one(columns: Sequence[pl.Series]) -> pl.Series:
    whole: pl.Series = pl.concat(columns)
    return whole


def _texts(column: pl.Series) -> Sequence[str] | None:
    """The categories of a column; a text column has one if all its rows are alike, and none to tell otherwise."""
    if isinstance(column.dtype, pl.Enum):
        return column.dtype.categories.to_list()
    if column.null_count() == len(column):
        return []
    return [column[0]] if not column.null_count() and (column == column[0]).all() else None


def _codes(column: pl.Series) -> pl.Series:
    if isinstance(column.dtype, pl.Enum):
        codes: pl.Series = column.to_physical().cast(pl.UInt32())
        return codes
    code = pl.Series([None if column.null_count() else 0], dtype=pl.UInt32())
    return code.extend_constant(code[0], len(column) - 1)
