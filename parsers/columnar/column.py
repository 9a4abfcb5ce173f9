"""The lines of a block of bytes as one Polars column, and patterns applied to columns.

Patterns here are in the dialect of Rust's regex crate, which is linear by construction. Each is a strict case of one in
`parsers.prefix` or `parsers.families`: ASCII only, and no character that could begin a colour code.
"""

from __future__ import annotations

import io

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers.text_blocks import TextBlock

__all__ = ["WORD", "Mask", "Rows", "extracted", "is_available", "lines_of", "rows_of"]

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

WORD = r"[!-Z\\-~]"
"""A visible ASCII character but `[`."""


def is_available() -> bool:
    """Whether this Polars cuts bytes into lines by itself (`scan_lines`)."""
    return hasattr(pl, "scan_lines")


def lines_of(block: TextBlock) -> pl.Series:
    """The block's lines, those of `TextBlock.texts`."""
    if b"\r" not in block.data:
        try:
            # The line feed hides what Polars would take for a compressed file or a byte order mark.
            lines = pl.scan_lines(io.BytesIO(b"\n" + block.data), name="line").collect()
            column: pl.Series = lines["line"].slice(1).rechunk()
            return column  # in one chunk: else each access looks for its own
        except pl.exceptions.ComputeError:  # no UTF-8
            pass
    return pl.Series("line", block.texts(), dtype=pl.String())


def extracted(frame: pl.DataFrame, column: str, pattern: str, *, must: str) -> pl.DataFrame:
    """The rows whose `column` matches, with the pattern's named groups as further columns.

    `must` is a group that takes part in every match.
    """
    found = frame.with_columns(pl.col(column).str.extract_groups(pattern).alias("_found"))
    return found.unnest("_found").filter(pl.col(must).is_not_null())


def rows_of(frame: pl.DataFrame) -> Rows:
    """The block's rows on which the frame's rows stand."""
    return frame["row"].to_numpy().astype(np.int64)
