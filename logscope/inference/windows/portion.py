"""Long logs: the span that matters most, and requests that were under way before the first line.

`with_inherited` adds those that a log which begins in the middle cannot show; `worst_span` cuts what one inference can
afford out of a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logscope.inference.windows.observations import Arrival, Observations, Window

__all__ = ["FULL", "under_pressure", "with_inherited", "worst_span", "worst_stretch"]

FULL = 0.85  # of the KV cache
_LEAD_IN = 12  # windows before the span that may be added to begin with an idle engine


def under_pressure(window: Window) -> bool:
    """Whether requests waited, or the cache was nearly full."""
    return window.waiting > 0 or (window.kv_usage or 0.0) >= FULL


def with_inherited(seen: Observations, present: int | None = None) -> Observations:
    """Add requests that were there when the log begins, at its very beginning.

    Args:
        seen: windows and arrivals.
        present: how many were there, where that is known; else as many as the first lines show without an arrival.
    """
    windows = seen.windows
    if present is None:
        present = 0
        for window in windows[:3]:
            arrived = sum(a.low < window.end for a in seen.arrivals)
            present = max(present, window.running + window.waiting - arrived)
    if present <= 0:
        return seen
    start = max(0.0, windows[0].start)
    old = tuple(Arrival(start, start) for _ in range(present))
    arrivals = tuple(a if a.low >= start else replace(a, low=start, high=max(a.high, start)) for a in seen.arrivals)
    # their prompts were counted before, or will be seen as counted: the first sum says nothing
    first = replace(windows[0], prompt_tokens=None)
    return replace(seen, windows=(first, *windows[1:]), arrivals=(*old, *arrivals))


def worst_stretch(
    is_pressed: NDArray[np.bool_],
    present: NDArray[Any],
    most_windows: int,
    limits: Sequence[tuple[NDArray[np.int64], int]],
) -> tuple[int, int]:
    """First and last window of the stretch within the limits that has the most pressed windows, then the most requests.

    `present`: requests in each window; `limits`: how many of something stand before each window (and, at the end, in all), and how many
    of them a stretch may have.
    """
    sums = np.concatenate(([0.0], np.cumsum(is_pressed + 1e-3 * np.sqrt(present))))
    last = np.arange(len(is_pressed))
    first = np.maximum(0, last - most_windows + 1)
    for before, most in limits:
        first = np.maximum(first, np.searchsorted(before, before[last + 1] - most))
    first = np.minimum(first, last)
    best = int(np.argmax(sums[last + 1] - sums[first]))
    return int(first[best]), best


def worst_span(seen: Observations, most_arrivals: int, most_windows: int) -> tuple[Observations, float]:
    """The stretch with the most pressed windows that keeps within the limits, and its share of all pressed windows.

    The whole log (share 1) where that is within the limits.
    """
    windows, arrivals = seen.windows, seen.arrivals
    if len(arrivals) <= most_arrivals and len(windows) <= most_windows:
        return seen, 1.0
    positions = _positions(seen)
    first, last = worst_stretch(
        np.array([under_pressure(w) for w in windows]),
        np.array([w.running + w.waiting for w in windows]),
        most_windows,
        [(np.array(positions), most_arrivals)],
    )
    last += 1
    calmest = min(range(max(0, first - _LEAD_IN), first + 1), key=lambda k: _load(seen, k))
    first = calmest
    cut = replace(
        seen,
        windows=windows[first:last],
        arrivals=arrivals[positions[first] : positions[last]],
        end=windows[last - 1].end,
    )
    everything = sum(under_pressure(w) for w in windows)
    covered = sum(under_pressure(w) for w in cut.windows) / everything if everything else 1.0
    if not cut.arrivals:
        return seen, 1.0
    return with_inherited(cut, _load(seen, first)), covered


def _load(seen: Observations, window: int) -> int:
    """Requests present when a window begins."""
    if window == 0:
        return 0
    before = seen.windows[window - 1]
    return before.running + before.waiting


def _positions(seen: Observations) -> list[int]:
    """Arrivals before the beginning of each window, and all at the end."""
    positions, i = [0], 0
    for window in seen.windows:
        while i < len(seen.arrivals) and seen.arrivals[i].high <= window.end:
            i += 1
        positions.append(i)
    return positions
