"""What an envelope's pattern gives back, and how a payload is known to be vLLM's.

Joins the parts into which a runtime cut a long line: CRI's P and F, Docker's 16 kB, journald's limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from parsers.envelopes.stamps import Clock
from parsers.lines import JsonRecord, Outer

__all__ = ["MAX_LENGTH", "Envelope", "Partials", "Peeled", "Whole", "looks_like_record", "of_each_line"]


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


MAX_LENGTH = 1 << 20
_MAX_OPEN = 64

Whole = tuple[int, str, Outer]
_Key = tuple["str | int | None", ...]


class Partials:
    """The unfinished lines, one for each stream of each container or unit; `cut` counts the characters left out.

    A line is cut at 1 MiB, and of more than 64 unfinished ones the oldest is given up.
    """

    def __init__(self) -> None:
        self._open: dict[_Key, tuple[int, Outer, list[str], int]] = {}
        self.cut = 0
        self.cut_lines = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, number: int, peeled: Peeled, outer: Outer) -> Whole | None:
        """The whole line that this part completes (its number that of the first part), or None."""
        if not self._open and not peeled.partial:
            return number, peeled.text, outer
        key: _Key = (outer.envelope, outer.host, outer.unit, outer.pod, outer.container, outer.stream, outer.pid)
        begun = self._open.pop(key, None)
        if begun is None:
            if not peeled.partial:
                return number, peeled.text, outer
            if len(self._open) >= _MAX_OPEN:
                oldest = self._open.pop(next(iter(self._open)))
                self.cut, self.cut_lines = self.cut + oldest[3], self.cut_lines + 1
            self._open[key] = (number, outer, [peeled.text], len(peeled.text))
            return None
        first, outer, parts, size = begun
        kept = peeled.text[: MAX_LENGTH - size]
        if len(kept) < len(peeled.text):
            self.cut_lines += size < MAX_LENGTH
            self.cut += len(peeled.text) - len(kept)
        parts.append(kept)
        size += len(kept)
        if not peeled.partial:
            return first, "".join(parts), outer
        self._open[key] = (first, outer, parts, size)
        return None

    def rest(self) -> list[Whole]:
        """The lines that never ended, at the end of the input."""
        rest = [(number, "".join(parts), outer) for number, outer, parts, _ in self._open.values()]
        self._open.clear()
        return rest
