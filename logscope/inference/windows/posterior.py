"""What the surviving particles say together: counts with bounds, latencies, the fit.

Counts are means over equally likely particles; the bounds of a count hold their spread and that by which two runs of
one workload differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, timezone
from typing import Any

import numpy as np

from logscope.evidence.preemptions import Stretch
from logscope.evidence.pressure import NEARLY_FULL_PCT, pressure_of_count
from logscope.inference.prediction import Replayed, gap_percentiles, percentiles_of_many
from logscope.inference.result import PreemptionCount
from logscope.inference.steps.observed import Recomputations
from logscope.inference.windows.lengths import Floats
from logscope.inference.windows.observations import Observations
from logscope.inference.windows.particles import Particle, WindowFit
from reference_engine.sketch.request import SketchRequest

__all__ = ["count_preemptions", "counted_by_marks", "fit_of", "latencies", "pressure_of"]

# Two real runs of one workload had 63 and 56 preemptions: a tenth of the mean apart, on a machine that did nothing else. Where arrivals and
# lengths are made up from bare statistics, what all particles suppose in common may be off by a fifth besides.
_RUN_TO_RUN = {"requests": 0.10, "statistics": 0.10, "bare": 0.22}
QUEUED_SHARE = 0.02
"""Part of all requests' time that waits for KV blocks, from which that counts as waiting."""

_Z = 1.645  # 5th to 95th percentile
_BIN_S = 5.0
_RANGE = ("p50", "p90", "p99")
# By level of evidence: least spread (log) of a latency, and how many requests count as one, as those of a queue share their fate.
_KNOWN = {"requests": (0.05, 1.5), "statistics": (0.10, 1.5), "bare": (0.3, 4.0)}
_THIN = {
    "requests": (0.5, 0.5),
    "statistics": (1.2, 3.0),
    "bare": (1.5, 3.0),
}  # over the busy intervals: spread (log), seconds
_UNSEEN = 3.0  # how much longer what is left after the last line may take than is believed
_NOTICED, _PREFILL = 1.0, 5.0  # seconds after which a line counts an arrival, and that a first step may take after it
_TOP = 0.996  # rank of the longest that is drawn, which bounds a p99
_FACTOR = 4.0  # bounds further apart tell nothing where few intervals are busy; twice that where many are, as then it is the requests that differ
_MANY = 10  # busy intervals
_SHORT = 1.5  # seconds under which a factor means little
_PRESSED = 0.7  # KV usage in a line from which the cache may have been full before the next
_FEW = 4  # busy intervals; fewer hardly tell a count


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
    spread = _Z * math.sqrt(float(counts.var()) + (_RUN_TO_RUN[seen.level] * value) ** 2 + 0.5 * value)
    # counts of whole runs lean to the right: the upper bound lies further out
    below, above = 0.92 * spread, 1.08 * spread
    if value >= 8:
        widest_count = widest * value - 1.0  # the bounds are rounded outwards to whole numbers
        below, above = min(below, 0.45 * widest_count), min(above, 0.55 * widest_count)
    low, high = max(0.0, value - below), value + above
    if float(np.mean(counts > 0)) < 0.05:
        value = low = 0.0
        high = min(high, 1.0) if counts.any() else 0.0
    if _busy(seen) <= _FEW and any((w.kv_usage or 0.0) >= _PRESSED for w in seen.windows):
        low, high = 0.0, high + max(3.0, 0.2 * max(w.running for w in seen.windows))
    if covered < 0.9:
        # what was not looked at may be quite different
        low, high = low * (0.5 + 0.5 * covered), high * (1.5 - 0.5 * covered)
    recomputed = float(np.mean([p.engine.recomputed for p in particles])) / covered
    return PreemptionCount(
        float(round(low)), float(round(value)), float(round(high)), recomputed, _timeline(seen, particles)
    )


_HIDDEN = 0.1
_APART = 0.08  # relative: how far requests in one step may be off that no line tells apart


def counted_by_marks(
    seen: Observations,
    particles: Sequence[Particle],
    marks: Recomputations,
    found: PreemptionCount,
    *,
    caching: bool = False,
) -> PreemptionCount:
    """The count by what single steps show: marks of recomputation, times how many resume in one step.

    Requests that were evicted before their first token are sent again as new ones: prompts begun beyond those that came.

    Args:
        seen: the windows and arrivals.
        particles: equally likely ones; they tell how many resume together.
        marks: what the steps show.
        caching: prefix caching is on.
        found: the count without them; it stays where the steps show nothing and nobody is supposed to have resumed.
    """
    steps = sum(p.engine.resuming_steps for p in particles)
    resumed = sum(p.engine.resumed for p in particles)
    evicted = sum(p.engine.preemptions for p in particles)
    many = len(marks.ends)
    again = max(marks.least, many * (resumed / steps if steps else 1.1))
    if seen.level == "bare":
        first = again * (evicted / resumed - 1.0) if resumed else 0.0
        beyond = (0.0, min(max(first, 0.0), again), 2.0 * max(first, 0.0) + 2.0)
    else:
        # arrivals that were still waiting at the log's end have begun no prompt
        exact = max(0.0, marks.started - len(seen.arrivals) + seen.windows[-1].waiting)
        beyond = (0.75 * exact, exact, 1.05 * exact + 1.0)
    value = again + beyond[1]
    margin = _Z * math.hypot(_APART * again, 0.5 * math.sqrt(max(0.0, again - many)))
    low = max(marks.least, again - margin) + beyond[0]
    # what a resumed request still finds in the prefix cache may leave too little to be seen
    hidden = _HIDDEN * again if caching else 0.0
    high = again + margin + beyond[2] + hidden
    seen_again = many >= 0.5 * value  # else they are sent again as new ones, and their tokens among those of prompts
    bins: dict[int, float] = {}
    epoch = seen.epoch.replace(tzinfo=timezone.utc).timestamp()
    for at in marks.ends:
        key = int((at - epoch) // _BIN_S)
        bins[key] = bins.get(key, 0.0) + value / many
    return PreemptionCount(
        float(math.floor(low)),
        float(round(value)),
        float(math.ceil(high)),
        float(marks.tokens) if many and seen_again else found.recomputed_tokens,
        _stretches(seen, bins) if many else found.timeline,
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
    return _stretches(seen, bins)


def _stretches(seen: Observations, bins: Mapping[int, float]) -> tuple[Stretch, ...]:
    """Bins of `_BIN_S` seconds since the first as times of the log."""
    return tuple(
        Stretch(seen.epoch + timedelta(seconds=key * _BIN_S), seen.epoch + timedelta(seconds=(key + 1) * _BIN_S), value)
        for key, value in sorted(bins.items())
        if value >= 0.05
    )


def _finished(particle: Particle) -> list[SketchRequest]:
    return [r for node in particle.past() for r in node.done]


def latencies(
    seen: Observations, particles: Sequence[Particle], replayed: Sequence[Replayed], pooled: bool, known_outputs: bool
) -> dict[str, Any]:
    """TTFT and E2E percentiles over the particles' finished requests with `low` and `high`, gaps between tokens over all replays; seconds.

    `pooled`: over all particles' requests together, as `percentiles_of_many` says. Who came before a line that shows nobody waiting has begun
    by then, and ended by a line that shows nobody at all. What would have ended after the log is cut at its end, and the upper bounds give
    it some more time unless outputs are known; `censored` counts what still ran there (contract, *Additions*). A figure whose bounds are too far apart is None, and `withheld` says why.
    """
    last = seen.windows[-1]
    span = max(seen.log_end, seen.end) - min(seen.windows[0].start, *(a.low for a in seen.arrivals[:1]))
    gaps = gap_percentiles(replayed)
    step = gaps["p50"] or 0.0
    nobody_waits = np.array([w.end for w in seen.windows if not w.waiting])
    idle = np.array([w.end for w in seen.windows if not w.running + w.waiting])
    unseen = 1.0 if known_outputs else _UNSEEN
    firsts, ends = _Figure([], []), _Figure([], [])
    for particle in particles:
        done = _finished(particle)
        if done:
            came = np.array([r.arrival for r in done])
            first = np.minimum([r.first or 0.0 for r in done], _by(nobody_waits, came) + _PREFILL)
            end = np.minimum([r.end or 0.0 for r in done], np.maximum(_by(idle, came), first))
            firsts.add(first, came, last.end, span, unseen if last.waiting else 1.0)
            ends.add(end, came, last.end, span, unseen)
    busy = max(1, _busy(seen))
    known, thin = _KNOWN[seen.level], _THIN[seen.level]
    factor = _FACTOR if busy <= _MANY else 2.0 * _FACTOR
    spreads = math.hypot(known[0], thin[0] / busy), known[1], thin[1] / busy, factor
    ttft = _bounded(firsts, pooled, spreads, step, span)
    e2e = _bounded(ends, pooled, spreads, step, span)
    held = [
        f"{name} {p}" for name, of in (("TTFT", ttft), ("E2E", e2e)) for p in _RANGE if firsts.told and of[p] is None
    ]
    return {
        "ttft_s": ttft,
        "e2e_s": e2e,
        "itl_s": gaps,
        "withheld": _withheld(seen, held, factor) if held else None,
        "censored": last.running + last.waiting,
    }


@dataclass(frozen=True, slots=True)
class _Figure:
    """Seconds of each particle's requests, as it says and as long as they may be where the log ends before them."""

    told: list[Floats]
    most: list[Floats]

    def add(self, at: Floats, came: Floats, last: float, span: float, unseen: float) -> None:
        """Those of one particle: when something happened and when they came; what lies after `last` may take `unseen` times as long."""
        self.told.append(np.minimum(at - came, span))
        self.most.append(np.minimum(at + (unseen - 1.0) * np.maximum(at - last, 0.0) - came, span))


def _by(lines: Floats, came: Floats) -> Floats:
    """The first of some moments that is surely after each arrival; infinite where there is none."""
    return np.append(lines, math.inf)[np.searchsorted(lines, came + _NOTICED)]


def _busy(seen: Observations) -> int:
    """Intervals of statistics in which something ran."""
    return sum(w.running + w.waiting > 0 or (w.generated_tokens or 0.0) > 0 for w in seen.windows)


def _withheld(seen: Observations, names: Sequence[str], factor: float) -> str:
    busy = _busy(seen)
    intervals = "interval" if busy == 1 else "intervals"
    return f"{', '.join(names)} (low and high bounds more than {factor:.0f}x apart; {busy} busy statistics {intervals} are too few)"


def _bounded(
    figure: _Figure, pooled: bool, known: tuple[float, float, float, float], step: float, span: float
) -> dict[str, Any]:
    """Percentiles of one figure, with bounds that hold the spread of the samples and of the requests themselves.

    Args:
        figure: seconds of each particle's requests.
        pooled: see `percentiles_of_many`.
        known: least spread (log) of a figure with this evidence, how many requests of a queue count as one,
            seconds that nobody sees, and how far apart bounds may be.
        step: seconds of a step, under which nothing is told apart.
        span: seconds that nothing exceeds.
    """
    samples = figure.told
    value: dict[str, Any] = {**percentiles_of_many(samples, pooled)}
    low: dict[str, float | None] = dict.fromkeys(_RANGE)
    high: dict[str, float | None] = dict.fromkeys(_RANGE)
    if samples:
        everything, longest = np.concatenate(samples), np.concatenate(figure.most)
        each = np.array([np.percentile(np.asarray(s), (50, 90, 99)) for s in samples])
        apart = np.log(np.maximum(each, step + 1e-3)).std(axis=0)
        count = len(everything) / len(samples) / known[1]
        for i, (name, rank) in enumerate(zip(_RANGE, (0.5, 0.9, 0.99), strict=True)):
            wide = _Z * math.sqrt(rank * (1 - rank) / max(count, 1.0))
            least = np.quantile(everything, max(rank - wide, 0.0))
            most = np.quantile(longest, min(rank + wide, _TOP))
            # what the requests and what the evidence leave open has nothing to do with each other
            doubt = _Z * math.hypot(0.8 * float(apart[i]), known[0])
            centre = max(float(value[name]), 1e-9)
            below = math.exp(math.hypot(doubt, math.log(centre / max(min(float(least), centre), 1e-9))))
            above = math.exp(math.hypot(doubt, math.log(max(float(most), centre) / centre)))
            low[name] = max(0.0, centre / below - step / 2 - 0.01)
            upper = min(centre * above + 1.5 * step + 0.02 + known[2], span)
            high[name] = max(upper, centre)
            if upper + _SHORT > known[3] * (low[name] + _SHORT):  # type: ignore[operator]
                value[name] = low[name] = high[name] = None
    return {**value, "low": low, "high": high}


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
