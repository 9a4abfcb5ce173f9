"""The verdict: what the log proves first, then what the ledger of the slow requests says, then what the queues show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from logscope.evidence.finding import Finding
from logscope.evidence.windows import bound_of
from logscope.wording import LOST_TO

__all__ = ["PROVEN", "RANK", "pressure_of_windows", "verdict_of", "verdict_of_ledger", "verdict_of_windows"]

MIN_FULL_WINDOWS = 2

PROVEN = ("startup-kv-too-small", "startup-failed", "runtime-oom", "engine-crash", "engine-stall")
"""Verdicts that the log itself proves, in the order in which they decide."""

RANK = (
    "engine-crash",
    "runtime-oom",
    "engine-stall",
    "kv-capacity",
    "seat-limit",
    "prefill-interference",
    "startup-kv-too-small",
    "startup-failed",
    "not-enough-evidence",
    "healthy",
)
"""Which of several engines is the worst: the first of these that one has."""


def verdict_of(
    findings: Sequence[Finding],
    slow_s: Mapping[str, float | None] | None,
    windows: pl.DataFrame | None,
    seats: int | None,
) -> str:
    """Decide for one engine; `slow_s` is the mean ledger of its slow requests where a replay with a fair fit gave one."""
    proven = {f.proves for f in findings if f.proves}
    for verdict in PROVEN:
        if verdict in proven:
            return verdict
    if slow_s is not None and (found := verdict_of_ledger(slow_s)) is not None:
        return found
    if "kv-capacity" in proven:
        return "kv-capacity"
    return verdict_of_windows(findings, windows, seats)


def verdict_of_ledger(slow_s: Mapping[str, float | None]) -> str | None:
    """The contract's rule over the slow requests' mean ledger (seconds by label); None where the ledger is empty."""
    parts = {k: float(v or 0.0) for k, v in slow_s.items()}
    total = sum(parts.values())
    if total <= 0:
        return None
    delay = total - parts.get("prefill", 0.0) - parts.get("decode", 0.0)
    if delay < total / 3:
        return "healthy"
    shares = {verdict: sum(parts.get(label, 0.0) for label in labels) for verdict, labels in LOST_TO.items()}
    return max(shares, key=lambda v: shares[v])


def verdict_of_windows(findings: Sequence[Finding], windows: pl.DataFrame | None, seats: int | None) -> str:
    """What the queues alone show: most of the waiting was for seats, or for blocks; or nobody ever waited."""
    if windows is None or windows.height < 2:
        return "not-enough-evidence"
    if windows["waiting"].max() == 0:
        busy = windows.filter(pl.col("full"))
        return "healthy" if busy.height == 0 else "not-enough-evidence"
    if windows["aggregated"].any():
        return "not-enough-evidence"  # a mean over engines hides which one is full
    waiting = windows.filter(pl.col("waiting") > 0)
    bound = bound_of(waiting, seats)
    for kind, verdict in (("seats", "seat-limit"), ("kv", "kv-capacity")):
        if (bound == kind).sum() * 2 > waiting.height:
            return verdict
    return "not-enough-evidence"


def pressure_of_windows(findings: Sequence[Finding], windows: pl.DataFrame | None) -> str:
    """`thrash` where logged preemptions repeat, `saturated` where the cache is full with a queue, else `none`."""
    ids = {f.id: f for f in findings}
    if "kv-preemption" in ids:
        return "thrash" if ids["kv-preemption"].severity == "critical" else "saturated"
    full = 0 if windows is None else (bound_of(windows, None) == "kv").sum()
    return "saturated" if full >= MIN_FULL_WINDOWS else "none"
