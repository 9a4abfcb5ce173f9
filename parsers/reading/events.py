"""An event: what one record says, who said it and when; and the counts of what was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from parsers.records.dates import from_epoch_us

__all__ = ["Coverage", "Event", "add_coverage", "event_row"]


@dataclass(slots=True)
class Event:
    """One parsed record. `time` is the record's own clock (local, without zone), `outer_us` the envelope's (UTC microseconds).

    `server` numbers the servers of the input, `run` a server's starts, `engine_index` the data-parallel engine (None where
    the record does not say). `fields` bear the names of the family's schema; `repeated` is Ray's count of folded repetitions.
    """

    source: str
    line: int
    family: str
    variant: str
    fields: dict[str, Any]
    time: datetime | None = None
    outer_us: int | None = None
    process: str | None = None
    pid: int | None = None
    server: int = 0
    run: int = 0
    engine_index: int | None = None
    level: str | None = None
    origin: str | None = None
    host: str | None = None
    unit: str | None = None
    pod: str | None = None
    container: str | None = None
    stream: str | None = None
    repeated: int = 1
    text: str = ""


def event_row(event: Event) -> dict[str, Any]:
    """What frames, JSON and CSV show of an event, by the names and in the order of the contract; `outer_time` is aware, in UTC."""
    return {
        "source": event.source,
        "line": event.line,
        "time": event.time,
        "outer_time": None if event.outer_us is None else from_epoch_us(event.outer_us),
        "process": event.process,
        "pid": event.pid,
        "server": event.server,
        "run": event.run,
        "engine_index": event.engine_index,
        "level": event.level,
        "origin": event.origin,
        "host": event.host,
        "unit": event.unit,
        "pod": event.pod,
        "container": event.container,
        "stream": event.stream,
        "family": event.family,
        "variant": event.variant,
        "fields": event.fields,
    }


@dataclass(slots=True)
class Coverage:
    """What was read, and what was lost. Every output carries it.

    `lines` are physical lines; `events` records of a known family; `other_records` vLLM records of none; `foreign_lines` lines
    without vLLM's prefix that say nothing known; `client_text` what looked like a record within text that a client may have written; `unbelieved` times and
    numbers that nobody can have measured; `unrecognized_warnings` those of `other_records` at WARNING or above.
    """

    sources: list[str] = field(default_factory=list)
    bytes: int = 0
    lines: int = 0
    events: int = 0
    other_records: int = 0
    foreign_lines: int = 0
    unrecognized_warnings: int = 0
    out_of_order: int = 0
    truncated: int = 0
    skipped_sources: list[dict[str, str]] = field(default_factory=list)
    warning_samples: list[dict[str, Any]] = field(default_factory=list)
    vllm_records: int = 0
    partly: bool = False
    client_text: int = 0
    unbelieved: int = 0
    other_engines: dict[str, int] = field(default_factory=dict)


_COUNTS = (
    *("bytes", "lines", "events", "other_records", "foreign_lines", "unrecognized_warnings", "out_of_order"),
    *("truncated", "vllm_records", "client_text", "unbelieved"),
)


def add_coverage(whole: Coverage, part: Coverage) -> None:
    """Add `part` to `whole`, its lists after the others'."""
    for name in _COUNTS:
        setattr(whole, name, getattr(whole, name) + getattr(part, name))
    whole.sources += part.sources
    whole.skipped_sources += part.skipped_sources
    whole.warning_samples += part.warning_samples
    whole.partly |= part.partly
    for engine, count in part.other_engines.items():
        whole.other_engines[engine] = whole.other_engines.get(engine, 0) + count
