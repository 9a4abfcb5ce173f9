"""Lines that a terminal wrapped: rows of one width, copied from a screen, are joined to lines again.

A screen's width shows in the rows: none is longer, several are exactly as long, and the row after one of
these begins in the middle of a text. The rows are joined before envelopes are taken off, since the
envelope stands in the first row alone. A screen drops spaces at a row's end: up to two are put back.

Exports that come newest first (web viewers, Loki, gcloud) are turned round.

Whether a source is one is seen in its first block: nearly all changes of its clock go back. Then its entries
are written to a temporary file and read again from the end, so that memory stays bounded.

The little of YAML that log entries need: nested keys, quoted and plain texts, block texts.

Also the console's form, which is no YAML and no JSON: `key: "text"` between braces. A full YAML reader is not
needed for it, and would be a dependency that reads hostile input.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import IO

from parsers.envelopes.form import Clock, looks_like_record
from parsers.envelopes.forms import possible_envelopes
from parsers.lines import MAX_LINE, Line, json_without_lone_surrogates, later, packed, unpacked

__all__ = ["Rows", "TooLargeError", "inner_clocks", "is_falling", "mapping_of", "oldest_first", "rows_of"]
_NARROWEST, _WIDEST = 40, 400
_FEWEST = 3  # full rows that make a width
_DROPPED = 2
_CLOCK = Clock()


class Rows:
    """Joins rows of a known width; `dress` has the envelopes (name and shape) with which a line begins, none: plain records."""

    def __init__(self, width: int, dress: frozenset[tuple[str, str]]) -> None:
        self.width = width
        self.dress = dress
        self._number = 0
        self._rows: list[str] = []

    def join(self, numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """The lines that are complete, with the numbers of their first rows."""
        for number, row in numbered:
            if row and self._goes_on() and not self.begins(row):
                self._rows[-1] = self._rows[-1].ljust(self.width)
                self._rows.append(row)
                continue
            yield from self.rest()
            self._number, self._rows = number, [row]

    def rest(self) -> Iterator[tuple[int, str]]:
        """The line in hand."""
        if self._rows:
            yield self._number, "".join(self._rows)
        self._rows = []

    def begins(self, row: str) -> bool:
        """Whether a line begins with this row."""
        if not self.dress:
            return looks_like_record(row)
        return not self.dress.isdisjoint(_worn(row))

    def _goes_on(self) -> bool:
        """Whether the last row is full, and the line not yet longer than any."""
        if not self._rows or len(self._rows[-1]) < self.width - _DROPPED:
            return False
        return len(self._rows) * self.width < MAX_LINE


def _worn(row: str) -> set[tuple[str, str]]:
    if row.startswith('{"'):
        return {("json", "")}  # a row of it cannot be read yet
    return possible_envelopes(row, _CLOCK) if row else set()


def rows_of(texts: Sequence[str]) -> Rows | None:
    """How the lines of a source's beginning were wrapped, or None when they were not."""
    width = max(map(len, texts), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return None
    full = [i for i, text in enumerate(texts[:-1]) if len(text) == width]
    if len(full) < _FEWEST:
        return None
    starts = [b for a, b in pairwise(texts) if len(a) < width - _DROPPED and b]
    rows = Rows(width, _dress(starts))
    if not rows.dress and not any(map(looks_like_record, starts)):
        return None
    broken = sum(bool(texts[i + 1]) and not rows.begins(texts[i + 1]) for i in full)
    return rows if broken >= _FEWEST and 10 * broken >= 8 * len(full) else None


def _dress(starts: Sequence[str]) -> frozenset[tuple[str, str]]:
    """The envelopes on most of the rows that begin a line for sure: those after a short one."""
    shapes: Counter[tuple[str, str]] = Counter()
    for text in starts:
        shapes.update(_worn(text))
    names: Counter[str] = Counter()
    for (name, _), count in shapes.items():
        names[name] += count
    return frozenset(shape for shape, count in shapes.items() if count > 1 and 2 * names[shape[0]] > len(starts))


_IN_MEMORY = 32 << 20
_LARGEST = 4 << 30
_BLOCK = 1 << 20
_RECORD_CLOCK = later(rb"^[^\n]{0,160}?(?:INFO|DEBUG|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d) ", re.M)


class TooLargeError(Exception):
    """A newest-first source is larger than the space given to turn it round."""


def is_falling(clocks: Iterable[int] | Iterable[bytes], most: int = sys.maxsize) -> bool:
    """Whether a series of at most `most` times falls: at least three falls, and ten for each rise."""
    falls = rises = 0
    for before, after in pairwise(clocks):
        falls += after < before  # type: ignore[operator]
        rises += after > before  # type: ignore[operator]
        if rises * 11 > most:
            return False
    return falls >= _FEWEST and falls >= 10 * rises


def inner_clocks(data: bytes) -> list[bytes]:
    """The records' own clocks (`MM-DD HH:MM:SS`, which sorts as text) in plain text."""
    return _RECORD_CLOCK.findall(data)


def oldest_first(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines of all entries from the last entry to the first; the lines within an entry keep their order.

    Raises `TooLargeError` when they take more than 4 GiB.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        for _, entry in groupby(lines, key=attrgetter("number")):
            spool.write(json.dumps([packed(line) for line in entry]).encode() + b"\n")
            if spool.tell() > _LARGEST:
                raise TooLargeError
        for entry_text in _backwards(spool):
            yield from map(unpacked, json.loads(entry_text))


def _backwards(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file from the last to the first."""
    at = file.seek(0, 2)
    rest = b""
    while at > 0:
        size = min(_BLOCK, at)
        at -= size
        file.seek(at)
        first, *others = (file.read(size) + rest).split(b"\n")
        yield from (line for line in reversed(others) if line)
        rest = first
    if rest:
        yield rest


_KEY = later(r'(?P<indent> *)(?P<key>"?[\w@./-]+"?)\s?:(?: (?P<value>.*)|\Z)')
_BLOCK_TEXT = later(r"[|>][+-]?\d?\Z")
_DEPTH = 20


def mapping_of(lines: Sequence[str]) -> dict[str, object]:
    """The lines as nested mappings of texts; what is no `key: value` is passed over."""
    root: dict[str, object] = {}
    stack: list[tuple[int, dict[str, object]]] = [(-1, root)]
    index = 0
    while index < len(lines):
        found = _KEY.match(lines[index])
        index += 1
        if found is None:
            continue
        indent, value = len(found["indent"]), (found["value"] or "").strip()
        while len(stack) > 1 and stack[-1][0] >= indent:
            stack.pop()
        holder, key = stack[-1][1], found["key"].strip('"')
        if value in ("", "{", "{,"):
            inner: dict[str, object] = {}
            holder.setdefault(key, inner)
            if len(stack) < _DEPTH:
                stack.append((indent, inner))
            continue
        more = _deeper(lines, index, indent)
        index += len(more)
        holder.setdefault(key, _block(more) if _BLOCK_TEXT.match(value) else _scalar(value, more))
    return root


def _deeper(lines: Sequence[str], start: int, indent: int) -> list[str]:
    """The lines that belong to a value: indented more than its key, empty ones between them included."""
    end = start
    for at in range(start, len(lines)):
        line = lines[at]
        if line.strip():
            if len(line) - len(line.lstrip(" ")) <= indent:
                break
            end = at + 1
    return list(lines[start:end])


def _block(lines: Sequence[str]) -> str:
    margin = min((len(t) - len(t.lstrip(" ")) for t in lines if t.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def _scalar(value: str, more: Sequence[str]) -> str:
    """A text on one line, or folded over several."""
    text = " ".join([value, *(line.strip() for line in more)]).rstrip(",")
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            decoded = json.loads(json_without_lone_surrogates(text))
        except ValueError:
            return text[1:-1]
        return decoded if isinstance(decoded, str) else text
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text
