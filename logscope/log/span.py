"""Times that a user writes: ISO dates, and offsets such as `-2h` from the end of the log.

From the sources that a user named to the events of the span that the user asked for.

A systemd unit's journal as a source: which stretch of it a command needs, asked of journalctl.

What a server says of itself when it starts is needed whatever span is asked for, so that the stretch begins at the unit's last start
before the span. systemd writes that start as an entry with a fixed id ("unit started", its message catalog).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from datetime import time as time_of_day
from typing import Any, Literal
from zoneinfo import ZoneInfo

import click

from logscope.errors import NothingToWorkOn
from parsers.envelopes.form import zone_of
from parsers.reading.by_line import KEEP_EVENTS, Keep, read_events
from parsers.reading.events import Coverage, Event
from parsers.sources.journal import JournalError, start_journalctl

__all__ = [
    "Moment",
    "MomentType",
    "Reading",
    "Span",
    "Wanted",
    "ZoneType",
    "check_something_read",
    "cut",
    "events_in",
    "partly_read",
    "problems",
    "unit_source",
]
_UNIT = r"(?P<unit>s|sec(?:ond)?s?|m|min(?:ute)?s?|h|hours?|d|days?|w|weeks?)"
_RELATIVE = re.compile(rf"-(?P<count>\d{{1,9}}) ?{_UNIT}$")
_AGO = re.compile(rf"(?P<count>\d{{1,9}}) ?{_UNIT} ago$")
_CLOCK = re.compile(r"(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?$")
_EPOCH = re.compile(r"@?(?P<seconds>\d{9,11})(?:\.\d+)?$")
_DAYS = {"today": 0, "yesterday": 1}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}  # by the first letter


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time as the user gave it: absolute (`when`), seconds before the end of the log, or a time of its last day (`clock`)."""

    when: datetime | None = None
    before_end_s: int | None = None
    clock: time_of_day | None = None

    def resolve(self, end: datetime | None) -> datetime | None:
        """The absolute time, given the log's last one."""
        if self.when is not None:
            return self.when
        if end is None:
            return None
        if self.clock is not None:
            found = end.replace(hour=self.clock.hour, minute=self.clock.minute, second=self.clock.second, microsecond=0)
            return found if found <= end else found - timedelta(days=1)
        return None if self.before_end_s is None else end - timedelta(seconds=self.before_end_s)


class MomentType(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases
    """Parses `2026-05-09T10:00`, `2026-05-09 10:00:00`, `today`, `yesterday` (their midnights), `now`, `10 min ago`, seconds since
    the epoch, and relative to the log's end `-2h` (before it) and `23:58` (the last one in it).
    """

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Moment:
        """Return the `Moment`; fails with a sentence where `value` is none."""
        if isinstance(value, Moment):
            return value
        text = str(value).strip()
        if match := _RELATIVE.match(text):
            return Moment(before_end_s=int(match["count"]) * _UNITS[match["unit"][0]])
        if match := _CLOCK.match(text):
            return Moment(clock=time_of_day(int(match["hour"]), int(match["minute"]), int(match["second"] or 0)))
        if text == "now":
            return Moment(when=datetime.now())
        if match := _EPOCH.match(text):
            return Moment(when=datetime.fromtimestamp(int(match["seconds"]), timezone.utc))
        if text in _DAYS:
            day = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0)
            return Moment(when=day - timedelta(days=_DAYS[text]))
        try:
            if match := _AGO.match(text):
                ago = int(match["count"]) * _UNITS[match["unit"][0]]
                return Moment(when=datetime.now().replace(microsecond=0) - timedelta(seconds=ago))
            return Moment(when=datetime.fromisoformat(text.replace("Z", "+00:00")))
        except (ValueError, OverflowError):
            self.fail(
                f"{text!r} is not a valid time; use 2026-05-09T10:00:00, 23:58 (the last in the log), today, now, '10 min ago', "
                "or -2h for the last two hours of the log",
                param,
                ctx,
            )


class ZoneType(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases
    """Checks the name of a time zone: `Europe/Berlin`, `UTC`, `+08:00`."""

    name = "zone"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
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


Wanted = Literal["findings", "replay", "frames"]
"""What is to be done with the rows: `findings` need those that stand for all, a `replay` some columns of any span, `frames` everything."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a log is read: which `span` of it, the `year` of its first record, and what is `wanted` of its rows (None: all, in memory)."""

    span: Span = Span()
    year: int | None = None
    wanted: Wanted | None = "replay"


def events_in(
    sources: Sequence[Any], coverage: Coverage, reading: Reading, keep: Keep = KEEP_EVENTS
) -> Iterator[Event]:
    """The events of `sources` within a span, in the order of the input.

    A span that is relative to the log's end makes all events wait in memory until the end is known.
    """
    events = read_events(sources, coverage, year=reading.year, keep=keep)
    return events if reading.span.is_open else cut(events, reading.span)


def cut(events: Iterable[Event], span: Span) -> Iterator[Event]:
    """What `span` holds of `events`."""
    end: datetime | None = None
    if span.needs_end:
        kept = list(events)
        times = [t for e in kept if (t := span.clock(e.time, e.outer_us)) is not None]
        end = max(times) if times else None
        events = kept
    last: datetime | None = None
    for event in events:
        last = span.clock(event.time, event.outer_us) or last
        if span.holds(last, end):
            yield event


def problems(coverage: Coverage) -> list[str]:
    """One sentence for each source that could not be read, or not to its end; none where `check_something_read` will say so."""
    return _sentences(coverage) if coverage.lines else []


def _sentences(coverage: Coverage) -> list[str]:
    said = [f"{s['source']}: {s['problem']}" for s in coverage.skipped_sources]
    if coverage.client_text:
        n = coverage.client_text
        lines = "1 line that looks like a record stands" if n == 1 else f"{n} lines that look like records stand"
        said.append(f"{lines} in text that a client may have written: not read")
    return said


def partly_read(coverage: Coverage) -> bool:
    """Whether something was lost (exit status 4)."""
    return coverage.partly


def check_something_read(coverage: Coverage) -> None:
    """Raise NothingToWorkOn where no source could be read, or none holds a vLLM record."""
    if coverage.events or coverage.vllm_records:
        return
    if coverage.other_engines:
        name = max(coverage.other_engines, key=lambda k: coverage.other_engines[k])
        raise NothingToWorkOn(
            f"{_names(coverage)}: no vLLM record; the lines look like {name}'s, which logscope does not read"
        )
    if coverage.lines == 0 and coverage.skipped_sources:
        raise NothingToWorkOn("; ".join(_sentences(coverage)))
    if coverage.lines == 0:
        raise NothingToWorkOn(_empty(coverage))
    raise NothingToWorkOn(
        f"{_names(coverage)}: {coverage.lines} lines, none of them a vLLM record; is this the server's own log?"
    )


def _empty(coverage: Coverage) -> str:
    if coverage.sources == ["-"]:
        return "standard input was empty; pass the log of a vLLM server (stdout and stderr)"
    if coverage.sources and coverage.sources[0].startswith("journal:"):
        unit = coverage.sources[0].partition(":")[2]
        return (
            f'no journal entries for unit "{unit}" (the journal is empty for it); check the name (systemctl list-units) and that you '
            "may read the journal (group systemd-journal)"
        )
    return f"{_names(coverage)}: empty; pass the log of a vLLM server (stdout and stderr)"


def _names(coverage: Coverage) -> str:
    names = coverage.sources or ["input"]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


_STARTED = "MESSAGE_ID=39f53479d3a045ac8e11786248231fbf"
MARGIN_S = 60
"""The journal's clock is not the record's: what is read is wider by this, the span itself then cuts exactly."""
PATIENCE_S = 60


def unit_source(unit: str, span: Span, *, from_start: bool) -> Any:
    """The unit's entries that `span` needs, oldest first; with `from_start` from the unit's last start before the span.

    What cannot be asked (no journalctl, no such unit) shows when the source is read.
    """
    from parsers.sources.source import JournalQuery, journal_of

    since = _epoch(unit, span.since, span.zone)
    until = _epoch(unit, span.until, span.zone)
    if since is not None:
        since -= MARGIN_S
        if from_start:
            since = _newest(unit, f"--until=@{since}", _STARTED)
    return journal_of(
        JournalQuery(
            unit, since=None if since is None else f"@{since}", until=None if until is None else f"@{until + MARGIN_S}"
        )
    )


def _epoch(unit: str, moment: Moment | None, zone: str | None) -> int | None:
    """The moment in seconds since the epoch; one that is relative to the end is so to the unit's last entry."""
    if moment is None:
        return None
    if moment.before_end_s is not None:
        end = _newest(unit)
        return None if end is None else end - moment.before_end_s
    when = moment.when
    if when is None:  # a time of day: the last before the unit's last entry
        end = _newest(unit)
        when = None if end is None else moment.resolve(datetime.fromtimestamp(end, ZoneInfo(zone) if zone else None))
    if when is None:
        return None
    if when.tzinfo is None and zone is not None:
        when = when.replace(tzinfo=ZoneInfo(zone))
    try:
        return int(when.timestamp())
    except (OverflowError, OSError, ValueError):
        return int((when.replace(tzinfo=None) - datetime(1970, 1, 1)) / timedelta(seconds=1))


def _newest(unit: str, *more: str) -> int | None:
    """The time of the unit's newest entry (of a kind), in seconds since the epoch."""
    try:
        with start_journalctl([f"--unit={unit}", "--lines=1", *more], "json", subprocess.DEVNULL) as process:
            try:
                found, _ = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        return int(json.loads(found)["__REALTIME_TIMESTAMP"]) // 1_000_000
    except (JournalError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        return None
