"""Rows of a large family, kept on the disk and read back in part."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from logscope.log.row_groups import RowGroups
from logscope.temporaries import temporary_file
from parsers.reading.columns import Lean
from parsers.reading.frames import columns_of

__all__ = ["Numbers", "StoredRows", "StoredWriter", "columns_kept"]

_PLACE = ("order", "source", "line", "time", "outer_time", "at", "server", "run", "variant")
_OWN = {
    "request": (
        *("request_id", "request_ids", "n", "max_tokens", "min_tokens"),
        *("ignore_eos", "num_prompt_token_ids", "prompt_chars"),
    ),
    "http": ("method", "path", "status"),
    "iteration": (
        *("engine_index", "iteration", "context_requests", "context_tokens"),
        *(
            "generation_requests",
            "generation_tokens",
            "elapsed_ms",
            "dummy",
            "gpu_kv_cache_usage_pct",
        ),
    ),
}
"""What an inference looks at, by family."""


def columns_kept(family: str) -> tuple[str, ...]:
    """The columns that a replay needs of a family; the others read as null."""
    return (*_PLACE, *_OWN[family])


class _File:
    """A temporary file that goes with the last who holds it, also to another process and back."""

    def __init__(self, content: bytes | None = None) -> None:
        self.path = temporary_file(".rows")
        self._end = weakref.finalize(self, _remove, self.path, os.getpid())
        if content is not None:
            self.path.write_bytes(content)

    def __reduce__(self) -> tuple[Any, ...]:
        return _File, (self.path.read_bytes(),)


def _remove(path: Path, process: int) -> None:
    """A process that was forked off has the object too, but not the file."""
    if os.getpid() == process:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A file that others keep."""

    path: Path


class StoredWriter:
    """Writes the rows of a family, frame by frame. Raises OSError where the disk is full."""

    def __init__(self, family: str, *, whole: bool) -> None:
        self.family, self.whole = family, whole
        self._file = _File()
        columns = columns_of(family)
        self._names = list(columns if whole else columns_kept(family))
        schema = {name: columns[name] for name in self._names}
        self._groups = RowGroups(self._file.path, schema)

    def append(self, frame: pl.DataFrame) -> None:
        """Write a frame of all the family's columns."""
        self._groups.append(Lean(frame.select(self._names)))

    def rows(self) -> StoredRows:
        """What was written; nothing can be appended after this."""
        self._groups.close()
        return StoredRows(self.family, (_Part(self._file),), self.whole)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What to read in place of the servers' numbers and (where they are given) of the sources' names, and to add to a source's order."""

    servers: Mapping[int, int]
    shifts: Mapping[str, int]
    names: Mapping[str, str] | None = None

    def of(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows, renumbered."""
        source = pl.col("source")
        rows = rows.with_columns(
            pl.col("order") + source.replace_strict(self.shifts, return_dtype=pl.Int64),
            pl.col("server").replace_strict(self.servers, return_dtype=pl.Int32),
        )
        if self.names is None:
            return rows
        return rows.with_columns(source.replace_strict(self.names, return_dtype=pl.String))


@dataclass(frozen=True, slots=True)
class _Part:
    """A file, and what to read in place of what it says."""

    file: _File | _Segment
    numbers: Numbers | None = None

    def scan(self) -> pl.LazyFrame:
        rows = pl.scan_parquet(self.file.path)
        return rows if self.numbers is None else self.numbers.of(rows)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """All rows of one family; with `whole` in all their columns."""

    family: str
    parts: tuple[_Part, ...]
    whole: bool = False

    def scan(self) -> pl.LazyFrame:
        """The rows, in the columns that were kept."""
        if not self.parts:
            return pl.LazyFrame(schema=columns_of(self.family))
        return pl.concat([part.scan() for part in self.parts])

    def frame(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """A selection of `scan` in all columns of the family, in the order of the log."""
        found = rows.collect().sort("order")
        return found.select(
            pl.col(name) if name in found.columns else pl.lit(None, dtype).alias(name)
            for name, dtype in columns_of(self.family).items()
        )

    def write(self, path: Path) -> None:
        """Write all rows as one Parquet file."""
        if len(self.parts) == 1 and self.parts[0].numbers is None:
            shutil.copyfile(self.parts[0].file.path, path)
            return
        names = columns_of(self.family)
        self.scan().sort("order").select(names).sink_parquet(path)

    def renumbered(self, servers: Mapping[int, int], shifts: Mapping[str, int]) -> StoredRows:
        """The same rows of which others stand before; once only."""
        numbers = Numbers(dict(servers), dict(shifts))
        return replace(self, parts=tuple(replace(p, numbers=numbers) for p in self.parts))

    def of_server(self, server: int) -> StoredRows:
        """Without the files that hold nothing of a server, for who has to send them."""
        parts = tuple(
            part
            for part in self.parts
            if part.numbers is None or server in part.numbers.servers.values()
        )
        return replace(self, parts=parts)

    @staticmethod
    def of_files(family: str, files: Sequence[Path], numbers: Numbers) -> StoredRows:
        """Rows in all columns, in files that others keep."""
        return StoredRows(family, tuple(_Part(_Segment(f), numbers) for f in files), whole=True)

    @staticmethod
    def joined(stored: Sequence[StoredRows]) -> StoredRows:
        """Rows of several logs as one."""
        first = stored[0]
        parts = tuple(part for rows in stored for part in rows.parts)
        return replace(first, parts=parts, whole=all(rows.whole for rows in stored))
