"""Pressure that the log shows by itself: logged preemptions, a full KV cache with a queue, all seats taken with a queue."""

from __future__ import annotations

import polars as pl

from logscope.evidence.context import Context
from logscope.evidence.finding import Finding, evidence_of, seconds
from logscope.evidence.windows import bound_of

__all__ = ["kv_admission_wait", "logged_preemption", "seat_queue", "two_limits"]

MIN_WINDOWS = 2


def logged_preemption(context: Context) -> list[Finding]:
    """V0's warnings and the `Preemptions:` field of patched V1 builds."""
    logged = context.logged
    if not logged.low:
        return []
    warnings = context.log.get("preemption")
    rows = None if warnings is None else warnings.filter(pl.col("variant") == "v0_preempt_warning")
    if rows is None or rows.height == 0:
        rows = context.log.frames["stats"].filter(pl.col("preemptions") > 0)
    start, end = seconds(rows["at"].to_list())
    if logged.high is None:
        count = f"at least {logged.low}"
    elif logged.high == logged.low:
        count = f"{logged.low}"
    else:
        count = f"{logged.low} to {logged.high}"
    by_priority = _by_priority(context)
    title = f"{count} preemptions are in the log: running requests were evicted and their work thrown away"
    if by_priority:
        title += "; KV usage was low, so it was priority and not space that evicted them"
    severity = "critical" if logged.low >= 3 else "warning"
    proves = None if by_priority else "kv-capacity"
    return [
        Finding(
            "kv-preemption",
            severity,
            "measured",
            title,
            start,
            end,
            evidence_of(rows, context.texts),
            proves,
        )
    ]


def _by_priority(context: Context) -> bool:
    """Under the priority policy V0 prints the same warning when a more important request takes a place: the cache need not be full."""
    windows = context.windows
    if context.log.facts.config.get("policy") != "priority" or windows is None:
        return False
    highest = windows["kv_pct"].max()
    return isinstance(highest, float) and highest < 50.0


def kv_admission_wait(context: Context) -> list[Finding]:
    """Requests wait while the KV cache is full and seats are free."""
    windows = context.windows
    if windows is None:
        return []
    seats = context.log.facts.config.get("max_num_seqs")
    full = windows.filter(bound_of(windows, seats) == "kv")
    if full.height < MIN_WINDOWS:
        return []
    start, end = seconds(full["end"].to_list())
    queue = _highest(full, "waiting")
    title = (
        f"KV cache full with a queue in {full.height} of {windows.height} intervals (up to {queue:.0f} waiting):"
        f" requests wait for blocks{', not for a seat' if seats else ''}"
    )
    return [
        Finding(
            "kv-admission-wait",
            "warning",
            "measured",
            title,
            start,
            end,
            evidence_of(full, context.texts),
        )
    ]


def seat_queue(context: Context) -> list[Finding]:
    """Running sits at max_num_seqs with a queue and free KV space."""
    windows, seats = context.windows, context.log.facts.config.get("max_num_seqs")
    if windows is None or not seats or windows["aggregated"].any():
        return []
    measured = context.log.facts.basis.get("max_num_seqs") in ("measured", "given")
    at_limit = windows.filter(bound_of(windows, seats) == "seats")
    if at_limit.height < MIN_WINDOWS:
        return []
    start, end = seconds(at_limit["end"].to_list())
    queue, usage = _highest(at_limit, "waiting"), _highest(at_limit, "kv_pct")
    title = (
        f"All {seats} seats (max_num_seqs) were taken with up to {queue:.0f} requests waiting in {at_limit.height} of {windows.height} intervals,"
        f" while KV usage was {usage:.0f} % at most: space is not what they waited for"
    )
    return [
        Finding(
            "seat-limit",
            "warning",
            "measured" if measured else "inferred",
            title,
            start,
            end,
            evidence_of(at_limit, context.texts),
        )
    ]


def two_limits(context: Context) -> list[Finding]:
    """All seats taken and the cache full at once: the queues alone cannot say which of the two it is."""
    windows, seats = context.windows, context.log.facts.config.get("max_num_seqs")
    if windows is None or not seats:
        return []
    both = windows.filter(bound_of(windows, seats) == "both")
    if both.height < MIN_WINDOWS:
        return []
    title = (
        f"All {seats} seats (max_num_seqs) were taken and the KV cache was full at once in {both.height} of {windows.height} intervals with a queue:"
        " the statistics alone cannot say which of the two it waited for"
    )
    start, end = seconds(both["end"].to_list())
    return [
        Finding("coverage", "info", "measured", title, start, end, evidence_of(both, context.texts))
    ]


def _highest(windows: pl.DataFrame, name: str) -> float:
    value = windows[name].max()
    return float(value) if isinstance(value, (int, float)) else 0.0
