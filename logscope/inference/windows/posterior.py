"""What the surviving particles say together: counts with bounds, latencies, the ledger, the fit.

Counts are means over equally likely particles; the bounds of a count hold their spread and that by which two runs of
one workload differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from logscope.evidence.preemptions import Stretch
from logscope.inference.windows.lengths import Floats
from logscope.inference.windows.observations import Observations
from logscope.inference.windows.particles import Particle, WindowFit
from logscope.inference.workloads import Replayed
from reference_engine.model.ledger import LABELS
from reference_engine.replay.results import weighted_percentile
from reference_engine.sketch.request import SketchRequest

__all__ = [
    "Counts",
    "Ledgers",
    "count_preemptions",
    "fit_of",
    "gap_percentiles",
    "latencies",
    "ledgers",
    "percentiles_of_many",
    "pressure_of",
]

# Two real runs of one workload had 63 and 56 preemptions: a tenth of the mean apart, on a machine that did nothing else.
_RUN_TO_RUN = 0.10
_Z = 1.645  # 5th to 95th percentile
_BIN_S = 5.0
_RANGE = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Counts:
    """Preemptions in the whole log: bounds, value, tokens computed again, and when."""

    low: float
    value: float
    high: float
    recomputed_tokens: float
    timeline: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Seconds by label: summed over all requests, and means of the slow and of the typical ones (contract, *Words*)."""

    total_s: dict[str, float]
    slow_s: dict[str, float]
    typical_s: dict[str, float]


def count_preemptions(seen: Observations, particles: Sequence[Particle], widest: float, covered: float = 1.0) -> Counts:
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
    return Counts(float(round(low)), float(round(value)), float(round(high)), recomputed, _timeline(seen, particles))


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


def percentiles_of_many(samples: Sequence[Sequence[float]], pooled: bool) -> dict[str, float | None]:
    """p50, p90, p99 over several samples of one thing, None without any.

    The median of the samples' own percentiles; or `pooled`, where each sample drew its lengths anew: a single one then
    holds too little of the tail.
    """
    samples = [s for s in samples if len(s)]
    if not samples:
        return dict.fromkeys(_RANGE)
    if pooled:
        found = np.percentile(np.concatenate([np.asarray(s) for s in samples]), (50, 90, 99))
    else:
        found = np.median([np.percentile(np.asarray(s), (50, 90, 99)) for s in samples], axis=0)
    return {name: float(v) for name, v in zip(_RANGE, found, strict=True)}


def gap_percentiles(replayed: Sequence[Replayed]) -> dict[str, float | None]:
    """ITL p50 and p99 over all gaps of all replays, in seconds."""
    gaps: dict[int, int] = {}
    for one in replayed:
        for gap, count in one.gaps.items():
            gaps[gap] = gaps.get(gap, 0) + count
    found = {f"p{p}": weighted_percentile(gaps, p) for p in (50, 99)}
    return {name: None if gap is None else gap / 1e9 for name, gap in found.items()}


def ledgers(replayed: Sequence[Replayed]) -> Ledgers:
    """Ledger of the finished requests by the contract's rules, as means over the replays."""
    totals, slow, typical = [], [], []
    for one in replayed:
        done = [r for r in one.records if r.status == "finished"]
        if not done:
            continue
        table = np.array([r.ledger for r in done], dtype=np.float64) / 1e9
        delay = table.sum(axis=1) - table[:, LABELS.index("prefill")] - table[:, LABELS.index("decode")]
        p40, p50, p60, p95 = np.percentile(delay, (40, 50, 60, 95))
        totals.append(table.sum(axis=0))
        slow.append(table[delay >= min(p95, delay.max())].mean(axis=0))
        middle = (delay >= p40) & (delay <= p60)
        if not middle.any():  # two requests have nobody between the 40th and the 60th percentile
            middle = np.abs(delay - p50) <= np.abs(delay - p50).min()
        typical.append(table[middle].mean(axis=0))
    return Ledgers(_by_label(totals), _by_label(slow), _by_label(typical))


def _by_label(rows: Sequence[Floats]) -> dict[str, float]:
    if not rows:
        return dict.fromkeys(LABELS, 0.0)
    return {name: float(v) for name, v in zip(LABELS, np.mean(rows, axis=0), strict=True)}


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


def pressure_of(seen: Observations, counts: Counts, total_s: Mapping[str, float]) -> str:
    """`thrash` where preemption repeats, `saturated` where requests queued for KV space, else `none`."""
    if counts.value >= 3:
        return "thrash"
    full = any(w.waiting > 0 and (w.kv_usage or 0.0) >= 0.9 for w in seen.windows)
    waited = total_s.get("queued_for_kv", 0.0)
    everything = sum(total_s.values())
    return "saturated" if full and waited > 0.02 * everything else "none"
