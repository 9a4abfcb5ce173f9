"""The texts of many lines, by source and line: packed, because statistics lines are all alike and few are ever shown."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

__all__ = ["LineTexts"]

_PACK = 512
"""So many lines are packed together, and unpacked to find one of them."""

Key = tuple[str, int]


@dataclass(slots=True)
class _OfSource:
    """One source's lines. `packs` hold texts joined by line feeds, `lines` their numbers, `first` the first of each pack.

    `loose` are lines behind those that are packed; `late` are lines before the last of them, which came after it.
    """

    first: list[int] = field(default_factory=list)
    lines: list[array[int]] = field(default_factory=list)
    packs: list[bytes] = field(default_factory=list)
    loose: dict[int, str] = field(default_factory=dict)
    late: dict[int, str] = field(default_factory=dict)

    def add(self, line: int, text: str) -> None:
        """Take a line."""
        if (self.lines and line <= self.lines[-1][-1]) or "\n" in text:
            self.late[line] = text
            return
        self.loose[line] = text
        self.late.pop(line, None)
        if len(self.loose) >= _PACK:
            self._pack()

    def get(self, line: int) -> str | None:
        """A line's text, None where it is not here."""
        if (late := self.late.get(line)) is not None:
            return late
        if (loose := self.loose.get(line)) is not None:
            return loose
        pack = bisect_right(self.first, line) - 1
        if pack < 0:
            return None
        lines = self.lines[pack]
        at = bisect_left(lines, line)
        return self._texts(pack)[at] if at < len(lines) and lines[at] == line else None

    def items(self) -> Iterator[tuple[int, str]]:
        """All lines, each pack unpacked once."""
        for pack, lines in enumerate(self.lines):
            for line, text in zip(lines, self._texts(pack), strict=True):
                if line not in self.late:
                    yield line, text
        for line, text in self.loose.items():
            if line not in self.late:
                yield line, text
        yield from self.late.items()

    def numbers(self) -> set[int]:
        """The lines' numbers."""
        return {*self.loose, *self.late}.union(*self.lines)

    def _pack(self) -> None:
        texts = dict(sorted(self.loose.items()))
        lines = array("q", texts)
        joined = "\n".join(texts.values())
        self.first.append(lines[0])
        self.lines.append(lines)
        self.packs.append(zlib.compress(joined.encode("utf-8", "surrogatepass"), 1))
        self.loose = {}

    def _texts(self, pack: int) -> list[str]:
        return zlib.decompress(self.packs[pack]).decode("utf-8", "surrogatepass").split("\n")


class LineTexts(MutableMapping[Key, str]):
    """Maps (source, line) to the line's text, as a dict would; lines that come in order take little room."""

    def __init__(self) -> None:
        self._sources: dict[str, _OfSource] = {}

    def __setitem__(self, key: Key, text: str) -> None:
        own = self._sources.get(key[0])
        if own is None:
            own = self._sources[key[0]] = _OfSource()
        own.add(key[1], text)

    def __getitem__(self, key: Key) -> str:
        text = self._sources[key[0]].get(key[1])
        if text is None:
            raise KeyError(key)
        return text

    def __delitem__(self, key: Key) -> None:
        raise TypeError("a line that was kept stays")

    def __iter__(self) -> Iterator[Key]:
        for source, own in self._sources.items():
            yield from ((source, line) for line in own.numbers())

    def __len__(self) -> int:
        return sum(len(own.numbers()) for own in self._sources.values())

    def of_sources(self, sources: set[str]) -> LineTexts:
        """The lines of some sources."""
        found = LineTexts()
        found._sources = {s: own for s, own in self._sources.items() if s in sources}
        return found

    def take(self, other: LineTexts) -> None:
        """Take another's lines."""
        for source, own in other._sources.items():
            if source in self._sources:
                self.update(((source, line), text) for line, text in own.items())
            else:
                self._sources[source] = own
