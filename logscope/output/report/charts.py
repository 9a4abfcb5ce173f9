"""Which charts an analysis has: those for which it holds the data, each in its section of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from logscope.output.report.chart import Chart, engine_key
from logscope.output.report.request_charts import gantt, tail
from logscope.output.report.timeline import timeline
from logscope.output.report.view import worst_engine
from logscope.output.report.view_advice import label_of
from logscope.output.report.view_facts import rows_of_engine

__all__ = ["Charts", "charts"]

MAX_ENGINES = 4  # each with its own timeline; a fleet's other engines are rows of a table
MAX_ADVICE = 3


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts by section; `omitted` counts engines whose timeline is left out."""

    timelines: Sequence[Chart]
    tails: Sequence[Chart]
    gantt: Chart | None
    omitted: int

    @property
    def all(self) -> list[Chart]:
        """All charts in the page's order."""
        return [*self.timelines, *self.tails, *([self.gantt] if self.gantt else [])]


def charts(analysis: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> Charts:
    """The charts of an analysis; see `write_html` for the frames."""
    worst = worst_engine(analysis)
    engines = [e for e in analysis.get("engines") or [] if e is not worst]
    shown = ([worst] if worst else []) + engines[: MAX_ENGINES - 1]
    requests = _of(frames, "replay_requests", worst)
    return Charts(
        timelines=[c for e in shown if (c := _timeline(e, frames, engines))],
        tails=_tails(analysis, requests, frames.get("whatif_requests")),
        gantt=_gantt(worst, requests, _of(frames, "replay_spans", worst)),
        omitted=max(0, len(engines) + 1 - MAX_ENGINES),
    )


def _of(
    frames: Mapping[str, pl.DataFrame], name: str, engine: Mapping[str, Any]
) -> pl.DataFrame | None:
    frame = frames.get(name)
    return None if frame is None else rows_of_engine(frame, engine)


def _timeline(
    engine: dict[str, Any], frames: Mapping[str, pl.DataFrame], others: Sequence[object]
) -> Chart | None:
    stats = _of(frames, "stats", engine)
    if stats is None:
        return None
    server, run, index = engine_key(engine)
    title = f"Server {server}, start {run}, engine {index}" if others else "What happened over time"
    name = f"timeline-{server}-{run}-{index}"
    return timeline(name, title, stats, engine, _of(frames, "replay_steps", engine))


def _tails(
    analysis: Mapping[str, Any], now: pl.DataFrame | None, advised: pl.DataFrame | None
) -> list[Chart]:
    if now is None:
        return []
    sides = []
    for number, advice in enumerate((analysis.get("advice") or [])[:MAX_ADVICE]):
        if advised is not None:
            sides.append((label_of(advice), advised.filter(pl.col("advice") == number)))
    named = (("e2e_s", "Whole request (E2E)"), ("ttft_s", "Time to first token (TTFT)"))
    drawn = [tail(f"tail-{column[:-2]}", title, column, now, sides) for column, title in named]
    return [chart for chart in drawn if chart]


def _gantt(
    engine: Mapping[str, Any], requests: pl.DataFrame | None, spans: pl.DataFrame | None
) -> Chart | None:
    spikes = engine.get("spikes") or []
    if requests is None or spans is None or not spikes:
        return None
    worst = max(spikes, key=lambda s: s.get("p99_e2e_s") or 0.0)
    return gantt("gantt", "Requests around the worst spike", spans, requests, worst)
