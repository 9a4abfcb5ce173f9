"""Frames written to one Parquet file a family, with bounded memory whatever the log's size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from logscope.atomic_files import whole_file
from logscope.log.row_groups import RowGroups
from parsers.reading.columns import Lean
from parsers.reading.events import Event
from parsers.reading.frames import FrameBuilder, columns_of

__all__ = ["FrameFiles"]

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

    def add_frame(self, family: str, lean: Lean) -> None:
        """Take numbered events of a family; later than any frame before. Raises OSError as `add` does."""
        if self.waiting(family):
            super().add_frame(family, lean)
            self._put_away(family)
        else:
            self._append(family, self._arrived(lean))

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
            self._append(family, Lean(part))

    def _append(self, family: str, lean: Lean) -> None:
        if not len(lean):
            return
        file = self._files.get(family)
        if file is None:
            place = self._places.enter_context(whole_file(self._place(family)))
            file = self._files[family] = RowGroups(place, columns_of(family), ROWS)
        with self._named(family):
            file.append(lean)

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
