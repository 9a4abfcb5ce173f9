"""Frames written to one Parquet file a family, with bounded memory whatever the log's size."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

from logscope.whole_files import whole_file
from parsers.events import Event
from parsers.frames import FrameBuilder

__all__ = ["FrameFiles"]

ROWS = 150_000
"""So many rows of a family wait in memory (some 30 to 120 MB)."""


class FrameFiles(FrameBuilder):
    """Collects events as `FrameBuilder` does; a family's rows beyond `ROWS` wait in parts on the disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._parts: dict[str, list[Path]] = {}
        self._waiting: tempfile.TemporaryDirectory[str] | None = None
        self._added = 0

    def add(self, event: Event) -> None:
        """Take one event, in the order of the input."""
        super().add(event)
        self._added += 1
        if self._added % ROWS == 0:
            for family in self.families():
                self._put_away(family, self.taken(family))

    def add_frame(self, family: str, frame: pl.DataFrame) -> None:
        """Take numbered events of a family; later than any frame before."""
        super().add_frame(family, frame)
        if self.height(family) >= ROWS:
            self._put_away(family, self.taken(family))

    def finish(self) -> None:
        """Write the files. Raises OSError where one cannot be written."""
        for family in self.families():
            frame = self.taken(family)
            if family in self._parts and len(frame):
                self._put_away(family, frame)
            elif len(frame):
                with whole_file(self._folder / f"{family}.parquet") as file:
                    frame.write_parquet(file)
        for family, parts in self._parts.items():
            with whole_file(self._folder / f"{family}.parquet") as file:
                pl.scan_parquet(parts).sink_parquet(file)
        self.close()

    def close(self) -> None:
        """Remove what waits on the disk."""
        if self._waiting is not None:
            self._waiting.cleanup()

    def _put_away(self, family: str, frame: pl.DataFrame) -> None:
        if self._waiting is None:
            self._waiting = tempfile.TemporaryDirectory(prefix=".parts.", dir=self._folder)
        parts = self._parts.setdefault(family, [])
        part = Path(self._waiting.name) / f"{family}.{len(parts)}.parquet"
        frame.write_parquet(part, compression="lz4", statistics=False)
        parts.append(part)
