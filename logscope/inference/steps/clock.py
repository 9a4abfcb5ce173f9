"""When each step ended, to the millisecond, although a log's stamps have whole seconds.

The steps' own durations say how far apart their ends are; the stamps say between which seconds each end lies. Both
together leave an offset that is known to a fraction of a step wherever a second turns.

Step times measured step by step: a robust linear fit over the observed steps, and how far it is off.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from reference_engine.cost.step_time import LinearStepTime, StepCost

__all__ = ["Calibration", "Floats", "Ints", "arrival_times", "calibrate", "end_times", "step_seconds"]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_DRIFT = 0.04  # of a step's length: how far the time between two steps strays from its mean
_SLACK_S = 0.0002
_ENOUGH_STEPS = 50  # fewer do not tell a field that is wrong from a slow start
_UNTOLD, _LEAST_UNTOLD_S = 1.5, 0.002  # time between two lines that no step accounts for: over a step's mean, seconds


def end_times(stamps: Floats, elapsed: Floats, may_idle: npt.NDArray[np.bool_]) -> Floats:
    """The end of each step in seconds, on the stamps' clock.

    `stamps`: the lines' times in seconds, whole or finer (finer ones are taken as they are). `elapsed`: the steps' own
    durations in seconds. `may_idle`: before this step the engine may have had nothing to do.
    """
    if len(stamps) == 0:
        return np.zeros(0)
    finer = np.mean(stamps != np.floor(stamps)) > 0.5
    if finer:
        return np.maximum.accumulate(stamps)
    stamps = np.maximum.accumulate(np.floor(stamps))
    between = elapsed + _overhead(stamps, elapsed, may_idle)
    between = np.maximum(between, 1e-6)
    nominal = np.cumsum(between)
    low, high = _narrow(stamps - nominal, stamps + 1.0 - nominal, between, may_idle)
    ends = nominal + (low + high) / 2
    return np.maximum.accumulate(np.clip(ends, stamps, stamps + 1.0 - 1e-6))


def step_seconds(stamps: Floats, elapsed: Floats, may_idle: npt.NDArray[np.bool_], prefill: Ints) -> Floats | None:
    """Seconds of each step from the lines' times, where the printed ones cannot be true; None where they can.

    With asynchronous scheduling on a GPU `elapsed` is only the wait for a result that was launched earlier, down to 0.03 ms: then far more
    time passes between the lines than the steps are said to take. Arguments as in `end_times`; `prefill`: prompt tokens of each step.
    """
    if len(stamps) < _ENOUGH_STEPS:
        return None
    stamps = np.maximum.accumulate(stamps)
    if np.mean(stamps != np.floor(stamps)) > 0.5:
        told = np.diff(stamps, prepend=stamps[0])
        usual = float(np.median(told[1:][~may_idle[1:]])) if (~may_idle[1:]).any() else 0.0
        told[0] = usual
        told = np.where(may_idle, np.minimum(told, usual), told)
        lacking = usual - float(np.median(elapsed))
    else:
        lacking = _overhead(stamps, elapsed, may_idle)
        told = _by_second(stamps, may_idle, prefill)
    if lacking <= max(_UNTOLD * float(elapsed.mean()), _LEAST_UNTOLD_S):
        return None
    return np.maximum(told, 1e-6)


def _by_second(stamps: Floats, may_idle: npt.NDArray[np.bool_], prefill: Ints) -> Floats:
    """Whole seconds: the steps between two turns of a second share the time between them by what such steps usually take."""
    turns = np.flatnonzero(np.diff(np.floor(stamps)) > 0) + 1
    idle = np.cumsum(may_idle)
    busy = [(first, last) for first, last in pairwise(turns) if idle[first] == idle[last]]
    if not busy:
        return np.zeros(len(stamps))
    seconds = np.array([stamps[last] - stamps[first] for first, last in busy])
    work = np.array([(last - first, prefill[first:last].sum()) for first, last in busy], dtype=np.float64)
    base, each = np.linalg.lstsq(work, seconds, rcond=None)[0]
    if base <= 0 or each < 0:
        base, each = float(seconds.sum() / work[:, 0].sum()), 0.0
    told = np.asarray(base + each * prefill, dtype=np.float64)
    for (first, last), lasted in zip(busy, seconds, strict=True):
        told[first:last] *= np.clip(lasted / told[first:last].sum(), 0.5, 2.0)
    return told


def _overhead(stamps: Floats, elapsed: Floats, may_idle: npt.NDArray[np.bool_]) -> float:
    """Mean seconds between a step's end and the next one's start, from the busy stretches between turns of a second."""
    turns = np.flatnonzero(np.diff(stamps) > 0) + 1
    if len(turns) < 2:
        return 0.0
    idle = np.cumsum(may_idle)
    done = np.cumsum(elapsed)
    first, last = turns[:-1], turns[1:]
    busy = idle[first] == idle[last]
    if not busy.any():
        return 0.0
    first, last = first[busy], last[busy]
    # a turn lies half a step before the end of the step that crosses it, on the average
    seconds = stamps[last] - stamps[first]
    work = done[last] - done[first] - (elapsed[last] - elapsed[first]) / 2
    steps = (last - first).sum()
    return float(max((seconds - work).sum() / steps, -0.5 * elapsed.mean()))


def _narrow(low: Floats, high: Floats, between: Floats, may_idle: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Bounds of the offset at each step: its own, its predecessor's and its successor's, with some drift between.

    Across a possible idle time the offset only grows.
    """
    drift = (_DRIFT * between + _SLACK_S).tolist()
    lows, highs, idle = low.tolist(), high.tolist(), may_idle.tolist()
    for k in range(1, len(lows)):
        lows[k] = max(lows[k], lows[k - 1] - drift[k])
        if not idle[k]:
            highs[k] = min(highs[k], highs[k - 1] + drift[k])
        if lows[k] > highs[k]:  # a stall that the durations do not show
            if high[k] < lows[k]:
                lows[k] = highs[k] = high[k] - 1e-6
            else:
                lows[k] = highs[k] = max(low[k], min(high[k], lows[k]))
    for k in range(len(lows) - 2, -1, -1):
        top = min(highs[k], highs[k + 1] + drift[k + 1])
        bottom = lows[k] if idle[k + 1] else max(lows[k], lows[k + 1] - drift[k + 1])
        if bottom <= top:
            lows[k], highs[k] = bottom, top
    return np.array(lows), np.array(highs)


def arrival_times(position: Ints, stamps: Floats, starts: Floats, ends: Floats, admitted: Ints) -> Floats:
    """Seconds at which requests came whose lines stand between the lines of two steps.

    `position`: how many steps' lines stand before each; `stamps`: its own line's time (NaN: none); `starts`, `ends`: of
    the steps; `admitted`: the step that first ran it (-1: not known). What an idle engine or the very next step took came
    before that step's start, what came during a step came at any moment of it: the middle, or spread evenly.
    """
    count = len(ends)
    if len(stamps) and np.mean(stamps % 1.0 > 0.0) > 0.5:
        # a line whose date is none came when the one before it did
        filled = np.fmax.accumulate(stamps)
        return np.where(np.isnan(filled), np.nanmin(stamps), filled)
    if count == 0:
        return np.where(np.isnan(stamps), 0.0, stamps)
    here = np.clip(position, 0, count - 1)
    at_once = (admitted >= 0) & (admitted <= position)
    lower = np.where(position > 0, ends[np.clip(position - 1, 0, count - 1)], -np.inf)
    lower = np.where(at_once, lower, np.maximum(lower, starts[here]))
    first_run = starts[np.clip(admitted, 0, count - 1)]
    upper = np.where(at_once, first_run, ends[here])
    upper = np.where(position < count, upper, np.inf)
    known = ~np.isnan(stamps)
    lower = np.where(known, np.maximum(lower, stamps), lower)
    upper = np.where(known, np.minimum(upper, stamps + 1.0), upper)
    upper = np.where(at_once & np.isinf(upper), first_run, upper)
    # the bounds may miss each other by what the ends are uncertain by; a step's start is the surer one
    lower = np.where(lower > upper, upper, lower)
    alone = at_once & (upper - lower > 0.05)
    lower = np.where(alone | ~np.isfinite(lower), upper - 0.002, lower)
    upper = np.where(np.isfinite(upper), upper, lower)
    times = lower + _shares(np.column_stack([lower, upper])) * (upper - lower)
    return np.maximum.accumulate(times)


def _shares(bounds: Floats) -> Floats:
    """Where between equal bounds each event stands when those of one gap are spread evenly."""
    shares = np.empty(len(bounds))
    start = 0
    for stop in range(1, len(bounds) + 1):
        if stop == len(bounds) or (bounds[stop] != bounds[start]).any():
            many = stop - start
            shares[start:stop] = (np.arange(many) + 1) / (many + 1)
            start = stop
    return shares


_ROUNDS = 12
_TUNING = 1.345  # Huber's constant: 95 % efficient where the noise is normal


@dataclass(frozen=True, slots=True)
class Calibration:
    """`model` and `linear` (without the square) include the mean time between two steps; `error`: median relative error of single steps, 0..1; `steps` used."""

    model: StepCost
    linear: LinearStepTime
    error: float
    steps: int


def calibrate(elapsed: Floats, prefill: Floats, decodes: Floats, kv_tokens: Floats, between_s: float) -> Calibration:
    """Fit base, per prefill token (and its square), per decode request and per KV token, none negative, to steps of `elapsed` seconds.

    Errors count in proportion to a step's length, beyond the usual size only linearly, so that a stalled or a cold step bends nothing.
    """
    columns = np.column_stack([np.ones(len(elapsed)), prefill, decodes, kv_tokens, prefill**2])
    if len(elapsed) < 4:
        mean = (float(elapsed.mean()) if len(elapsed) else 0.0) + between_s
        linear = LinearStepTime(mean, 0.0, 0.0, 0.0)
        return Calibration(StepCost(mean, 0.0, 0.0, 0.0), linear, 1.0, len(elapsed))
    found = _robust(columns, elapsed)
    found[0] += between_s
    linear_found = _robust(columns[:, :4], elapsed)
    linear_found[0] += between_s
    off = np.abs(columns @ found - between_s - elapsed)
    error = float(np.median(off / _scale(elapsed)))
    return Calibration(StepCost(*found.tolist()), LinearStepTime(*linear_found.tolist()), error, len(elapsed))


def _scale(elapsed: Floats) -> Floats:
    """What an error is compared with: the step's length, but not that of the shortest."""
    return np.maximum(elapsed, 0.2 * float(np.median(elapsed)))


def _robust(columns: Floats, elapsed: Floats) -> Floats:
    """Least squares with Huber's weights, coefficients not negative."""
    scale = _scale(elapsed)
    scaled, target = columns / scale[:, None], elapsed / scale
    weights = np.ones(len(elapsed))
    found = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = _not_negative(scaled * root[:, None], target * root)
        off = np.abs(scaled @ found - target)
        spread = max(1.4826 * float(np.median(off)), 1e-6)
        weights = np.minimum(1.0, _TUNING * spread / np.maximum(off, 1e-12))
    return found


def _not_negative(columns: Floats, target: Floats) -> Floats:
    """Least squares with coefficients that are not negative: columns that would be are left out, the worst first."""
    kept = [i for i in range(columns.shape[1]) if np.any(columns[:, i])]
    found = np.zeros(columns.shape[1])
    while kept:
        scale = np.sqrt((columns[:, kept] ** 2).sum(axis=0))
        some = np.linalg.lstsq(columns[:, kept] / scale, target, rcond=None)[0]
        if some.min() >= 0:
            found[kept] = some / scale
            break
        kept.pop(int(some.argmin()))
    return found
