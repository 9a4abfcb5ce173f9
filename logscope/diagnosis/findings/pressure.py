"""Pressure that the log shows by itself: logged preemptions, a full KV cache with a queue, all seats taken with a queue.

KV blocks that stay taken while no request is there: a leak, which only a restart ends.

Data-parallel engines of one server that do not share the load: one queues while another has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from logscope.evidence.context import Context
from logscope.evidence.finding import Finding, evidence_of, seconds
from logscope.evidence.pressure import bound_by
from logscope.server.engines import EngineFacts
from logscope.wording import percent

__all__ = ["engine_imbalance", "kv_admission_wait", "kv_leak", "logged_preemption", "seat_queue", "two_limits"]
MIN_WINDOWS = 2


def logged_preemption(context: Context) -> list[Finding]:
    """V0's warnings, the `Preemptions:` field of patched V1 builds, and what the gauges show of preemption."""
    logged = context.logged
    if not logged.counted:
        return _of_gauges(context)
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
    modes = set(rows["mode"].drop_nulls().to_list()) if "mode" in rows.columns else set()
    fate = (
        "moved to CPU swap space" if modes and all("SWAP" in m for m in modes) else "evicted and their work discarded"
    )
    title = f"The log records {count} preemptions: running requests were {fate}"
    if by_priority:
        title += "; KV usage was low, so they were preempted for priority, not for lack of space"
    severity = "critical" if logged.low >= 3 else "warning"
    proves = None if by_priority else "kv-capacity"
    return [Finding("kv-preemption", severity, "measured", title, start, end, evidence_of(rows, context.texts), proves)]


def _of_gauges(context: Context) -> list[Finding]:
    """Requests in swap space, or put back into the queue: preempted, though no line says so."""
    logged, windows = context.logged, context.windows
    if windows is None:
        return []
    if logged.swapped:
        title = (
            f"Up to {logged.swapped} requests were in CPU swap space (Swapped): each was preempted and waits for room in the KV cache;"
            f" {logged.low or 'none'} of them were swapped out within this log"
        )
        rows = windows.filter(pl.col("swapped") > 0)
        start, end = context.span_of(rows)
        evidence = evidence_of(rows, context.texts)
        return [Finding("kv-preemption", "critical", "measured", title, start, end, evidence, "kv-capacity")]
    start, end = seconds(t for s in logged.timeline for t in (s.start, s.end))
    title = (
        f"Running fell and Waiting rose by {logged.put_back} requests at once when the KV cache was full: they were preempted"
        " together and started over"
    )
    rows = windows.filter(pl.col("end").is_in([t for s in logged.timeline for t in (s.start, s.end)]))
    evidence = evidence_of(rows, context.texts)
    return [Finding("kv-preemption", "critical", "inferred", title, start, end, evidence, "kv-capacity")]


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
    seats = context.log.facts.seats
    full = bound_by("kv", windows, seats)
    if full.height < MIN_WINDOWS:
        return []
    start, end = context.span_of(full)
    queue = float(full.select((pl.col("waiting") + pl.col("swapped").fill_null(0)).max()).item() or 0)
    nearly = "" if full["full"].all() else f" or nearly so (from {min(full['kv_pct']):.1f} % on)"
    title = (
        f"The KV cache was full{nearly} with a queue in {full.height:,} of {windows.height:,} intervals (up to {queue:.0f} waiting):"
        f" requests were waiting for KV blocks{f', not for {context.log.facts.seat_setting}' if seats else ''}"
    )
    return [Finding("kv-admission-wait", "warning", "measured", title, start, end, evidence_of(full, context.texts))]


def seat_queue(context: Context) -> list[Finding]:
    """Running sits at max_num_seqs with a queue and free KV space."""
    windows, seats = context.windows, context.log.facts.seats
    if windows is None or not seats or windows["aggregated"].any():
        return []
    measured = context.log.facts.basis.get(context.log.facts.seat_setting) in ("measured", "given")
    at_limit = bound_by("seats", windows, seats)
    if at_limit.height < MIN_WINDOWS:
        return []
    start, end = context.span_of(at_limit)
    queue, usage = _highest(at_limit, "waiting"), _highest(at_limit, "kv_pct")
    title = (
        f"{context.log.facts.seat_setting} ({seats}) was reached with up to {queue:.0f} requests waiting in {at_limit.height:,} of {windows.height:,} intervals,"
        f" while KV usage was at most {usage:.0f} %: requests were not waiting for KV space"
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
    windows, seats = context.windows, context.log.facts.seats
    if windows is None or not seats:
        return []
    both = bound_by("both", windows, seats)
    if both.height < MIN_WINDOWS:
        return []
    title = (
        f"{context.log.facts.seat_setting} ({seats}) was reached and the KV cache was full at the same time in {both.height:,} of {windows.height:,} intervals with a queue:"
        " the statistics alone cannot say which of the two the queue was waiting for"
    )
    start, end = context.span_of(both)
    return [Finding("coverage", "info", "measured", title, start, end, evidence_of(both, context.texts))]


def _highest(windows: pl.DataFrame, name: str) -> float:
    value = windows[name].max()
    return float(value) if isinstance(value, (int, float)) else 0.0


MIN_LINES = 3
LEAST_PCT = 1.0
FEW_BLOCKS = 3
"""V1's null block counted as used until 0.10.2, and usage is printed rounded: so few blocks of a small cache are no leak."""


def kv_leak(context: Context) -> list[Finding]:
    """Usage stays above zero in every line without a request, from some line on to the end.

    A cached prefix is no use of a block: vLLM counts it as free. Newer releases print such a line only once for each pause, so it is the
    lines that count and not their time; any single one at zero says that the blocks came back.
    """
    windows = context.windows
    if windows is None or windows["aggregated"].any():
        return []
    if windows["running"].min():
        return []
    nobody = pl.col("running") + pl.col("waiting") + pl.col("swapped").fill_null(0) == 0
    empty = windows.filter(nobody & pl.col("kv_pct").is_not_null())
    returned = empty.select((pl.col("kv_pct") < _least(context)).arg_true().max()).item()
    held = empty if returned is None else empty[returned + 1 :]
    if held.height < MIN_LINES:
        return []
    start, end = seconds(held["end"].to_list())
    least, last = min(held["kv_pct"].to_list()), held["kv_pct"][-1]
    title = (
        f"KV usage stays at {least:.1f} % or more with no request running or waiting ({held.height:,} lines, {last:.1f} % in the last):"
        f" KV blocks are not being freed (possible leak){_suspect(context)}"
    )
    return [Finding("kv-leak", "warning", "measured", title, start, end, evidence_of(held, context.texts))]


def _least(context: Context) -> float:
    """The usage (percent) from which on blocks count as held."""
    blocks = context.log.facts.kv.num_blocks
    return max(LEAST_PCT, 100.0 * FEW_BLOCKS / blocks) if blocks else LEAST_PCT


def _suspect(context: Context) -> str:
    if "KV connectors" in context.log.facts.unsupported:
        return "; a KV connector keeps those of finished requests until they are fetched, so look there first"
    return "; a restart frees them, and a newer release may have the fix"


MIN_BUSY_WINDOWS = 4
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
    intervals: int
    start: datetime | None
    end: datetime | None


def engine_imbalance(engines: Sequence[tuple[EngineFacts, pl.DataFrame | None]]) -> Finding | None:
    """The finding of one server's start: its busiest engine carries at least half as much again as the idlest one.

    A warning where the busiest queues while the idlest does not: that wait is not for want of hardware. None for a single engine, for
    little load, and for few windows (a moment's difference says little) unless requests queue at the one and not at the other.
    """
    if len(engines) < 2:
        return None
    loads = [load for facts, windows in engines if (load := _load(facts, windows)) is not None]
    if len(loads) < 2:
        return None
    most = max(loads, key=lambda x: x.requests)
    least = min(loads, key=lambda x: x.requests)
    if most.requests < MIN_LOAD or most.requests < RATIO * least.requests:
        return None
    uneven = most.queued >= QUEUED_SHARE and least.queued < QUEUED_SHARE
    short = min(most.intervals, least.intervals) < MIN_BUSY_WINDOWS
    if short and not uneven:
        return None
    digits = 0 if most.intervals == 1 else 1
    lines = f" ({percent(most.queued)} of its {most.intervals} statistics lines)" if most.intervals > 1 else ""
    title = (
        f"Uneven load: engine {most.index} held {most.requests:.{digits}f} requests{'' if short else ' on average'}, engine {least.index}"
        f" {least.requests:.{digits}f}"
        + (f"; requests queue at engine {most.index}{lines} while engine {least.index} has room" if uneven else "")
        + ". Check how requests are routed to the data-parallel engines"
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
    if windows is None or windows.height == 0:
        return None
    requests, queued = windows.select(
        (pl.col("running") + pl.col("waiting")).mean(), queued=(pl.col("waiting") > 0).mean()
    ).row(0)
    if requests is None or queued is None:
        return None
    start, end = windows["start"].min(), windows["end"].max()
    return _Load(
        facts.engine_index,
        float(requests),
        float(queued),
        windows.height,
        start if isinstance(start, datetime) else None,
        end if isinstance(end, datetime) else None,
    )
