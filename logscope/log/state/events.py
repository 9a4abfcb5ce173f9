"""The events that are new since the last run: `new_events`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from logscope.execution.coverage import add_coverage
from logscope.log.state.read_new import OPEN, SETTLED, News, read_news
from logscope.log.state.read_state import Memory, locked
from logscope.output.events import event_object, to_json
from parsers.reading.by_line import Keep
from parsers.reading.events import Coverage, Event

__all__ = ["new_events"]


def new_events(
    folder: Path,
    sources: Sequence[Any],
    coverage: Coverage,
    *,
    year: int | None = None,
    keep: Keep,
) -> Iterator[Event]:
    """Yield what no run with this `folder` gave yet; the folder takes note once all were taken, and `coverage` says what this run read.

    The last record of a log that grows is given once it looks complete; if it then turns out longer, it is given again. Raises
    StateError for a folder that cannot be used and for sources that cannot be read on.
    """
    options = {"year": year, "all": keep.other, "prompts": keep.prompts}
    with locked(folder):
        memory = Memory.load(folder, options)
        news = News()
        before = {entry.id: replace(entry.settled) for entry in memory.entries}
        given = {entry.id: Counter(entry.given) for entry in memory.entries}
        early: dict[int, list[str]] = {}
        for event, entry, standing in read_news(sources, memory, news, year=year, keep=keep):
            if standing == OPEN:
                continue
            mark = _mark(event)
            old = given.setdefault(entry.id, Counter())
            if standing != SETTLED:
                early.setdefault(entry.id, []).append(mark)
            if old[mark]:
                old[mark] -= 1
            else:
                yield replace(event, source=entry.name)
        for entry in news.present:
            entry.given = early.get(entry.id, [])
            _add_news(coverage, entry.settled, before.get(entry.id))
            coverage.sources.append(entry.name)
        coverage.skipped_sources += news.problems
        coverage.partly = bool(news.problems)
        memory.runs += 1
        memory.save(folder)


def _mark(event: Event) -> str:
    """By what an event is known again in the next run."""
    what = event_object(replace(event, source="", server=0))
    return hashlib.sha256(to_json(what).encode()).hexdigest()[:32]


def _add_news(coverage: Coverage, now: Coverage, before: Coverage | None) -> None:
    add_coverage(coverage, now)
    if before is None:
        return
    for name in ("lines", "events", "other_records", "foreign_lines", "unrecognized_warnings"):
        setattr(coverage, name, getattr(coverage, name) - getattr(before, name))
