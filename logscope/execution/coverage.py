"""Counts of several readings as one."""

from __future__ import annotations

from parsers.reading.events import Coverage

__all__ = ["add_coverage"]

_COUNTS = (
    "bytes",
    "lines",
    "events",
    "other_records",
    "foreign_lines",
    "unrecognized_warnings",
    "out_of_order",
    "truncated",
    "vllm_records",
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
