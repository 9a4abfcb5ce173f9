"""A family's table put together out of parts: what all rows share is kept as one value as long as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl

from parsers.columnar.block import Rows

__all__ = ["Column", "Part", "Value", "joined", "repeated"]

Value = str | int | float | bool | None
Column = Value | pl.Series
"""One value for all rows, or one for each."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a family's messages: `rows` are their places in the block, ascending; a column that is missing is null."""

    rows: Rows
    columns: dict[str, Column]

    def kept(self, good: np.ndarray) -> Part:
        """The messages at which `good` holds."""
        if good.all():
            return self
        mask = pl.Series(good)
        columns = {
            name: column.filter(mask) if isinstance(column, pl.Series) else column
            for name, column in self.columns.items()
        }
        return Part(self.rows[good], columns)


def joined(parts: Sequence[Part], schema: dict[str, pl.DataType]) -> Part:
    """The messages of all parts in the order of the block, their columns in the types of `schema`."""
    if len(parts) == 1:
        part = parts[0]
        return Part(part.rows, {name: _typed(c, schema[name]) for name, c in part.columns.items()})
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    sizes = [len(part.rows) for part in parts]
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns: dict[str, Column] = {}
    varied: list[pl.Series] = []  # by row
    labels: list[pl.Series] = []  # by part
    for name in names:
        each = [part.columns.get(name) for part in parts]
        dtype = schema[name]
        if any(isinstance(column, pl.Series) for column in each):
            whole = [_whole(c, size, dtype) for c, size in zip(each, sizes, strict=True)]
            varied.append(pl.concat(whole).alias(name))
        elif all(column == each[0] for column in each):
            columns[name] = each[0]
        else:
            labels.append(pl.Series(name, each, dtype=dtype))
    which = np.repeat(np.arange(len(parts), dtype=np.uint32), sizes)[order]
    for table, places in ((varied, order.astype(np.uint32)), (labels, which)):
        if table:
            index = pl.Series(places)
            columns |= pl.DataFrame(table).select(pl.all().gather(index)).to_dict()
    return Part(rows[order], columns)


def _typed(column: Column, dtype: pl.DataType) -> Column:
    return column.cast(dtype) if isinstance(column, pl.Series) else column


def _whole(column: Column, size: int, dtype: pl.DataType) -> pl.Series:
    if isinstance(column, pl.Series):
        whole: pl.Series = column.cast(dtype)
        return whole
    return repeated(column, size, dtype)


def repeated(value: Value, size: int, dtype: pl.DataType) -> pl.Series:
    """A column of one value."""
    column: pl.Series = _single(value, dtype).new_from_index(0, size)
    return column


@lru_cache(maxsize=1 << 10, typed=True)
def _single(value: Value, dtype: pl.DataType) -> pl.Series:
    return pl.Series([value], dtype=dtype)
