"""What an envelope's pattern gives back, and how a payload is known to be vLLM's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from parsers.envelopes.stamps import Clock
from parsers.lines_part import JsonRecord, Outer

__all__ = ["Envelope", "Peeled", "looks_like_record", "of_each_line"]


class Peeled(NamedTuple):
    """One layer removed: `text` is what it held.

    `shape` tells variants of a weak envelope apart (with a zone or without, this pod or that). `partial`
    says that the payload's line goes on in the stream's next entry. `indent` is the width of the prefix,
    by which a multi-line message's further lines are indented (journalctl's short forms), or 0.
    """

    outer: Outer
    text: str
    shape: str = ""
    partial: bool = False
    record: JsonRecord | None = None
    indent: int = 0


class Envelope(NamedTuple):
    """An envelope of one physical line.

    `starts` holds the first characters that it may have. A `weak` envelope's form alone proves nothing (a
    foreign logger writes its own stamp too): it is taken off only from a vLLM record, or in a stream that
    is known to wear it. A `vague` one's form is also the beginning of another's.
    `bulk` matches the envelope at each line of a block.
    """

    name: str
    starts: frozenset[str]
    peel: Callable[[str, Clock], Peeled | None]
    weak: bool = False
    vague: bool = False
    bulk: re.Pattern[bytes] | None = None


def of_each_line(pattern: re.Pattern[str]) -> re.Pattern[bytes]:
    """An envelope's pattern for blocks of bytes, after a line feed; it must not run over a line's end.

    With the line feed the search for the next line is one for a byte, five times as fast as with `^`.
    """
    return re.compile(b"\n(?:" + pattern.pattern.encode() + b")", re.M)


_COLOUR = r"(?:\x1b\[[0-9;]*m|\^\[\[[0-9;]*m|\[[0-9;]{1,5}m)?"
# "(APIServer pid=1) ...", "INFO 05-09 00:49:33 ...", "[node-a] INFO 05-09 ...", "INFO:     10.0.0.1:5 - ..."
_RECORD = re.compile(
    rf"{_COLOUR}(?:"
    r"\([A-Za-z][\w.:/-]{0,200}(?:\(| pid=\d| rank=\d)"
    rf"|(?:[^\s\d]\S{{0,60}} )?{_COLOUR}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL){_COLOUR}"
    rf"(?::\s{{2,}}| {_COLOUR}\d\d-\d\d \d\d:\d\d:\d\d))"
)


def looks_like_record(text: str) -> bool:
    """Whether a payload begins as vLLM's own records and uvicorn's access lines do."""
    return _RECORD.match(text) is not None
