"""A family's table put together out of parts: what all rows share is kept as one value as long as possible.

A text that comes again and again is kept as its number in a list of texts (`Coded`), so that it is made once, and neither copied
nor compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from parsers.reading.frames import Coded, Value, repeated
from parsers.reading.in_bulk.block import Mask, Rows

__all__ = ["Column", "Part", "joined", "series"]

Column = Value | Coded | pl.Series
"""One value for all rows, or one for each."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a family's messages: `rows` are their places in the block, ascending; a column that is missing is null."""

    rows: Rows
    columns: dict[str, Column]

    def kept(self, good: Mask) -> Part:
        """The messages at which `good` holds."""
        if good.all():
            return self
        count = int(good.argmin())
        if not good[count:].any():
            return Part(self.rows[:count], {n: _first(c, count) for n, c in self.columns.items()})
        columns = {name: _filtered(column, good) for name, column in self.columns.items()}
        return Part(self.rows[good], columns)


def joined(parts: Sequence[Part], schema: dict[str, pl.DataType]) -> Part:
    """The messages of all parts in the order of the block."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    sizes = [len(part.rows) for part in parts]
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns: dict[str, Column] = {}
    varied: list[pl.Series] = []  # with a value for each row: they are put in order together
    for name in names:
        each = [part.columns.get(name) for part in parts]
        if not any(isinstance(c, Coded | pl.Series) for c in each) and len({*each}) == 1:
            columns[name] = each[0]
        elif schema[name] == pl.String() and not any(isinstance(c, pl.Series) for c in each):
            columns[name] = _coded(each, sizes, order)
        else:
            whole = [series(c, size, schema[name]) for c, size in zip(each, sizes, strict=True)]
            varied.append(pl.concat(whole).alias(name))
    if varied:
        places = pl.Series(order.astype(np.uint32))
        columns |= pl.DataFrame(varied).select(pl.all().gather(places)).to_dict()
    return Part(rows[order], columns)


def series(column: Column, size: int, dtype: pl.DataType) -> pl.Series:
    """The column of `size` rows."""
    if isinstance(column, Coded):
        return column.series(dtype)
    if isinstance(column, pl.Series):
        whole: pl.Series = column.cast(dtype)
        return whole
    return repeated(column, size, dtype)


def _coded(each: Iterable[Column], sizes: Iterable[int], order: Rows) -> Coded:
    """Coded texts and single ones, put one after another and then in order."""
    places: dict[str | None, int] = {}
    codes = []
    for column, size in zip(each, sizes, strict=True):
        if isinstance(column, Coded):
            own = [places.setdefault(text, len(places)) for text in column.texts]
            codes.append(np.array(own, np.uint32)[column.codes])
        else:
            assert column is None or isinstance(column, str)
            codes.append(np.full(size, places.setdefault(column, len(places)), np.uint32))
    return Coded(list(places), np.concatenate(codes)[order])


def _first(column: Column, count: int) -> Column:
    if isinstance(column, Coded):
        return Coded(column.texts, column.codes[:count])
    return column.head(count) if isinstance(column, pl.Series) else column


def _filtered(column: Column, good: Mask) -> Column:
    if isinstance(column, Coded):
        return Coded(column.texts, column.codes[good])
    return column.filter(pl.Series(good)) if isinstance(column, pl.Series) else column
