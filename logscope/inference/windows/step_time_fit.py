"""Step costs from a log: a regression in the logarithms of the coefficients, with what hardware makes likely as prior.

`first_guess` needs only the statistics lines; `refit` uses what the particles' engines really did in each window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logscope.inference.windows.observations import Observations
from logscope.inference.windows.particles import Node, Particle
from reference_engine.cost.step_time import CostFit, Floats

__all__ = ["first_guess", "refit"]

# Ratios of coefficients that hold from CPUs to large GPUs (roofline of dense models), as (over, under, log of the ratio,
# spread of that log). Coefficients: 0 base, 1 a prefill token, 2 a decoding request, 3 a KV token read, 4 a square of
# prefill tokens. A decoded token costs no less than a prefilled one; reading a KV token about a thousandth of it;
# attention overtakes the rest of a prefill at several thousand tokens.
_RATIOS = ((1, 0, np.log(1 / 100), 1.1), (2, 1, np.log(1.8), 0.5), (3, 1, np.log(1e-3), 0.8), (4, 1, np.log(7e-5), 1.0))
# On a CPU a prefill token takes a larger part of the time in which the weights are read once, as there is little
# arithmetic to spare; models are small there, so that attention over the prompt weighs more.
_ON_CPU = ((1, 0, np.log(1 / 28), 0.4), *_RATIOS[1:3], (4, 1, np.log(2e-4), 1.0))
# A lone request of the models that people serve gets a token every 5 to 30 ms (log of the seconds, spread of that log):
# little, but more than a nearly idle server's lines say.
_ALONE = (np.log(0.012), 0.7)
_NO_DRAFTS = (0, 1.0)
_NOISE = 0.08  # relative, of a window's time about the model


def first_guess(
    seen: Observations, kv_tokens: int, on_cpu: bool = False, drafts: tuple[int, float] = _NO_DRAFTS
) -> CostFit:
    """Costs from the windows alone. `kv_tokens`: capacity of the cache in tokens; `on_cpu`: no GPU serves; `drafts`: those of a step, and tokens that a request gets in it.

    What runs on average times a window's seconds is the time that requests spend in steps: as many steps as tokens were
    generated, each as long as the batch makes it. A window that begins and ends with a queue tells that well, an idle
    one hardly.
    """
    rows, times, spreads = _concurrency(seen, kv_tokens, drafts, with_steady=True)
    if not rows:
        rows, times, spreads = [[1.0, 0.0, 1.0, 0.0, 0.0]], [0.02], [0.04]
    return _fit(np.array(rows), np.array(times), np.array(spreads), on_cpu)


def _concurrency(
    seen: Observations, kv_tokens: int, drafts: tuple[int, float], with_steady: bool
) -> tuple[list[list[float]], list[float], list[float]]:
    """Rows of work, request-seconds and their spreads, one a window; steady ones (a queue at both ends) if asked for."""
    rows, times, spreads = [], [], []
    everything = sum(w.generated_tokens or 0.0 for w in seen.windows)
    each = sum(w.running * (w.end - w.start) for w in seen.windows) / max(everything, 1.0)
    running = usage = waiting = 0.0
    for window in seen.windows:
        generated, prompt = window.generated_tokens or 0.0, window.prompt_tokens or 0.0
        mean = 0.5 * (running + window.running)
        crowd = mean + float(np.exp(-mean))  # how many run when one runs
        filled = 0.5 * (usage + (window.kv_usage or 0.0)) * kv_tokens
        seconds = window.end - window.start
        steady = waiting > 0 and window.waiting > 0
        if generated > 0 and (with_steady or not steady):
            length = min(prompt / max(1.0, generated / 100.0), 4000.0)
            steps, prefill = generated / drafts[1], prompt + drafts[0] * generated / drafts[1]
            rows.append([steps, prefill * crowd, steps * crowd, steps * filled, prompt * crowd * length])
            times.append(seconds * mean)
            expected = max(generated * each / seconds, 0.2)
            blur = 0.05 * mean if steady else np.sqrt(expected / 2)
            spreads.append(seconds * float(np.hypot(0.1 * mean, blur)))
        running, usage, waiting = window.running, window.kv_usage or 0.0, window.waiting
    return rows, times, spreads


def refit(
    particles: Sequence[Particle],
    seen: Observations,
    kv_tokens: int,
    before: CostFit,
    on_cpu: bool = False,
    drafts: tuple[int, float] = _NO_DRAFTS,
) -> CostFit:
    """Costs from the work which the particles' engines did: in each window, busy time against steps and tokens.

    A window counts as far as its line tells the speed; the mean concurrency speaks for those that are partly idle.
    """
    histories = [p.past() for p in particles]
    rows, times, spreads = _concurrency(seen, kv_tokens, drafts, with_steady=False)
    for k, window in enumerate(seen.windows):
        nodes = [h[k] for h in histories if k < len(h)]
        busy = float(np.mean([n.busy for n in nodes]))
        if busy < 0.05 or any(n.stalled for n in nodes):
            continue
        queued = window.waiting > 0 or (k > 0 and seen.windows[k - 1].waiting > 0)
        known = _information(nodes, busy / (window.end - window.start), queued)
        if known < 1e-3:
            continue
        rows.append([float(v) for v in np.mean([n.work for n in nodes], axis=0)])
        times.append(busy)
        spreads.append(busy * _NOISE / np.sqrt(known))
    if not rows:
        return before
    return _fit(np.array(rows), np.array(times), np.array(spreads), on_cpu)


def _information(nodes: Sequence[Node], busy: float, queued: bool) -> float:
    """0..1: how well the window's line tells the speed, from the proposals that looked at another one.

    `busy`: share of the window; `queued`: whether requests waited at its beginning or end. Where nobody did, it is the
    requests that make the tokens, whatever the speed: only what was looked at counts, and a single look for little.
    """
    looked = [n.known for n in nodes if n.known >= 0]
    if not looked:
        return 0.3 * min(1.0, busy) ** 2 if queued else 0.0
    known = float(np.mean(np.minimum(looked, 20.0)))
    trust = 1.0 if queued else len(looked) / (len(looked) + 3.0)
    return trust * known / (1.0 + known)


def _fit(work: Floats, times: Floats, spreads: Floats, on_cpu: bool) -> CostFit:
    """Levenberg-Marquardt in the logarithms, robust by reweighting windows that miss by far."""
    ratios = _ON_CPU if on_cpu else _RATIOS
    logs = _start(work, times, ratios)
    robust = np.ones(len(times))
    normal = np.eye(5)
    for turn in range(40):
        parts = work * np.exp(logs)
        misses = (times - parts.sum(axis=1)) / spreads
        if turn and turn % 10 == 0:
            robust = np.minimum(1.0, 2.0 / np.maximum(np.abs(misses), 1e-9))
        weighted = parts / spreads[:, None] * np.sqrt(robust)[:, None]
        normal = weighted.T @ weighted
        gradient = weighted.T @ (misses * np.sqrt(robust))
        gradient[0] += (_ALONE[0] - logs[0]) / _ALONE[1] ** 2
        normal[0, 0] += 1 / _ALONE[1] ** 2
        for over, under, centre, spread in ratios:
            miss = (centre - (logs[over] - logs[under])) / spread**2
            gradient[over] += miss
            gradient[under] -= miss
            normal[over, over] += 1 / spread**2
            normal[under, under] += 1 / spread**2
            normal[over, under] -= 1 / spread**2
            normal[under, over] -= 1 / spread**2
        step = np.linalg.solve(normal + 0.05 * np.diag(np.diag(normal)) + 1e-9 * np.eye(5), gradient)
        logs = logs + np.clip(step, -0.7, 0.7)
    misses = np.abs(times - (work * np.exp(logs)).sum(axis=1)) / np.maximum(times, 1e-9)
    weights = 1.0 / spreads**2 * times**2
    error = float((weights * np.minimum(misses, 1.0)).sum() / max(float(weights.sum()), 1e-12))
    covariance = np.asarray(np.linalg.inv(normal + 1e-6 * np.eye(5)), dtype=np.float64)
    strength = float(np.minimum(1.0, (_NOISE * times / spreads) ** 2).sum())
    return CostFit(logs, covariance, error, strength)


def _start(work: Floats, times: Floats, ratios: Sequence[tuple[int, int, float, float]]) -> Floats:
    """All ratios at their centres, the whole at the level of the times."""
    logs = np.zeros(5)
    for over, under, centre, _spread in ratios:
        logs[over] = logs[under] + centre
    level = float(times.sum()) / max(float((work * np.exp(logs)).sum()), 1e-12)
    return np.asarray(logs + np.log(max(level, 1e-9)), dtype=np.float64)
