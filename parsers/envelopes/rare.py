"""Lines that a terminal wrapped: rows of one width, copied from a screen, are joined to lines again.

A screen's width shows in the rows: none is longer, several are exactly as long, and the row after one of
these begins in the middle of a text. The rows are joined before envelopes are taken off, since the
envelope stands in the first row alone. A screen drops spaces at a row's end: up to two are put back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from parsers.envelopes.form import looks_like_record
from parsers.envelopes.registry import possible_envelopes
from parsers.envelopes.stamps import Clock
from parsers.lines import MAX_LINE

__all__ = ["Rows", "rows_of"]

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
    return frozenset(
        shape for shape, count in shapes.items() if count > 1 and 2 * names[shape[0]] > len(starts)
    )
