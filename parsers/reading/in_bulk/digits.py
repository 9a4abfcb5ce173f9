"""Stamps and numbers read eight digits at a time: a word of eight bytes is a little-endian number, its first byte the lowest.

A byte less than 10 plus 0x76 stays under 0x80, any other gets its highest bit; the lowest such bit marks the end of a run of digits.
Neighbours are then added in pairs: tens and ones, then hundreds, then ten thousands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parsers.reading.in_bulk.block import Block, Mask, Rows, Words
from parsers.records.dates import Stamps, packed_stamps

__all__ = ["MAX_DIGITS", "STAMP_SIZE", "numbers", "stamps"]

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


def numbers(
    block: Block, places: Rows, *, leading_zeros: bool = False
) -> tuple[NDArray[np.int64], Rows, Mask]:
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
