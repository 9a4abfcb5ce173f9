"""Preemptions that the log itself proves: V0's cumulative warnings and the `Preemptions:` field of patched V1 builds.

V0 warns at the 1st, 51st, 101st … preemption of a process and prints the count so far (0.4.3 to 0.10.2, core/scheduler.py), so
a last counter of 101 stands for 101 to 150. The form of the documentation has no counter: one preemption at least.
Ray folds equal lines of several actors into `[repeated Nx across cluster]`, which hides their counters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import polars as pl

__all__ = ["Logged", "Stretch", "count_counters", "logged_preemptions"]

PERIOD = 50


@dataclass(frozen=True, slots=True)
class Stretch:
    """`value` preemptions that happened between two times (UTC of nobody: the record's clock)."""

    start: datetime
    end: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Logged:
    """Bounds of the count; `low` None where nothing proves anything, `high` None where there is no upper bound."""

    low: int | None = None
    high: int | None = None
    timeline: tuple[Stretch, ...] = ()
    lines: tuple[tuple[str, int, str], ...] = field(default=())

    @property
    def exact(self) -> bool:
        """Whether the log gives the number itself."""
        return self.low is not None and self.low == self.high


def count_counters(
    counters: Sequence[int | None], repeated: Sequence[int], *, from_start: bool
) -> tuple[int, int | None]:
    """Bounds of one process's preemptions from the counters of its warnings, in order.

    `counters` holds None for a warning without a counter, `repeated` Ray's count of each line, `from_start` whether the process's
    start is in the log (then the counter counts only what the log saw). A counter that goes back is a restart: the process's next life.
    """
    known = [c for c in counters if c is not None]
    steps = [b - a for a, b in itertools.pairwise(known) if b > a]
    period = max(PERIOD, min(steps)) if steps and min(steps) % PERIOD == 0 else PERIOD
    low, high, unbounded = 0, 0, False
    first: int | None = None
    last: int | None = None
    lives = 0
    for count, times in zip(counters, repeated, strict=True):
        if count is None:
            low, unbounded = low + times, True
            continue
        low += times - 1
        high += times * period if times > 1 else 0
        if last is not None and count < last:
            a, b = _life(first, last, period, from_start or lives > 0)
            low, high, lives, first = low + a, high + b, lives + 1, None
        first = count if first is None else first
        last = count
    if last is not None:
        a, b = _life(first, last, period, from_start or lives > 0)
        low, high = low + a, high + b
    return low, None if unbounded else high


def _life(first: int | None, last: int, period: int, from_start: bool) -> tuple[int, int]:
    if from_start or first is None or first <= 1:
        return last, last + period - 1
    # The log begins in the middle: the first warning's predecessors are outside of it, at least up to the warning before.
    return last - first + 1, last + period - 1 - max(0, first - period)


def logged_preemptions(
    warnings: pl.DataFrame | None, stats: pl.DataFrame | None, *, from_start: bool
) -> Logged:
    """Combine the proofs of one engine's run.

    `warnings` are `preemption` events of the warning's kind, `stats` the run's statistics lines; both may be None or empty.
    """
    low: int | None = None
    high: int | None = 0
    timeline: list[Stretch] = []
    lines: list[tuple[str, int, str]] = []
    if warnings is not None and warnings.height:
        for _, part in warnings.group_by(["process", "pid"], maintain_order=True):
            counters = part["total_num_cumulative_preemption"].to_list()
            a, b = count_counters(counters, part["repeated"].to_list(), from_start=from_start)
            low = (low or 0) + a
            high = None if high is None or b is None else high + b
            timeline += _warning_timeline(part["at"].to_list(), counters)
        lines += [(s, n, "") for s, n in warnings.select("source", "line").rows()]
    if stats is not None and "preemptions" in stats.columns:
        said = stats.filter(pl.col("preemptions").is_not_null())
        if said.height:
            total = int(said["preemptions"].sum())
            low = (low or 0) + total
            high = None if high is None else high + total
            timeline += _field_timeline(stats)
            lines += [
                (s, n, "")
                for s, n in said.filter(pl.col("preemptions") > 0).select("source", "line").rows()
            ]
    if low is None:
        return Logged()
    return Logged(low, high, tuple(timeline), tuple(lines))


def _warning_timeline(times: list[datetime | None], counters: list[int | None]) -> list[Stretch]:
    found: list[Stretch] = []
    before: tuple[datetime, int] | None = None
    for time, count in zip(times, counters, strict=True):
        if time is None:
            continue
        if count is None or before is None or count <= before[1]:
            found.append(Stretch(time, time, 1.0))
        else:
            found.append(_between(before[0], time, float(count - before[1])))
        before = (time, count) if count is not None else before
    return found


def _between(before: datetime, time: datetime, value: float) -> Stretch:
    """What came between two lines, also where the clock was set back between them."""
    return Stretch(min(before, time), max(before, time), value)


def _field_timeline(stats: pl.DataFrame) -> list[Stretch]:
    found: list[Stretch] = []
    before: datetime | None = None
    for time, count in stats.select("at", "preemptions").rows():
        if time is not None and count:
            found.append(_between(before or time, time, float(count)))
        before = time or before
    return found
