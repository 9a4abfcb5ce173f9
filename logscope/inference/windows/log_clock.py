"""The clock of a log: when lines were written, from stamps of a second, an envelope's microseconds, or their order.

A record's own time is cut to the second, an access line has none. Statistics lines come in a steady beat, so that the
fraction of the second which they share can be bounded; every other line lies between its neighbours.

Regular probes as a clock: metrics scrapers and health checks call at a fixed rate, though their lines bear no time.

`fitted_ticks` finds the steadiest path and the instant of each of its calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

__all__ = ["LogClock", "Mark", "fitted_ticks"]
_ENOUGH = 8
_KEEPING = 0.85  # share of the calls that must keep to the beat


def fitted_ticks(
    anchors: Sequence[tuple[int, float]],
    bounds: Sequence[tuple[int, float, float]],
    probes: Sequence[Mapping[str, Any]],
) -> list[tuple[int, float]]:
    """(order, seconds) of the calls of the fastest path that keeps a beat; empty where none does.

    Args:
        anchors: (order, seconds) of lines whose instant is known.
        bounds: (order, earliest, latest) of lines that bear a second.
        probes: access lines of GET requests.
    """
    best: list[tuple[int, float]] = []
    known = sorted([*((o, t, t) for o, t in anchors), *bounds])
    for path in sorted({str(p["path"]) for p in probes}):
        orders = [int(p["order"]) for p in probes if str(p["path"]) == path]
        if len(orders) >= max(_ENOUGH, len(best) + 1):
            ticks = _fit(sorted(orders), known)
            if ticks:
                best = ticks
    return best


def _fit(orders: list[int], known: Sequence[tuple[int, float, float]]) -> list[tuple[int, float]]:
    lows, highs = _limits(orders, known)
    inside = [i for i in range(len(orders)) if math.isfinite(lows[i]) and math.isfinite(highs[i])]
    if len(inside) < _ENOUGH:
        return []
    slope = _slope(inside, [(lows[i] + highs[i]) / 2 for i in inside])
    best, hits, period = 0.0, 0, 0.0
    # people configure round figures; where that explains as much, the slope is only noise about it
    for beat in (max(0.5, round(slope * 2) / 2), slope):
        base, found = _base([(lows[i] - beat * i, highs[i] - beat * i) for i in inside])
        if found > hits:
            best, hits, period = base, found, beat
    if hits < _KEEPING * len(inside):
        return []
    base = best
    return [(order, base + period * i) for i, order in enumerate(orders) if lows[i] <= base + period * i <= highs[i]]


def _limits(orders: list[int], known: Sequence[tuple[int, float, float]]) -> tuple[list[float], list[float]]:
    """For each call: not before the latest start of what stands above it, not after the earliest end below."""
    positions = [k[0] for k in known]
    earliest, latest = [-math.inf], [math.inf]
    for _order, low, _high in known:
        earliest.append(max(earliest[-1], low))
    for _order, _low, high in reversed(known):
        latest.append(min(latest[-1], high))
    latest.reverse()
    cuts = [bisect_left(positions, order) for order in orders]
    return [earliest[c] for c in cuts], [latest[c] for c in cuts]


def _slope(numbers: Sequence[int], middles: Sequence[float]) -> float:
    """The time between two calls: the slope of a straight line."""
    count = len(numbers)
    mean_number, mean_middle = sum(numbers) / count, sum(middles) / count
    square = sum((n - mean_number) ** 2 for n in numbers)
    product = sum((n - mean_number) * (m - mean_middle) for n, m in zip(numbers, middles, strict=True))
    return product / square


def _base(limits: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """The middle of the stretch that lies within most limits, and within how many."""
    events = sorted(
        [*((low, 1) for low, _ in limits), *((high, -1) for _, high in limits)], key=lambda e: (e[0], -e[1])
    )
    depth = most = 0
    best = (0.0, 0.0)
    for i, (at, change) in enumerate(events):
        depth += change
        if depth > most:
            most = depth
            best = (at, events[i + 1][0] if i + 1 < len(events) else at)
    return (best[0] + best[1]) / 2, most


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment between two bounds, in seconds from the clock's epoch."""

    low: float
    high: float


@dataclass(slots=True)
class LogClock:
    """Seconds since `epoch` (just before the first window). `period`: the beat of the statistics lines in seconds."""

    epoch: datetime
    period: float
    outer_offset: timedelta | None
    steady: bool = False
    _stats: dict[int, float] = field(default_factory=dict)
    _lines: tuple[list[int], list[float]] = ([], [])
    _ticks: tuple[list[int], list[float]] = ([], [])

    @classmethod
    def of(cls, stats: Sequence[Row], others: Sequence[Row], probes: Sequence[Row]) -> LogClock:
        """Fit the clock. `stats`: statistics rows; `others`: rows to be placed in time; `probes`: GET access rows."""
        offset = _outer_offset(stats)
        raw = [_moment(row, offset) for row in stats]
        period = _period(raw)
        epoch = min([raw[0], *(_moment(r, offset) for r in others[:1] if r["at"])])
        epoch = min(epoch, raw[0] - timedelta(seconds=period)) - timedelta(seconds=5)
        clock = cls(epoch, period, offset)
        seconds = [(t - epoch).total_seconds() for t in raw]
        base = None
        if offset is None:
            base, period = _phase(seconds, period, _sides(stats, others))
            clock.period = period
        clock.steady = base is not None
        at = float("-inf")
        for row, second in zip(stats, seconds, strict=True):
            if base is not None:
                second = _on_beat(second, base, period)
            elif offset is None:
                second += 0.5
            at = max(at + 1e-3, second)
            clock._stats[row["order"]] = at
        anchors = sorted(clock._stats.items())
        clock._lines = ([o for o, _ in anchors], [t for _, t in anchors])
        ticks = [] if offset is not None else fitted_ticks(anchors, clock._bounds(others), probes)
        if ticks:
            anchors = sorted({**dict(ticks), **dict(anchors)}.items())
            anchors = _rising(anchors)
            clock._lines = ([o for o, _ in anchors], [t for _, t in anchors])
        elif offset is None:
            anchors = _with_ticks(anchors, probes, period)
        clock._ticks = ([o for o, _ in anchors], [t for _, t in anchors])
        return clock

    def _bounds(self, rows: Sequence[Row]) -> list[tuple[int, float, float]]:
        """(order, earliest, latest) of the rows that bear a time."""
        found = []
        for row in rows:
            if row["time"] is not None:
                second = (row["time"] - self.epoch).total_seconds()
                found.append((row["order"], second, second + 1.0))
        return found

    def stats_time(self, row: Row) -> float:
        """When a statistics line was written."""
        return self._stats[row["order"]]

    def interval(self, previous: float | None, end: float, *, continuous: bool) -> float:
        """The seconds which a line's throughput covers.

        V1 measures since the beat before, also when that line was kept back (idle lines are DEBUG); V0 since its last
        printed line (`continuous`).
        """
        if previous is None:
            return self.period
        gap = end - previous
        if continuous or gap < 1.5 * self.period:
            return self.period if self.steady and abs(gap - self.period) < 1.0 else gap
        return self.period

    def mark(self, row: Row) -> Mark:
        """Bounds of when a line was written."""
        if self.outer_offset is not None and row["outer_time"] is not None:
            at = (_moment(row, self.outer_offset) - self.epoch).total_seconds()
            return Mark(at, at)
        orders, times = self._ticks if row["time"] is None else self._lines
        position = bisect_right(orders, row["order"])
        low = times[position - 1] if position else 0.0
        high = times[position] if position < len(times) else low + self.period
        if row["time"] is not None and position == len(times):
            high = float("inf")
        if row["time"] is None:
            return Mark(low if position else max(0.0, high - self.period), high)
        second = (row["time"] - self.epoch).total_seconds()
        if second >= high or second + 1 <= low:  # a stepped clock: the stamp contradicts the order
            return Mark(low, high) if low < high else Mark(low, low)
        return Mark(max(low, second), min(high, second + 1))


def _outer_offset(stats: Sequence[Row]) -> timedelta | None:
    """What to add to an envelope's time (UTC) so that it reads as the records' own; None where lines lack one."""
    if any(row["outer_time"] is None for row in stats):
        return None
    lags = [
        (row["time"] - row["outer_time"].replace(tzinfo=None)).total_seconds()
        for row in stats
        if row["time"] is not None
    ]
    if not lags or all(row["outer_time"].microsecond == 0 for row in stats):
        return None
    # Time zones differ by quarters of an hour; the rest is the way from the server to the envelope.
    return timedelta(seconds=round(median(lags) / 900.0) * 900)


def _moment(row: Row, offset: timedelta | None) -> datetime:
    if offset is not None and row["outer_time"] is not None:
        moment: datetime = row["outer_time"].replace(tzinfo=None) + offset
        return moment
    at: datetime = row["at"]
    return at


def _period(times: Sequence[datetime]) -> float:
    """The beat: the whole number of seconds that is commonest between lines, or what the whole span says instead.

    Stamps are cut to the second, so a span of n beats is known to a second only; within that the round figure is right
    (the loop sleeps for it). 10 s where there is one line.
    """
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    gaps = [g for g in gaps if g > 0.5]
    if not gaps:
        return 10.0
    common = float(max(1, Counter(round(g) for g in gaps).most_common(1)[0][0]))
    run = longest = first = 0.0
    count = most = 0
    for gap in gaps:  # the longest stretch without a missing line
        if abs(gap - common) <= max(1.0, 0.15 * common):
            run, count = run + gap, count + 1
        else:
            run, count = first, 0
        if run > longest:
            longest, most = run, count
    if common < 2.0 or not most:
        return common
    return min(max(common, (longest - 1) / most), (longest + 1) / most)


def _sides(stats: Sequence[Row], others: Sequence[Row]) -> list[tuple[int, int]]:
    """For each statistics line, how many timed lines of its own second stand before and after it."""
    same: dict[datetime, list[int]] = {}
    for row in others:
        if row["time"] is not None:
            same.setdefault(row["time"], []).append(row["order"])
    sides = []
    for row in stats:
        orders = same.get(row["time"], [])
        before = sum(o < row["order"] for o in orders)
        sides.append((before, len(orders) - before))
    return sides


def _phase(seconds: Sequence[float], period: float, sides: Sequence[tuple[int, int]]) -> tuple[float | None, float]:
    """The base of the beat and its exact period, which let the most lines print their second (stamps are cut: +0 .. +1).

    Among those the likeliest by what stands before and after each line within its second. None where too few lines
    keep to any beat.
    """
    best, most, period_of_best = 0.5, -math.inf, period
    fitting = 0
    for drift in (0.0, 2e-4, 5e-4, 1e-3, 2e-3):
        beat = period * (1.0 + drift)
        for i in range(20):
            base = seconds[0] + (i + 0.5) / 20
            score = -50.0 * drift - 0.1 * abs(i - 9.5) / 20
            hits = 0
            for second, (before, after) in zip(seconds, sides, strict=True):
                part = _beat(second, base, beat) - second
                if 0.0 <= part < 1.0:
                    hits += 1
                    inside = min(max(part, 0.02), 0.98)
                    score += before * math.log(inside) + after * math.log(1.0 - inside)
                else:
                    score -= 6.0
            if score > most:
                best, most, period_of_best, fitting = base, score, beat, hits
    if fitting < 0.7 * len(seconds):
        return None, period
    return best, period_of_best


def _beat(second: float, base: float, period: float) -> float:
    return base + round((second + 0.5 - base) / period) * period


def _on_beat(second: float, base: float, period: float) -> float:
    beat = _beat(second, base, period)
    return beat if second <= beat < second + 1 else min(max(beat, second + 0.02), second + 0.98)


def _rising(anchors: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Anchors whose times rise with their order."""
    out: list[tuple[int, float]] = []
    for order, at in anchors:
        out.append((order, max(at, out[-1][1]) if out else at))
    return out


def _with_ticks(anchors: list[tuple[int, float]], probes: Sequence[Row], period: float) -> list[tuple[int, float]]:
    """Add the probes of the steadiest path as ticks between statistics lines, where each full window has about as many."""
    orders = [o for o, _ in anchors]
    best: tuple[float, list[int]] | None = None
    for path in {p["path"] for p in probes}:
        own = [p["order"] for p in probes if p["path"] == path]
        counts = Counter(bisect_right(orders, o) for o in own)
        inner = [counts.get(k, 0) for k in range(1, len(orders))]
        if not inner:
            continue
        mean = sum(inner) / len(inner)
        if mean < 2 or max(abs(c - mean) for c in inner) > max(1.5, 0.15 * mean):
            continue
        if best is None or mean > best[0]:
            best = (mean, own)
    if best is None:
        return anchors
    rate, own = best
    out = list(anchors)
    step = period / rate
    for k in range(len(orders) + 1):
        low = orders[k - 1] if k else -1
        high = orders[k] if k < len(orders) else None
        inside = [o for o in own if o > low and (high is None or o < high)]
        for i, order in enumerate(inside):
            if k == 0:
                at = anchors[0][1] - (len(inside) - i - 0.5) * step
            elif high is None:
                at = anchors[-1][1] + (i + 0.5) * step
            else:
                a, b = anchors[k - 1][1], anchors[k][1]
                at = a + (b - a) * (i + 0.5) / len(inside)
            out.append((order, at))
    return sorted(out)
