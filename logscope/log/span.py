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
from typing import Any, Literal
from zoneinfo import ZoneInfo

import click

from logscope.errors import NothingToWorkOn
from parsers.envelopes.stamps import zone_of
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

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Moment:
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
    return [f"{s['source']}: {s['problem']}" for s in coverage.skipped_sources]


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
        raise NothingToWorkOn(
            f"{_names(coverage)}: empty; give the log of a vLLM server (its standard output and error)"
        )
    raise NothingToWorkOn(
        f"{_names(coverage)}: {coverage.lines} lines, none of them a vLLM record; is this the server's own log?"
    )


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
    assert when is not None
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
