"""Patterns applied to columns of text.

Patterns here are in the dialect of Rust's regex crate, which is linear by construction. Each is a strict case of one in
`parsers.records.prefix` or `parsers.families`: ASCII only, and no character that could begin a colour code.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from parsers.reading.in_bulk.block import Rows

__all__ = ["extracted", "rows_of"]


def extracted(frame: pl.DataFrame, column: str, pattern: str, *, must: str) -> pl.DataFrame:
    """The rows whose `column` matches, with the pattern's named groups as further columns.

    `must` is a group that takes part in every match.
    """
    found = frame.with_columns(pl.col(column).str.extract_groups(pattern).alias("_found"))
    return found.unnest("_found").filter(pl.col(must).is_not_null())


def rows_of(frame: pl.DataFrame) -> Rows:
    """The block's rows on which the frame's rows stand."""
    return frame["row"].to_numpy().astype(np.int64)
