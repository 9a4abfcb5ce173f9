"""Rows of the formats' tables, and a stripper of vLLM's record prefix that is independent of the record layer."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "formats"

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"\([^()]*pid=\d+[^)]*\) ")
_PREFIX = re.compile(
    r"(?:\([^()]*pid=\d+[^)]*\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]+:\d+\]? ?"
)


@cache
def examples() -> tuple[dict[str, Any], ...]:
    """Lines of 76 releases with the fields that are in them."""
    text = gzip.decompress((FOLDER / "examples.jsonl.gz").read_bytes()).decode("utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


@cache
def forms() -> tuple[dict[str, Any], ...]:
    """Forms that stand in the table of formats only, and forms nobody has printed yet."""
    text = (FOLDER / "forms.jsonl").read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


def message_of(line: str) -> tuple[str, bool]:
    """A record's message with its lines joined, and whether it had vLLM's prefix."""
    line = _ANSI.sub("", line).replace("\r", "")
    lines = line.split("\n")
    if not _PREFIX.match(lines[0]):
        return _PROCESS.sub("", line, count=1) if _PROCESS.match(line) else line, False
    return "\n".join(_PREFIX.sub("", part, count=1) if _PREFIX.match(part) else part for part in lines), True


def same(expected: Any, got: Any) -> bool:
    """Equal as a reader of the log would say: numbers by value, dictionaries by the expected keys."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return abs(expected - got) <= 1e-6 * max(1.0, abs(expected))
    if isinstance(expected, dict) and isinstance(got, dict):
        return all(key in got and same(value, got[key]) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(same, expected, got))
    return bool(expected == got)
