"""Which files the arguments of a command mean (files, folders, globs, `-`), and which of them are one rotated stream, oldest first."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from parsers.lines import later
from parsers.sources.journal import has_journal
from parsers.sources.object_stores import RemoteError, RemoteFile, is_remote, natural_key, remote_files, without_secrets

__all__ = ["Found", "Rotation", "discover", "pod_of", "rotation_of"]

_LOG_NAME = later(
    r"(?:\.(?:log|txt|out|err|stdout|stderr|journal|json|jsonl|ndjson|export)\Z|log|messages|stdout|stderr|console|vllm)",
    re.I,
)
_OTHER_KIND = later(
    r"\.(?:py|pyc|md|rst|ya?ml|toml|ini|cfg|conf|html?|css|js|csv|tsv|parquet|arrow|db|sqlite|png|jpe?g|svg|pdf|whl|so|bin|pt|safetensors|lock|sh|service)\Z",
    re.I,
)
_JSON_NAME = later(r"\.(?:json|jsonl|ndjson)\Z", re.I)
# a JSON file of a folder is a log only if it holds one of the keys under which log text stands
_TEXT_KEYS = later(rb'"(?:log|message|msg|MESSAGE|textPayload|@message|line|values)"\s*:')

# Rotated files: the forms of logrotate (server.log.2.gz, server.log-20260501), Python's timed and sized handlers
# (server.log.2026-05-01_00-00-00), the kubelet (0.log.20260501-120000.gz) and loguru (server.2026-05-01.log).
_COMPRESSED = later(r"\.(?:gz|zst|zstd|xz|bz2|gzip)\Z", re.I)
_NUMBERED = later(r"(?P<base>.*[A-Za-z])\.(?P<number>\d{1,4})\Z")  # server.log.2
_DATE = r"(?P<date>\d{4}-?[01]\d-?[0-3]\d(?:[-_T.]?\d\d[-_.:]?\d\d(?:[-_.:]?\d\d)?(?:[_.]\d{1,6})?)?)"
_DATED = later(rf"(?P<base>.+)[-_.]{_DATE}\Z")  # server.log-20260501
_DATE_INSIDE = later(rf"(?P<base>.+)[-_.]{_DATE}(?P<suffix>\.[A-Za-z]{{2,6}})\Z")  # server.2026-05-01.log
# /var/log/pods/default_vllm-0_6f1c.../vllm/1.log: a container's second run, with its own rotated files
_KUBELET = later(r"(?P<restart>\d{1,5})\.log(?:\.(?P<date>\d{8}-\d{6}))?\Z")
_POD_FOLDER = later(r"[a-z0-9.-]+_[a-z0-9.-]+_[0-9a-f-]{8,64}\Z")
_POD_PATH = later(r"(?:\A|/)[a-z0-9.-]+_(?P<pod>[a-z0-9.-]+)_[0-9a-f-]{8,64}/(?P<container>[a-z0-9-]+)/\d{1,5}\.log")
# /var/log/containers/vllm-0_default_vllm-<64 hex digits>.log
_CONTAINER_LINK = later(r"(?:\A|/)(?P<pod>[a-z0-9.-]+)_[a-z0-9.-]+_(?P<container>[a-z0-9-]+)-[0-9a-f]{64}\.log")


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
    if not arg.strip():
        yield Found(arg, None, "an empty name; name a file")
        return
    path = _home_expanded(arg)
    if os.path.isdir(path):  # noqa: PTH112 - `Path.is_dir` fails on a name that is too long
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


class Rotation(NamedTuple):
    """`base` is the live file's name; `age` sorts the set oldest first."""

    base: str
    age: tuple[int, int, str]


def rotation_of(name: str) -> Rotation:
    """Where a file (its path as text) stands in its rotated set; a file of no set is its own base, the youngest."""
    path = PurePath(name)
    stem = _COMPRESSED.sub("", path.name) or path.name
    if not stem:
        return Rotation(name, (2, 0, ""))
    if (found := _KUBELET.match(stem)) and _POD_FOLDER.match(path.parent.parent.name):
        restart, date = 3 * int(found["restart"]), found["date"]
        age = (restart, 0, date) if date else (restart + 2, 0, "")
        return Rotation(str(path.with_name("0.log")), age)
    for pattern in (_DATED, _DATE_INSIDE):
        if found := pattern.match(stem):
            base = found["base"] + (found["suffix"] if pattern is _DATE_INSIDE else "")
            return Rotation(str(path.with_name(base)), (0, 0, re.sub(r"\D", "", found["date"]).ljust(20, "0")))
    if found := _NUMBERED.match(stem):
        return Rotation(str(path.with_name(found["base"])), (1, -int(found["number"]), ""))
    return Rotation(str(path.with_name(stem)), (2, 0, ""))


def pod_of(path: str) -> tuple[str, str] | None:
    """Pod and container that a file's place tells: the kubelet's folders and the links to them."""
    for pattern in (_POD_PATH, _CONTAINER_LINK):
        if found := pattern.search(path):
            return found["pod"], found["container"]
    return None
