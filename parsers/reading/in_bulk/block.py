"""A block of bytes and the places of its lines: many places are compared, fetched or made text at once.

Nothing here looks at one line by itself. Places are offsets in the block; the longest stretch that is compared or fetched is
`MARGIN` bytes long.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers.lines import TextBlock

__all__ = ["MARGIN", "Alphabet", "Block", "Mask", "Rows", "Words", "is_available"]

MARGIN = 4096

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
Words = NDArray[np.uint64]

_WORD = 8
_FEW_WORDS = 12  # compared column by column; more of them as one matrix


def is_available() -> bool:
    """Whether this Polars makes texts out of bytes."""
    try:
        return _texts(np.frombuffer(b"ab", np.uint8), 1).to_list() == [b"a", b"b"]
    except (pl.exceptions.PolarsError, TypeError):
        return False


class Block:
    """Successive blocks of whole lines, at least one line; `starts` and `ends` are the places of the lines."""

    def __init__(self, parts: Sequence[TextBlock]) -> None:
        sizes = [len(part) for part in parts]
        self.size = sum(sizes)
        self._padded = b"".join((*(text for part in parts for text in part.parts), bytes(MARGIN)))
        places = np.cumsum(sizes) - sizes
        ends = np.concatenate([part.ends + at for part, at in zip(parts, places, strict=True)])
        self.ends: Rows = ends
        self.starts: Rows = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        self._words: Words = np.ndarray(
            (self.size + MARGIN - _WORD,), "<u8", self._padded, strides=(1,)
        )

    def __len__(self) -> int:
        return len(self.ends)

    def line(self, row: int) -> bytes:
        """A line without its line feed."""
        return self._padded[self.starts[row] : self.ends[row]]

    def stretch(self, start: int, end: int) -> bytes:
        """The bytes from one place to another."""
        return self._padded[start:end]

    def texts(self, rows: Rows | range) -> list[str]:
        """Some lines; bytes that are no UTF-8 become U+FFFD."""
        padded = self._padded
        return [
            padded[start:end].decode("utf-8", "replace")
            for start, end in zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True)
        ]

    def width(self, first: int, last: int) -> int:
        """How many characters the lines from `first` to before `last` have, their line feeds included."""
        if first >= last:
            return 0
        start, end = int(self.starts[first]), int(self.ends[last - 1])
        part = self._padded[start:end]
        return (end - start if part.isascii() else len(part.decode("utf-8", "replace"))) + 1

    def words(self, places: Rows) -> Words:
        """Eight bytes from each place on, as little-endian numbers."""
        found: Words = self._words[places]
        return found

    def fetched(self, places: Rows, width: int) -> NDArray[np.uint8]:
        """`width` bytes from each place on, in the shape (places, width)."""
        view = np.ndarray(
            (self.size + MARGIN - width + 1,), f"V{width}", self._padded, strides=(1,)
        )
        found: NDArray[np.uint8] = view[places].view(np.uint8).reshape(len(places), width)
        return found

    def equal(self, places: Rows, text: bytes) -> Mask:
        """Where `text` stands at the places."""
        count = -(-len(text) // _WORD)
        want = np.frombuffer(text.ljust(count * _WORD, b"\0"), "<u8")
        found = self.fetched(places, count * _WORD).view("<u8")
        rest = len(text) % _WORD
        if rest:
            found[:, -1] &= np.uint64((1 << 8 * rest) - 1)
        if count > _FEW_WORDS:
            alike = found == want
            return np.ones(len(places), np.bool_) if alike.all() else alike.all(axis=1)
        same: Mask = found[:, 0] == want[0]
        for column in range(1, count):
            same &= found[:, column] == want[column]
        return same

    def strings(self, places: Rows, sizes: Rows, allowed: Alphabet) -> tuple[Mask, pl.Series]:
        """The texts of `sizes` bytes at the places, and which of them have no byte but those `allowed`."""
        count = len(places)
        width = int(sizes.max()) if count else 0
        if not width:
            return np.ones(count, np.bool_), pl.Series([""] * count, dtype=pl.String())
        found = self.fetched(places, width)
        good: Mask = allowed.holds(found)
        varied = int(sizes.min()) != width
        if varied:
            inside = np.arange(width, dtype=np.uint16) < sizes.astype(np.uint16)[:, None]
            good[~inside] = True
        fit = np.ones(count, np.bool_)
        if not good.all():
            fit &= good.all(axis=1)
        if not fit.all():
            found[~fit] = ord(" ")
        texts = _texts(found.reshape(-1), width)
        if varied:
            table = pl.DataFrame({"texts": texts, "sizes": sizes})
            texts = table.select(pl.col("texts").bin.head("sizes")).to_series()
        return fit, texts.cast(pl.String())


class Alphabet:
    """A set of ASCII characters."""

    def __init__(self, characters: str) -> None:
        codes = sorted(characters.encode("ascii"))
        self._low, self._span = np.uint8(codes[0]), np.uint8(codes[-1] - codes[0])
        self._gaps = sorted(set(range(codes[0], codes[-1])) - set(codes))
        self._table = np.zeros(256, np.bool_)
        self._table[codes] = True

    def holds(self, found: NDArray[np.uint8]) -> Mask:
        """Which bytes are in the set."""
        if len(self._gaps) > 2:  # a table is slower than a few comparisons
            return self._table[found]
        good: Mask = (found - self._low) <= self._span
        for gap in self._gaps:
            good &= found != gap
        return good


def _texts(found: NDArray[np.uint8], width: int) -> pl.Series:
    """Texts of `width` bytes each."""
    cells = pl.Series(found).reshape((len(found) // width, width))
    texts: pl.Series = cells.cast(pl.List(pl.UInt8())).cast(pl.Binary())
    return texts
