"""A systemd unit's journal as a source: which stretch of it a command needs, asked of journalctl.

What a server says of itself when it starts is needed whatever span is asked for, so that the stretch begins at the unit's last start
before the span. systemd writes that start as an entry with a fixed id ("unit started", its message catalog).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from logscope.log.span import Moment, Span

__all__ = ["unit_source"]

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
            unit,
            since=None if since is None else f"@{since}",
            until=None if until is None else f"@{until + MARGIN_S}",
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
    command = shutil.which("journalctl")
    if command is None:
        return None
    arguments = [command, f"--unit={unit}", "--lines=1", "--output=json", "--no-pager", "--quiet"]
    try:
        found = subprocess.run(  # noqa: S603 (a fixed command, no shell; each value is one argument)
            [*arguments, *more],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        ).stdout
        return int(json.loads(found)["__REALTIME_TIMESTAMP"]) // 1_000_000
    except (ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        return None
