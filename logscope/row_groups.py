"""A Parquet file that grows by a row group at a time: what was written is never read or written again."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO, Literal

import polars as pl

from logscope.parquet_footer import MAGIC, Footer, Struct, footer_of, joined_footer, moved

__all__ = ["RowGroups"]

Compression = Literal["zstd", "lz4"]


class RowGroups:
    """Frames of one schema, appended to a file at `path`, which is a Parquet file once `close` was called.

    All methods raise OSError where the file cannot be written.
    """

    def __init__(self, path: Path, compression: Compression = "zstd") -> None:
        self._file: BinaryIO = path.open("wb")
        self._compression = compression
        self._first: Footer | None = None
        self._groups: list[Struct] = []
        self._rows = 0
        self._file.write(MAGIC)
        self._at = len(MAGIC)

    def append(self, frame: pl.DataFrame) -> None:
        """Write the rows of `frame`, whose columns are those of all frames before."""
        part = io.BytesIO()
        frame.write_parquet(part, compression=self._compression)
        with part.getbuffer() as file:
            footer = footer_of(file)
            self._file.write(file[len(MAGIC) : footer.end])
        by = self._at - len(MAGIC)
        for group in footer.groups:
            self._groups.append(moved(group, by, len(self._groups)))
        self._at += footer.end - len(MAGIC)
        self._rows += footer.rows
        self._first = self._first or footer

    def close(self) -> None:
        """End the file; one that no frame was appended to is left empty of a footer, and is no Parquet file."""
        if self._first is not None:
            self._file.write(joined_footer(self._first, self._groups, self._rows))
        self._file.close()

    def abandon(self) -> None:
        """Let go of the file, which is not to be used."""
        self._file.close()
