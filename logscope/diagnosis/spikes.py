"""Spikes: the stretches of time in which the tail leaves its baseline, why, and the log lines that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from logscope.diagnosis.verdict import verdict_of_ledger
from logscope.evidence.finding import Evidence, evidence_of
from logscope.inference.ledgers import delay, means_of, slow_requests

__all__ = ["Spike", "find_spikes"]
MIN_WINDOW_S = 10.0
WINDOWS_OF_A_LOG = 120
RISE = 2.0
MIN_DELAY_S = 1.0
MAX_SPIKES = 10


@dataclass(frozen=True, slots=True)
class Spike:
    """One stretch, on the log's clock. `ledger_s` is the mean of its slow requests; latencies in seconds."""

    start: datetime
    end: datetime
    cause: str
    requests: int
    p99_e2e_s: float
    baseline_p99_e2e_s: float
    ledger_s: Mapping[str, float]
    evidence: tuple[Evidence, ...]


def find_spikes(
    requests: pl.DataFrame, origin: datetime, windows: pl.DataFrame | None, texts: Mapping[tuple[str, int], str]
) -> tuple[Spike, ...]:
    """Find the spikes of a replayed run.

    `requests` are the replay's (arrival_s and end_s in seconds from `origin`, e2e_s, the ledger). A window of arrivals belongs to a spike
    where its 95th percentile of delay is twice the calm half's and above one second; neighbouring windows join. Worst first.
    """
    done = requests.filter(pl.col("status") == "finished").with_columns(delay_s=delay())
    if done.height < 5:
        return ()
    span = float(done["arrival_s"].max() or 0.0)  # type: ignore[arg-type]
    width = max(MIN_WINDOW_S, span / WINDOWS_OF_A_LOG)
    by_window = (
        done.with_columns(window=(pl.col("arrival_s") / width).floor().cast(pl.Int64))
        .group_by("window")
        .agg(delay_s=pl.col("delay_s").quantile(0.95, "linear"), e2e_s=pl.col("e2e_s").quantile(0.99, "linear"))
        .sort("window")
    )
    calm = by_window.sort("delay_s").head(max(1, by_window.height // 2))
    limit = max(RISE * float(calm["delay_s"].median() or 0.0), MIN_DELAY_S)  # type: ignore[arg-type]
    baseline = float(calm["e2e_s"].median() or 0.0)  # type: ignore[arg-type]
    hot = by_window.filter(pl.col("delay_s") > limit)["window"].to_list()
    spikes = [_spike(done, a, b, width, origin, baseline, windows, texts) for a, b in _stretches(hot)]
    found = [s for s in spikes if s is not None]
    return tuple(sorted(found, key=lambda s: -s.p99_e2e_s)[:MAX_SPIKES])


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring window numbers; one quiet window between two hot ones does not part them."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number - found[-1][1] <= 2:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _spike(
    done: pl.DataFrame,
    first: int,
    last: int,
    width: float,
    origin: datetime,
    baseline: float,
    windows: pl.DataFrame | None,
    texts: Mapping[tuple[str, int], str],
) -> Spike | None:
    inside = done.filter((pl.col("arrival_s") >= first * width) & (pl.col("arrival_s") < (last + 1) * width))
    slow = slow_requests(inside)
    ledger = means_of(slow)
    cause = verdict_of_ledger(ledger)
    if slow.height == 0 or cause is None:
        return None
    start = origin + timedelta(seconds=float(inside["arrival_s"].min()))  # type: ignore[arg-type]
    end = origin + timedelta(seconds=float(inside["end_s"].max()))  # type: ignore[arg-type]
    p99 = float(inside["e2e_s"].quantile(0.99, "linear") or 0.0)
    return Spike(start, end, cause, inside.height, p99, baseline, ledger, _evidence(windows, start, end, cause, texts))


def _evidence(
    windows: pl.DataFrame | None, start: datetime, end: datetime, cause: str, texts: Mapping[tuple[str, int], str]
) -> tuple[Evidence, ...]:
    """The statistics lines within the spike that show its cause most: the fullest cache, the longest queue."""
    if windows is None:
        return ()
    inside = windows.filter((pl.col("end") >= start) & (pl.col("start") <= end))
    order: dict[str, Any] = {
        "kv-capacity": ["kv_pct", "waiting"],
        "seat-limit": ["waiting", "running"],
        "prefill-interference": ["prompt_tps", "waiting"],
    }
    names = order.get(cause, ["waiting", "kv_pct"])
    best = inside.sort(names, descending=True, nulls_last=True).head(3).sort("order")
    return evidence_of(best, texts)
