"""Arrivals that no line tells of, from the balance of statistics lines alone.

What runs holds so many KV tokens each, prompts and outputs stand in the ratio of their throughputs: that tells how long requests are.
Who came in an interval is then the change of those present, and those that ended meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from logscope.inference.windows.lengths import USUAL_VARIATION, LengthModel
from logscope.inference.windows.observations import Arrival, Observations, Window
from logscope.inference.windows.portion import under_pressure
from reference_engine.sketch.request import SketchRules

__all__ = ["Balance", "balance_of", "with_candidates"]

_USUAL = 200.0  # output tokens where the cache is too large to show what a request holds
_SHARED, _ENOUGH = 0.2, 4  # hit rate from which heads are shared, and lines that tell what each request holds besides
_TOLD_BY = 0.15  # share of the generated tokens from which on some of the lines tell the ratio of prompts to outputs
_TELLING = 0.02  # least KV usage that tells what requests hold


@dataclass(frozen=True)
class Balance:
    """Mean tokens of outputs and prompts, and requests that came in each window (`came`, not whole); `inherited`: those there before the log.

    `doubt`: how far the lengths may be off in common (log).
    """

    output: float
    prompt: float
    came: tuple[float, ...]
    inherited: int
    doubt: float

    def expected(self, seen: Observations) -> Observations:
        """The arrivals that are likeliest, evenly over each window."""
        arrivals: list[Arrival] = []
        owed = 0.0
        for window, came in zip(seen.windows, self.came, strict=True):
            owed += came
            count = max(0, round(owed))
            owed -= count
            seconds = window.end - window.start
            times = [window.start + (i + 0.5) / count * seconds for i in range(count)]
            arrivals += [Arrival(t, t) for t in times]
        return replace(seen, arrivals=tuple(arrivals))


def balance_of(seen: Observations, rules: SketchRules) -> Balance | None:
    """Lengths and flow; None where nothing was generated."""
    windows = seen.windows
    generated = sum(w.generated_tokens or 0.0 for w in windows)
    if generated < 1.0 or not any(w.running for w in windows):
        return None
    ratio = _prompts_to_outputs(windows, rules.v0)
    told = [w for w in windows if w.kv_usage is not None and w.running and w.kv_usage >= _TELLING]
    running = sum(w.running for w in told)
    if running:
        held = rules.mean_tokens(sum((w.kv_usage or 0.0) * rules.blocks for w in told) / running)
        hits = [w.hit_rate for w in told if w.hit_rate]
        whole = ratio if rules.credits_hits or not hits else ratio / max(1.0 - hits[-1], 0.1)
        each = _besides_heads(told, rules) if hits and hits[-1] > _SHARED and not rules.credits_hits else None
        if each is not None:
            held, whole = each, ratio
        output = max(held / (whole + (1.0 + USUAL_VARIATION) / 2), 1.0)
        doubt = 0.12 + 0.3 / math.sqrt(running)
    else:
        output, doubt = _USUAL, 0.7
    # nobody's output is longer than what was generated while as many ran at the least
    output = min(output, generated)
    came, inherited = _came(windows, output, ratio * output)
    return Balance(output, ratio * output, came, inherited, doubt)


def _prompts_to_outputs(windows: Sequence[Window], v0: bool) -> float:
    """Prompt tokens to generated ones. V0 counts again what was evicted, so that only lines without pressure tell, if they tell enough."""
    calm = [w for w in windows if not under_pressure(w)] if v0 else []
    everything = sum(w.generated_tokens or 0.0 for w in windows)
    if sum(w.generated_tokens or 0.0 for w in calm) < _TOLD_BY * everything:
        calm = list(windows)
    return sum(w.prompt_tokens or 0.0 for w in calm) / sum(w.generated_tokens or 0.0 for w in calm)


def _besides_heads(told: Sequence[Window], rules: SketchRules) -> float | None:
    """Tokens that each running request holds for itself where prompts share heads: these are held once, however many run.

    By how the cache fills with Running; None where the lines are too few or too alike to tell.
    """
    running = np.array([float(w.running) for w in told])
    if len(told) < _ENOUGH or running.max() < 2 * running.min() + 2:
        return None
    used = np.array([(w.kv_usage or 0.0) * rules.blocks for w in told])
    slope, start = np.polyfit(running, used, 1, w=1.0 / np.sqrt(running))
    if start <= 0 or slope <= 0:
        return None
    return max(rules.mean_tokens(float(slope)), 1.0)


def _came(windows: Sequence[Window], output: float, prompt: float) -> tuple[tuple[float, ...], int]:
    came = []
    present = windows[0].running + windows[0].waiting
    # the prompts of those that were there before were counted before
    admitted = (windows[0].prompt_tokens or 0.0) / max(prompt, 1.0)
    before = round(windows[0].running - admitted - (windows[0].generated_tokens or 0.0) / output)
    inherited = before if before > 0.3 * present and before > 2 else 0
    before, owed = inherited, 0.0
    for window in windows:
        present = window.running + window.waiting
        ended = (window.generated_tokens or 0.0) / output
        # those that run at both ends had tokens before and have now: over one window that is no end
        new = present - before + ended + owed
        came.append(max(new, 0.0))
        owed = min(new, 0.0)
        before = present
    return tuple(came), inherited


def with_candidates(seen: Observations, model: LengthModel, balance: Balance) -> tuple[Observations, LengthModel]:
    """Several times as many arrivals as are expected in each window, of which each particle takes some; beliefs reach over all of them."""
    start = seen.windows[0].start
    times = np.array([a.low for a in seen.arrivals])
    pool = [a for a in seen.arrivals if a.high <= start]
    for window in seen.windows:
        came = int(((times > max(window.start, start)) & (times <= window.end)).sum())
        if came or window.running or window.waiting:
            pool += [Arrival(window.start, window.end)] * (3 * came + 6)
    count = len(pool)
    return replace(seen, arrivals=tuple(pool)), replace(
        model,
        mean_log=np.full(count, float(model.mean_log[0])),
        sd_log=np.full(count, float(model.sd_log[0])),
        prompts=np.zeros(count),
        outputs=np.zeros(count),
        limits=np.full(count, float(model.limits[0])),
        output_doubt=balance.doubt,
        prompts_per_output=balance.prompt / balance.output,
    )
