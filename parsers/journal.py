"""A systemd journal, read through `journalctl -o export`: the journal's own stable exchange format.

The export format is documented by systemd (Journal Export Formats): entries end with an empty line; a
field is `NAME=value`, or `NAME`, a line end, the value's length as 64-bit little endian, the value.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MAGIC", "JournalError", "export_blocks", "has_journal"]

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
    command = shutil.which("journalctl")
    if command is None:
        raise JournalError(
            "a systemd journal needs the command journalctl, which is not installed; "
            "run `journalctl -o export` where it is and give the output"
        )
    where = f"--directory={path}" if path.is_dir() else f"--file={path}"
    arguments = [command, where, "--output=export", "--no-pager", "--quiet"]
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(  # noqa: S603 (a fixed command; the path is one argument)
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints
        )
        try:
            output = process.stdout
            while output is not None and (block := output.read(size)):
                yield block
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if status:
            complaints.seek(0)
            said = complaints.read(2000).decode("utf-8", "replace").strip().splitlines()
            raise JournalError(
                f"journalctl failed: {said[-1] if said else f'exit status {status}'}"
            )
