"""A systemd journal, read through `journalctl -o export`: the journal's own stable exchange format.

The export format is documented by systemd (Journal Export Formats): entries end with an empty line; a
field is `NAME=value`, or `NAME`, a line end, the value's length as 64-bit little endian, the value.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["MAGIC", "JournalError", "JournalQuery", "export_blocks", "has_journal", "start_journalctl"]

MAGIC = b"LPKSHHRH"
_SUFFIXES = (".journal", ".journal~")


class JournalError(Exception):
    """The journal could not be read; the text says why and what to do."""


def has_journal(folder: Path) -> bool:
    """Whether a folder directly holds journal files."""
    try:
        return any(entry.name.endswith(_SUFFIXES) for entry in folder.iterdir())
    except OSError:
        return False


def export_blocks(path: Path, size: int) -> Iterator[bytes]:
    """The entries of a journal file or folder in export format, oldest first, in blocks of at most `size` bytes.

    Raises `JournalError` when there is no journalctl or it fails.
    """
    return _exported([f"--directory={path}" if path.is_dir() else f"--file={path}"], size)


@dataclass(frozen=True, slots=True)
class JournalQuery:
    """What to ask this machine's journal: a unit's entries, `since` and `until` as journalctl reads them.

    `follow` goes on with new entries until the reader stops.
    """

    unit: str
    since: str | None = None
    until: str | None = None
    follow: bool = False
    user: bool = False

    def blocks(self, size: int) -> Iterator[bytes]:
        """The unit's entries in export format; raises as `export_blocks` does."""
        arguments = [f"--{'user-' if self.user else ''}unit={self.unit}"]
        arguments += [f"--since={self.since}"] if self.since else []
        arguments += [f"--until={self.until}"] if self.until else []
        arguments += ["--follow", "--lines=all"] if self.follow else []
        return _exported(arguments, size, live=self.follow)


def start_journalctl(
    arguments: Sequence[str], output: str, complaints: IO[bytes] | int | None = None
) -> subprocess.Popen[bytes]:
    """Start journalctl, whose entries come on its `stdout` in the form `output` (its own word); raises `JournalError` where there is none."""
    command = shutil.which("journalctl")
    if command is None:
        raise JournalError(
            "a systemd journal needs the command journalctl, which is not installed; "
            "run `journalctl -o export` where it is and give the output"
        )
    return subprocess.Popen(  # noqa: S603 (a fixed command, no shell; each value is one argument)
        [command, *arguments, f"--output={output}", "--no-pager", "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,
    )


def _exported(arguments: Sequence[str], size: int, *, live: bool = False) -> Iterator[bytes]:
    with tempfile.TemporaryFile() as complaints:
        process = start_journalctl(arguments, "export", complaints)
        output = process.stdout
        assert output is not None
        try:
            take = getattr(output, "read1", output.read) if live else output.read
            while block := take(size):
                yield block
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            output.close()
        if status:
            complaints.seek(0)
            said = complaints.read(2000).decode("utf-8", "replace").strip().splitlines()
            raise JournalError(f"journalctl failed: {said[-1] if said else f'exit status {status}'}")
