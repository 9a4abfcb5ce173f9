"""A particle filter over replays: many engines live through the log, those that contradict it die out.

Each particle is an engine with its requests, step costs and a speed. Window by window (a window is the time between two
statistics lines) every particle proposes what happened: lengths whose sum meets the prompt tokens of the window, a speed
that meets the generated ones. What then differs from the line's gauges decides who goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from logscope.inference.lengths import Floats, LengthModel, summing_to
from logscope.inference.observations import Observations, Window
from logscope.inference.sketch import SketchReplay
from logscope.inference.sketch_requests import SketchRequest
from logscope.inference.sketch_rules import Lengths, SketchRules
from logscope.inference.step_times import CostFit, StepCost

__all__ = ["Node", "Particle", "ParticleFilter", "Plan", "WindowFit"]

Ids = npt.NDArray[np.int64]
_LOOK_EVERY = 12  # proposals between two looks at how much the speed matters
_MEMORY = 0.93  # of a window's speed in the next one
_FORGETTING = 0.9  # of the tokens owed, from window to window
_LONGEST_STEP = 8.0  # seconds that a long prompt may have been under way when a window ends
_IN_FLIGHT = 0.3  # chance that the last arrivals of a window are not in any finished step


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pass of the filter goes.

    `particles` go on after each window, each makes `proposals`; `cost_sd` is the least spread of the particles' step
    costs (log), `speed_sd` that of the speed from window to window; `speeds` are beliefs (mean, sd of the log) by window.
    """

    particles: int = 48
    proposals: int = 2
    rounds: int = 3
    cost_sd: float = 0.15
    speed_sd: float = 0.12
    speeds: tuple[Floats, Floats] | None = None


@dataclass(slots=True)
class Node:
    """What a particle did in one window, and where it came from. `work` as in `SketchReplay`; `speed` is a logarithm.

    `known`: how far the line would differ, in its spreads, had the speed been a tenth lower; negative where nobody looked.
    """

    parent: Node | None
    window: int
    cost: StepCost
    speed: float
    work: list[float]
    busy: float
    generated: float
    credited: float
    preempted_at: list[float]
    done: list[SketchRequest]
    known: float
    stalled: bool = False


@dataclass(slots=True)
class Particle:
    """An engine, its step costs, and its past. `arrived`: requests that came to it so far.

    `owed`: tokens that the log has more than the engine, over the last windows: it has to catch up.
    """

    engine: SketchReplay
    cost: StepCost
    speed: float = 0.0
    node: Node | None = None
    log_weight: float = 0.0
    stalled: bool = False
    arrived: int = 0
    owed: float = 0.0

    def past(self) -> list[Node]:
        """Its nodes, oldest first."""
        nodes = []
        node = self.node
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


@dataclass(frozen=True, slots=True)
class WindowFit:
    """What the particles say of a window, weighted: the gauges at its end and the tokens in it."""

    running: float
    waiting: float
    kv_usage: float
    generated: float
    credited: float
    tempering: float
    best: float


@dataclass(slots=True)
class _Draft:
    """A proposal in the making: lengths of the requests that no step has touched yet, arrival times of the new ones.

    `before`: tokens generated and credited when the window began. `here`: which of them come to this engine; `stretched`: by how much latent outputs were lengthened (log);
    `hidden`: what a late long prompt costs in likelihood, 0 where none was supposed.
    """

    untouched: Ids
    queued: int
    own: Floats
    outputs: Floats
    groups: Ids
    times: Floats
    cost: StepCost
    here: npt.NDArray[np.bool_]
    speed: float
    stall_from: int = 0
    stall_end: float | None = None
    stretched: float = 0.0
    hidden: float = 0.0
    before: tuple[int, int] = (0, 0)
    tried: list[tuple[float, float]] = field(default_factory=list)


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
    ) -> None:
        self.seen = seen
        self.rules = rules
        self.lengths = lengths
        self.costs = costs
        self.plan = plan
        self.rng = rng
        self.share = share
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
            proposed = [
                self._propose(particle, k, window)
                for particle in particles
                for _ in range(self.plan.proposals)
            ]
            particles = self._select(proposed, k)
            if progress is not None:
                progress((k + 1) / (count + 1))
        return [self._to_the_end(particle) for particle in particles]

    def _fresh(self) -> Particle:
        cost = self.costs.draw(self.rng, self.plan.cost_sd)
        return Particle(SketchReplay(self.rules, cost), cost)

    # ---- choosing ----

    def _select(self, proposed: list[Particle], k: int) -> list[Particle]:
        """Weigh, temper so that enough different ones go on, and resample systematically."""
        logs = np.array([p.log_weight for p in proposed])
        logs = logs - logs.max()
        tempering = _tempering(logs, 0.35 * self.plan.particles)
        weights = np.exp(tempering * logs)
        weights /= weights.sum()
        self.fits.append(self._fit(proposed, weights, tempering))
        steps = (self.rng.random() + np.arange(self.plan.particles)) / self.plan.particles
        picks = np.minimum(np.searchsorted(np.cumsum(weights), steps), len(proposed) - 1)
        return [proposed[int(i)] for i in picks]

    def _fit(self, proposed: list[Particle], weights: Floats, tempering: float) -> WindowFit:
        def mean(values: list[float]) -> float:
            return float(np.dot(weights, np.array(values)))

        nodes = [p.node for p in proposed if p.node is not None]
        return WindowFit(
            running=mean([p.engine.shown_running for p in proposed]),
            waiting=mean([p.engine.shown_waiting for p in proposed]),
            kv_usage=mean([p.engine.usage for p in proposed]),
            generated=mean([n.generated for n in nodes]),
            credited=mean([n.credited for n in nodes]),
            tempering=tempering,
            best=max(p.log_weight for p in proposed),
        )

    # ---- proposing ----

    def _propose(self, particle: Particle, k: int, window: Window) -> Particle:
        window = _with_owed(window, particle.owed)
        belief = self._speed_belief(particle, k)
        draft = self._draft(particle, k, window, belief)
        redraws = self._redraws(particle)
        best: Particle | None = None
        rounds = self.plan.rounds
        turn = 0
        while turn < rounds:
            engine = self._live(particle, k, window, draft, redraws)
            generated = engine.generated - draft.before[0]
            credited = engine.credited - draft.before[1]
            log_weight = _log_likelihood(window, engine, generated, credited)
            if draft.stall_end is None:
                log_weight -= 0.25 * ((draft.speed - belief[0]) / max(belief[1], 0.05)) ** 2
            else:
                log_weight -= 4.0
            log_weight -= self._strain(draft, redraws) + min(draft.hidden, 8.0)
            if best is None or log_weight > best.log_weight:
                best = self._outcome(particle, k, draft, engine, log_weight)
            turn += 1
            if turn < rounds and not self._correct(
                particle, k, window, draft, redraws, belief, engine, generated, credited
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

    def _strain(self, draft: _Draft, redraws: dict[int, int]) -> float:
        """How unlikely it is that all latent outputs are so much longer or shorter than drawn."""
        if not draft.stretched:
            return 0.0
        count = len(redraws) + int((self.lengths.outputs[draft.untouched] <= 0).sum())
        return 0.5 * count * (draft.stretched / self.lengths.output_log[1]) ** 2

    def _look(
        self,
        particle: Particle,
        k: int,
        window: Window,
        draft: _Draft,
        redraws: dict[int, int],
        best: Particle,
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
        return -2.0 * _log_likelihood(told, slower, generated, 0.0)

    def _speed_belief(self, particle: Particle, k: int) -> tuple[float, float]:
        """Mean and spread of the logarithm of the speed in a window."""
        if self.plan.speeds is not None:
            means, spreads = self.plan.speeds
            return float(means[k]), float(spreads[k])
        before = self.seen.windows[k - 1].generated_tokens if k else None
        spread = self.plan.speed_sd if before is None or before >= 20 else 2.5 * self.plan.speed_sd
        return _MEMORY * particle.speed, spread

    def _draft(
        self, particle: Particle, k: int, window: Window, belief: tuple[float, float]
    ) -> _Draft:
        """First guess: lengths that sum up to what was credited, for as many requests as must have been admitted."""
        queued = [r.id for r in particle.engine.unstarted()]
        new = self._new[k]
        chosen = self.rng.random(len(new)) < self.share if self.share < 1.0 else None
        here = np.ones(len(queued) + len(new), dtype=np.bool_)
        if chosen is not None:
            here[len(queued) :] = chosen
        untouched = np.concatenate([np.array(queued, dtype=np.int64), new])
        refused = particle.engine.refused()
        # of those without a step so far as many are admitted as do not wait at the end, the refused ones first
        admitted = max(0, int(here.sum()) + len(refused) - window.waiting)
        refused = refused[:admitted]
        admitted = min(admitted - len(refused), int(here.sum()))
        late = min(len(new), admitted)
        if late and float(self.rng.random()) < _IN_FLIGHT:
            # the step under way does not show: a long prefill and who came after it
            admitted -= int(self.rng.integers(1, min(late, 3) + 1))
        own = self.lengths.draw(self.rng, untouched)
        if admitted and window.prompt_tokens:
            pending = sum(r.credit for r in particle.engine.in_prefill())
            pending += sum(r.prompt - (0 if self.rules.credits_hits else r.shared) for r in refused)
            target = window.prompt_tokens - pending
            if self.rules.credits_hits:
                target -= admitted * self.lengths.sharing.tokens
            among = np.flatnonzero(here)[:admitted]
            own[among] = self.lengths.draw_total(self.rng, untouched[among], max(target, admitted))
        groups = max(1, self.lengths.sharing.groups)
        draft = _Draft(
            untouched=untouched,
            queued=len(queued),
            own=own,
            outputs=self.lengths.draw_outputs(self.rng, untouched),
            groups=self.rng.integers(0, groups, len(untouched)),
            times=self._times(new),
            cost=self.costs.drift(particle.cost, self.rng, self.plan.cost_sd),
            here=here,
            speed=belief[0] + belief[1] * float(self.rng.standard_normal()),
        )
        if particle.stalled:
            draft.stall_end = window.start + float(self.rng.random()) * 0.9 * (
                window.end - window.start
            )
            if not window.generated_tokens:
                draft.stall_end = window.end + float(self.rng.random()) * 5.0
        return draft

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

    def _redraws(self, particle: Particle) -> dict[int, int]:
        """New output lengths for requests under way: all that is known of them is that they go on."""
        if not self.lengths.latent_outputs:
            return {}
        engine = particle.engine
        return {
            r.id: self.lengths.redraw_output(self.rng, r.id, output)
            for r in [*engine.running, *engine.queue]
            if (output := engine.output_of(r))
        }

    def _live(
        self, particle: Particle, k: int, window: Window, draft: _Draft, redraws: dict[int, int]
    ) -> SketchReplay:
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
            for request in [*engine.running, *engine.queue]:
                if request.id in redraws:
                    engine.relimit(request, redraws[request.id])
        engine.cost = draft.cost.scaled(math.exp(draft.speed))
        if draft.stall_end is not None:
            if particle.stalled:
                engine.prolong(draft.stall_end)
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

    def _correct(
        self,
        particle: Particle,
        k: int,
        window: Window,
        draft: _Draft,
        redraws: dict[int, int],
        belief: tuple[float, float],
        engine: SketchReplay,
        generated: float,
        credited: float,
    ) -> bool:
        """Change the draft so that the sums come closer; False when they are met."""
        changed = not self._after_a_hole(k) and self._correct_prompts(
            window, draft, engine, credited
        )
        if self.share < 1.0:
            changed |= self._correct_share(window, draft, engine)
        elif self.lengths.latent_outputs:
            changed |= self._correct_outputs(window, draft, redraws, particle, engine)
        wanted = window.generated_tokens
        if wanted is None:
            return changed
        draft.tried.append((draft.speed, generated))
        if abs(generated - wanted) <= max(3.0, 0.01 * wanted):
            return changed
        if draft.stall_end is not None:
            return self._move_stall(window, draft, generated, wanted) or changed
        lots = generated > wanted + max(20.0, 0.05 * wanted)
        if lots and window.waiting == 0 and self._hide_late(window, draft):
            return True
        step = _speed_step(draft.tried, wanted)
        limit = 3.0 * belief[1]
        lacking = math.log(max(generated, 1.0) / max(wanted, 1.0))
        if window.running and generated > wanted + 50 and lacking > 2.0 * limit:
            self._stall(particle, window, draft, generated, wanted)
            return True
        speed = draft.speed + min(max(step, -0.4), 0.4)
        draft.speed = min(max(speed, belief[0] - limit), belief[0] + limit)
        return True

    def _hide_late(self, window: Window, draft: _Draft) -> bool:
        """Explain too few tokens by a long prompt whose step is under way at the end: whoever came after it waits."""
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
        draft.own = draft.own.copy()
        draft.own[chosen] = min(max(round(drawn), 1), self.lengths.longest)
        who = draft.untouched[chosen]
        away = math.log(draft.own[chosen]) - float(self.lengths.mean_log[who])
        draft.hidden = 0.5 * (away / float(self.lengths.sd_log[who])) ** 2 + 0.5
        draft.tried = []
        return True

    def _stall(
        self, particle: Particle, window: Window, draft: _Draft, generated: float, wanted: float
    ) -> None:
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

    def _move_stall(self, window: Window, draft: _Draft, generated: float, wanted: float) -> bool:
        """Let the long step end so much later or earlier as tokens are too many or too few."""
        end = draft.stall_end
        if end is None or end >= window.end:
            return False
        rate = max(generated, wanted, 1.0) / max(window.end - end, 1.0)
        moved = end + (generated - wanted) / rate
        draft.stall_end = min(max(moved, window.start), window.end - 0.05)
        return True

    def _correct_prompts(
        self, window: Window, draft: _Draft, engine: SketchReplay, credited: float
    ) -> bool:
        wanted = window.prompt_tokens
        if wanted is None or abs(credited - wanted) <= 2:
            return False
        rest = {r.id for r in engine.unstarted()}
        rest.update(r.id for r in engine.in_prefill())
        rest.update(r.id for r in engine.refused())
        inside = np.array(
            [
                i
                for i, request in enumerate(draft.untouched)
                if draft.here[i] and int(request) not in rest
            ],
            dtype=np.int64,
        )
        if not len(inside):
            return False
        target = wanted - (credited - float(draft.own[inside].sum()))
        if target < len(inside):
            return False
        known = self.lengths.prompts[draft.untouched[inside]]
        draft.own = draft.own.copy()
        draft.own[inside] = summing_to(draft.own[inside], known, target, self.lengths.longest)
        return True

    def _correct_share(self, window: Window, draft: _Draft, engine: SketchReplay) -> bool:
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

    def _correct_outputs(
        self,
        window: Window,
        draft: _Draft,
        redraws: dict[int, int],
        particle: Particle,
        engine: SketchReplay,
    ) -> bool:
        """Shorten or lengthen what is left of latent outputs until as many finish as must have."""
        present = window.running + window.waiting
        surplus = engine.shown_running + engine.shown_waiting - present
        if abs(surplus) <= 1:
            return False
        ended = len(engine.done)
        factor = ((ended + 0.5) / max(ended + surplus + 0.5, 0.5)) ** 0.7
        factor = min(max(factor, 0.5), 2.0)
        base = particle.engine
        draft.stretched += math.log(factor)
        so_far = {r.id: base.output_of(r) for r in [*base.running, *base.queue]}
        for request, limit in redraws.items():
            left = limit - so_far.get(request, 0)
            most = float(self.lengths.limits[request])
            redraws[request] = int(min(so_far.get(request, 0) + max(1, round(left * factor)), most))
        known = self.lengths.outputs[draft.untouched]
        scaled = np.clip(np.rint(draft.outputs * factor), 1, self.lengths.limits[draft.untouched])
        draft.outputs = np.where(known > 0, known, scaled)
        return True

    def _outcome(
        self, particle: Particle, k: int, draft: _Draft, engine: SketchReplay, log_weight: float
    ) -> Particle:
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
        return Particle(engine, draft.cost, draft.speed, node, log_weight, stalled, arrived, owed)

    # ---- after the last line ----

    def _to_the_end(self, particle: Particle) -> Particle:
        """What arrived after the last statistics line, and whatever was still under way, by belief alone."""
        tail = self._drawn_new(len(self.seen.windows))
        engine = particle.engine.fork()
        sharing = self.lengths.sharing
        shared = sharing.tokens if sharing.groups else 0
        own = self.lengths.draw(self.rng, tail)
        outputs = self.lengths.draw_outputs(self.rng, tail)
        groups = self.rng.integers(0, max(1, sharing.groups), len(tail))
        for i, at in enumerate(self._times(tail)):
            lengths = Lengths(
                int(own[i]) + shared, int(outputs[i]), shared, int(groups[i]) if shared else -1
            )
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
        return Particle(engine, particle.cost, speed, node)


def _prompt_of(cost: StepCost, seconds: float) -> float:
    """Prompt tokens whose prefill takes so long."""
    base, linear, _decode, _kv, square = cost.coefficients
    rest = max(0.0, seconds / cost.scale - base)
    if square <= 0:
        return rest / linear
    return (math.sqrt(linear * linear + 4 * square * rest) - linear) / (2 * square)


def _with_owed(window: Window, owed: float) -> Window:
    """A window in which an engine that fell behind, or ran ahead, comes back to the log's total."""
    generated = window.generated_tokens
    if generated is None or not owed:
        return window
    most = 20.0 + 0.1 * generated
    return replace(window, generated_tokens=max(0.0, generated + min(max(0.7 * owed, -most), most)))


def _log_likelihood(
    window: Window, engine: SketchReplay, generated: float, credited: float
) -> float:
    """How well a window's line is met. The spreads are what one step more or less would change."""
    total = _square(engine.shown_running - window.running, 0.8 + 0.03 * window.running)
    total += _square(engine.shown_waiting - window.waiting, 0.8 + 0.04 * window.waiting)
    if window.kv_usage is not None:
        total += _usage_misfit(window, engine)
    if window.generated_tokens is not None:
        spread = 6.0 + 0.02 * window.generated_tokens
        total += _square(generated - window.generated_tokens, spread)
    if window.prompt_tokens is not None:
        spread = 15.0 + 0.03 * window.prompt_tokens
        total += _square(credited - window.prompt_tokens, spread)
    return -total / 2


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


def _tempering(logs: Floats, enough: float) -> float:
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
