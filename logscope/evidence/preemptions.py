"""Preemptions that the log itself proves: V0's cumulative warnings, the `Preemptions:` field of patched V1 builds, and what the gauges show.

V0 warns at the 1st, 51st, 101st … preemption of a process and prints the count so far (0.4.3 to 0.10.2, core/scheduler.py), so
a last counter of 101 stands for 101 to 150. The form of the documentation has no counter: one preemption at least.
Ray folds equal lines of several actors into `[repeated Nx across cluster]`, which hides their counters.

Gauges bound the count from below: each request more in V0's `Swapped` was preempted, and where Running collapses from a full cache
while as many requests appear in the queue, they were put back there.

How many preemptions: what the log proves and what the replay infers, brought together.

V0's warnings say how many there were up to the last one, the replay how many came after it: its own count up to the
last warning tells how far it is off, and corrects the rest.

The periodic statistics as windows: what each interval saw, and what stood at its end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
import polars as pl

from logscope.evidence.pressure import FULL_PCT, NEARLY_FULL_PCT
from parsers.reading.frames import repeated

__all__ = [
    "Logged",
    "Preemptions",
    "Stretch",
    "combine",
    "count_counters",
    "logged_preemptions",
    "stats_windows",
    "usual_interval",
]
DEFAULT_INTERVAL_S = 10.0
ENOUGH_GAPS = 4


def stats_windows(stats: pl.DataFrame | None, full_pct: float = FULL_PCT) -> pl.DataFrame | None:
    """One row a statistics line that shows the queues, in the order of the log.

    Columns: start, end (record's clock), interval_s, running, waiting, swapped, kv_pct, full (from `full_pct` on), prompt_tps, generation_tps (tokens/s, means
    over the interval), idle (no tokens), deferred (of `waiting`: held back by a grammar, a transfer or a LoRA limit), hit_pct (prefix cache, over many
    requests), external_pct (the same of KV blocks from elsewhere), aggregated (means over several engines), source, line, order. None where there is no such line.
    """
    if stats is None or "running" not in stats.columns:
        return None
    rows = stats
    if rows["running"].null_count() or rows["at"].null_count():
        rows = rows.filter(pl.col("running").is_not_null() & pl.col("at").is_not_null())
    if rows.height == 0:
        return None
    usual = _usual(rows["at"])
    # Column by column, for a crash loop has thousands of starts: each query costs as much as a thousand rows.
    end = rows["at"]
    ends = end.cast(pl.Int64).to_numpy()
    starts = np.concatenate((ends[:1] - round(usual * 1e6), ends[:-1]))
    prompts, generated = _floats(rows, "prompt_throughput"), _floats(rows, "generation_throughput")
    kv_pct = _kv(rows)
    columns = {
        "end": end,
        "running": _floats(rows, "running"),
        "waiting": _filled(_floats(rows, "waiting"), 0.0),
        "swapped": _floats(rows, "swapped"),
        "deferred": _floats(rows, "deferred"),
        "kv_pct": kv_pct,
        "prompt_tps": prompts,
        "generation_tps": generated,
        "hit_pct": _floats(rows, "prefix_cache_hit_rate_pct"),
        "external_pct": _floats(rows, "external_prefix_cache_hit_rate_pct"),
        "aggregated": _filled(rows["aggregated"], value=False)
        if "aggregated" in rows.columns
        else repeated(False, rows.height, pl.Boolean()),
        "source": rows["source"],
        "line": rows["line"],
        "order": rows["order"],
        "full": _filled(kv_pct, 0.0) >= full_pct,
        "start": pl.Series(starts).cast(end.dtype),
        "interval_s": pl.Series((ends - starts) / 1e6),
        "idle": _filled(prompts, 0.0) + _filled(generated, 0.0) == 0,
    }
    return pl.DataFrame([column.alias(name) for name, column in columns.items()])


def usual_interval(windows: pl.DataFrame) -> float:
    """The interval at which this log's lines come, in seconds."""
    return _usual(windows["end"])


def _usual(ends: pl.Series) -> float:
    """The lower quartile: idle stretches and stalls leave long gaps; few gaps tell little, then vLLM's default bounds it."""
    if ends.len() < 2:
        return DEFAULT_INTERVAL_S
    gaps = np.diff(ends.cast(pl.Int64).to_numpy()) / 1e6
    positive = gaps[gaps > 0.5]
    if not len(positive):
        return DEFAULT_INTERVAL_S
    place = math.floor((len(positive) - 1) / 4 + 0.5)
    low = float(np.partition(positive, place)[place])
    return low if len(positive) >= ENOUGH_GAPS else min(low, DEFAULT_INTERVAL_S)


def _floats(frame: pl.DataFrame, name: str) -> pl.Series:
    """A column as numbers, all null where there is none."""
    return frame[name].cast(pl.Float64) if name in frame.columns else repeated(None, frame.height, pl.Float64())


def _filled(column: pl.Series, value: float | bool) -> pl.Series:
    nulls = column.null_count()
    if nulls == len(column):
        return repeated(value, nulls, column.dtype)
    return column.fill_null(value) if nulls else column


def _kv(frame: pl.DataFrame) -> pl.Series:
    """KV usage in percent. A CPU build of V0 shows its cache as `CPU KV cache usage` beside an idle GPU's 0."""
    gpu, cpu = (_floats(frame, "gpu_kv_cache_usage_pct"), _floats(frame, "cpu_kv_cache_usage_pct"))
    if cpu.null_count() == frame.height or gpu.max():
        return gpu
    shown: pl.Series = cpu.zip_with(cpu.is_not_null(), gpu)
    return shown


PERIOD = 50
MIN_PUT_BACK = 3
PUT_BACK_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Stretch:
    """`value` preemptions that happened between two times (UTC of nobody: the record's clock)."""

    start: datetime
    end: datetime
    value: float


@dataclass(frozen=True, slots=True)
class Logged:
    """Bounds of the count; `low` None where nothing proves anything, `high` None where there is no upper bound.

    `counted`: warnings or fields told it, not only gauges; `put_back`: requests that went from running to waiting in one interval (a
    sign, no proof), and `swapped` the most that were in swap space at once.
    """

    low: int | None = None
    high: int | None = None
    timeline: tuple[Stretch, ...] = ()
    lines: tuple[tuple[str, int, str], ...] = field(default=())
    counted: bool = True
    put_back: int = 0
    swapped: int = 0

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


def logged_preemptions(warnings: pl.DataFrame | None, stats: pl.DataFrame | None, *, from_start: bool) -> Logged:
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
    if stats is not None and "preemptions" in stats.columns and stats["preemptions"].null_count() < stats.height:
        said = stats.filter(pl.col("preemptions").is_not_null())
        if said.height:
            total = int(said["preemptions"].sum())
            low = (low or 0) + total
            high = None if high is None else high + total
            timeline += _field_timeline(stats)
            lines += [(s, n, "") for s, n in said.filter(pl.col("preemptions") > 0).select("source", "line").rows()]
    return _with_gauges(
        Logged() if low is None else Logged(low, high, tuple(timeline), tuple(lines)), stats, from_start
    )


def _with_gauges(logged: Logged, stats: pl.DataFrame | None, from_start: bool) -> Logged:
    """Add what Swapped, Running and Waiting tell; where the start is in the log, the first line's Swapped counts too."""
    if stats is None or not (_any(stats, "swapped") or (stats.height > 1 and _any(stats, "waiting"))):
        return logged
    windows = stats_windows(stats)
    if windows is None or windows["aggregated"].any():
        return logged
    swaps = _swapped_in(windows, from_start)
    most = int(windows["swapped"].fill_null(0).max() or 0)  # type: ignore[arg-type]
    if swaps or most:
        grown = int(sum(s.value for s in swaps))
        low = max(logged.low or 0, grown)
        if logged.low is None:
            return Logged(low, None, tuple(swaps), counted=False, swapped=most)
        high = logged.high if logged.high is None else max(logged.high, low)
        return replace(logged, low=low, high=high, swapped=most)
    back = _put_back(windows)
    if logged.low is not None or not back:
        return logged
    return replace(logged, timeline=tuple(back), counted=False, put_back=int(sum(s.value for s in back)))


def _any(stats: pl.DataFrame, name: str) -> bool:
    return name in stats.columns and bool(stats[name].max())


def _swapped_in(windows: pl.DataFrame, from_start: bool) -> list[Stretch]:
    found: list[Stretch] = []
    before: float | None = 0.0 if from_start else None
    for start, end, swapped in windows.select("start", "end", "swapped").rows():
        if swapped is not None:
            if before is not None and swapped > before:
                found.append(_between(start, end, swapped - before))
            before = swapped
    return found


def _put_back(windows: pl.DataFrame) -> list[Stretch]:
    """Intervals in which Running fell by at least half from a full cache, while Waiting grew by nearly as much."""
    found: list[Stretch] = []
    columns = ("start", "end", "running", "waiting", "kv_pct", "interval_s")
    for here, after in itertools.pairwise(windows.select(columns).iter_rows(named=True)):
        fall, rise = here["running"] - after["running"], after["waiting"] - here["waiting"]
        full = (here["kv_pct"] or 0.0) >= NEARLY_FULL_PCT
        if full and fall >= max(MIN_PUT_BACK, here["running"] / 2) and rise >= PUT_BACK_SHARE * fall:
            found.append(_between(after["start"], after["end"], float(min(fall, rise))))
    return found


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


MOST_CORRECTION = 3.0
RELATIVE_SPREAD = 0.25
_Z = 1.645  # 5th to 95th percentile


@dataclass(frozen=True, slots=True)
class Preemptions:
    """The count with its bounds; all None where the log shows nothing and no replay tells. `value` is None where only bounds are known.

    Where a second witness counted, `inferred` (low, value, high) and `inferred_tokens` keep what the replay says.
    """

    logged: Logged
    low: float | None = None
    value: float | None = None
    high: float | None = None
    basis: str | None = None
    recomputed_tokens: float | None = None
    timeline: tuple[Stretch, ...] = ()
    inferred: tuple[float, float, float] | None = None
    inferred_tokens: float | None = None


def combine(
    logged: Logged,
    inferred: tuple[float, float, float] | None,
    timeline: Sequence[Stretch] = (),
    recomputed_tokens: float | None = None,
) -> Preemptions:
    """Bring both together. `inferred` is low, value, high of the replay and `timeline` when they happened in it."""
    if inferred is None:
        if logged.low is None:
            count = float(logged.put_back) if logged.put_back else None
            return Preemptions(logged, count, None, None, "inferred" if count else None, None, logged.timeline)
        value = float(logged.low) if logged.exact else None
        return Preemptions(logged, logged.low, value, logged.high, "measured", None, logged.timeline)
    low, value, high = inferred
    found = Preemptions(logged, low, value, high, "inferred", recomputed_tokens, tuple(timeline))
    if logged.low is None:
        return found
    if not logged.counted:  # a lower bound over the whole log
        least = float(logged.low)
        return replace(found, low=max(low, least), value=max(value or 0.0, least), high=max(high or 0.0, least))
    if logged.exact:
        exact = float(logged.low)
        return replace(found, low=exact, value=exact, high=exact, basis="measured", timeline=logged.timeline)
    return _after_the_last_warning(found, logged)


def _after_the_last_warning(found: Preemptions, logged: Logged) -> Preemptions:
    assert logged.low is not None
    assert found.value is not None
    last = max((s.end for s in logged.timeline), default=None)
    before = sum(_until(s, last) for s in found.timeline) if last is not None else 0.0
    after = max(0.0, sum(s.value for s in found.timeline) - before)
    scale = logged.low / before if before >= 1 else 1.0
    scale = min(MOST_CORRECTION, max(1 / MOST_CORRECTION, scale))
    rest = after * scale
    most = math.inf if logged.high is None else float(logged.high)
    value = min(logged.low + rest, most)
    spread = _Z * math.sqrt(rest + (RELATIVE_SPREAD * rest) ** 2 + 1.0)
    tokens = found.recomputed_tokens
    if tokens is not None and found.value > 0:
        tokens = tokens * value / found.value
    return replace(
        found,
        low=float(max(logged.low, math.floor(value - spread))),
        value=float(round(value)),
        high=float(min(most, math.ceil(value + spread))),
        recomputed_tokens=tokens if tokens is None else round(tokens),
        timeline=_scaled(found.timeline, scale),
    )


def _until(stretch: Stretch, moment: datetime) -> float:
    """The part of a stretch's count that lies before a moment."""
    length = (stretch.end - stretch.start).total_seconds()
    if length <= 0:
        return stretch.value if stretch.end <= moment else 0.0
    share = (moment - stretch.start).total_seconds() / length
    return stretch.value * min(1.0, max(0.0, share))


def _scaled(timeline: Sequence[Stretch], scale: float) -> tuple[Stretch, ...]:
    return tuple(replace(s, value=s.value * scale) for s in timeline)
