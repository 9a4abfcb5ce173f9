"""Which files the arguments of a command mean: files, folders, globs, and `-`."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from parsers.sources.journal import has_journal
from parsers.sources.object_stores import RemoteError, RemoteFile, is_remote, remote_files, without_secrets
from parsers.sources.rotation import natural_key, rotation_of

__all__ = ["Found", "discover"]

_LOG_NAME = re.compile(
    r"(?:\.(?:log|txt|out|err|stdout|stderr|journal|json|jsonl|ndjson|export)\Z|log|messages|stdout|stderr|console|vllm)",
    re.I,
)
_OTHER_KIND = re.compile(
    r"\.(?:py|pyc|md|rst|ya?ml|toml|ini|cfg|conf|html?|css|js|csv|tsv|parquet|arrow|db|sqlite|png|jpe?g|svg|pdf|whl|so|bin|pt|safetensors|lock|sh|service)\Z",
    re.I,
)
_JSON_NAME = re.compile(r"\.(?:json|jsonl|ndjson)\Z", re.I)
# a JSON file of a folder is a log only if it holds one of the keys under which log text stands
_TEXT_KEYS = re.compile(rb'"(?:log|message|msg|MESSAGE|textPayload|@message|line|values)"\s*:')


class Found(NamedTuple):
    """A file (or journal folder) to read, or a `problem` in its place; no path and no problem: standard input."""

    name: str
    path: Path | None
    problem: str | None = None
    remote: RemoteFile | None = None

    @property
    def place(self) -> str | None:
        """Where the file lies, as text; None for standard input and for what was not found."""
        if self.remote is not None:
            return self.remote.name
        return str(self.path) if self.path is not None else None


def discover(args: Sequence[str], notes: list[str]) -> Iterator[Found]:
    """What the arguments mean, in their order, each file once; `notes` receives what was passed over."""
    seen: set[tuple[int, int]] = set()
    for arg in args:
        for found in _of_argument(arg, notes):
            identity = _identity(found.path)
            if identity is not None and identity in seen:
                notes.append(f"{found.name}: named twice, read once")
                continue
            if identity is not None:
                seen.add(identity)
            yield found


def _identity(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        facts = path.stat()
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino) if facts.st_ino else None


def _of_argument(arg: str, notes: list[str]) -> Iterator[Found]:
    if arg == "-":
        yield Found("-", None)
        return
    if is_remote(arg):
        yield from _of_url(arg)
        return
    if "\0" in arg:
        yield Found(arg, None, "no valid file name")
        return
    path = _home_expanded(arg)
    if path.is_dir():
        yield from _of_folder(arg, path, notes)
    elif os.path.lexists(path) or not glob.has_magic(arg):
        yield Found(arg, path)
    else:
        yield from _of_glob(arg, notes)


def _of_url(url: str) -> Iterator[Found]:
    try:
        for file in remote_files(url):
            yield Found(file.name, None, None, file)
    except RemoteError as error:
        yield Found(without_secrets(url), None, str(error))


def _home_expanded(arg: str) -> Path:
    try:
        return Path(arg).expanduser()
    except RuntimeError:  # no such user
        return Path(arg)


def _of_glob(pattern: str, notes: list[str]) -> Iterator[Found]:
    found = glob.glob(str(_home_expanded(pattern)), recursive=True)  # noqa: PTH207
    names = sorted(found, key=natural_key)
    files = [name for name in names if not Path(name).is_dir()]
    for name in files:
        yield Found(name, Path(name))
    if not files:
        for name in names:
            yield from _of_folder(name, Path(name), notes)
    if not names:
        yield Found(pattern, None, "matches no file; check the pattern")


def _of_folder(arg: str, folder: Path, notes: list[str]) -> Iterator[Found]:
    count = 0
    for path in _walk(folder, notes):
        count += 1
        yield Found(str(path), path)
    if not count:
        yield Found(arg, None, "no log files in this folder; pass the log file itself")


def _walk(folder: Path, notes: list[str]) -> Iterator[Path]:
    """The log files of a folder and its folders, links followed, each folder once."""
    seen: set[tuple[int, int]] = set()
    for where, folders, names in os.walk(folder, followlinks=True, onerror=lambda e: notes.append(_note(e))):
        here = Path(where)
        identity = _identity(here)
        if identity is None or identity in seen:
            folders.clear()
            continue
        seen.add(identity)
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural_key)
        if has_journal(here):
            yield here
        for name in sorted(names, key=natural_key):
            path = here / name
            if name.startswith(".") or name.endswith((".journal", ".journal~")):
                continue
            reason = _no_log(path)
            if reason is None:
                yield path
            else:
                notes.append(f"{path}: {reason}, passed over")


def _note(error: OSError) -> str:
    return f"{error.filename}: {error.strerror or error}, passed over"


def _no_log(path: Path) -> str | None:
    """Why a file of a folder is taken for no log, or None."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return "a broken link" if path.is_symlink() else (error.strerror or "unreadable")
    if not stat.S_ISREG(mode):
        return "no regular file"
    base = Path(rotation_of(str(path)).base).name
    if _OTHER_KIND.search(base) or not (_LOG_NAME.search(base) or "." not in base):
        return "not named like a log"
    if _JSON_NAME.search(base) and base == path.name:
        return _no_json_log(path)
    return None


def _no_json_log(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return None  # reading it will say so
    return None if _TEXT_KEYS.search(head) else "JSON without log text"
