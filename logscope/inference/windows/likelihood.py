"""How well a proposal meets a statistics line, and how far such verdicts may be trusted at once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from logscope.inference.windows.observations import Window
from reference_engine.sketch.engine import SketchReplay
from reference_engine.sketch.step_cost import Floats

__all__ = ["count_misfit", "log_likelihood", "tempering", "with_owed"]


def with_owed(window: Window, owed: float) -> Window:
    """A window in which an engine that fell behind, or ran ahead, comes back to the log's total."""
    generated = window.generated_tokens
    if generated is None or not owed:
        return window
    most = 20.0 + 0.1 * generated
    return replace(window, generated_tokens=max(0.0, generated + min(max(0.7 * owed, -most), most)))


def log_likelihood(
    window: Window, engine: SketchReplay, generated: float, credited: float
) -> float:
    """How well a window's line is met. The spreads are what one step more or less would change."""
    total = count_misfit(window.running, engine.shown_running, 0.03)
    total += count_misfit(window.waiting, engine.shown_waiting, 0.04)
    if window.kv_usage is not None:
        total += _usage_misfit(window, engine)
    if window.generated_tokens is not None:
        spread = 6.0 + 0.02 * window.generated_tokens
        total += _square(generated - window.generated_tokens, spread)
    if window.prompt_tokens is not None:
        spread = 15.0 + 0.03 * window.prompt_tokens
        total += _square(credited - window.prompt_tokens, spread)
    return -total / 2


def count_misfit(seen: int, told: int, relative: float) -> float:
    """-2 log likelihood (but for a constant) that a line says `seen` where `told` is true.

    An engine that is empty is hardly ever seen at work: a spread that did not shrink towards zero would make idle servers
    look faster than they are.
    """
    spread = 0.45 + 0.35 * min(told, 1) + relative * told
    return _square(seen - told, spread) + 2.0 * math.log(spread)


def _usage_misfit(window: Window, engine: SketchReplay) -> float:
    """KV usage, where one request more or less running is not held against it twice."""
    seen = window.kv_usage or 0.0
    told = engine.usage
    each = seen / window.running if window.running else told / max(engine.shown_running, 1)
    surplus = (engine.shown_running - window.running) * each
    miss = min(abs(told - seen), abs(told - seen - surplus))
    return _square(miss, 0.003 + 0.015 * max(seen, told) + 0.15 * each)


def _square(miss: float, spread: float) -> float:
    return (miss / spread) ** 2


def tempering(logs: Floats, enough: float) -> float:
    """The exponent, at most 1, at which so many particles still count."""

    def effective(exponent: float) -> float:
        weights = np.exp(exponent * logs)
        return float(weights.sum() ** 2 / (weights**2).sum())

    if effective(1.0) >= enough:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= enough else (low, middle)
    return low
