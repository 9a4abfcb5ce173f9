"""Data-parallel engines of one server that do not share the load: one queues while another has room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from logscope.evidence.finding import Finding
from logscope.server.engines import EngineFacts

__all__ = ["engine_imbalance"]

MIN_WINDOWS = 4
MIN_LOAD = 2.0
RATIO = 1.5
QUEUED_SHARE = 0.1
"""Part of its windows in which an engine has a queue, from which it is said to have one."""


@dataclass(frozen=True, slots=True)
class _Load:
    """Means over one engine's windows: requests running and waiting; `queued` is the part of the windows with a queue."""

    index: int
    requests: float
    queued: float
    start: datetime | None
    end: datetime | None


def engine_imbalance(
    engines: Sequence[tuple[EngineFacts, pl.DataFrame | None]],
) -> Finding | None:
    """The finding of one server's start: its busiest engine carries at least half as much again as the idlest one.

    A warning where the busiest queues while the idlest does not: that wait is not for want of hardware. None for a single engine, for
    few windows, and for little load.
    """
    loads = [load for facts, windows in engines if (load := _load(facts, windows)) is not None]
    if len(loads) < 2:
        return None
    most = max(loads, key=lambda x: x.requests)
    least = min(loads, key=lambda x: x.requests)
    if most.requests < MIN_LOAD or most.requests < RATIO * least.requests:
        return None
    uneven = most.queued >= QUEUED_SHARE and least.queued < QUEUED_SHARE
    title = (
        f"Engine {most.index} holds {most.requests:.1f} requests on average, engine {least.index} {least.requests:.1f}"
        + (
            f"; requests queue at engine {most.index} ({most.queued:.0%} of the time) while engine {least.index} has room"
            if uneven
            else ""
        )
        + ": look at how requests are routed to the data-parallel engines"
    )
    return Finding(
        "engine-imbalance",
        "warning" if uneven else "info",
        "measured",
        title,
        most.start,
        most.end,
        facts={"mean_requests": {str(x.index): round(x.requests, 3) for x in loads}},
    )


def _load(facts: EngineFacts, windows: pl.DataFrame | None) -> _Load | None:
    if windows is None or windows.height < MIN_WINDOWS:
        return None
    requests = windows.select((pl.col("running") + pl.col("waiting")).mean()).item()
    queued = windows.select((pl.col("waiting") > 0).mean()).item()
    if requests is None or queued is None:
        return None
    start, end = windows["start"].min(), windows["end"].max()
    return _Load(
        facts.engine_index,
        float(requests),
        float(queued),
        start if isinstance(start, datetime) else None,
        end if isinstance(end, datetime) else None,
    )
