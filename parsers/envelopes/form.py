"""What an envelope's pattern gives back, and how a payload is known to be vLLM's.

Joins the parts into which a runtime cut a long line: CRI's P and F, Docker's 16 kB, journald's limits.

Outer clocks: the time stamps that envelopes write, as UTC microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from parsers.lines import JsonRecord, Outer, later

__all__ = [
    "ISO",
    "MAX_LENGTH",
    "Clock",
    "Envelope",
    "Partials",
    "Unwrapped",
    "Whole",
    "believed",
    "looks_like_record",
    "of_each_line",
    "zone_of",
]
# A pattern's piece: 2026-05-08T17:47:03.906123+00:00 and its relatives; group names would clash where two are used.
ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?Z| ?[+-]\d\d:?\d\d|[+-]\d\d| UTC| GMT)?"

_ISO_AT_START = later(ISO)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_OFFSET = later(r"([+-])([01]\d|2[0-3]):?([0-5]\d)?\Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY_US = 86_400_000_000
# The years 2 to 9998: a time outside of them is nobody's clock, and no zone takes one of these out of what a date can be.
_EARLIEST_US, _LATEST_US = (-62_104_060_800_000_000, 253_370_764_800_000_000)


class Clock:
    """Reads stamps; `zone` is that of stamps without one, `reference_us` tells the year of stamps without one.

    A stamp without year gets the latest year in which it is not more than a day after the reference (the
    log file's last change): a December in a file of January is last year's.
    """

    def __init__(self, zone: str | None = None, reference_us: int | None = None) -> None:
        self.zone = zone_of(zone)
        self.reference_us = reference_us
        self._seconds: dict[str, int] = {}

    def iso(self, text: str) -> int | None:
        """Microseconds of an ISO 8601 stamp with `T` or a space; None when it is no time."""
        found = _ISO_AT_START.match(text)
        return self.stamp(found[0]) if found is not None else None

    def stamp(self, text: str) -> int | None:
        """Microseconds of a text that `ISO` matched as a whole."""
        tail = text[19:]
        zone = tail.lstrip(".,0123456789")
        fraction = tail[1 : len(tail) - len(zone)]
        key = text[:19] + zone
        start = self._seconds.get(key)
        if start is None:
            if len(self._seconds) > 512:  # a log walks through time: only the last seconds matter
                self._seconds.clear()
            minute = self._minute(text[:10], text[11:16], zone.strip())
            if minute is None:
                return None
            start = self._seconds[key] = minute + int(text[17:19]) * 1_000_000
        return believed(start + int((fraction + "000000")[:6]))

    def _minute(self, day: str, minute: str, zone: str) -> int | None:
        try:
            local = datetime(int(day[:4]), int(day[5:7]), int(day[8:]), int(minute[:2]), int(minute[3:]))
            if not zone:
                aware = local.replace(tzinfo=self.zone)
            elif zone in ("Z", "UTC", "GMT"):
                aware = local.replace(tzinfo=timezone.utc)
            else:
                digits = zone[1:].replace(":", "").ljust(4, "0")
                offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
                aware = local.replace(tzinfo=timezone(-offset if zone[0] == "-" else offset))
            return _microseconds(aware)
        except (ValueError, OverflowError):
            return None

    def month_day(self, month: str, day: str, time: str, year: str | None = None) -> int | None:
        """Microseconds of `Sep`, `22`, `23:46:42[.ffffff]`, the year inferred where there is none."""
        key = f"{month}{day}{time[:8]}{year}"
        start = self._seconds.get(key)
        if start is None:
            if len(self._seconds) > 512:
                self._seconds.clear()
            start = self._month_day(month, day, time[:8], year)
            if start is None:
                return None
            self._seconds[key] = start
        return believed(start + int((time[9:] + "000000")[:6]))

    def _month_day(self, month: str, day: str, time: str, year: str | None) -> int | None:
        try:
            month_number = _MONTHS.index(month.lower()) + 1
        except ValueError:
            return None
        if year is not None:
            return self.iso(f"{year}-{month_number:02}-{int(day):02}T{time}")
        reference = self.reference_us if self.reference_us is not None else _now_us()
        latest = (_EPOCH + timedelta(microseconds=reference)).year + 1
        for candidate in range(latest, latest - 9, -1):  # 8 years back hold a 29 February
            found = self.iso(f"{candidate:04}-{month_number:02}-{int(day):02}T{time}")
            if found is not None and found <= reference + _DAY_US:
                return found
        return None

    def epoch(self, value: str | float) -> int | None:
        """Microseconds of a number since the epoch; its size tells seconds, milli-, micro- or nanoseconds."""
        try:
            if isinstance(value, str) and "." in value:
                whole, _, fraction = value.partition(".")
                micros = int(whole) * 1_000_000 + int(fraction.ljust(6, "0")[:6])
                return believed(micros) if abs(int(whole)) < 1 << 36 else self.epoch(int(whole))
            number = float(value) if isinstance(value, float) else int(value)
            size = abs(number)
            if not size < 1 << 63:
                return None
        except (ValueError, OverflowError):
            return None
        if size < 1 << 36:
            return believed(int(number * 1_000_000))
        if size < 1 << 46:
            return believed(int(number * 1_000))
        if size < 1 << 56:
            return believed(int(number))
        return believed(int(number // 1_000))

    def any(self, value: object) -> int | None:
        """Microseconds of a stamp as JSON holds it: ISO text, or a number as text or number."""
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, (int, float)):
            return self.epoch(value)
        if isinstance(value, str):
            return self.epoch(value) if value.replace(".", "", 1).isdecimal() else self.iso(value)
        return None


def believed(micros: int) -> int | None:
    """A time in microseconds since the epoch, if a clock can have shown it."""
    return micros if _EARLIEST_US < micros < _LATEST_US else None


def zone_of(name: str | None) -> tzinfo:
    """The zone of an IANA name or of an offset such as `+08:00`; UTC for None.

    Raises ValueError, with the name in its text, for an unknown one.
    """
    if name is None or name.upper() in ("UTC", "Z", "GMT"):
        return timezone.utc
    if found := _OFFSET.match(name):
        offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
        return timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"unknown time zone {name!r}; give a name such as Europe/Berlin") from error


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _now_us() -> int:
    return _microseconds(datetime.now(timezone.utc))


class Unwrapped(NamedTuple):
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
    peel: Callable[[str, Clock], Unwrapped | None]
    weak: bool = False
    vague: bool = False
    bulk: re.Pattern[bytes] | None = None


def of_each_line(pattern: re.Pattern[str]) -> re.Pattern[bytes]:
    """An envelope's pattern for blocks of bytes, after a line feed; it must not run over a line's end.

    With the line feed the search for the next line is one for a byte, five times as fast as with `^`.
    """
    return later(b"\n(?:" + pattern.pattern.encode() + b")", re.M)


_COLOUR = r"(?:\x1b\[[0-9;]*m|\^\[\[[0-9;]*m|\[[0-9;]{1,5}m)?"
# "(APIServer pid=1) ...", "INFO 05-09 00:49:33 ...", "[node-a] INFO 05-09 ...", "INFO:     10.0.0.1:5 - ..."
_RECORD = later(
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

    def add(self, number: int, peeled: Unwrapped, outer: Outer) -> Whole | None:
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
