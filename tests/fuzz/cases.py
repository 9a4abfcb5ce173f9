"""A case of a fuzz target: the files that it lays out, and what is done with them; made by chance, kept as it is."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard
from click.testing import CliRunner, Result

from logscope.commands.cli import cli
from logscope.errors import LogscopeError
from tests.fuzz.mutations import CHANGES, Change, changed, seeds

__all__ = ["Case", "Target", "keep", "lay_out", "loaded", "mutated", "pressed", "run", "text_of"]

_NAMES = sorted(CHANGES)


@dataclass(frozen=True)
class Case:
    """`files` by their path below the case's folder; `facts`: what JSON can hold of how they are used."""

    files: dict[str, bytes]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """What is fuzzed: `make` draws a case, `check` raises where a promise is broken for it.

    `share`: how often it is drawn beside the others.
    """

    make: Callable[[random.Random], Case]
    check: Callable[[Case, Path], object]
    share: int = 1


def mutated(chance: random.Random, *, short: bool = False, name: str | None = None, most: int = 250) -> list[bytes]:
    """Lines of a real log after some changes; with `short` always a start and a stretch of what follows it."""
    name = name or chance.choice(sorted(seeds()))
    lines = list(seeds()[name])
    if len(lines) > 150 and (short or chance.random() < 0.8):
        at = chance.randrange(60, len(lines) - 40)
        lines = lines[:60] + lines[at : at + chance.randrange(20, most)]
    changes: list[Change] = [
        (chance.choice(_NAMES), chance.random(), chance.random(), chance.randrange(1 << 16))
        for _ in range(1 + int(chance.expovariate(0.3)))
    ]
    return changed(lines, changes)


def text_of(lines: list[bytes]) -> bytes:
    """The lines as a file's bytes."""
    return b"\n".join(lines) + b"\n"


_PRESSES: tuple[Callable[[bytes], bytes], ...] = (
    gzip.compress,
    lambda data: zstandard.ZstdCompressor(level=1).compress(data),
    lambda data: bz2.compress(data, 1),
    lambda data: lzma.compress(data, preset=0),
)


def pressed(chance: random.Random, data: bytes) -> bytes:
    """The bytes as they are, or compressed, now and then cut short or damaged."""
    if chance.random() < 0.5:
        return data
    data = chance.choice(_PRESSES)(data)
    if chance.random() < 0.2:
        data = data[: chance.randrange(len(data))]
    elif chance.random() < 0.2:
        at = chance.randrange(len(data))
        data = data[:at] + chance.randbytes(3) + data[at + 3 :]
    return data


def lay_out(case: Case, folder: Path) -> None:
    """Write the case's files below a folder."""
    for name, data in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def keep(case: Case, kind: str, path: Path) -> None:
    """Write a case to a `.json.gz` from which `loaded` gives it again; `kind` begins with the target's name."""
    files = {name: base64.b64encode(data).decode() for name, data in case.files.items()}
    text = json.dumps({"kind": kind, "facts": case.facts, "files": files})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def loaded(path: Path) -> tuple[str, Case]:
    """The target's name and the case of a kept file."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    files = {name: base64.b64decode(data) for name, data in found["files"].items()}
    return found["kind"].partition("\n")[0], Case(files, found["facts"])


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result | None:
    """A command as a user calls it; None where it ended with a user's sentence. Every other exception goes through.

    Raises AssertionError where the exit status is none of the contract's.
    """
    try:
        result = CliRunner().invoke(cli, [str(a) for a in arguments], input=stdin, catch_exceptions=False)
    except LogscopeError as told:
        assert told.status in (2, 3)  # noqa: PT017
        return None
    assert result.exit_code in (0, 2, 3, 4), result.output
    return result
