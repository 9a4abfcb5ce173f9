"""Times that a user writes: ISO dates, and offsets such as `-2h` from the end of the log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import click

from parsers.envelopes.stamps import zone_of

__all__ = ["Moment", "MomentType", "Span", "ZoneType"]

_RELATIVE = re.compile(r"-(?P<count>\d{1,9})(?P<unit>s|min|m|h|d|w)$")
_DAYS = {"today": 0, "yesterday": 1}
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time as the user gave it: absolute (`when`) or seconds before the end of the log."""

    when: datetime | None = None
    before_end_s: int | None = None

    def resolve(self, end: datetime | None) -> datetime | None:
        """The absolute time, given the log's last one."""
        if self.when is not None:
            return self.when
        if end is None or self.before_end_s is None:
            return None
        return end - timedelta(seconds=self.before_end_s)


class MomentType(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases
    """Parses `2026-05-09T10:00`, `2026-05-09 10:00:00`, `today`, `yesterday` (their midnights), `-2h`; `10:00` is refused (which day?)."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Moment:
        """Return the `Moment`; fails with a sentence where `value` is none."""
        if isinstance(value, Moment):
            return value
        text = str(value).strip()
        if match := _RELATIVE.match(text):
            return Moment(before_end_s=int(match["count"]) * _UNITS[match["unit"]])
        if text in _DAYS:
            day = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
            return Moment(when=day - timedelta(days=_DAYS[text]))
        try:
            return Moment(when=datetime.fromisoformat(text.replace("Z", "+00:00")))
        except ValueError:
            self.fail(
                f"{text!r} is no time: write 2026-05-09T10:00:00, today, or -2h for the last two hours of the log",
                param,
                ctx,
            )


class ZoneType(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases
    """Checks the name of a time zone: `Europe/Berlin`, `UTC`, `+08:00`."""

    name = "zone"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the name; fails with a sentence where there is no such zone."""
        try:
            zone_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open span of time on the record's clock, or on the outer one where a zone is given."""

    since: Moment | None = None
    until: Moment | None = None
    zone: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing is cut."""
        return self.since is None and self.until is None

    @property
    def needs_end(self) -> bool:
        """Whether the log's end must be known first."""
        return any(m is not None and m.when is None for m in (self.since, self.until))

    def clock(self, time: datetime | None, outer_us: int | None) -> datetime | None:
        """The time that counts for an event, without zone: local of the record, or in `zone` of the envelope."""
        if self.zone is not None and outer_us is not None:
            utc = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=outer_us)
            return utc.astimezone(zone_of(self.zone)).replace(tzinfo=None)
        return time

    def holds(self, moment: datetime | None, end: datetime | None = None) -> bool:
        """Whether a time lies in the span; a time that is not known does."""
        if moment is None:
            return True
        since, until = self.bounds(end)
        return (since is None or moment >= since) and (until is None or moment < until)

    def bounds(self, end: datetime | None) -> tuple[datetime | None, datetime | None]:
        """Its first moment and the first one after it, None where there is none; `end`: the log's last time."""
        return self._bound(self.since, end), self._bound(self.until, end)

    def _bound(self, moment: Moment | None, end: datetime | None) -> datetime | None:
        found = moment.resolve(end) if moment is not None else None
        if found is None or found.tzinfo is None:
            return found
        return found.astimezone(zone_of(self.zone)).replace(tzinfo=None)
