"""What is remembered between runs, as one JSON document: where each source was left, and what the parser knew there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from logscope.atomic_files import write_whole
from logscope.errors import LogscopeError
from parsers.reading.events import Coverage
from parsers.sources.resuming import Stand

__all__ = ["Entry", "Memory", "StateError", "locked"]

VERSION = 1
NAME = "state.json"


class StateError(LogscopeError):
    """A state folder that cannot be used."""


@dataclass(slots=True)
class Entry:
    """One file that was read. `id` stays, whatever the file is called; `head` is the hash of its first `head_size` bytes of text.

    `bytes` is its size, `seen` that at which it was last read to its end. `settled` counts what is read for good, `tail` what stands at
    its end and may still become another record.
    """

    id: int
    name: str
    group: str
    stream: str
    inode: list[int] | None = None
    head_size: int = 0
    head: str = ""
    stand: Stand = field(default_factory=Stand)
    saw_cr: bool = False
    bytes: int = 0
    seen: int | None = None
    settled: Coverage = field(default_factory=Coverage)
    tail: Coverage = field(default_factory=Coverage)
    given: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Memory:
    """Everything that is remembered; `options` are those under which it was read, `segments` the files of frames that count."""

    options: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    clocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    last: list[list[Any]] = field(default_factory=list)
    order: int = 0
    runs: int = 0
    segments: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Memory:
        """What `folder` remembers, nothing where it is new. Raises StateError for another version's, or one read with other options."""
        try:
            text = (folder / NAME).read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls(options=dict(options))
        try:
            found = cls._of(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"{folder / NAME}: not what logscope wrote; remove the folder to begin anew"
            ) from error
        for name, value in options.items():
            if found.options.get(name) != value:
                raise StateError(
                    f"{folder}: was read with {name} {found.options.get(name)!r}, not {value!r}; give the same, or another folder"
                )
        return found

    @classmethod
    def _of(cls, document: dict[str, Any]) -> Memory:
        if document.pop("version") != VERSION:
            raise ValueError("version")
        entries = [
            Entry(
                **{
                    **entry,
                    "stand": Stand(**entry["stand"]),
                    "settled": Coverage(**entry["settled"]),
                    "tail": Coverage(**entry["tail"]),
                }
            )
            for entry in document.pop("entries")
        ]
        return cls(entries=entries, **document)

    def save(self, folder: Path) -> None:
        """Write it, whole or not at all."""
        document = {"version": VERSION, **asdict(self)}
        write_whole(folder / NAME, json.dumps(document, ensure_ascii=False).encode())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where it is missing) for one run at a time; raises StateError where another run holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(f"{folder}: another run is using it; wait for its end") from error
        yield
    finally:
        os.close(descriptor)
