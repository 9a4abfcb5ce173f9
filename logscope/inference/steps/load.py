"""What each step carried, and how many ran and waited after it, summed over the requests' histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logscope.inference.steps.arrivals import Arrivals
from logscope.inference.steps.clock import Floats, Ints
from logscope.inference.steps.observed import History, Rules, Steps, Track
from reference_engine.cost.step_time import StepCost

__all__ = ["Load", "evicted_waiting", "idle_before", "load_of", "queues_of"]


@dataclass(frozen=True)
class Load:
    """Per step: prefill and recompute tokens, decoding requests, KV tokens, gaps between tokens that end there, tokens delivered."""

    prefill: Ints
    decodes: Ints
    kv_tokens: Floats
    gaps: Ints
    delivered: Ints

    def seconds(self, cost: StepCost) -> Floats:
        """What the steps should have taken."""
        tokens = self.prefill.astype(np.float64)
        return np.asarray(
            cost.base
            + tokens * (cost.per_prefill + cost.per_prefill_squared * tokens)
            + cost.per_decode * self.decodes
            + cost.per_kv * self.kv_tokens
        )


class _Counter:
    """Adds up constants and ramps over ranges of steps."""

    def __init__(self, count: int) -> None:
        self._level = np.zeros(count + 1)
        self._slope = np.zeros(count + 1)

    def add(self, first: int, last: int, value: float, slope: float = 0.0) -> None:
        """`value` at `first`, growing by `slope` a step until `last`."""
        self._level[first] += value - slope * first
        self._level[last + 1] -= value - slope * first
        self._slope[first] += slope
        self._slope[last + 1] -= slope

    def sums(self) -> Floats:
        steps = np.arange(len(self._level) - 1)
        return np.asarray(np.cumsum(self._level)[:-1] + np.cumsum(self._slope)[:-1] * steps)


def load_of(histories: Sequence[History], steps: Steps, rules: Rules, prompts: Sequence[int]) -> Load:
    """Sum up the steps' loads. `prompts`: each history's prompt length, cached tokens included."""
    count = len(steps)
    recomputing, kv, gaps = _Counter(count), _Counter(count), _Counter(count)
    firsts = np.zeros(count, dtype=np.int64)
    for history, prompt in zip(histories, prompts, strict=True):
        out = 0
        for span in history.spans:
            length = span.last - span.first + 1
            if span.kind == "decode":
                kv.add(span.first, span.last, prompt + out, 1.0)
                gaps.add(span.first, span.last, 1)
                out += length
            else:
                kv.add(span.first, span.last, (prompt + out) / length, (prompt + out) / length)
                # the second model runner counts only the first chunk of a recomputation as context
                first = span.first + rules.resumed_as_context
                if span.kind == "recompute" and first <= span.last:
                    recomputing.add(first, span.last, 1)
                out += 1
                firsts[span.last] += out <= history.outputs
    redo = np.round(recomputing.sums()).astype(np.int64)
    redone = np.minimum(redo, steps.generation)
    between = np.round(gaps.sums()).astype(np.int64)
    return Load(
        prefill=steps.context_tokens + steps.excess + redone,
        decodes=steps.generation - redone,
        kv_tokens=np.maximum(kv.sums(), 0.0),
        gaps=between,
        delivered=between + firsts,
    )


def _last_step(history: History, count: int) -> int:
    return history.finished if history.finished is not None else count - 1


def idle_before(histories: Sequence[History], count: int) -> npt.NDArray[np.bool_]:
    """Nobody lived from the step before into this one."""
    carried = np.zeros(count + 2, dtype=np.int64)
    for history in histories:
        if history.spans:
            carried[history.spans[0].first + 1] += 1
            carried[_last_step(history, count) + 1] -= 1
    return np.asarray(np.cumsum(carried)[:count] == 0)


def evicted_waiting(track: Track, count: int) -> Ints:
    """Evicted requests that wait after each step."""
    waiting = np.zeros(count + 1, dtype=np.int64)
    for history in track.histories:
        for stop in history.evicted:
            back = next((s.first for s in history.spans if s.first >= stop), count)
            waiting[stop] += 1
            waiting[back] -= 1
    return np.asarray(np.cumsum(waiting)[:count])


def queues_of(track: Track, arrivals: Arrivals, count: int) -> tuple[Ints, Ints, Ints]:
    """Running and waiting requests after each step, and how many finished with it."""
    running = np.zeros(count + 2, dtype=np.int64)
    waiting = np.zeros(count + 2, dtype=np.int64)
    finished = np.zeros(count + 2, dtype=np.int64)
    admitted = set()
    for history in track.histories:
        spans = history.spans
        if not spans:
            continue
        last = _last_step(history, count)
        if history.finished is not None:
            finished[last] += 1
        stops = [*history.evicted, last + (history.finished is None)]
        first = spans[0].first
        for stop in stops:
            running[first] += 1
            running[max(first, stop)] -= 1
            again = next((s.first for s in spans if s.first >= stop), None)
            if stop != stops[-1]:
                back = again if again is not None else last + 1
                waiting[stop] += 1
                waiting[back] -= 1
                first = back
        if history.request >= 0:
            admitted.add(history.request)
            # what comes during a step is queued when the next one is scheduled
            came = int(min(arrivals.position[history.request] + 1, spans[0].first))
            waiting[came] += 1
            waiting[spans[0].first] -= 1
    for i in range(len(arrivals)):
        if i not in admitted:
            came = int(min(arrivals.position[i] + 1, count))
            waiting[came] += 1
            waiting[max(came, int(min(arrivals.gone[i], count + 1)))] -= 1
    return (np.maximum(np.cumsum(running)[:count], 0), np.maximum(np.cumsum(waiting)[:count], 0), finished[:count])
