"""Prints each pattern that the project compiles and that `attacks.used_patterns` does not know, then how many it compiles in all.

Run as a program (`python -m tests.fuzz.compiled`): it must stand between the project and `re` before a module of it is imported. Patterns that
are compiled when a line of their kind is first met are met by reading every known form of a line.
"""

# ruff: noqa: E402, I001
from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import regex

made: dict[Any, str] = {}


def _noting(compile_: Callable[..., Any]) -> Callable[..., Any]:
    def noted(pattern: Any, *args: Any, **kwargs: Any) -> Any:
        room = str(sys._getframe(1).f_globals.get("__name__", ""))
        if room.partition(".")[0] in ("parsers", "logscope", "reference_engine"):
            made.setdefault(getattr(pattern, "pattern", pattern), room)
        return compile_(pattern, *args, **kwargs)

    return noted


re.compile, regex.compile = _noting(re.compile), _noting(regex.compile)  # type: ignore[assignment]

from tests.fuzz.attacks import SHORT_TEXT, used_patterns
from tests.fuzz.mutations import seeds
from parsers.reading.events import Coverage
from parsers.lines import Line
from parsers.reading.by_line import read_lines

attacked = {used.pattern.pattern for used in used_patterns()}
for name in ("forms", "samples/v0-with-warnings.log.gz"):
    texts = [text.decode("utf-8", "replace") for text in seeds()[name]]
    for _ in read_lines((Line(i, text) for i, text in enumerate(texts, 1)), Coverage()):
        pass
# What only serves to make a pattern for blocks of lines is in that one.
of_blocks = b"\n".join(p for p in attacked if isinstance(p, bytes)).decode()
for pattern, room in made.items():
    text = pattern if isinstance(pattern, str) else pattern.decode()
    known = pattern in attacked or text in of_blocks
    if not known and not f"{room}.".startswith(SHORT_TEXT):
        print(room, text)
print(len(made))
