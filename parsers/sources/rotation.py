"""Rotated logs: which files are one server's stream, and in which order they were written.

The forms of logrotate (`server.log.2.gz`, `server.log-20260501`), Python's timed and sized handlers
(`server.log.2026-05-01_00-00-00`), the kubelet (`0.log.20260501-120000.gz`) and loguru (`server.2026-05-01.log`).
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

__all__ = ["Rotation", "natural_key", "pod_of", "rotation_of"]

_COMPRESSED = re.compile(r"\.(?:gz|zst|zstd|xz|bz2|gzip)\Z", re.I)
_NUMBERED = re.compile(r"(?P<base>.*[A-Za-z])\.(?P<number>\d{1,4})\Z")  # server.log.2
_DATE = r"(?P<date>\d{4}-?[01]\d-?[0-3]\d(?:[-_T.]?\d\d[-_.:]?\d\d(?:[-_.:]?\d\d)?(?:[_.]\d{1,6})?)?)"
_DATED = re.compile(rf"(?P<base>.+)[-_.]{_DATE}\Z")  # server.log-20260501
_DATE_INSIDE = re.compile(rf"(?P<base>.+)[-_.]{_DATE}(?P<suffix>\.[A-Za-z]{{2,6}})\Z")  # server.2026-05-01.log
# /var/log/pods/default_vllm-0_6f1c.../vllm/1.log: a container's second run, with its own rotated files
_KUBELET = re.compile(r"(?P<restart>\d{1,5})\.log(?:\.(?P<date>\d{8}-\d{6}))?\Z")
_POD_FOLDER = re.compile(r"[a-z0-9.-]+_[a-z0-9.-]+_[0-9a-f-]{8,64}\Z")
_POD_PATH = re.compile(
    r"(?:\A|/)[a-z0-9.-]+_(?P<pod>[a-z0-9.-]+)_[0-9a-f-]{8,64}/(?P<container>[a-z0-9-]+)/\d{1,5}\.log"
)
# /var/log/containers/vllm-0_default_vllm-<64 hex digits>.log
_CONTAINER_LINK = re.compile(r"(?:\A|/)(?P<pod>[a-z0-9.-]+)_[a-z0-9.-]+_(?P<container>[a-z0-9-]+)-[0-9a-f]{64}\.log")
_NUMBER_RUN = re.compile(r"(\d+)")


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


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts `worker-2.log` before `worker-10.log`."""
    parts = _NUMBER_RUN.split(name)
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts]


def pod_of(path: str) -> tuple[str, str] | None:
    """Pod and container that a file's place tells: the kubelet's folders and the links to them."""
    for pattern in (_POD_PATH, _CONTAINER_LINK):
        if found := pattern.search(path):
            return found["pod"], found["container"]
    return None
