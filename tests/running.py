"""The command in tests: in a process of its own, or in this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from logscope.commands.cli import cli


def run(*args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The installed command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "logscope", *map(str, args)], input=stdin, capture_output=True, timeout=120, check=False
    )


def invoke(*args: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args], input=stdin)


def log(folder: Path, *lines: str, name: str = "server.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path
