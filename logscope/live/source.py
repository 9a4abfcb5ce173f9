"""What can be watched: a file, standard input or a named pipe, and a unit's journal."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logscope.errors import NothingToWorkOn
from logscope.live.follow import Wait, follow_file, read_pipe
from parsers.sources.compression import compression_of

__all__ = ["JOURNAL_LINES", "open_source", "open_unit"]

JOURNAL_LINES = 100_000
"""Entries of a unit's journal that are read before new ones: enough to hold the server's last start, and bounded."""

Chunks = Iterator["bytes | None"]


@contextmanager
def open_source(name: str, wait: Wait) -> Iterator[Chunks]:
    """The chunks of standard input (`-`), a named pipe or a file.

    Raises NothingToWorkOn for what cannot be opened or followed.
    """
    if name == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise NothingToWorkOn(
                "no log named: give a file, or pipe one in (docker logs -f vllm 2>&1 | logscope watch -)"
            )
        yield read_pipe(sys.stdin.fileno())
        return
    try:
        pipe = _pipe_at(Path(name))
    except OSError as error:
        raise NothingToWorkOn(f"{name}: {error.strerror or error}") from None
    if pipe is None:
        yield follow_file(Path(name), wait)
        return
    try:
        yield read_pipe(pipe)
    finally:
        os.close(pipe)


def _pipe_at(path: Path) -> int | None:
    """A descriptor where a pipe (or a device) is, None where a file is that can be followed.

    Raises NothingToWorkOn for what cannot, OSError for what cannot be opened.
    """
    kind = path.stat().st_mode
    if stat.S_ISDIR(kind):
        raise NothingToWorkOn(f"{path}: a folder; name the file to follow")
    if not stat.S_ISREG(kind):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with path.open("rb") as file:
        if compression_of(file.read(16)):
            raise NothingToWorkOn(
                f"{path}: compressed, so it does not grow; logscope analyze reads it"
            )
    return None


@contextmanager
def open_unit(unit: str) -> Iterator[Chunks]:
    """The entries of a systemd unit's journal, the last ones first and then each new one. Raises NothingToWorkOn without journalctl."""
    command = shutil.which("journalctl")
    if command is None:
        raise NothingToWorkOn(
            "--unit needs the command journalctl, which is not installed here; pipe the log in instead"
        )
    process = subprocess.Popen(  # noqa: S603 (a fixed command, no shell; the unit is one argument)
        [
            command,
            f"--unit={unit}",
            "--follow",
            f"--lines={JOURNAL_LINES}",
            "--output=json",
            "--no-pager",
            "--quiet",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield read_pipe(process.stdout.fileno())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
