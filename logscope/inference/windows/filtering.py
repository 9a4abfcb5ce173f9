"""A particle filter over replays: many engines live through the log, those that contradict it die out.

Each particle is an engine with its requests, step costs and a speed. Window by window (a window is the time between two
statistics lines) every particle proposes what happened: lengths whose sum meets the prompt tokens of the window, a speed
that meets the generated ones. What then differs from the line's gauges decides who goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from logscope.inference.windows.corrections import Corrections, Draft, Ids
from logscope.inference.windows.lengths import LengthModel, OutputShape
from logscope.inference.windows.observations import Observations, Window
from logscope.inference.windows.particles import Node, Particle, Plan, WindowFit, log_likelihood, tempering, with_owed
from logscope.inference.windows.portion import under_pressure
from reference_engine.cost.step_time import CostFit, Floats
from reference_engine.sketch.engine import SketchReplay
from reference_engine.sketch.hybrid import make_sketch
from reference_engine.sketch.request import Lengths, SketchRules

__all__ = ["ParticleFilter"]

_LOOK_EVERY = 12  # proposals between two looks at how much the speed matters
_MEMORY = 0.93  # of a window's speed in the next one
_FORGETTING = 0.9  # of the tokens owed, from window to window
_RESTLESS = 0.06  # step of an output shape from window to window (log)
_IN_FLIGHT = 0.3  # chance that the last arrivals of a window are not in any finished step


class ParticleFilter:
    """One pass over a log.

    Args:
        seen: windows and arrivals.
        rules: the engine.
        lengths: beliefs about the requests' lengths.
        costs: what is believed of the step costs; every particle draws its own and lets them drift.
        plan: sizes and spreads.
        rng: the only source of chance.
        share: the part of the arrivals that comes to this engine, where others in the same server take the rest.
        latent_arrivals: the arrivals are candidates, of which some came.
    """

    def __init__(
        self,
        seen: Observations,
        rules: SketchRules,
        lengths: LengthModel,
        costs: CostFit,
        plan: Plan,
        rng: np.random.Generator,
        share: float = 1.0,
        latent_arrivals: bool = False,
    ) -> None:
        self.seen = seen
        self.rules = rules
        self.lengths = lengths
        self.costs = costs
        self.plan = plan
        self.rng = rng
        self.share = share
        self.latent_arrivals = latent_arrivals
        self.corrections = Corrections(lengths, rng, share, latent_arrivals)
        self.fits: list[WindowFit] = []
        self._proposed = 0
        self._low = np.array([a.low for a in seen.arrivals])
        self._high = np.array([a.high for a in seen.arrivals])
        ends = np.array([w.end for w in seen.windows])
        self._window_of = np.searchsorted(ends, (self._low + self._high) / 2, side="left")
        self._aborts = {i: a.abort for i, a in enumerate(seen.arrivals) if a.abort is not None}
        self._new = [np.flatnonzero(self._window_of == k) for k in range(len(ends) + 1)]

    def run(self, progress: Callable[[float], None] | None = None) -> list[Particle]:
        """Live through all windows, then to the end of the last request; returns the particles, equally likely."""
        particles = [self._fresh() for _ in range(self.plan.particles)]
        count = len(self.seen.windows)
        for k, window in enumerate(self.seen.windows):
            tries = 1 if self._idle(k) else self.plan.proposals
            proposed = [self._propose(particle, k, window) for particle in particles for _ in range(tries)]
            particles = self._select(proposed)
            if progress is not None:
                progress((k + 1) / (count + 1))
        return [self._to_the_end(particle) for particle in particles]

    def _idle(self, k: int) -> bool:
        """Whether nothing happened in a window: there is nothing to choose between."""
        window = self.seen.windows[k]
        return not (window.running or window.waiting or window.generated_tokens or len(self._new[k]))

    def _fresh(self) -> Particle:
        cost = self.costs.draw(self.rng, self.plan.cost_sd)
        return Particle(make_sketch(self.rules, cost), cost, self.lengths.shape(self.rng))

    # ---- choosing ----

    def _select(self, proposed: list[Particle]) -> list[Particle]:
        """Weigh, temper so that enough different ones go on, and resample systematically."""
        logs = np.array([p.log_weight for p in proposed])
        logs = logs - logs.max()
        exponent = tempering(logs, 0.35 * self.plan.particles)
        weights = np.exp(exponent * logs)
        weights /= weights.sum()
        self.fits.append(self._fit(proposed, weights, exponent))
        steps = (self.rng.random() + np.arange(self.plan.particles)) / self.plan.particles
        picks = np.minimum(np.searchsorted(np.cumsum(weights), steps), len(proposed) - 1)
        return [proposed[int(i)] for i in picks]

    def _fit(self, proposed: list[Particle], weights: Floats, exponent: float) -> WindowFit:
        def mean(values: list[float]) -> float:
            return float(np.dot(weights, np.array(values)))

        nodes = [p.node for p in proposed if p.node is not None]
        return WindowFit(
            running=mean([p.engine.shown_running for p in proposed]),
            waiting=mean([p.engine.shown_waiting for p in proposed]),
            kv_usage=mean([p.engine.usage for p in proposed]),
            generated=mean([n.generated for n in nodes]),
            credited=mean([n.credited for n in nodes]),
            tempering=exponent,
            best=max(p.log_weight for p in proposed),
        )

    # ---- proposing ----

    def _propose(self, particle: Particle, k: int, window: Window) -> Particle:
        window = with_owed(window, particle.owed)
        belief = self._speed_belief(particle, k)
        draft = self._draft(particle, k, window, belief)
        redraws = self._redraws(draft)
        best: Particle | None = None
        rounds = 1 if self._idle(k) else self.plan.rounds
        turn = 0
        while turn < rounds:
            engine = self._live(particle, k, window, draft, redraws)
            generated = engine.generated - draft.before[0]
            credited = engine.credited - draft.before[1]
            log_weight = log_likelihood(window, engine, generated, credited)
            if draft.stall_end is None:
                log_weight -= 0.25 * ((draft.speed - belief[0]) / max(belief[1], 0.05)) ** 2
            else:
                log_weight -= 4.0
            log_weight -= self.corrections.strain(draft, redraws) + min(draft.hidden, 8.0)
            if best is None or log_weight > best.log_weight:
                best = self._outcome(particle, k, draft, engine, log_weight)
            turn += 1
            if turn < rounds and not self.corrections.correct(
                particle, window, draft, redraws, belief, engine, generated, credited, self._after_a_hole(k)
            ):
                break
            if draft.stall_end is not None:
                rounds = self.plan.rounds + 2
        if best is None or best.node is None:
            raise AssertionError("a proposal has at least one round")
        self._proposed += 1
        if self._proposed % _LOOK_EVERY == 0 and draft.stall_end is None:
            best.node.known = self._look(particle, k, window, draft, redraws, best)
        return best

    def _look(
        self, particle: Particle, k: int, window: Window, draft: Draft, redraws: dict[int, int], best: Particle
    ) -> float:
        """How much a speed that is a tenth lower would change the line."""
        before = draft.speed
        draft.speed = best.speed + 0.1
        slower = self._live(particle, k, window, draft, redraws)
        draft.speed = before
        told = Window(
            window.start,
            window.end,
            best.engine.shown_running,
            best.engine.shown_waiting,
            None,
            best.node.generated if best.node is not None else 0.0,
            best.engine.usage,
        )
        generated = float(slower.generated - draft.before[0])
        return -2.0 * log_likelihood(told, slower, generated, 0.0)

    def _speed_belief(self, particle: Particle, k: int) -> tuple[float, float]:
        """Mean and spread of the logarithm of the speed in a window."""
        if self.plan.speeds is not None:
            means, spreads = self.plan.speeds
            return float(means[k]), float(spreads[k])
        before = self.seen.windows[k - 1].generated_tokens if k else None
        spread = self.plan.speed_sd if before is None or before >= 20 else 2.5 * self.plan.speed_sd
        return _MEMORY * particle.speed, spread

    def _draft(self, particle: Particle, k: int, window: Window, belief: tuple[float, float]) -> Draft:
        """First guess: lengths that sum up to what was credited, for as many requests as must have been admitted."""
        engine = particle.engine
        queued = [r.id for r in engine.unstarted()]
        new = self._new[k]
        shape = particle.shape.near(self.rng, _RESTLESS) if self.lengths.latent_outputs else particle.shape
        here = np.ones(len(queued) + len(new), dtype=np.bool_)
        if self.latent_arrivals:
            here[len(queued) :] = self._came(particle, k, window, shape)
        elif self.share < 1.0:
            here[len(queued) :] = self.rng.random(len(new)) < self.share
        untouched = np.concatenate([np.array(queued, dtype=np.int64), new])
        refused = engine.refused()
        # of those without a step so far as many are admitted as do not wait at the end, the refused ones first
        admitted = max(0, int(here.sum()) + len(refused) - window.waiting)
        refused = refused[:admitted]
        admitted = min(admitted - len(refused), int(here.sum()))
        late = min(len(new), admitted)
        if late and float(self.rng.random()) < _IN_FLIGHT:
            # the step under way does not show: a long prefill and who came after it
            admitted -= int(self.rng.integers(1, min(late, 3) + 1))
        scale = shape.scale if self.latent_arrivals else 1.0
        own = self.lengths.draw(self.rng, untouched, scale)
        if admitted and window.prompt_tokens:
            pending = sum(r.credit for r in engine.in_prefill())
            pending += sum(r.prompt - (0 if self.rules.credits_hits else r.shared) for r in refused)
            target = window.prompt_tokens - pending
            if self.rules.credits_hits:
                target -= admitted * self.lengths.sharing.tokens
            among = np.flatnonzero(here)[:admitted]
            own[among] = self.lengths.draw_total(self.rng, untouched[among], max(target, admitted), scale)
        groups = max(1, self.lengths.sharing.groups)
        draft = Draft(
            untouched=untouched,
            queued=len(queued),
            own=own,
            outputs=self.lengths.draw_outputs(self.rng, untouched, shape),
            groups=self.rng.integers(0, groups, len(untouched)),
            times=self._at_once(new, window) if self._bursts(window, k) else self._times(new),
            cost=self.costs.drift(particle.cost, self.rng, self.plan.cost_sd),
            here=here,
            shape=shape,
            so_far={r.id: engine.output_of(r) for r in [*engine.running, *engine.waiting]},
            speed=belief[0] + belief[1] * float(self.rng.standard_normal()),
        )
        if particle.stalled:
            draft.stall_end = window.start + float(self.rng.random()) * 0.9 * (window.end - window.start)
            if not window.generated_tokens:
                draft.stall_end = window.end + float(self.rng.random()) * 5.0
        return draft

    def _came(self, particle: Particle, k: int, window: Window, shape: OutputShape) -> npt.NDArray[np.bool_]:
        """Which of the candidates of a window came: as many as the change of those present and those that ended make up."""
        new = self._new[k]
        came = np.zeros(len(new), dtype=np.bool_)
        if not len(new):
            return came
        old = self._high[new] <= self.seen.windows[0].start if k == 0 else came
        engine = particle.engine
        present = len(engine.running) + len(engine.waiting) + len(engine.pending) + int(old.sum())
        length = shape.scale * self.lengths.output_mean
        ended = (window.generated_tokens or 0.0) / max(length, 1.0)
        count = window.running + window.waiting - present + ended
        variance = 0.25 + ended * min(shape.spread**2 + 0.1, 1.0)
        if window.prompt_tokens is not None and not (self.rules.v0 and under_pressure(window)):
            # prompts were computed for those that were admitted: who came is these, and by how many more wait now
            variation = math.expm1(float(self.lengths.sd_log[0]) ** 2)
            prompt = shape.scale * math.exp(float(self.lengths.mean_log[0])) * math.sqrt(1.0 + variation)
            admitted = window.prompt_tokens / max(prompt, 1.0)
            waited = len(engine.waiting) + len(engine.pending)
            blur = 0.1 + admitted * min(variation + 0.1, 2.0)
            count = np.average([count, admitted + window.waiting - waited], weights=[1 / variance, 1 / blur])
            variance = 1.0 / (1.0 / variance + 1.0 / blur)
        count += math.sqrt(variance) * float(self.rng.standard_normal())
        free = np.flatnonzero(~old)
        count = min(max(round(count), 0), len(free))
        came[:] = old
        came[self.rng.choice(free, count, replace=False)] = True
        return came

    def _bursts(self, window: Window, k: int) -> bool:
        """Whether the new ones of a window are supposed to have come at one moment: likelier where far more are present than before."""
        if not self.latent_arrivals:
            return False
        before = self.seen.windows[k - 1] if k else None
        was = before.running + before.waiting if before else 0
        now = window.running + window.waiting
        return now >= 3 * was + 6 and float(self.rng.random()) < 0.5

    def _at_once(self, who: Ids, window: Window) -> Floats:
        """Arrival times within two seconds somewhere in a window."""
        spread = 2.0 * float(self.rng.random()) ** 2
        start = window.start + float(self.rng.random()) * max(0.0, window.end - window.start - spread)
        times = np.sort(start + spread * self.rng.random(len(who)))
        return np.where(self._high[who] <= self.seen.windows[0].start, self._high[who], times)

    def _drawn_new(self, k: int) -> Ids:
        """Arrivals of a window that come to this engine."""
        new = self._new[k]
        return new if self.share >= 1.0 else new[self.rng.random(len(new)) < self.share]

    def _times(self, who: Ids) -> Floats:
        """Arrival times between the bounds; those with equal bounds in order."""
        if not len(who):
            return np.zeros(0)
        low, high = self._low[who], self._high[who]
        times = low + self.rng.random(len(who)) * (high - low)
        start = 0
        for i in range(1, len(who) + 1):
            if i == len(who) or low[i] != low[start] or high[i] != high[start]:
                times[start:i] = np.sort(times[start:i])
                start = i
        return np.asarray(np.maximum.accumulate(times))

    def _redraws(self, draft: Draft) -> dict[int, int]:
        """New output lengths for requests under way: all that is known of them is that they go on."""
        if not self.lengths.latent_outputs:
            return {}
        return {
            request: self.lengths.redraw_output(self.rng, request, output, draft.shape)
            for request, output in draft.so_far.items()
            if output
        }

    def _live(self, particle: Particle, k: int, window: Window, draft: Draft, redraws: dict[int, int]) -> SketchReplay:
        """Fork the particle's engine and let it live through the window as drafted."""
        engine = particle.engine.fork()
        sharing = self.lengths.sharing
        shared = sharing.tokens if sharing.groups else 0
        sizes = [
            Lengths(int(own) + shared, int(out), shared, int(group) if shared else -1)
            for own, out, group in zip(draft.own, draft.outputs, draft.groups, strict=True)
        ]
        for request, lengths in zip(list(engine.unstarted()), sizes, strict=False):
            request.resize(lengths)
        for i, lengths in enumerate(sizes[draft.queued :]):
            if not draft.here[draft.queued + i]:
                continue
            request_id = int(draft.untouched[draft.queued + i])
            at = float(draft.times[i])
            engine.add(request_id, lengths, at, self._aborts.get(request_id))
        if redraws:
            for request in [*engine.running, *engine.waiting]:
                if request.id in redraws:
                    engine.set_output_limit(request, redraws[request.id])
        engine.cost = draft.cost.scaled(math.exp(draft.speed))
        engine.given = window.given
        if draft.stall_end is not None:
            if particle.stalled:
                engine.end_step_at(draft.stall_end)
            else:
                engine.stall = (draft.stall_from, draft.stall_end)
        if self._after_a_hole(k):
            engine.advance(window.start)
        draft.before = (engine.generated, engine.credited)
        engine.advance(window.end)
        return engine

    def _after_a_hole(self, k: int) -> bool:
        """Whether lines are missing before a window, so that nothing is known of a stretch."""
        return k > 0 and self.seen.windows[k].start > self.seen.windows[k - 1].end + 0.5

    def _outcome(self, particle: Particle, k: int, draft: Draft, engine: SketchReplay, log_weight: float) -> Particle:
        base = particle.engine
        stalled = draft.stall_end is not None and draft.stall_end > self.seen.windows[k].end
        node = Node(
            parent=particle.node,
            window=k,
            cost=draft.cost,
            speed=draft.speed,
            work=[b - a for a, b in zip(base.work, engine.work, strict=True)],
            busy=engine.busy - base.busy,
            generated=engine.generated - draft.before[0],
            credited=engine.credited - draft.before[1],
            preempted_at=engine.preempted_at,
            done=engine.done,
            known=-1.0,
            stalled=draft.stall_end is not None,
        )
        arrived = particle.arrived + int(draft.here[draft.queued :].sum())
        told = self.seen.windows[k].generated_tokens
        owed = _FORGETTING * particle.owed + ((told - node.generated) if told is not None else 0.0)
        return Particle(engine, draft.cost, draft.shape, draft.speed, node, log_weight, stalled, arrived, owed)

    # ---- after the last line ----

    def _to_the_end(self, particle: Particle) -> Particle:
        """What arrived after the last statistics line, and whatever was still under way, by belief alone."""
        tail = self._drawn_new(len(self.seen.windows)) if not self.latent_arrivals else np.zeros(0, dtype=np.int64)
        engine = particle.engine.fork()
        sharing = self.lengths.sharing
        shared = sharing.tokens if sharing.groups else 0
        own = self.lengths.draw(self.rng, tail)
        outputs = self.lengths.draw_outputs(self.rng, tail, particle.shape)
        groups = self.rng.integers(0, max(1, sharing.groups), len(tail))
        for i, at in enumerate(self._times(tail)):
            lengths = Lengths(int(own[i]) + shared, int(outputs[i]), shared, int(groups[i]) if shared else -1)
            engine.add(int(tail[i]), lengths, float(at), self._aborts.get(int(tail[i])))
        speed = _MEMORY * particle.speed
        engine.cost = particle.cost.scaled(math.exp(speed))
        engine.advance(math.inf)
        node = Node(
            parent=particle.node,
            window=len(self.seen.windows),
            cost=particle.cost,
            speed=speed,
            work=[b - a for a, b in zip(particle.engine.work, engine.work, strict=True)],
            busy=engine.busy - particle.engine.busy,
            generated=engine.generated - particle.engine.generated,
            credited=engine.credited - particle.engine.credited,
            preempted_at=engine.preempted_at,
            done=engine.done,
            known=-1.0,
        )
        return Particle(engine, particle.cost, particle.shape, speed, node, arrived=particle.arrived + len(tail))
