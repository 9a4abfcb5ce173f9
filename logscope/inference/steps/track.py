"""Who ran in which step: the scheduler's queue and running list, rebuilt from what each step scheduled.

With first come, first served the counts of a step say nearly all. Requests are admitted in the order of their
arrival, victims are taken from the end of the running list and return to the head of the queue, and a running
request gets a token in every step. `track` follows that from step to step: between two steps it looks for accounts of
the change (finished, evicted, resumed, admitted, prompts that go on) and keeps the few that go least against the rules,
so that a later step may still decide between them.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from logscope.inference.steps.arrivals import Arrivals
from logscope.inference.steps.explanations import MARGIN, Explanation, Explanations
from logscope.inference.steps.observed import History, Rules, Steps, Track
from logscope.inference.steps.state import Hypothesis, LiveRequest

__all__ = ["track"]

_KEPT = 12
_MISSED = 8  # requests that may have come and gone while lines are missing
_NEARLY = 3.0  # of cost, within which it counts for the bounds


def track(steps: Steps, arrivals: Arrivals, rules: Rules, seed: int = 0, kept: int = _KEPT) -> Track:
    """Follow the steps; the histories stand in the order of admission."""
    if not len(steps):
        return Track(())
    return _Search(steps, arrivals, rules, seed, kept).run()


class _Search:
    def __init__(self, steps: Steps, arrivals: Arrivals, rules: Rules, seed: int, kept: int) -> None:
        self.explanations = Explanations(steps, arrivals, rules)
        self.arrivals, self.rules, self.kept = arrivals, rules, kept
        self.count = len(steps)
        self.limit = arrivals.limit.tolist()
        self.exact = arrivals.exact.tolist()
        self.gone = arrivals.gone.tolist()
        self.aborts = sorted({int(p) for p in self.gone if p < self.count})
        self.position: list[int] = arrivals.position.tolist()
        self.gauges = arrivals.gauges if arrivals.known else ()
        self.gauge = 0
        self.draw = random.Random(seed)  # noqa: S311 - not for secrets

    def run(self) -> Track:
        states = [self._begin()]
        for k in self._eventful():
            states = self._advance(states, k)
        for state in states:
            state.close(self.count - 1)
        return self._result(states)

    def _result(self, states: list[Hypothesis]) -> Track:
        best = min(states, key=lambda s: s.cost)
        near = [s.evictions for s in states if s.cost <= best.cost + _NEARLY]
        histories = best.histories()
        if self.rules.priority:
            histories = _named(histories, range(self.arrivals.before, len(self.limit)))
        return Track(
            histories=histories, cost=best.cost, low=min(near), high=max(near), blind_steps=sum(self.explanations.lost)
        )

    def _eventful(self) -> Iterator[int]:
        """Steps at which something came, went, or was recomputed; in all others each running request got a token."""
        view = self.explanations
        n, c, excess = np.array(view.requests), np.array(view.context), np.array(view.excess)
        busy = (c > 0) | (excess > 0)
        eventful = busy.copy()
        eventful[1:] |= busy[:-1] | (np.diff(n) != 0)
        eventful |= np.array(view.lost) > 0
        for position in self.aborts:
            eventful[position : position + 3] = True
        return iter((np.flatnonzero(eventful[1:]) + 1).tolist())

    def _begin(self) -> Hypothesis:
        state = Hypothesis()
        for _ in range(self.explanations.generation[0]):
            live = LiveRequest(state.numbers, -1, 0, False, "decode", 0, 0, -1, before_log=True)
            state.numbers += 1
            state.running.append(live)
        for _ in range(self.explanations.context[0]):
            self._admit(state, 0)
        self._share(state, 0)
        return state

    def _advance(self, states: list[Hypothesis], k: int) -> list[Hypothesis]:
        for state in states:
            self._before(state, k)
        self._weigh(states, k)
        if self.explanations.lost[k]:
            return self._cross(states, k)
        ways: list[tuple[float, int, Hypothesis, Explanation]] = []
        cheapest = math.inf
        for state in states:
            for explanation in self.explanations.of(state, k, cheapest + MARGIN - state.cost):
                cheapest = min(cheapest, state.cost + explanation.cost)
                ways.append((state.cost + explanation.cost, len(ways), state, explanation))
        if not ways:
            best = min(states, key=lambda s: s.cost)
            return [self._start_over(best, k)]
        ways.sort(key=lambda w: w[:2])
        ends = ways[0][0] + MARGIN
        next_states: list[Hypothesis] = []
        seen = set()
        for cost, _, state, explanation in ways:
            if cost > ends or len(next_states) >= self.kept:
                break
            new = state.copy()
            new.cost = cost
            self._apply(new, k, explanation)
            signature = new.signature()
            if signature not in seen:
                seen.add(signature)
                next_states.append(new)
        return next_states

    def _before(self, state: Hypothesis, k: int) -> None:
        """Requests that were aborted while they waited are gone."""
        if self.aborts and self.aborts[0] < k:
            for live in [r for r in state.waiting if r.request >= 0 and self.gone[r.request] < k]:
                state.waiting.remove(live)
                state.done = ((live, live.spans, k - 1, live.out, True), state.done)

    def _weigh(self, states: list[Hypothesis], k: int) -> None:
        """What the statistics lines before this step say of the queue."""
        while self.gauge < len(self.gauges) and self.gauges[self.gauge][0] < k:
            step, waiting = self.gauges[self.gauge]
            self.gauge += 1
            came = bisect_left(self.position, step)
            for state in states:
                off = abs(len(state.waiting) + max(0, came - state.next_new) - waiting)
                state.cost += min(6.0, 1.5 * max(0, off - 1))

    def _cross(self, states: list[Hypothesis], k: int) -> list[Hypothesis]:
        """Lines of some steps are missing: everybody got a token in each, and who came and went meanwhile is open."""
        found = []
        came = bisect_left(self.position, k)
        for state in states:
            passed = self._passed(state, k)
            for missed in range(min(_MISSED, max(0, came - passed.next_new)) + 1):
                new = passed.copy()
                new.next_new += missed
                new.cost += 2.0 + 0.5 * missed
                self._join(new, k)
                found.append(new)
        found.sort(key=lambda s: s.cost)
        return found[: max(self.kept, _MISSED + 1)]

    def _passed(self, state: Hypothesis, k: int) -> Hypothesis:
        """The state after the missing steps, those gone who must have reached their limit."""
        new = state.copy()
        lost = self.explanations.lost[k]
        for place, live in enumerate(new.running):
            if live.phase == "decode":
                new.running[place] = replace(live, mark=live.mark - lost)
            else:
                new.complete(place, k - 1)
                live = new.running[place]
                new.running[place] = replace(live, mark=live.mark - max(0, lost - 1))
        for place in reversed(range(len(new.running))):
            live = new.running[place]
            if live.limit and live.outputs(k - 1) >= live.limit:
                new.running[place] = replace(live, out=live.limit, mark=k - 1)
                new.finish(place, k - 1, False)
        return new

    def _join(self, state: Hypothesis, k: int) -> None:
        """Bring the running list to what step k scheduled."""
        view = self.explanations
        while len(state.running) > view.generation[k]:
            left = [r.limit - r.outputs(k - 1) if r.limit else 0 for r in state.running]
            state.finish(left.index(min(left)), k - 1, False)
        lacking = view.generation[k] - len(state.running)
        for i in range(lacking):
            if state.waiting:
                state.resume(0, k)
            else:
                self._admit(state, k)
            live = state.running[-1]
            out = live.out + max(1, round(view.lost[k] * (lacking - i) / (lacking + 1)))
            # when it began is not known, so neither is when it reaches its limit
            state.running[-1] = replace(live, phase="decode", out=out, mark=k - 1, limit=0, exact=False)
        for _ in range(view.context[k]):
            self._admit(state, k)
        self._share(state, k)

    # -- applying an explanation ----------------------------------------------------------------------

    def _apply(self, state: Hypothesis, k: int, explanation: Explanation) -> None:
        for place in explanation.complete:
            state.complete(place, k - 1)
        lifted = {state.running[p].number for p in explanation.lifted}
        state.running = [replace(r, limit=0, exact=False) if r.number in lifted else r for r in state.running]
        ended = [(place, k - 1) for place in explanation.finished]
        ended += [(place, explanation.left_at) for place in self._leavers(state, explanation)]
        if len(ended) == 1 and not explanation.anybody:
            self._learn_blocks(state, *ended[0])
        evicted = [state.running[place].number for place in explanation.evicted]
        for place, step in sorted(ended, reverse=True):
            if self.rules.priority:
                self._name(state, place, step)
            live = state.running[place]
            aborted = live.request >= 0 and self.gone[live.request] <= k
            state.finish(place, max(step, live.mark), aborted)
        for number in evicted:
            state.evict([r.number for r in state.running].index(number), k)
        numbers = [state.waiting[place].number for place in explanation.resumed]
        for number in numbers:
            state.resume([r.number for r in state.waiting].index(number), k)
        for _ in range(explanation.new):
            self._admit(state, k)
        self._share(state, k)

    def _name(self, state: Hypothesis, place: int, step: int) -> None:
        """A request has ended: its length tells who it was."""
        live = state.running[place]
        if live.request < 0 and not live.before_log:
            view = self.explanations
            request = state.match(live, step, view.by_limit, view.position)
            if request is not None:
                state.name(place, request)

    def _leavers(self, state: Hypothesis, explanation: Explanation) -> Sequence[int]:
        """Who left for no known reason; where nothing tells, anybody."""
        if not explanation.anybody:
            return explanation.leavers
        taken = {*explanation.finished, *explanation.leavers, *explanation.evicted}
        able = [i for i, r in enumerate(state.running) if r.phase == "decode" and i not in taken and not r.exact]
        able = able or [i for i in range(len(state.running)) if i not in taken]
        some = self.draw.sample(able, min(explanation.anybody, len(able)))
        return (*explanation.leavers, *some)

    def _learn_blocks(self, state: Hypothesis, place: int, step: int) -> None:
        """What a request gave back tells its length to within a block."""
        live = state.running[place]
        if live.group < 0 or state.prompt(live)[1] or self.rules.shared:
            return
        freed, doubt = self.explanations.freed_in(state, step)
        if freed is None or doubt > 1.0 or self.explanations.error > 1.0:
            return
        size = max(1, self.rules.block_size)
        prompt = round((freed - 0.5) * size) - live.outputs(step) + 1
        group = state.groups[live.group]
        most = group.tokens - group.known_tokens - (group.members - group.known - 1)
        state.running[place] = state.learn(live, min(max(1, prompt), max(1, most)))

    def _admit(self, state: Hypothesis, k: int) -> None:
        while state.next_new < len(self.gone) and self.gone[state.next_new] < k:
            state.next_new += 1  # aborted while it waited
        number = state.numbers
        state.numbers += 1
        if state.next_new >= len(self.gone):
            state.running.append(LiveRequest(number, -1, 0, False, "prefill", k))
            return
        i = state.next_new
        state.next_new += 1
        if i < self.arrivals.before:
            state.running.append(LiveRequest(number, -1, 0, False, "prefill", k, before_log=True))
            return
        if self.rules.priority:
            state.running.append(LiveRequest(number, -1, 0, False, "prefill", k))
            return
        exact = self.exact[i] or (self.rules.exact_limits and self.limit[i] > 0)
        state.running.append(LiveRequest(number, i, self.limit[i], exact, "prefill", k))

    def _share(self, state: Hypothesis, k: int) -> None:
        """Note who shared the step's context tokens and its recomputed ones."""
        view = self.explanations
        prompts = [i for i, r in enumerate(state.running) if r.phase == "prefill"]
        resumed = [i for i, r in enumerate(state.running) if r.phase == "recompute"]
        tokens, rough = view.context_tokens[k], False
        if self.rules.resumed_as_context:
            resumed = [i for i in resumed if state.running[i].start == k]
            alone = not prompts and len(resumed) == 1
            for i in resumed:
                live = state.running[i]
                if alone and live.start == k and self._whole(k) and not state.prompt(live)[1]:
                    state.running[i] = live = state.learn(live, max(1, tokens - live.out), exact=True)
                prompt, sure = state.prompt(live)
                tokens -= round(prompt) + live.out
                rough |= not sure or self.rules.caching
        elif resumed and view.excess[k]:
            alone = len(resumed) == 1 and state.running[resumed[0]].start == k
            if alone and self._whole(k):
                live = state.running[resumed[0]]
                if not state.prompt(live)[1]:
                    prompt = max(1, view.excess[k] - live.out + 1)
                    state.running[resumed[0]] = state.learn(live, prompt, exact=True)
        if prompts:
            state.share(k, prompts, max(tokens, len(prompts)), rough)

    def _whole(self, k: int) -> bool:
        """Nothing cut the recomputations of a step, and no cache spared one."""
        budget = self.rules.budget
        if self.rules.caching or self.rules.threshold:
            return False
        return self.explanations.total[k] < budget or not budget

    def _start_over(self, state: Hypothesis, k: int) -> Hypothesis:
        """No explanation fits: keep those who can have stayed, and take the rest as new."""
        new = self._passed(state, k)
        new.cost += 20.0
        self._join(new, k)
        return new


def _named(histories: Sequence[History], requests: Sequence[int]) -> tuple[History, ...]:
    """Requests in order of arrival for the histories in order of admission: a mean wait is right in any order, and this spreads least."""
    left = iter(requests)
    return tuple(h if h.before_log or not h.spans else replace(h, request=next(left, -1)) for h in histories)
