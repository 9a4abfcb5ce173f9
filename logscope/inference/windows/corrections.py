"""Proposals in the making, and how they are brought closer to what a window's line says.

A `Draft` holds the latent choices of one window; `Corrections` change it after it was lived through: prompts whose sum
meets the credited tokens, a speed that meets the generated ones, or what else can explain that they are too few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from logscope.inference.windows.lengths import LengthModel, OutputShape, scaled_to_total
from logscope.inference.windows.observations import Window
from logscope.inference.windows.particles import Particle
from reference_engine.cost.step_time import Floats, StepCost
from reference_engine.sketch.engine import SketchReplay

__all__ = ["Corrections", "Draft", "Ids"]

Ids = npt.NDArray[np.int64]
_IN_TIME = 0.05  # of the tokens of those that ended, how many would be missing at another speed
_ORDINARY = 2.0  # spreads that a prompt may be longer than the mean without being out of the ordinary
_LONGEST_STEP = 8.0  # seconds that a long prompt may have been under way when a window ends


@dataclass(slots=True)
class Draft:
    """A proposal in the making: lengths of the requests that no step has touched yet, arrival times of the new ones.

    `here`: which of them come to this engine; `so_far`: the tokens that those under way have when the window begins; `stall_from`, `stall_end`: one step that lasts, from so many tokens on;
    `stretched`: by how much latent outputs were lengthened (log); `hidden`: what a late long prompt costs in likelihood,
    0 where none was supposed; `before`: tokens generated and credited when the window began; `tried`: speeds (log) with
    the tokens that they gave.
    """

    untouched: Ids
    queued: int
    own: Floats
    outputs: Floats
    groups: Ids
    times: Floats
    cost: StepCost
    here: npt.NDArray[np.bool_]
    shape: OutputShape
    so_far: dict[int, int]
    speed: float
    stall_from: int = 0
    stall_end: float | None = None
    stretched: float = 0.0
    hidden: float = 0.0
    before: tuple[int, int] = (0, 0)
    tried: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Corrections:
    """Changes drafts. `share`: the part of the arrivals that comes to this engine."""

    lengths: LengthModel
    rng: np.random.Generator
    share: float
    latent_arrivals: bool = False

    def correct(
        self,
        particle: Particle,
        window: Window,
        draft: Draft,
        redraws: dict[int, int],
        belief: tuple[float, float],
        engine: SketchReplay,
        generated: float,
        credited: float,
        after_a_hole: bool,
    ) -> bool:
        """Change the draft so that the sums come closer; False when they are met."""
        changed = not after_a_hole and self._correct_prompts(window, draft, engine, credited)
        if self.share < 1.0 or self.latent_arrivals:
            changed |= self._correct_share(window, draft, engine)
        elif self.lengths.latent_outputs:
            changed |= self._correct_outputs(window, draft, redraws, engine)
        wanted = window.generated_tokens
        if wanted is None:
            return changed
        draft.tried.append((draft.speed, generated))
        if abs(generated - wanted) <= max(3.0, 0.01 * wanted):
            return changed
        if draft.stall_end is not None:
            return self._move_stall(window, draft, generated, wanted) or changed
        by_outputs = self._told_by_outputs(window, draft, engine, belief[1])
        lots = generated > wanted + max(20.0, 0.05 * wanted) and window.waiting == 0
        if lots and self._hide_late(window, draft, by_outputs):
            return True
        step = _speed_step(draft.tried, wanted)
        limit = 3.0 * belief[1]
        lacking = math.log(max(generated, 1.0) / max(wanted, 1.0))
        if window.running and generated > wanted + 50 and lacking > 2.0 * limit:
            self._stall(particle, window, draft, generated, wanted)
            return True
        if by_outputs > 0.0:
            self._lengthen(draft, redraws, math.exp(-by_outputs * lacking))
        speed = draft.speed + (1.0 - by_outputs) * min(max(step, -0.4), 0.4)
        draft.speed = min(max(speed, belief[0] - limit), belief[0] + limit)
        return True

    def _told_by_outputs(self, window: Window, draft: Draft, engine: SketchReplay, speed_sd: float) -> float:
        """How much of a surplus of generated tokens is due to the outputs' lengths rather than to the speed, 0..1.

        By how far either may move the sum: while nobody waits, most requests end whatever the speed, and the tokens are as many
        as their outputs are long.
        """
        if not self.lengths.latent_outputs or self.share < 1.0 or not engine.done:
            return 0.0
        if window.waiting or engine.shown_waiting:
            return 0.0
        before = draft.so_far
        ended = sum(r.limit - before.get(r.id, 0) for r in engine.done)
        going = sum(engine.output_of(r) - before.get(r.id, 0) for r in engine.running)
        speed = (going + _IN_TIME * ended) * speed_sd
        outputs = ended * draft.shape.spread / math.sqrt(len(engine.done))
        return outputs**2 / max(outputs**2 + speed**2, 1e-9)

    def _hide_late(self, window: Window, draft: Draft, else_told: float) -> bool:
        """Explain too few tokens by a long prompt whose step is under way at the end: whoever came after it waits.

        `else_told`: how well something else explains them; a prompt out of the ordinary gives way to that.
        """
        if draft.hidden or float(self.rng.random()) < 0.5:
            return False
        new = np.arange(draft.queued, len(draft.untouched))
        left = window.end - draft.times
        late = new[draft.here[new] & (left > 0) & (left < _LONGEST_STEP)]
        late = late[self.lengths.prompts[draft.untouched[late]] <= 0]
        if not len(late):
            return False
        chosen = int(self.rng.choice(late))
        cost = draft.cost.scaled(math.exp(draft.speed))
        least = _prompt_of(cost, float(left[chosen - draft.queued]))
        if least >= self.lengths.longest:
            return False
        drawn = least * math.exp(abs(0.3 * float(self.rng.standard_normal())))
        prompt = min(max(round(drawn), 1), self.lengths.longest)
        who = draft.untouched[chosen]
        away = math.log(prompt) - float(self.lengths.mean_log[who])
        away /= float(self.lengths.sd_log[who])
        if away > _ORDINARY and float(self.rng.random()) < else_told:
            return False
        draft.own = draft.own.copy()
        draft.own[chosen] = prompt
        draft.hidden = 0.5 * away**2 + 0.5
        draft.tried = []
        return True

    def _stall(self, particle: Particle, window: Window, draft: Draft, generated: float, wanted: float) -> None:
        """Explain far too few tokens by one step that lasted: the very first (warm-up), or the one after the last token."""
        seconds = window.end - window.start
        chance = float(self.rng.random())
        draft.stall_from = particle.engine.generated
        if particle.engine.generated == 0 and wanted > 0:
            left = 2.0 * chance * seconds * wanted / max(generated, 1.0)
            draft.stall_end = window.end - max(left, 0.15 * seconds * chance)
        else:
            draft.stall_from += int(wanted)
            draft.stall_end = window.end + chance * seconds

    def _move_stall(self, window: Window, draft: Draft, generated: float, wanted: float) -> bool:
        """Let the long step end so much later or earlier as tokens are too many or too few."""
        end = draft.stall_end
        if end is None or end >= window.end:
            return False
        rate = max(generated, wanted, 1.0) / max(window.end - end, 1.0)
        moved = end + (generated - wanted) / rate
        draft.stall_end = min(max(moved, window.start), window.end - 0.05)
        return True

    def _correct_prompts(self, window: Window, draft: Draft, engine: SketchReplay, credited: float) -> bool:
        wanted = window.prompt_tokens
        if wanted is None or abs(credited - wanted) <= 2:
            return False
        rest = {r.id for r in engine.unstarted()}
        rest.update(r.id for r in engine.in_prefill())
        rest.update(r.id for r in engine.refused())
        inside = np.array(
            [i for i, request in enumerate(draft.untouched) if draft.here[i] and int(request) not in rest],
            dtype=np.int64,
        )
        if not len(inside):
            return False
        target = wanted - (credited - float(draft.own[inside].sum()))
        if target < len(inside):
            return False
        known = self.lengths.prompts[draft.untouched[inside]]
        draft.own = draft.own.copy()
        draft.own[inside] = scaled_to_total(draft.own[inside], known, target, self.lengths.longest)
        return True

    def _correct_share(self, window: Window, draft: Draft, engine: SketchReplay) -> bool:
        """Send requests to another engine, or take some from it, until as many are present as must be."""
        surplus = engine.shown_running + engine.shown_waiting - window.running - window.waiting
        if surplus == 0:
            return False
        new = np.arange(draft.queued, len(draft.untouched))
        movable = new[draft.here[new] == (surplus > 0)]
        count = min(abs(surplus), len(movable))
        if not count:
            return False
        draft.here[self.rng.choice(movable, count, replace=False)] = surplus < 0
        return True

    def _correct_outputs(self, window: Window, draft: Draft, redraws: dict[int, int], engine: SketchReplay) -> bool:
        """Shorten or lengthen what is left of latent outputs until as many finish as must have."""
        present = window.running + window.waiting
        surplus = engine.shown_running + engine.shown_waiting - present
        if abs(surplus) <= 1:
            return False
        ended = len(engine.done)
        factor = ((ended + 0.5) / max(ended + surplus + 0.5, 0.5)) ** 0.7
        self._lengthen(draft, redraws, factor)
        return True

    def _lengthen(self, draft: Draft, redraws: dict[int, int], factor: float) -> None:
        """Multiply what is left of all latent outputs."""
        factor = min(max(factor, 0.5), 2.0)
        draft.stretched += math.log(factor)
        for request, limit in redraws.items():
            so_far = draft.so_far[request]
            most = float(self.lengths.limits[request])
            redraws[request] = int(min(so_far + max(1, round((limit - so_far) * factor)), most))
        known = self.lengths.outputs[draft.untouched]
        scaled = np.clip(np.rint(draft.outputs * factor), 1, self.lengths.limits[draft.untouched])
        draft.outputs = np.where(known > 0, known, scaled)

    def strain(self, draft: Draft, redraws: dict[int, int]) -> float:
        """How unlikely it is that all latent outputs are so much longer or shorter than drawn, and prompts than such are."""
        strain = self._of_prompts(draft) if self.latent_arrivals else 0.0
        if not draft.stretched:
            return strain
        count = len(redraws) + int((self.lengths.outputs[draft.untouched] <= 0).sum())
        return strain + 0.5 * count * (draft.stretched / draft.shape.spread) ** 2

    def _of_prompts(self, draft: Draft) -> float:
        """Where nobody knows how many came, the prompts of those that are supposed must not be too long or too short."""
        who = draft.untouched[draft.here]
        if not len(who):
            return 0.0
        variance = math.expm1(float(self.lengths.sd_log[who[0]]) ** 2)
        believed = draft.shape.scale * math.exp(float(self.lengths.mean_log[who[0]])) * math.sqrt(1.0 + variance)
        away = math.log(max(float(draft.own[draft.here].mean()), 1.0) / max(believed, 1.0))
        return 0.5 * away**2 / (variance / len(who) + 0.01)


def _prompt_of(cost: StepCost, seconds: float) -> float:
    """Prompt tokens whose prefill takes so long."""
    base, linear, _decode, _kv, square = cost.coefficients
    rest = max(0.0, seconds / cost.scale - base)
    if square <= 0:
        return rest / linear
    return (math.sqrt(linear * linear + 4 * square * rest) - linear) / (2 * square)


def _speed_step(tried: list[tuple[float, float]], wanted: float) -> float:
    """How far to move the logarithm of the step scale: along the secant, or in proportion."""
    _speed, generated = tried[-1]
    slope = _slope(tried)
    if slope < 0:
        return (wanted - generated) / slope
    return math.log(max(generated, 1.0) / max(wanted, 1.0))


def _slope(tried: list[tuple[float, float]]) -> float:
    """Generated tokens per unit of the scale's logarithm, 0 where that is not known."""
    if len(tried) < 2:
        return 0.0
    (a, x), (b, y) = tried[-2], tried[-1]
    if abs(b - a) < 0.005 or (y - x) * (b - a) >= 0:
        return 0.0
    return (y - x) / (b - a)
