"""Files that appear under their name only when they are whole: written beside their place, then renamed.

A crash, a full disk or `kill -9` leaves the old file or none. What a killed run left beside it is taken away by the next one.

Temporary files and folders: named after their process, so that what a killed one left behind is known again and taken away.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TextIO

__all__ = ["is_running", "prefix", "temporary_file", "whole_file", "whole_text", "write_whole"]
_OS_ERROR = re.compile(r"\(os error (?P<number>\d{1,3})\)")
_LEFT_OVER = re.compile(r"\.(?P<pid>\d{1,10})\.part\Z")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; what was written takes the name `path` when the block ends well, and is removed when it does not.

    A link is followed. What is no regular file (a pipe, /dev/stdout, /dev/null) is written to as it is. Raises OSError that names
    `path` where nothing can be written.
    """
    if _is_special(path):
        yield path
        return
    target = path.resolve() if path.is_symlink() else path
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    _clear_left_overs(target)
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())  # a name must not reach the disk before what it names
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    except OSError as error:
        _remove(beside)
        if error.filename in (None, str(beside)):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    except BaseException as error:
        _remove(beside)
        if type(error).__module__.partition(".")[0] == "polars":
            raise OSError(*_said_by_polars(str(error)), str(path)) from error
        raise


@contextmanager
def whole_text(path: Path) -> Iterator[TextIO]:
    """`whole_file`, opened for text in UTF-8."""
    with whole_file(path) as beside, beside.open("w", encoding="utf-8", errors="replace") as out:
        yield out


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all; raises as `whole_file` does."""
    with whole_file(path) as beside:
        beside.write_bytes(content)


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _said_by_polars(text: str) -> tuple[int, str]:
    """Number and words of the error behind Polars' own; a frame that is in memory fails to be written for nothing else."""
    told = _OS_ERROR.search(text)
    if told is None:
        return errno.EIO, "could not be written to its end; is the disk full?"
    return int(told["number"]), os.strerror(int(told["number"]))


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _clear_left_overs(path: Path) -> None:
    """Remove what runs that were killed left of this file; what a run is writing that goes on stays."""
    with suppress(OSError):
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
            found = _LEFT_OVER.search(left.name)
            if found is not None and not is_running(int(found["pid"])):
                _remove(left)


def is_running(pid: int) -> bool:
    """Whether a process of this number runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


_NAME = re.compile(r"logscope-(?P<pid>\d{1,10})-")
_OLD_S = 24 * 3600
"""Another container may share the folder, whose processes nobody here sees: only what was not touched for so long is left behind."""


def prefix() -> str:
    """What names of this process's temporary files begin with. The first time, what dead processes left goes away."""
    _clear(tempfile.gettempdir())
    return f"logscope-{os.getpid()}-"


def temporary_file(suffix: str) -> Path:
    """A new, empty file. Raises OSError where none can be made."""
    handle, name = tempfile.mkstemp(prefix=prefix(), suffix=suffix)
    os.close(handle)
    return Path(name)


@lru_cache(maxsize=1)
def _clear(folder: str) -> None:
    with suppress(OSError):
        for left in Path(folder).glob("logscope-*"):
            found = _NAME.match(left.name)
            if found is not None and not is_running(int(found["pid"])):
                with suppress(OSError):
                    _remove_leftover(left)


def _remove_leftover(left: Path) -> None:
    facts = left.lstat()
    if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < _OLD_S:
        return
    if left.is_dir() and not left.is_symlink():
        shutil.rmtree(left, ignore_errors=True)
    else:
        left.unlink()
