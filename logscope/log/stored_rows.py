"""Rows of a large family, kept on the disk and read back in part.

Frames written to one Parquet file a family, with bounded memory whatever the log's size.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from logscope.atomic_files import temporary_file, whole_file
from logscope.log.parquet import RowGroups
from parsers.reading.events import Event
from parsers.reading.frames import CompactFrame, FrameBuilder, columns_of

__all__ = ["FrameFiles", "Numbers", "StoredRows", "StoredWriter", "as_met", "columns_kept"]
ServerT = TypeVar("ServerT", bound=Hashable)
_PLACE = ("order", "source", "line", "time", "outer_time", "at", "server", "run", "variant")
_OWN = {
    "request": (
        *("request_id", "request_ids", "n", "max_tokens", "min_tokens"),
        *("ignore_eos", "num_prompt_token_ids", "prompt_chars"),
    ),
    "http": ("method", "path", "status"),
    "iteration": (
        *("engine_index", "iteration", "context_requests", "context_tokens"),
        *("generation_requests", "generation_tokens", "elapsed_ms", "dummy", "gpu_kv_cache_usage_pct"),
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
        self._groups.append(CompactFrame(frame.select(self._names)))

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


def as_met(places: Iterable[tuple[ServerT, tuple[int, int]]]) -> dict[ServerT, int]:
    """Servers numbered as they are met: each by the first of the places at which it speaks."""
    first: dict[ServerT, tuple[int, int]] = {}
    for server, place in places:
        first[server] = min(first.get(server, place), place)
    return {server: number for number, server in enumerate(sorted(first, key=lambda s: first[s]))}


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

    def renumbered(self, numbers: Numbers) -> StoredRows:
        """The same rows of which others stand before; once only."""
        return replace(self, parts=tuple(replace(p, numbers=numbers) for p in self.parts))

    def of_server(self, server: int) -> StoredRows:
        """Without the files that hold nothing of a server, for who has to send them."""
        parts = tuple(part for part in self.parts if part.numbers is None or server in part.numbers.servers.values())
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


ROWS = 50_000
"""So many rows of a family wait in memory (some 5 to 20 MB), and make a row group."""


class _UnfinishedError(Exception):
    """The files are not to appear."""


class FrameFiles(FrameBuilder):
    """Collects events as `FrameBuilder` does; a family's rows beyond `ROWS` are written at once.

    The files stand under hidden names beside their place until `finish`; their names begin with `stem`.
    """

    def __init__(self, folder: Path, stem: str = "") -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._stem = folder, stem
        self._files: dict[str, RowGroups] = {}
        self._places = ExitStack()

    def add(self, event: Event) -> None:
        """Take one event, in the order of the input. Raises OSError where a file cannot be written."""
        super().add(event)
        if not self.awaits and self.waiting(event.family) >= ROWS:
            self._put_away(event.family)

    def add_frame(self, family: str, compact: CompactFrame) -> None:
        """Take numbered events of a family; later than any frame before. Raises OSError as `add` does."""
        if self.waiting(family):
            super().add_frame(family, compact)
            self._put_away(family)
        else:
            self._append(family, self._arrived(compact))

    def finish(self) -> list[str]:
        """Give the files their names, which are returned. Raises OSError where one cannot be written."""
        for family in self.families():
            self._put_away(family)
        for family, file in self._files.items():
            with self._named(family):
                file.close()
        self._places.close()
        return [self._place(family).name for family in self._files]

    def close(self) -> None:
        """Remove what is not finished."""
        for file in self._files.values():
            file.abandon()
        with suppress(_UnfinishedError), self._places:
            raise _UnfinishedError

    def _put_away(self, family: str) -> None:
        for part in self.taken_parts(family):
            self._append(family, CompactFrame(part))

    def _append(self, family: str, compact: CompactFrame) -> None:
        if not len(compact):
            return
        file = self._files.get(family)
        if file is None:
            place = self._places.enter_context(whole_file(self._place(family)))
            file = self._files[family] = RowGroups(place, columns_of(family), ROWS)
        with self._named(family):
            file.append(compact)

    def _place(self, family: str) -> Path:
        return self._folder / f"{self._stem}{family}.parquet"

    @contextmanager
    def _named(self, family: str) -> Iterator[None]:
        """An error names the file as the user knows it."""
        try:
            yield
        except OSError as error:
            words = error.strerror or str(error)
            raise OSError(error.errno, words, str(self._place(family))) from error
