"""Temporary files and folders: named after their process, so that what a killed one left behind is known again and taken away."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from logscope.atomic_files import lives

__all__ = ["prefix", "temporary_file"]

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
            if found is not None and not lives(int(found["pid"])):
                with suppress(OSError):
                    _remove(left)


def _remove(left: Path) -> None:
    facts = left.lstat()
    if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < _OLD_S:
        return
    if left.is_dir() and not left.is_symlink():
        shutil.rmtree(left, ignore_errors=True)
    else:
        left.unlink()
