"""What is remembered between runs, as one JSON document: where each source was left, and what the parser knew there.

Which file is which: a source is known again by its inode and its head, by its head alone once it was rotated and compressed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from logscope.atomic_files import write_whole
from logscope.errors import LogscopeError
from logscope.sanitize import json_document
from parsers.reading.events import Coverage
from parsers.sources.resuming import HEAD, ResumePoint, head_hash

__all__ = ["Entry", "Known", "ReadState", "StateError", "check_resumable", "locked", "sources_with_entries"]
VERSION = 3
NAME = "state.json"
_LARGEST = 1 << 28  # bytes; what is remembered of a file takes a few hundred


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
    resume_point: ResumePoint = field(default_factory=ResumePoint)
    saw_cr: bool = False
    bytes: int = 0
    seen: int | None = None
    settled: Coverage = field(default_factory=Coverage)
    tail: Coverage = field(default_factory=Coverage)
    given: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ReadState:
    """Everything that is remembered; `options` are those under which it was read, `segments` the files of frames that count, `digests` what they hold."""

    options: dict[str, Any] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    clocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    last: list[list[Any]] = field(default_factory=list)
    order: int = 0
    runs: int = 0
    segments: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> ReadState:
        """What `folder` remembers, nothing where it is new.

        Raises:
            StateError: another version's, read with other options, or damaged in any of its files.
        """
        try:
            text = _regular(folder / NAME, _LARGEST).read_bytes()
        except FileNotFoundError:
            return cls(options=dict(options))
        except OSError as error:
            raise _damaged(folder / NAME) from error
        try:
            found = cls._of(json_document(text))
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged(folder / NAME) from error
        for name, value in options.items():
            if found.options.get(name) != value:
                raise StateError(
                    f"{folder}: was read with {name} {found.options.get(name)!r}, not {value!r}; give the same, or another folder"
                )
        for name in found.segments:
            if found.digests.get(name, "") != _digest_or_none(folder / name):
                raise _damaged(folder / name)
        return found

    @classmethod
    def _of(cls, document: Any) -> ReadState:
        if not isinstance(document, dict) or document.pop("version", None) != VERSION:
            raise ValueError("version")
        if document.pop("seal", None) != _seal(document):
            raise ValueError("seal")
        entries = [
            Entry(
                **{
                    **entry,
                    "resume_point": ResumePoint(**entry["resume_point"]),
                    "settled": Coverage(**entry["settled"]),
                    "tail": Coverage(**entry["tail"]),
                }
            )
            for entry in document.pop("entries")
        ]
        return cls(entries=entries, **document)

    def save(self, folder: Path) -> None:
        """Write it, whole or not at all, with a digest of itself and of each of its files."""
        self.digests = {name: self.digests.get(name) or _digest(folder / name) for name in self.segments}
        document = asdict(self)
        sealed = {"version": VERSION, "seal": _seal(document), **document}
        write_whole(folder / NAME, json.dumps(sealed).encode())


def _seal(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    """What a file of frames is known again by. Raises OSError for what is missing or no regular file."""
    with _regular(path).open("rb") as file:
        found = hashlib.blake2b(digest_size=16)
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _digest_or_none(path: Path) -> str | None:
    try:
        return _digest(path)
    except OSError:
        return None


def _regular(path: Path, most: int | None = None) -> Path:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(0, "no regular file", str(path))
    if most is not None and facts.st_size > most:
        raise OSError(0, "larger than any that was written", str(path))
    return path


def _damaged(path: Path) -> StateError:
    return StateError(f"{path}: damaged, or not what this logscope wrote; remove the folder to read everything anew")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` (made where it is missing) for one run at a time; what is written meanwhile only its owner can read.

    Raises:
        StateError: another run holds it, or it is no folder that can be used.
    """
    umask = os.umask(0o077)
    descriptor = -1
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise StateError(f"{error.filename or folder}: {error.strerror or error}; give another folder") from error
        with suppress(ImportError):  # no such locks on this system
            import fcntl

            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StateError(f"{folder}: another run is using it; wait for its end") from error
        yield
    finally:
        os.umask(umask)
        if descriptor >= 0:
            os.close(descriptor)


Known = tuple[Any, Entry]
"""A source and what is remembered of it."""


def check_resumable(sources: Sequence[Any]) -> None:
    """Raise StateError for what cannot be read on: pipes, standard input, live journals."""
    for source in sources:
        if source.problem is None and source.size is None:
            raise StateError(f"{source.name}: --state remembers files; a pipe or a journal begins anew each time")


def sources_with_entries(sources: Sequence[Any], state: ReadState) -> list[Known]:
    """Each readable source with its entry, in the order of `sources`; a file that is new gets one."""
    free = list(state.entries)
    heads = {id(s): _head(s) for s in sources if s.problem is None}
    readable = [s for s in sources if s.problem is None and id(s) in heads]
    found: dict[int, Entry] = {}
    for rule in _RULES:
        for source in readable:
            if id(source) in found:
                continue
            facts = _Facts(source, heads[id(source)])
            fitting = [entry for entry in free if rule(facts, entry)]
            if fitting:
                entry = max(fitting, key=lambda e: (e.head_size, e.resume_point.end))
                free.remove(entry)
                found[id(source)] = entry
    known: list[Known] = []
    for source in readable:
        facts = _Facts(source, heads[id(source)])
        entry = found.get(id(source)) or _new(state, facts)
        entry.name, entry.inode, entry.bytes = source.name, facts.inode, source.size
        entry.group = facts.group
        if len(facts.head) > entry.head_size:
            entry.head_size, entry.head = len(facts.head), head_hash(facts.head, len(facts.head))
        known.append((source, entry))
    return known


class _Facts:
    """What is looked at of a source."""

    def __init__(self, source: Any, head: bytes) -> None:
        self.source, self.head = source, head
        self.group = _absolute(source.group)
        self.inode = _inode(source)

    def same_head(self, entry: Entry) -> bool:
        enough = len(self.head) >= entry.head_size
        return enough and head_hash(self.head, entry.head_size) == entry.head


def _by_inode(facts: _Facts, entry: Entry) -> bool:
    return facts.inode is not None and facts.inode == entry.inode and facts.same_head(entry)


def _by_set(facts: _Facts, entry: Entry) -> bool:
    return entry.group == facts.group and entry.head_size > 0 and facts.same_head(entry)


def _by_head(facts: _Facts, entry: Entry) -> bool:
    return entry.head_size == HEAD and facts.same_head(entry)


_RULES: tuple[Callable[[_Facts, Entry], bool], ...] = (_by_inode, _by_set, _by_head)


def _new(state: ReadState, facts: _Facts) -> Entry:
    entry = Entry(len(state.entries), facts.source.name, facts.group, facts.group)
    entry.head = head_hash(b"", 0)
    state.entries.append(entry)
    return entry


def _head(source: Any) -> bytes:
    """The first bytes of a source's text; what is wrong with it the reading itself will say."""
    head = b""
    with closing(source.blocks()) as blocks:
        for block in blocks:
            head += block[: HEAD - len(head)]
            if len(head) >= HEAD:
                break
    return head


def _inode(source: Any) -> list[int] | None:
    try:
        facts = os.stat(source.path)  # noqa: PTH116 - a source may have no path
    except (OSError, TypeError, ValueError):
        return None
    return [facts.st_dev, facts.st_ino] if facts.st_ino else None


def _absolute(group: str) -> str:
    return group if ":/" in group else os.path.abspath(group)  # noqa: PTH100 - links stay
