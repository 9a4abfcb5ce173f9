"""The record's own clock: month, day and second without a year, made into a full local date."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parsers.records.prefix import Stamp

__all__ = ["RecordClock", "Stamps", "from_epoch_us", "packed_stamps", "to_epoch_us"]

Stamps = NDArray[np.int64]
"""Stamps (`parsers.records.prefix.Stamp`), each part in its range, as numbers: the month times `_MONTH`, and the seconds since its beginning."""

_MONTH = 1 << 32
_DAY_S = 86_400

BACKWARDS_S = 2


def from_epoch_us(microseconds: int) -> datetime:
    """UTC microseconds since the epoch as an aware datetime."""
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=microseconds)


def to_epoch_us(moment: datetime) -> int:
    """A local time as microseconds since the epoch, as if it were UTC."""
    since = moment - datetime(1970, 1, 1)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class RecordClock:
    """Gives each stamp of one stream its year.

    The year comes from the outer clock of the line where there is one, else from `year`, else from the file's time
    (UTC microseconds since the epoch): the last date that is not after it. Then it is carried along: a jump back by more than half a year
    is New Year, a jump forward by as much undoes one. `backwards` counts stamps that lie before the one before them.
    """

    def __init__(self, year: int | None = None, modified_us: int | None = None) -> None:
        self._year = year
        self._fixed = year is not None
        self._modified = None if modified_us is None else from_epoch_us(modified_us).replace(tzinfo=None)
        self._last: datetime | None = None
        self.backwards = 0

    def state(self) -> dict[str, Any]:
        """Where the clock stands, as JSON holds it."""
        last = self._last.isoformat() if self._last is not None else None
        return {"year": self._year, "last": last, "backwards": self.backwards}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` says that a clock of this stream stood."""
        self._year, self.backwards = state["year"], state["backwards"]
        self._last = datetime.fromisoformat(state["last"]) if state["last"] is not None else None

    def resolve(self, stamp: Stamp, outer_us: int | None = None) -> datetime | None:
        """Return the local time of `stamp`; None where no year makes it a date (30 February)."""
        year = self._year_of(stamp, outer_us)
        found = _date(year, stamp)
        if found is None:
            return None
        self._year = year
        return self.note(found)

    def note(self, moment: datetime) -> datetime:
        """Take a full date as it is, and count it where it steps back."""
        if self._last is not None and (self._last - moment).total_seconds() >= BACKWARDS_S:
            self.backwards += 1
        self._last = moment
        return moment

    def resolve_all(self, stamps: Stamps, outer_us: NDArray[np.int64] | None = None) -> NDArray[np.int64] | None:
        """What `resolve` gives for each of `stamps`, as microseconds since the epoch.

        None, with nothing changed, where one of them is no date.
        """
        if not len(stamps):
            return np.empty(0, np.int64)
        seconds = self._carried(stamps) if outer_us is None or self._fixed else _nearest(stamps, outer_us)
        if seconds is None:
            return None
        self.backwards += int((np.diff(seconds) <= -BACKWARDS_S).sum())
        epoch = datetime(1970, 1, 1)
        self.note(epoch + timedelta(seconds=int(seconds[0])))
        self._last = epoch + timedelta(seconds=int(seconds[-1]))
        self._year = self._last.year
        return seconds * 1_000_000

    def _carried(self, stamps: Stamps) -> NDArray[np.int64] | None:
        """Seconds since the epoch, the year carried from stamp to stamp."""
        first, last = _unpacked(int(stamps[0])), self._last
        if last is None:
            date = _date(self._year_of(first, None), first)
            if date is None:
                return None
            year, month = date.year, first[0]
        else:
            year, month = last.year, last.month
        months, within = stamps // _MONTH, stamps % _MONTH
        if (months == months[0]).all():
            months = months[:1]  # nearly always: it is looked at once
        steps = np.diff(months, prepend=month)
        years = year + np.cumsum((steps < -6).astype(np.int64) - (steps > 6))
        starts = _month_starts(years, months)
        if (within >= (_month_starts(years, months + 1) - starts) * _DAY_S).any():
            return None
        seconds: NDArray[np.int64] = starts * _DAY_S + within
        return seconds

    def _year_of(self, stamp: Stamp, outer_us: int | None) -> int:
        if outer_us is not None and not self._fixed:
            outer = from_epoch_us(outer_us).replace(tzinfo=None)
            dates = [d for y in (outer.year - 1, outer.year, outer.year + 1) if (d := _date(y, stamp))]
            return min(dates, key=lambda d: abs(d - outer)).year if dates else outer.year
        if self._year is None:
            return self._first_year(stamp)
        if self._last is None:
            return self._year
        step = stamp[0] - self._last.month
        return self._last.year + (1 if step < -6 else -1 if step > 6 else 0)

    def _first_year(self, stamp: Stamp) -> int:
        limit = (self._modified or datetime.now()) + timedelta(days=1)
        for year in range(limit.year, limit.year - 9, -1):
            found = _date(year, stamp)
            if found is not None and found <= limit:
                return year
        return limit.year


def _date(year: int, stamp: Stamp) -> datetime | None:
    try:
        return datetime(year, stamp[0], stamp[1], stamp[2], stamp[3], min(stamp[4], 59))
    except ValueError:
        return None


def _nearest(stamps: Stamps, outer_us: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Seconds since the epoch, in the year in which each stamp is nearest to the outer clock."""
    months, within = stamps // _MONTH, stamps % _MONTH
    years = outer_us.view("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    if (months == months[0]).all() and (years == years[0]).all():
        months, years = months[:1], years[:1]
    candidates, distances = [], []
    for year in (years - 1, years, years + 1):
        starts = _month_starts(year, months)
        seconds = starts * _DAY_S + within
        is_date = within < (_month_starts(year, months + 1) - starts) * _DAY_S
        distance = np.abs(seconds * 1_000_000 - outer_us)
        candidates.append(seconds)
        distances.append(np.where(is_date, distance, np.iinfo(np.int64).max))
    best = np.argmin(distances, axis=0)[None, :]
    if (np.take_along_axis(np.array(distances), best, 0) == np.iinfo(np.int64).max).any():
        return None
    found: NDArray[np.int64] = np.take_along_axis(np.array(candidates), best, 0)[0]
    return found


def packed_stamps(
    month: NDArray[Any], day: NDArray[Any], hour: NDArray[Any], minute: NDArray[Any], second: NDArray[Any]
) -> Stamps:
    """Stamps out of their parts; a leap second is the second before it."""
    clock = (hour * 60 + minute) * 60 + np.minimum(second, 59)
    packed: Stamps = (month * _MONTH + (day - 1) * _DAY_S + clock).astype(np.int64)
    return packed


def _unpacked(stamp: int) -> Stamp:
    month, seconds = divmod(stamp, _MONTH)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    return month, hours // 24 + 1, hours % 24, minute, second


def _month_starts(years: NDArray[np.int64], months: NDArray[np.int64]) -> NDArray[np.int64]:
    """Days since the epoch of the months' first days; month 13 is the next year's January."""
    return ((years - 1970) * 12 + months - 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
