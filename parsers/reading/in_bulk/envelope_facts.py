"""The facts of the envelopes that were taken off a block's lines, for all lines at once.

What stands before the text is the same in line after line but for the clock: the facts of each different beginning are read once
by the envelopes themselves, and the minutes and seconds are added. That nothing else depends on them is not assumed but tried: no
zone changes its offset within an hour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parsers.envelopes.json_blocks import distinct_rows
from parsers.lines import EnvelopesOff, Outer, TextBlock, later

__all__ = ["EnvelopeFacts", "KnownEnvelopes", "joined_facts"]

# The minutes, the last two digits of the seconds, and their fraction; also of seconds, milli-, micro- or nanoseconds since the epoch,
# where hundreds of seconds stand for the minutes.
_CLOCK = later(
    rb"(?:\d\d:(?P<minute>\d\d):|(?<![\d.])\d{6}(?P<hundred>\d\d)(?=(?:\d\d(?:\.\d{1,9})?|\d{5}|\d{8}|\d{11})(?![\d.])))"
    rb"(?P<second>\d\d)(?:[.,]?(?P<fraction>\d{1,9}))?"
)
_MOST_KNOWN = 1 << 12
_MOST_SIZES = 8
_SECOND_US = 1_000_000
_ZERO = ord("0")
_TENS = np.array([10, 1])
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


class EnvelopeFacts(NamedTuple):
    """The facts of a block's lines: `outer` but for the time (`time_us`, a line each) and the stream (`streams` by `codes`)."""

    outer: Outer
    time_us: NDArray[np.int64]
    streams: Sequence[str | None]
    codes: NDArray[np.uint32]

    def at(self, row: int) -> Outer:
        """The facts of one line."""
        stream = self.streams[self.codes[row]]
        return self.outer._replace(time_us=int(self.time_us[row]), stream=stream)

    def part(self, start: int) -> EnvelopeFacts:
        """Those of the lines from `start` on."""
        return self._replace(time_us=self.time_us[start:], codes=self.codes[start:])


def joined_facts(parts: Sequence[EnvelopeFacts]) -> EnvelopeFacts:
    """The facts of successive blocks whose `outer` is the same."""
    places: dict[str | None, int] = {}
    codes = []
    for part in parts:
        mine = [places.setdefault(stream, len(places)) for stream in part.streams]
        codes.append(np.array(mine, np.uint32)[part.codes])
    times = np.concatenate([part.time_us for part in parts])
    return EnvelopeFacts(parts[0].outer, times, list(places), np.concatenate(codes))


class _Place(NamedTuple):
    """Where in a beginning the minutes of a clock stand, its seconds and their fraction; `minute_s` is how long a minute is in seconds."""

    minute: slice
    second: slice
    fraction: slice
    minute_s: int

    @property
    def digits(self) -> tuple[slice, slice, slice]:
        return self.minute, self.second, self.fraction


class _Beginning(NamedTuple):
    """The facts of lines with the same beginning, their time at minute and second 0, and which of the clocks tells them."""

    outer: Outer
    time_us: int
    clock: int


@dataclass(slots=True)
class KnownEnvelopes:
    """The beginnings seen so far in a source."""

    _known: dict[tuple[object, ...], _Beginning | None] = field(default_factory=dict)
    _clocks: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Which clock tells the time, by beginning with zeros for all digits: tried once, not in each hour."""

    def facts_of(self, block: TextBlock) -> EnvelopeFacts | None:
        """The facts of a block's lines; None where they are to be read line by line."""
        envelopes = block.envelopes
        assert envelopes is not None
        data, starts, sizes = envelopes.heads
        time_us = np.empty(len(starts), np.int64)
        codes = np.empty(len(starts), np.uint32)
        facts: dict[Outer, int] = {}
        different = np.unique(sizes)
        if len(different) > _MOST_SIZES or different[0] <= 0:
            return None
        for size in different.tolist():
            rows = np.flatnonzero(sizes == size)
            view = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
            begins = view[starts[rows]].view(np.uint8).reshape(len(rows), size)
            found = self._read(envelopes, begins, rows, facts)
            if found is None:
                return None
            time_us[rows], codes[rows] = found
        streams = [outer.stream for outer in facts]
        outers = {outer._replace(stream=None) for outer in facts}
        return EnvelopeFacts(outers.pop(), time_us, streams, codes) if len(outers) == 1 else None

    def _read(
        self, envelopes: EnvelopesOff, begins: NDArray[np.uint8], rows: NDArray[np.int64], facts: dict[Outer, int]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]] | None:
        """Times and places in `facts` of lines with beginnings of one size."""
        clocks = [_place(found) for found in _CLOCK.finditer(begins[0].tobytes())]
        digits = [[begins[:, part] - np.uint8(_ZERO) for part in clock.digits] for clock in clocks]
        if not clocks or any((part > 9).any() for parts in digits for part in parts):
            return None
        minutes = [minute @ _TENS for minute, _, _ in digits]
        if any((m >= clock.minute_s).any() for m, clock in zip(minutes, clocks, strict=True)):
            return None
        bare = begins.copy()
        for clock in clocks:
            for part in clock.digits:
                bare[:, part] = _ZERO
        heads, codes = distinct_rows(bare)
        known = [self._beginning(envelopes, bare[head].tobytes(), int(rows[head]), clocks) for head in heads]
        which = {begin.clock for begin in known if begin is not None}
        if None in known or len(which) != 1:
            return None
        place = which.pop()
        _, second, fraction = digits[place]
        fraction = fraction[:, :6]
        inside = (minutes[place] * clocks[place].minute_s + second @ _TENS) * _SECOND_US
        if fraction.shape[1]:
            inside += fraction @ (10 ** np.arange(5, 5 - fraction.shape[1], -1))
        base = np.array([begin.time_us for begin in known if begin is not None])
        own = [facts.setdefault(b.outer, len(facts)) for b in known if b is not None]
        return base[codes] + inside, np.array(own, np.uint32)[codes]

    def _beginning(self, envelopes: EnvelopesOff, bare: bytes, row: int, clocks: Sequence[_Place]) -> _Beginning | None:
        key = (*envelopes.names, bare)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
                self._clocks.clear()
            kind = (*envelopes.names, bare.translate(_ZEROS))
            clock = self._clocks.get(kind)
            if clock is None:
                found = _tried(envelopes, row, bare, clocks)
                if found is not None:
                    self._clocks[kind] = found.clock
            else:
                outer = envelopes.facts(envelopes.with_head(row, bare))
                told = outer.time_us is not None
                found = _Beginning(outer._replace(time_us=None), outer.time_us or 0, clock) if told else None
            self._known[key] = found
        return self._known[key]


def _place(found: re.Match[bytes]) -> _Place:
    minute = "minute" if found["minute"] else "hundred"
    fraction = slice(*found.span("fraction")) if found["fraction"] else slice(0, 0)
    return _Place(slice(*found.span(minute)), slice(*found.span("second")), fraction, 60 if minute == "minute" else 100)


def _tried(envelopes: EnvelopesOff, row: int, bare: bytes, clocks: Sequence[_Place]) -> _Beginning | None:
    """The facts of a beginning whose clocks stand at minute and second 0, if those of one clock change the time and nothing else."""

    def facts(place: _Place, minute: bytes, second: bytes, digit: bytes) -> Outer:
        begin = bytearray(bare)
        begin[place.minute] = minute
        begin[place.second] = second
        begin[place.fraction] = digit * (place.fraction.stop - place.fraction.start)
        return envelopes.facts(envelopes.with_head(row, bytes(begin)))

    still = facts(clocks[0], b"00", b"00", b"0")
    if still.time_us is None:
        return None
    telling = []
    for place in clocks:
        size = min(place.fraction.stop - place.fraction.start, 6)
        nines = int("9" * size + "0" * (6 - size))
        changes = [
            (
                facts(place, minute, second, digit),
                int(minute) * place.minute_s * _SECOND_US + int(second) * _SECOND_US + more,
            )
            for minute, second, digit, more in (
                (b"00", b"07", b"0", 0),
                (b"00", b"59", b"0", 0),
                (b"07", b"00", b"0", 0),
                (b"59", b"59", b"9", nines),
            )
        ]
        if all(outer == still._replace(time_us=still.time_us + more) for outer, more in changes):
            telling.append(clocks.index(place))
        elif any(outer != still for outer, _ in changes):
            return None
    if len(telling) != 1:
        return None
    return _Beginning(still._replace(time_us=None), still.time_us, telling[0])
