"""From the sources that a user named to the events of the span that the user asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from logscope.errors import NothingToWorkOn
from logscope.log.span import Span
from parsers.reading.by_line import KEEP_EVENTS, Keep, read_events
from parsers.reading.events import Coverage, Event

__all__ = ["check_something_read", "cut", "events_in", "partly_read", "problems"]


def events_in(
    sources: Sequence[Any],
    coverage: Coverage,
    span: Span,
    *,
    year: int | None = None,
    keep: Keep = KEEP_EVENTS,
) -> Iterator[Event]:
    """The events of `sources` within `span`, in the order of the input.

    A span that is relative to the log's end makes all events wait in memory until the end is known.
    """
    events = read_events(sources, coverage, year=year, keep=keep)
    if span.is_open:
        return events
    return cut(events, span)


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
