"""Joins the parts into which a runtime cut a long line: CRI's P and F, Docker's 16 kB, journald's limits."""

from __future__ import annotations

from parsers.envelopes.form import Peeled
from parsers.lines_part import Outer

__all__ = ["MAX_LENGTH", "Partials", "Whole"]

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
        key: _Key = (
            outer.envelope,
            outer.host,
            outer.unit,
            outer.pod,
            outer.container,
            outer.stream,
            outer.pid,
        )
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
