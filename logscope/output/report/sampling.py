"""Drawing a long series with few points, honestly: what is kept are real points, the extremes among them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MAX_POINTS", "keep_extremes"]

MAX_POINTS = 1_200
"""Of one curve: on a wide screen a run of four is 3 to 4 pixels, hardly more than the curve's own width."""


def keep_extremes(values: Sequence[float | None], limit: int = MAX_POINTS) -> list[int]:
    """Positions of at most `limit` points to draw: of each of `limit // 4` equal runs the first, lowest, highest, last.

    Ascending; all positions where the series is short enough. Unknown values (None) are kept only as a run's ends, so
    that a gap stays a gap. Raises ValueError for a limit below 4.
    """
    if limit < 4:
        raise ValueError(f"a limit of {limit} points cannot keep the extremes; at least 4")
    size = len(values)
    if size <= limit:
        return list(range(size))
    runs = limit // 4
    kept: set[int] = set()
    for run in range(runs):
        start, end = run * size // runs, (run + 1) * size // runs
        kept |= {start, end - 1}
        known = [(value, i) for i in range(start, end) if (value := values[i]) is not None]
        if known:
            kept |= {min(known)[1], max(known)[1]}
    return sorted(kept)
