"""Regular probes as a clock: metrics scrapers and health checks call at a fixed rate, though their lines bear no time.

`fitted_ticks` finds the steadiest path and the instant of each of its calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["fitted_ticks"]

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
    return [
        (order, base + period * i)
        for i, order in enumerate(orders)
        if lows[i] <= base + period * i <= highs[i]
    ]


def _limits(
    orders: list[int], known: Sequence[tuple[int, float, float]]
) -> tuple[list[float], list[float]]:
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
    product = sum(
        (n - mean_number) * (m - mean_middle) for n, m in zip(numbers, middles, strict=True)
    )
    return product / square


def _base(limits: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """The middle of the stretch that lies within most limits, and within how many."""
    events = sorted(
        [*((low, 1) for low, _ in limits), *((high, -1) for _, high in limits)],
        key=lambda e: (e[0], -e[1]),
    )
    depth = most = 0
    best = (0.0, 0.0)
    for i, (at, change) in enumerate(events):
        depth += change
        if depth > most:
            most = depth
            best = (at, events[i + 1][0] if i + 1 < len(events) else at)
    return (best[0] + best[1]) / 2, most
