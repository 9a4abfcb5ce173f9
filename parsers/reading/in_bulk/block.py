"""A block of bytes and the places of its lines: many places are compared, fetched or made text at once.

Nothing here looks at one line by itself. Places are offsets in the block; the longest stretch that is compared or fetched is
`MARGIN` bytes long.

Patterns applied to columns of text.

Patterns here are in the dialect of Rust's regex crate, which is linear by construction. Each is a strict case of one in
`parsers.records.prefix` or `parsers.families`: ASCII only, and no character that could begin a colour code.

Stamps and numbers read eight digits at a time: a word of eight bytes is a little-endian number, its first byte the lowest.

A byte less than 10 plus 0x76 stays under 0x80, any other gets its highest bit; the lowest such bit marks the end of a run of digits.
Neighbours are then added in pairs: tens and ones, then hundreds, then ten thousands.

Texts that differ in numbers alone: a shape is read once, then found in many places at the speed of comparing bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers.lines import TextBlock
from parsers.records.dates import Stamps, packed_stamps
from parsers.records.prefix import without_colours

__all__ = [
    "MARGIN",
    "MAX_DIGITS",
    "STAMP_SIZE",
    "Alphabet",
    "Block",
    "Found",
    "Hole",
    "Mask",
    "Rows",
    "Shape",
    "Words",
    "extracted",
    "is_available",
    "numbers",
    "rows_of",
    "shape_of",
    "stamps",
]
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
    """Successive blocks of whole lines, at least one line; `starts` and `ends` are the places of the lines.

    It has the lines without their colours, as records are read. `written` and `rest` give them as they were.
    """

    def __init__(self, parts: Sequence[TextBlock]) -> None:
        sizes = [len(part) for part in parts]
        self._written = b"".join((*(text for part in parts for text in part.parts), bytes(MARGIN)))
        places = np.cumsum(sizes) - sizes
        ends = np.concatenate([part.ends + at for part, at in zip(parts, places, strict=True)])
        self._written_ends: Rows = ends
        self._written_size = sum(sizes)
        self._padded = without_colours(self._written)
        self.size = len(self._padded) - MARGIN
        if self.size < self._written_size:
            ends = np.flatnonzero(np.frombuffer(self._padded, np.uint8, self.size) == ord("\n"))
            if len(ends) < len(self._written_ends):  # the last line has no line feed
                ends = np.append(ends, self.size)
        self.ends: Rows = ends
        self.starts: Rows = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        self._words: Words = np.ndarray((self.size + MARGIN - _WORD,), "<u8", self._padded, strides=(1,))

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

    def written(self, first: int, last: int) -> list[str]:
        """The lines from `first` to before `last`, with their colours."""
        start = int(self._written_ends[first - 1]) + 1 if first else 0
        lines = self._written[start : int(self._written_ends[last - 1])].split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def rest(self, first: int) -> bytes:
        """All from line `first` on, as it was."""
        start = int(self._written_ends[first - 1]) + 1 if first else 0
        return self._written[start : self._written_size]

    def width(self, first: int, last: int) -> int:
        """How many characters the lines from `first` to before `last` had, their line feeds included."""
        if first >= last:
            return 0
        start = int(self._written_ends[first - 1]) + 1 if first else 0
        part = self._written[start : int(self._written_ends[last - 1])]
        return (len(part) if part.isascii() else len(part.decode("utf-8", "replace"))) + 1

    def first(self, text: bytes, starts: Rows, ends: Rows) -> Rows:
        """Where `text` first stands between the places, -1 where it does not."""
        find = self._padded.find
        if not len(starts) or find(text, int(starts.min()), int(ends.max())) < 0:
            return np.full(len(starts), -1)
        return np.array([find(text, *span) for span in zip(starts.tolist(), ends.tolist(), strict=True)], np.int64)

    def last(self, text: bytes, starts: Rows, ends: Rows) -> Rows:
        """Where `text` last stands between the places, -1 where it does not."""
        find = self._padded.rfind
        return np.array([find(text, *span) for span in zip(starts.tolist(), ends.tolist(), strict=True)], np.int64)

    def codes(self, start: int, end: int) -> NDArray[np.uint8]:
        """The bytes from one place to another."""
        return np.frombuffer(self._padded, np.uint8, end - start, start)

    def words(self, places: Rows) -> Words:
        """Eight bytes from each place on, as little-endian numbers."""
        found: Words = self._words[places]
        return found

    def fetched(self, places: Rows, width: int) -> NDArray[np.uint8]:
        """`width` bytes from each place on, in the shape (places, width)."""
        view = np.ndarray((self.size + MARGIN - width + 1,), f"V{width}", self._padded, strides=(1,))
        found: NDArray[np.uint8] = view[places].view(np.uint8).reshape(len(places), width)
        return found

    def equal(self, places: Rows, text: bytes) -> Mask:
        """Where `text` stands at the places."""
        if not text:  # access lines without a level have nothing before the client
            return np.ones(len(places), np.bool_)
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


def extracted(frame: pl.DataFrame, column: str, pattern: str, *, must: str) -> pl.DataFrame:
    """The rows whose `column` matches, with the pattern's named groups as further columns.

    `must` is a group that takes part in every match.
    """
    found = frame.with_columns(pl.col(column).str.extract_groups(pattern).alias("_found"))
    return found.unnest("_found").filter(pl.col(must).is_not_null())


def rows_of(frame: pl.DataFrame) -> Rows:
    """The block's rows on which the frame's rows stand."""
    return frame["row"].to_numpy().astype(np.int64)


STAMP_SIZE = 14
MAX_DIGITS = 7
"""A longer number is not read here: the end of its digits lies outside its word."""

_ZEROS = np.uint64(0x3030303030303030)
_LIMITS = np.uint64(0x7676767676767676)
_HIGH = np.uint64(0x8080808080808080)
_BYTE = np.uint64(0xFF)
_ONE = np.uint64(1)


def _word(text: bytes) -> np.uint64:
    word: np.uint64 = np.uint64(int.from_bytes(text, "little"))
    return word


def _stamp_limits(shape: bytes) -> np.uint64:
    """As `_LIMITS`, but where `shape` has no digit, nothing else may stand."""
    return _word(bytes(0x76 if char == ord("0") else 0x7F for char in shape))


_DATE, _TIME = b"00-00 00", b"00:00:00"
_DATE_WORD, _TIME_WORD = _word(_DATE), _word(_TIME)
_DATE_LIMITS, _TIME_LIMITS = _stamp_limits(_DATE), _stamp_limits(_TIME)


def stamps(block: Block, places: Rows) -> tuple[Stamps, Mask]:
    """`05-09 00:49:33` at each place, and where it is one."""
    date = block.words(places) ^ _DATE_WORD
    time = block.words(places + (STAMP_SIZE - len(_TIME))) ^ _TIME_WORD
    odd = (date + _DATE_LIMITS) | date | (time + _TIME_LIMITS) | time
    good = (odd & _HIGH) == 0
    month, day, hour = _pairs(date)
    _, minute, second = _pairs(time)
    good &= (month - 1 < 12) & (day - 1 < 31) & (hour < 24) & (minute < 60) & (second <= 60)
    return packed_stamps(month, day, hour, minute, second), good


def _pairs(word: Words) -> tuple[NDArray[np.int64], ...]:
    """The three pairs of digits that stand at every third byte, unsigned: one less than 0 is large."""
    tens = word * np.uint64(10) + (word >> np.uint64(8))
    return tuple(((tens >> np.uint64(at)) & _BYTE) for at in (0, 24, 48))


def numbers(block: Block, places: Rows, *, leading_zeros: bool = False) -> tuple[NDArray[np.int64], Rows, Mask]:
    """The whole number at each place, how many digits it has, and where there is one of at most `MAX_DIGITS`.

    One that begins with zeros is none unless `leading_zeros`: Python prints no such number.
    """
    digits = block.words(places) ^ _ZEROS
    ends = ((digits + _LIMITS) | digits) & _HIGH
    lowest = ends & (~ends + _ONE)
    # The exponent of a power of two tells its place: bit 8 n + 7 ends a run of n digits.
    size = (lowest.astype(np.float64).view(np.int64) >> 52) - 1023 >> 3
    good = (lowest != 0) & (size > 0)
    if not leading_zeros:
        good &= (size == 1) | ((digits & _BYTE) != 0)
    size[~good] = 1
    value = (digits << np.uint64(8)) << (np.uint64(56) - (size << 3).astype(np.uint64))
    value = (value * np.uint64(10) + (value >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    value = (value * np.uint64(100) + (value >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    value = (value * np.uint64(10_000) + (value >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return value.astype(np.int64), size, good


class Hole(NamedTuple):
    """Where a text has a number: `name` says which one, with `fraction` it has a decimal point."""

    name: str
    start: int
    end: int
    fraction: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """`literals` are the texts before, between and after the `holes`."""

    literals: tuple[bytes, ...]
    holes: tuple[Hole, ...]

    def find(self, block: Block, places: Rows, ends: Rows) -> Found:
        """Where the text from `places` to before `ends` has this shape, and its numbers there."""
        alive = np.arange(len(places))
        at = places
        values: dict[str, NDArray[np.int64] | NDArray[np.float64]] = {}
        for literal, hole in zip(self.literals, (*self.holes, None), strict=True):
            if literal:
                alive, at, values = _kept(block.equal(at, literal), alive, at, values)
                at = at + len(literal)
            if hole is not None:
                value, size, good = _number(block, at, fraction=hole.fraction)
                values[hole.name] = value
                alive, at, values = _kept(good, alive, at + size, values)
        alive, at, values = _kept(at == ends[alive], alive, at, values)
        return Found(alive, values)


class Found(NamedTuple):
    """`which` of the places, and the numbers there, by hole."""

    which: Rows
    values: dict[str, NDArray[np.int64] | NDArray[np.float64]]


def shape_of(text: bytes, holes: Sequence[Hole]) -> Shape | None:
    """The shape of a text that has numbers at these places; None where it cannot be found by comparing."""
    literals, at = [], 0
    for hole in holes:
        whole, point, part = text[hole.start : hole.end].partition(b".")
        fits = len(whole) <= MAX_DIGITS and len(part) <= MAX_DIGITS and bool(point) == hole.fraction
        if not fits or not whole.isdigit() or (hole.fraction and not part.isdigit()):
            return None
        literals.append(text[at : hole.start])
        at = hole.end
    literals.append(text[at:])
    if not text.isascii() or max(map(len, literals)) > MARGIN // 2:
        return None
    return Shape(tuple(literals), tuple(holes))


def _kept(
    good: Mask, alive: Rows, at: Rows, values: dict[str, NDArray[np.int64] | NDArray[np.float64]]
) -> tuple[Rows, Rows, dict[str, NDArray[np.int64] | NDArray[np.float64]]]:
    if good.all():
        return alive, at, values
    return alive[good], at[good], {name: value[good] for name, value in values.items()}


def _number(
    block: Block, places: Rows, *, fraction: bool
) -> tuple[NDArray[np.int64] | NDArray[np.float64], Rows, Mask]:
    """The numbers at the places, their sizes in bytes, and where there are any.

    A whole number of 14 digits over a power of ten, both exact as floats, is rounded once: it is the float that Python reads.
    """
    whole, size, good = numbers(block, places)
    if not fraction:
        return whole, size, good
    part, digits, fits = numbers(block, places + size + 1, leading_zeros=True)
    good &= fits & block.equal(places + size, b".")
    scale = _POWERS[digits]
    return (whole * scale + part) / scale, size + 1 + digits, good


_POWERS = 10 ** np.arange(MAX_DIGITS + 1, dtype=np.int64)
