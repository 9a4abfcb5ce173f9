"""A whole input in memory: typed frames of its events, the lines that may serve as evidence, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from logscope.evidence.finding import Evidence
from logscope.log.analysis_rows import AnalysisRows, Wanted
from logscope.log.line_texts import LineTexts
from logscope.log.span import Span
from logscope.log.span_on_disk import read_span
from logscope.log.stored_rows import StoredRows
from parsers.reading.by_line import Keep
from parsers.reading.events import Coverage, Event
from parsers.reading.frames import FrameBuilder
from parsers.reading.in_bulk import read_frames

__all__ = ["EVIDENCE_FAMILIES", "SETUP_FAMILIES", "LogFrames", "read_log"]

EVIDENCE_FAMILIES = frozenset(
    ("stats", "preemption", "kv_error", "kv_sizing", "runtime", "shutdown")
)
# What a server says of itself stands before any span that a user asks for, and is needed all the same.
SETUP_FAMILIES = frozenset(("startup", "kv_sizing"))


# Of the ends of tracebacks the first and the last say why a server died.
_FIRST_EXCEPTIONS, _LAST_EXCEPTIONS = 1000, 100


@dataclass(slots=True)
class LogFrames:
    """`frames` by family; `texts` maps (source, line) to a line; `exceptions` are the unexplained ends of tracebacks by (server, run).

    Of a large family `frames` has the rows that stand for all (`logscope.log.kept_rows`); those are in `stored`, unless only findings
    were wanted. Of very many exceptions the first and the last ones are kept.
    """

    frames: dict[str, pl.DataFrame]
    coverage: Coverage
    texts: LineTexts = field(default_factory=LineTexts)
    exceptions: dict[tuple[int, int], list[Evidence]] = field(default_factory=dict)
    stored: dict[str, StoredRows] = field(default_factory=dict)


def read_log(
    sources: Sequence[Any], span: Span, *, year: int | None = None, wanted: Wanted | None = "replay"
) -> LogFrames:
    """Read `sources` to their end; the span cuts everything but the server's own description.

    `wanted`: see `AnalysisRows`; None for all rows in memory.
    """
    coverage = Coverage()
    builder = AnalysisRows(wanted) if wanted is not None else FrameBuilder()
    found = LogFrames({}, coverage)

    def line(source: str, number: int, text: str) -> None:
        found.texts[source, number] = text

    if span.is_open:
        read_frames(
            sources,
            coverage,
            builder,
            year=year,
            keep=Keep(exceptions=True),
            take=lambda event: _take(found, builder, event),
            evidence=line,
        )
    else:
        read_span(
            sources,
            span,
            coverage,
            builder,
            year=year,
            always=SETUP_FAMILIES,
            evidence=line,
            exception=lambda event: _take(found, builder, event),
        )
    found.frames = builder.frames()
    if isinstance(builder, AnalysisRows):
        found.stored = builder.stored
    return found


def _take(found: LogFrames, builder: FrameBuilder, event: Event) -> None:
    if event.family == "exception":
        place = found.exceptions.setdefault((event.server, event.run), [])
        place.append(Evidence(event.source, event.line, event.text))
        if len(place) > 2 * _FIRST_EXCEPTIONS:
            place[_FIRST_EXCEPTIONS:] = place[-_LAST_EXCEPTIONS:]
        return
    builder.add(event)
    if event.family in EVIDENCE_FAMILIES and event.text:
        found.texts[event.source, event.line] = event.text
