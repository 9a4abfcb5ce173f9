"""Which shapes of outputs meet the log: a quick filter of many particles that know no blocks, only how far each answer has come.

A narrow, a wide and a mixed shape of one mean give the same tokens; they differ in how many of those that came still run at a line, and
in what these hold. Steps per second are taken from the step costs, who waits from the lines; each particle has a shape of its own, and
those that contradict the lines die out. What is left is where the passes of the filter begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from logscope.inference.windows.lengths import USUAL_VARIATION, Floats, LengthModel, OutputShape
from logscope.inference.windows.observations import Observations, Window
from logscope.inference.windows.particles import tempering
from logscope.inference.windows.portion import FULL, under_pressure
from reference_engine.cost.step_time import StepCost
from reference_engine.sketch.request import SketchRules

__all__ = ["with_shapes"]

_ELEMENTS = 60_000  # particles times requests under way, at most: what a window costs
_FEWEST, _MOST = 200, 1_500  # particles
_KEPT = 24  # shapes that are handed on
_PACE_SD, _PACE_STEP = 0.15, 0.06  # of the steps per second (log): in common, and from window to window
_ENOUGH, _RESAMPLED = (
    0.2,
    0.5,
)  # shares of the particles that count after a window at the least, and under which they are drawn anew
_RESTLESS = 0.03  # step of a shape that is drawn again (log)
_OF_FULL = 0.3  # what a line counts where it is not told who was admitted and may be evicted again
_MIXED, _EQUAL = 0.35, 0.1  # chances that outputs are short and long mixed, or all of a length
_LONGS, _RATIO, _SD_OF_KIND = (0.08, 0.5), (3.0, 60.0), (0.15, 0.7)  # of mixtures: evenly in their logarithms

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]


def with_shapes(
    lengths: LengthModel, seen: Observations, rules: SketchRules, cost: StepCost, share: float, rng: np.random.Generator
) -> LengthModel:
    """The beliefs with shapes of outputs in proportion to how well they meet the lines; as they are where all outputs are known.

    Args:
        lengths: beliefs about the requests' lengths.
        seen: windows and arrivals.
        rules: the engine.
        cost: of a step.
        share: the part of the arrivals that comes to this engine; below 1, or on bare statistics, as many come as the lines tell.
        rng: the only source of chance.
    """
    if not lengths.latent_outputs:
        return lengths
    return replace(lengths, shapes=_Filter(seen, rules, lengths, cost, share, rng).run())


@dataclass(slots=True)
class _Shapes:
    """One shape a particle; `OutputShape` in columns. `ratio` is a logarithm."""

    scale: Floats
    sd: Floats
    longs: Floats
    ratio: Floats

    @classmethod
    def imagined(cls, lengths: LengthModel, count: int, rng: np.random.Generator) -> _Shapes:
        """What outputs are like before the lines are looked at: as chats are, all of a length, or of two kinds."""

        def evenly(bounds: tuple[float, float]) -> Floats:
            return np.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1]), count))

        kind = rng.random(count)
        usual = np.exp(0.5 * math.log(math.log1p(USUAL_VARIATION)) + 0.45 * rng.standard_normal(count))
        mixed, equal = kind < _MIXED, kind > 1.0 - _EQUAL
        sd = np.where(mixed, evenly(_SD_OF_KIND), np.where(equal, evenly((0.06, 0.2)), np.clip(usual, 0.06, 1.3)))
        longs = np.where(mixed, evenly(_LONGS), 0.0)
        ratio = np.where(mixed, np.log(evenly(_RATIO)), 0.0)
        scale = np.exp(lengths.output_doubt * rng.standard_normal(count))
        shapes = cls(scale, sd, longs, ratio)
        if lengths.prompts_per_output is not None:
            told = lengths.prompts_per_output
            # the longer an output, the longer it is seen to run: what those that run hold tells less of the mean where outputs differ
            scale *= (told + (1.0 + USUAL_VARIATION) / 2) / (told + shapes.second_moment / 2)
        return shapes

    @property
    def second_moment(self) -> Floats:
        """Mean square of the lengths over the square of their mean."""
        factor = np.exp(self.ratio)
        mixed = (1.0 + self.longs * (factor**2 - 1.0)) / (1.0 + self.longs * (factor - 1.0)) ** 2
        return np.asarray(np.exp(self.sd**2) * mixed, dtype=np.float64)

    def drawn(self, rng: np.random.Generator, mean: float, columns: int) -> Floats:
        """Lengths of so many outputs of each particle."""
        short = np.log(np.maximum(self.scale * mean / (1.0 + self.longs * np.expm1(self.ratio)), 1e-3)) - self.sd**2 / 2
        rows = len(self.sd)
        logs = short[:, None] + self.sd[:, None] * rng.standard_normal((rows, columns))
        logs += self.ratio[:, None] * (rng.random((rows, columns)) < self.longs[:, None])
        return np.asarray(np.maximum(np.rint(np.exp(logs)), 1.0), dtype=np.float64)

    def redrawn(self, rows: Ids, rng: np.random.Generator) -> _Shapes:
        """Those of some particles, each a little different."""
        scale, sd, longs, ratio = np.exp(_RESTLESS * rng.standard_normal((4, len(rows))))
        return _Shapes(
            self.scale[rows] * scale,
            np.clip(self.sd[rows] * sd, 0.06, 1.3),
            np.minimum(self.longs[rows] * longs, 0.5),
            self.ratio[rows] * ratio,
        )

    def one(self, row: int) -> OutputShape:
        return OutputShape(
            float(self.scale[row]), float(self.sd[row]), float(self.longs[row]), float(math.exp(self.ratio[row]))
        )


@dataclass(slots=True)
class _Answers:
    """What is under way: rows are particles, columns requests. Tokens of prompt, in all and so far; share of the window that is left."""

    prompt: Floats
    total: Floats
    so_far: Floats
    left: Floats
    here: Bools

    def joined(self, new: _Answers) -> _Answers:
        """Those of both that anybody still has."""
        kept = np.flatnonzero(self.here.any(axis=0))
        return _Answers(
            np.concatenate([self.prompt[:, kept], new.prompt], axis=1),
            np.concatenate([self.total[:, kept], new.total], axis=1),
            np.concatenate([self.so_far[:, kept], new.so_far], axis=1),
            np.concatenate([np.ones((len(self.here), len(kept))), new.left], axis=1),
            np.concatenate([self.here[:, kept], new.here], axis=1),
        )

    def redrawn(self, rows: Ids) -> _Answers:
        """Those of some particles, of one perhaps several times."""
        return _Answers(self.prompt[rows], self.total[rows], self.so_far[rows], self.left[rows], self.here[rows])

    def at_work(self, evicted: int) -> Bools:
        """All but the last so many of those that are there: they wait for blocks and hold none."""
        if not evicted:
            return self.here
        place = np.cumsum(self.here, axis=1)
        return np.asarray(self.here & (place <= place[:, -1:] - evicted), dtype=np.bool_)

    def live(self, steps: Floats, evicted: int) -> Floats:
        """Let a window pass; the tokens that each particle generated."""
        share = steps[:, None] * self.left
        gained = np.where(self.at_work(evicted), np.minimum(self.total - self.so_far, share), 0.0)
        self.so_far = self.so_far + gained
        self.here = self.here & (self.so_far < self.total - 0.5)
        return np.asarray(gained.sum(axis=1), dtype=np.float64)


class _Filter:
    def __init__(
        self,
        seen: Observations,
        rules: SketchRules,
        lengths: LengthModel,
        cost: StepCost,
        share: float,
        rng: np.random.Generator,
    ) -> None:
        self.seen, self.rules, self.lengths, self.cost, self.rng = seen, rules, lengths, cost, rng
        self.told = share >= 1.0 and seen.level != "bare"
        most = max([1, *(w.running for w in seen.windows)])
        self.count = int(min(max(_ELEMENTS / (most + 10), _FEWEST), _MOST))
        self.shapes = _Shapes.imagined(lengths, self.count, rng)
        self.pace = _PACE_SD * rng.standard_normal(self.count)
        ends = np.array([w.end for w in seen.windows])
        self.middles = np.array([(a.low + a.high) / 2 for a in seen.arrivals])
        self.window_of = np.searchsorted(ends, self.middles, side="left")
        self.usual_prompt = max(1.0, float(np.exp(lengths.mean_log + lengths.sd_log**2 / 2).mean()))
        none = np.zeros((self.count, 0))
        self.answers = _Answers(none, none, none, none, none.astype(np.bool_))
        self.queue: list[int] = []
        self.unadmitted = 0
        self.strain = np.zeros(self.count)

    def run(self) -> tuple[OutputShape, ...]:
        logs = np.zeros(self.count)
        before: Window | None = None
        for k, window in enumerate(self.seen.windows):
            self.strain = np.zeros(self.count)
            new = self._admitted(k, window, before) if self.told else self._supposed(window)
            self.answers = self.answers.joined(new)
            pace = self.pace + _PACE_STEP * self.rng.standard_normal(self.count)
            generated = self.answers.live(self._steps(window, before) * np.exp(pace), self._evicted(window))
            told = self._likelihood(window, generated) - self.strain
            if not self.told and window.waiting and (window.kv_usage or 0.0) >= FULL:
                told = told * _OF_FULL
            logs = logs + tempering(logs + told - (logs + told).max(), _ENOUGH * self.count) * told
            weights = np.exp(logs - logs.max())
            weights /= weights.sum()
            if 1.0 / float((weights**2).sum()) < _RESAMPLED * self.count:
                picks = self._picks(weights, self.count)
                self.answers, logs = self.answers.redrawn(picks), np.zeros(self.count)
                self.shapes, self.pace = self.shapes.redrawn(picks, self.rng), self.pace[picks]
            before = window
        weights = np.exp(logs - logs.max())
        return tuple(self.shapes.one(int(i)) for i in self._picks(weights / weights.sum(), _KEPT))

    def _picks(self, weights: Floats, count: int) -> Ids:
        steps = (self.rng.random() + np.arange(count)) / count
        return np.minimum(np.searchsorted(np.cumsum(weights), steps), len(weights) - 1)

    def _steps(self, window: Window, before: Window | None) -> float:
        """Steps that a request sees that is there all the time."""
        running = max(1.0, 0.5 * (window.running + (before.running if before is not None else 0)))
        held = (window.kv_usage or 0.0) * self.rules.blocks * self.rules.block_size
        cost = self.cost
        each = cost.seconds(0, round(running), round(held), round(running)) / self.rules.step_tokens
        seconds = window.end - window.start
        chunk = min(self.usual_prompt, self.rules.token_budget)
        prefill = (
            (cost.seconds(round(chunk), 0, 0, 1) - cost.seconds(0, 0, 0, 1)) * (window.prompt_tokens or 0.0) / chunk
        )
        return float(max(seconds - min(prefill, 0.7 * seconds), 0.0) / max(each, 1e-6))

    def _admitted(self, k: int, window: Window, before: Window | None) -> _Answers:
        """Those that must have been admitted: all that had come but those that wait."""
        came = np.flatnonzero(self.window_of == k).tolist()
        waited = bool(self.queue)
        self.queue += came
        admitted = max(0, len(self.queue) - window.waiting)
        who, self.queue = np.array(self.queue[:admitted], dtype=np.int64), self.queue[admitted:]
        self.unadmitted = len(self.queue)
        seconds = window.end - window.start
        left = np.clip((window.end - self.middles[who]) / seconds, 0.0, 1.0)
        if waited or window.waiting:
            left = np.minimum(left, 1.0 - (np.arange(admitted) + 0.5) / max(admitted, 1))
        total = self.shapes.drawn(self.rng, self.lengths.output_mean, admitted)
        known = self.lengths.outputs[who]
        total = np.where(known > 0, known, np.minimum(total, self.lengths.limits[who]))
        noise = self.rng.standard_normal(total.shape)
        prompt = np.exp(self.lengths.mean_log[who] + self.lengths.sd_log[who] * noise)
        prompt = np.where(self.lengths.prompts[who] > 0, self.lengths.prompts[who], prompt)
        if admitted and window.prompt_tokens and not self.lengths.sharing.groups:
            prompt *= np.clip(window.prompt_tokens / prompt.sum(axis=1), 0.3, 3.0)[:, None]
        everywhere = np.ones(total.shape, dtype=np.bool_)
        return _Answers(prompt, total, np.zeros(total.shape), np.broadcast_to(left, total.shape), everywhere)

    def _supposed(self, window: Window) -> _Answers:
        """As many as the change of those that run and those that ended make up, and as the prompts make up."""
        there = self.answers.here.sum(axis=1)
        ended = (window.generated_tokens or 0.0) / np.maximum(self.shapes.scale * self.lengths.output_mean, 1.0)
        count = window.running - there + ended
        variance = 0.25 + ended * np.minimum(self.shapes.second_moment - 0.9, 1.5)
        # V0 counts the prompts of evicted ones again
        prompts = None if self.rules.v0 and under_pressure(window) else window.prompt_tokens
        variation = math.expm1(float(self.lengths.sd_log[0]) ** 2)
        usual = math.exp(float(self.lengths.mean_log[0])) * math.sqrt(1.0 + variation)
        each = np.maximum(usual * (self.shapes.scale if self.seen.level == "bare" else 1.0), 1.0)
        by_prompts = (prompts or 0.0) / each
        blur = 0.1 + by_prompts * min(variation + 0.1, 2.0)
        if prompts is not None:
            count = (count / variance + by_prompts / blur) / (1.0 / variance + 1.0 / blur)
            variance = 1.0 / (1.0 / variance + 1.0 / blur)
        drawn = np.maximum(np.rint(count + np.sqrt(variance) * self.rng.standard_normal(self.count)), 0.0)
        # that these were proposed is no evidence for them; and the more came, the less likely is any one number
        self.strain = -0.5 * np.minimum((drawn - count) ** 2 / variance, 9.0) - 0.5 * np.log(variance / (drawn + 1.0))
        if prompts is not None:
            self.strain += 0.5 * (drawn - by_prompts) ** 2 / blur + 0.5 * np.log(blur)
            each = prompts / np.maximum(drawn, 1.0)
        columns = int(drawn.max())
        shape = (self.count, columns)
        total = self.shapes.drawn(self.rng, self.lengths.output_mean, columns)
        here = np.arange(columns) < drawn[:, None]
        left = self.rng.random(shape)
        return _Answers(np.broadcast_to(each[:, None], shape), total, np.zeros(shape), left, here)

    def _evicted(self, window: Window) -> int:
        """Those that wait although they were admitted, as far as the lines tell."""
        return max(0, window.waiting - self.unadmitted) if self.told else 0

    def _likelihood(self, window: Window, generated: Floats) -> Floats:
        """How well a line is met by each particle."""
        running = self.answers.here.sum(axis=1)
        evicted = self._evicted(window)
        seen = window.running + evicted
        spread = 0.45 + 0.35 * np.minimum(running, 1) + 0.05 * running
        total = ((running - seen) / spread) ** 2 + 2.0 * np.log(spread)
        if window.generated_tokens is not None:
            spread = 8.0 + 0.05 * window.generated_tokens
            total = total + ((generated - window.generated_tokens) / spread) ** 2
        if window.kv_usage and window.running and not self.lengths.sharing.groups:
            each = max(self.rules.mean_tokens(window.kv_usage * self.rules.blocks / window.running), 1.0)
            at_work = self.answers.at_work(evicted)
            holding = np.where(at_work, self.answers.prompt + self.answers.so_far, 0.0).sum(axis=1)
            mean = holding / np.maximum(at_work.sum(axis=1), 1)
            away = np.log(np.maximum(mean, 1.0) / each) / (0.05 + 0.3 / window.running)
            total = total + np.where(running > 0, np.minimum(away**2, 16.0), 4.0)
        return np.asarray(-total / 2, dtype=np.float64)
