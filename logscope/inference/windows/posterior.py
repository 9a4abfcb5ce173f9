"""What the surviving particles say together: counts with bounds, latencies, the fit.

Counts are means over equally likely particles; the bounds of a count hold their spread and that by which two runs of
one workload differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np

from logscope.evidence.preemptions import Stretch
from logscope.evidence.pressure import NEARLY_FULL_PCT, pressure_of_count
from logscope.inference.prediction import gap_percentiles, percentiles_of_many
from logscope.inference.result import PreemptionCount
from logscope.inference.windows.observations import Observations
from logscope.inference.windows.particles import Particle, WindowFit
from logscope.inference.workloads import Replayed
from reference_engine.sketch.request import SketchRequest

__all__ = ["count_preemptions", "fit_of", "latencies", "pressure_of"]

# Two real runs of one workload had 63 and 56 preemptions: a tenth of the mean apart, on a machine that did nothing else.
_RUN_TO_RUN = 0.10
QUEUED_SHARE = 0.02
"""Part of all requests' time that waits for KV blocks, from which that counts as waiting."""

_Z = 1.645  # 5th to 95th percentile
_BIN_S = 5.0


def count_preemptions(
    seen: Observations, particles: Sequence[Particle], widest: float, covered: float = 1.0
) -> PreemptionCount:
    """Count over all particles.

    Args:
        seen: the windows.
        particles: equally likely ones.
        widest: the largest relative width of the bounds that still helps a reader.
        covered: the share of the log that they lived through, by which counts are extrapolated.
    """
    counts = np.array([p.engine.preemptions / covered for p in particles])
    value = float(counts.mean())
    spread = _Z * math.sqrt(float(counts.var()) + (_RUN_TO_RUN * value) ** 2 + 0.5 * value)
    # counts of whole runs lean to the right: the upper bound lies further out
    below, above = 0.92 * spread, 1.08 * spread
    if value >= 8:
        widest_count = widest * value - 1.0  # the bounds are rounded outwards to whole numbers
        below, above = min(below, 0.45 * widest_count), min(above, 0.55 * widest_count)
    low, high = max(0.0, value - below), value + above
    if float(np.mean(counts > 0)) < 0.05:
        value = low = 0.0
        high = min(high, 1.0) if counts.any() else 0.0
    if covered < 0.9:
        # what was not looked at may be quite different
        low, high = low * (0.5 + 0.5 * covered), high * (1.5 - 0.5 * covered)
    recomputed = float(np.mean([p.engine.recomputed for p in particles])) / covered
    return PreemptionCount(
        float(round(low)), float(round(value)), float(round(high)), recomputed, _timeline(seen, particles)
    )


def _timeline(seen: Observations, particles: Sequence[Particle]) -> tuple[Stretch, ...]:
    """Mean preemptions in bins of a few seconds, where there are any."""
    bins: dict[int, float] = {}
    share = 1.0 / len(particles)
    for particle in particles:
        for node in particle.past():
            for at in node.preempted_at:
                key = int(at // _BIN_S)
                bins[key] = bins.get(key, 0.0) + share
    return tuple(
        Stretch(seen.epoch + timedelta(seconds=key * _BIN_S), seen.epoch + timedelta(seconds=(key + 1) * _BIN_S), value)
        for key, value in sorted(bins.items())
        if value >= 0.05
    )


def _finished(particle: Particle) -> list[SketchRequest]:
    return [r for node in particle.past() for r in node.done]


def latencies(
    particles: Sequence[Particle], replayed: Sequence[Replayed], pooled: bool
) -> dict[str, dict[str, float | None]]:
    """TTFT and E2E percentiles over the particles' finished requests, gaps between tokens over all replays; seconds.

    `pooled`: over all particles' requests together, as `percentiles_of_many` says.
    """
    firsts, ends = [], []
    for particle in particles:
        done = _finished(particle)
        if done:
            firsts.append([(r.first or 0.0) - r.arrival for r in done])
            ends.append([(r.end or 0.0) - r.arrival for r in done])
    return {
        "ttft_s": percentiles_of_many(firsts, pooled),
        "e2e_s": percentiles_of_many(ends, pooled),
        "itl_s": gap_percentiles(replayed),
    }


def fit_of(seen: Observations, passes: Sequence[Sequence[WindowFit]]) -> dict[str, float | None]:
    """1 - mean absolute error over mean observed, for each observed series, the mean of all passes being compared."""

    def told(name: str) -> list[float]:
        return [float(np.mean([getattr(f, name) for f in fits])) for fits in zip(*passes, strict=True)]

    windows = seen.windows
    series: Mapping[str, list[tuple[float | None, float]]] = {
        "running": list(zip([w.running for w in windows], told("running"), strict=True)),
        "waiting": list(zip([w.waiting for w in windows], told("waiting"), strict=True)),
        "kv_usage": list(zip([w.kv_usage for w in windows], told("kv_usage"), strict=True)),
        "generation": list(zip([w.generated_tokens for w in windows], told("generated"), strict=True)),
    }
    return {name: _fit(pairs) for name, pairs in series.items()}


def _fit(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(a, b) for a, b in pairs if a is not None]
    if not known:
        return None
    mean = sum(a for a, _ in known) / len(known)
    error = sum(abs(a - b) for a, b in known) / len(known)
    if mean == 0:
        return 1.0 if error < 0.5 else 0.0
    return max(0.0, 1.0 - error / mean)


def pressure_of(seen: Observations, counts: PreemptionCount, total_s: Mapping[str, float]) -> str:
    """`thrash` where preemption repeats, `saturated` where requests queued for KV space, else `none`."""
    full = any(w.waiting > 0 and 100 * (w.kv_usage or 0.0) >= NEARLY_FULL_PCT for w in seen.windows)
    waited = total_s.get("queued_for_kv", 0.0)
    everything = sum(total_s.values())
    return pressure_of_count(counts.value, queued_while_full=full and waited > QUEUED_SHARE * everything)
