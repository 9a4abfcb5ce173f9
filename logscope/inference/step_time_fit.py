"""Step costs from a log: a ridge regression with shares as its prior, first over the windows, then over replays.

`first_guess` needs only the statistics lines; `refit` uses what the particles' engines really did in each window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logscope.inference.observations import Observations
from logscope.inference.particles import Node, Particle
from logscope.inference.step_times import StepCost

__all__ = ["CostFit", "first_guess", "refit"]

Floats = npt.NDArray[np.float64]

# What part of the time is taken to go to base, prefill, decode, KV reads and long prompts before the log says otherwise.
_SHARES = np.array([0.45, 0.20, 0.28, 0.05, 0.02])
_PRIOR_SPREAD = 0.7  # relative, of each coefficient about its share
_NOISE = 0.15  # relative, of a window's time about the model
_FALLBACK = (0.02, 1e-4, 3e-4, 1e-7, 1e-9)


@dataclass(frozen=True, slots=True)
class CostFit:
    """Coefficients with the relative error of the windows' times, and how many windows they rest on (weights' sum)."""

    cost: StepCost
    error: float
    windows: float


def first_guess(seen: Observations, kv_tokens: int) -> CostFit:
    """Costs from the windows alone. `kv_tokens`: capacity of the cache in tokens.

    With `r` running on average a window of `w` seconds gives `r w` seconds of requests' steps, and `g / r` steps: that
    holds where the engine is always busy, and on average also where it is not.
    """
    rows, times, weights = [], [], []
    running = usage = waiting = 0.0
    for window in seen.windows:
        mean = max(0.5 * (running + window.running), 0.5)
        filled = 0.5 * (usage + (window.kv_usage or 0.0)) * kv_tokens
        generated, prompt = window.generated_tokens or 0.0, window.prompt_tokens or 0.0
        seconds = window.end - window.start
        queued = waiting > 0 and window.waiting > 0
        busy = min(running, window.running)
        weight = 1.0 if queued else 0.5 if window.waiting > 0 or busy >= 3 else 0.1 * (busy >= 1)
        if weight and generated > 20:
            steps = generated / mean
            length = prompt / max(1.0, generated / 100.0)
            rows.append([steps, prompt, generated, steps * filled, prompt * min(length, 4000.0)])
            times.append(seconds)
            weights.append(weight)
        running, usage, waiting = window.running, window.kv_usage or 0.0, window.waiting
    if not rows:
        return _idle_guess(seen)
    return _ridge(np.array(rows), np.array(times), np.array(weights))


def _idle_guess(seen: Observations) -> CostFit:
    """A log of a server that was hardly ever busy: mean concurrency over the rate of tokens is the time of one."""
    generated = sum(w.generated_tokens or 0.0 for w in seen.windows)
    seconds = sum(w.end - w.start for w in seen.windows)
    running = sum(w.running for w in seen.windows) / max(1, len(seen.windows))
    if generated < 10:
        return CostFit(StepCost(*_FALLBACK), 1.0, 0.0)
    each = min(max(running, 0.3) * seconds / generated, 0.2)
    return CostFit(
        StepCost(0.7 * each, 0.01 * each, 0.03 * each, 1e-5 * each, 1e-7 * each), 0.5, 0.0
    )


def refit(particles: Sequence[Particle], seen: Observations, before: CostFit) -> CostFit:
    """Costs from the work which the particles' engines did: in each window, busy time against steps and tokens.

    A window counts as far as its generated tokens tell the speed.
    """
    histories = [p.past() for p in particles]
    rows, times, weights = [], [], []
    for k, window in enumerate(seen.windows):
        nodes = [h[k] for h in histories if k < len(h)]
        busy = float(np.mean([n.busy for n in nodes]))
        if busy < 0.05 or any(n.stalled for n in nodes):
            continue
        rows.append(np.mean([n.work for n in nodes], axis=0))
        times.append(busy)
        weights.append(
            _information(nodes, window.generated_tokens or 0.0, busy, window.end - window.start)
        )
    if not rows or sum(weights) < 0.1:
        return before
    return _ridge(np.array(rows), np.array(times), np.array(weights))


def _information(nodes: Sequence[Node], generated: float, busy: float, seconds: float) -> float:
    """0..1: how well the window's tokens tell the speed, by the slope that the proposals met."""
    slopes = [-n.slope for n in nodes if n.slope < 0]
    if slopes:
        spread = 6.0 + 0.02 * generated
        known = (0.1 * float(np.median(slopes)) / spread) ** 2
        return known / (1.0 + known)
    return 0.7 * min(1.0, busy / seconds) ** 2


def _ridge(work: Floats, times: Floats, weights: Floats) -> CostFit:
    """Least squares of relative misses over coefficients that are not negative, drawn to the shares; once reweighted."""
    weights = weights.copy()
    total = float((weights * times).sum())
    sums = np.maximum((weights[:, None] * work).sum(axis=0), 1e-12)
    prior = _SHARES * total / sums
    coefficients = prior
    for _ in range(2):
        coefficients = prior * _solve(work * prior, times, weights)
        misses = np.abs(work @ coefficients / times - 1.0)
        weights = weights * np.minimum(1.0, 0.3 / np.maximum(misses, 1e-9))
    misses = np.abs(work @ coefficients / times - 1.0)
    error = float((weights * misses).sum() / max(float(weights.sum()), 1e-9))
    return CostFit(StepCost(*map(float, coefficients)), error, float(weights.sum()))


def _solve(columns: Floats, times: Floats, weights: Floats) -> Floats:
    """Coordinate descent for the factors on the prior coefficients, kept above a fiftieth."""
    scale = np.sqrt(weights) / (_NOISE * times)
    left = np.vstack([columns * scale[:, None], np.eye(columns.shape[1]) / _PRIOR_SPREAD])
    right = np.concatenate([times * scale, np.full(columns.shape[1], 1.0 / _PRIOR_SPREAD)])
    matrix, vector = left.T @ left, left.T @ right
    factors = np.ones(columns.shape[1])
    for _ in range(300):
        for j in range(len(factors)):
            rest = float(matrix[j] @ factors) - float(matrix[j, j]) * factors[j]
            factors[j] = max(0.02, (float(vector[j]) - rest) / float(matrix[j, j]))
    return factors
