"""What an explanation of a change asks one to believe: blocks that must have been freed, room that must have lacked.

A cost is in the unit of a log-likelihood: 0 for what the rules foretell, more for what they do not.
"""

from __future__ import annotations

from bisect import bisect_left
from math import log

import numpy as np

from logscope.inference.steps.arrivals import Arrivals
from logscope.inference.steps.observed import Rules, Steps
from logscope.inference.steps.state import Hypothesis, LiveRequest

__all__ = ["ExplanationCosts"]

_SOON = 200  # steps before the log's end in which an evicted request may still wait


class ExplanationCosts:
    """Looks at a log's steps. The lists `context`, `context_tokens`, `generation`, `requests`, `total`, `excess`, `used`, `lost` are the steps' own figures.

    What it reckons of a state is kept until `forget`.
    """

    def __init__(self, steps: Steps, arrivals: Arrivals, rules: Rules) -> None:
        self.rules = rules
        self.count = len(steps)
        self.context: list[int] = steps.context.tolist()
        self.context_tokens: list[int] = steps.context_tokens.tolist()
        self.generation: list[int] = steps.generation.tolist()
        self.excess: list[int] = steps.excess.tolist()
        self.total: list[int] = steps.tokens.tolist()
        self.requests: list[int] = steps.requests.tolist()
        self.used: list[float] = steps.used.tolist()
        self.error = steps.used_error
        self.lost: list[int] = steps.lost.tolist()
        self.position: list[int] = arrivals.position.tolist()
        self.gone: list[int] = arrivals.gone.tolist()
        self.known = arrivals.known
        self.by_limit: dict[int, list[int]] = {}
        for i, limit in enumerate(arrivals.limit.tolist()):
            self.by_limit.setdefault(limit, []).append(i)
        self.unlimited = not len(arrivals) or bool((arrivals.limit == 0).any())
        self.size = max(1, rules.block_size)
        alone = (steps.context == 1) & (steps.tokens < (rules.budget or np.inf))
        self.prompts: list[int] = sorted(steps.context_tokens[alone].tolist())
        redone = np.flatnonzero(steps.excess)
        self.last_redone = int(redone[-1]) if len(redone) else -1
        # The asynchronous scheduler frees what stopped by itself one step later, and its usage figure holds the next step's blocks.
        self.late = 1 if rules.asynchronous else 0
        # of the state and step that `of` looks at, by step
        self._grown: dict[int, tuple[float, float]] = {}
        self._held: dict[int, list[tuple[int, bool, float]]] = {}
        self._ceiling = 0.0

    def forget(self) -> None:
        """Another state, or another step, is looked at from now on."""
        self._grown.clear()
        self._held.clear()

    def _limit_fits(self, state: Hypothesis, place: int, step: int) -> bool:
        """Some request that may be this one ends just here."""
        return state.match(state.running[place], step, self.by_limit, self.position) is not None

    def freed_in(self, state: Hypothesis, step: int) -> tuple[float | None, float]:
        """As `freed`, for any state at any time."""
        self.forget()
        return self.freed(state, step)

    def freed(self, state: Hypothesis, step: int) -> tuple[float | None, float]:
        """Blocks given back with a step's end: the fall of the use, and what was taken in the same time."""
        drop = self._drop(step)
        if drop is None:
            return None, 0.0
        grown, doubt = self._growth(state, step + self.late)
        return drop + grown, doubt

    def _drop(self, step: int) -> float | None:
        """Blocks by which the use fell with a step's end; None where the lines do not say."""
        if step < 1 or step >= self.count:
            return None
        drop = self.used[step - 1] - self.used[step]
        return drop if drop == drop else None

    # -- blocks -------------------------------------------------------------------------------------

    def blocks(self, state: Hypothesis, live: LiveRequest, step: int) -> tuple[int, bool]:
        """Blocks that a request holds during a step, and whether its length is certain."""
        prompt, sure = state.prompt(live)
        return -(-(round(prompt) + max(0, live.outputs(step) - 1)) // self.size), sure

    def _held_by(self, state: Hypothesis, step: int) -> list[tuple[int, bool, float]]:
        """For each running request: blocks that it holds, whether that is certain, and how many are in doubt."""
        if step not in self._held:
            found = []
            for live in state.running:
                blocks, sure = self.blocks(state, live, step)
                found.append((blocks, sure, 0.0 if sure else state.prompt(live)[0] / self.size))
            self._held[step] = found
        return self._held[step]

    def _growth(self, state: Hypothesis, step: int) -> tuple[float, float]:
        """Blocks taken in a step, and how uncertain that is; reckoned once for a state."""
        if step not in self._grown:
            self._grown[step] = self._growth_of(state, step)
        return self._grown[step]

    def _growth_of(self, state: Hypothesis, step: int) -> tuple[float, float]:
        if step >= self.count:
            return 0.0, 0.0
        grown = doubt = 0.0
        for live in state.running:
            if live.phase == "decode" and step > live.mark:
                prompt, sure = state.prompt(live)
                if sure:
                    grown += (round(prompt) + live.outputs(step) - 2) % self.size == 0
                else:
                    grown += 1.0 / self.size
                    doubt += 1.0 / self.size
        for tokens, many in ((self.context_tokens[step], self.context[step]), (self.excess[step] + 1, 1)):
            if tokens <= 1:
                continue
            if many == 1:
                grown += -(-tokens // self.size)
            else:
                grown += tokens / self.size + 0.5 * many
                doubt += 0.1 * many
        return grown, doubt**0.5

    # -- costs ----------------------------------------------------------------------------------------

    def _evict_cost(self, state: Hypothesis, k: int, victims: tuple[int, ...]) -> float:
        """Blocks are only taken away when they lack, and the victim's are given back."""
        seen = k - self.late
        drop = self._drop(seen)
        cost = (0.5 if drop is None else 0.2) * len(victims)
        if not self.rules.resumed_as_context and k > self.last_redone and k < self.count - _SOON:
            cost += 8.0  # nothing was recomputed after it
        if drop is None:
            return cost
        free = self.rules.usable - self.used[seen - 1]
        needed = len(state.running) + 1
        if self.context[k - 1]:
            needed += self.total[k - 1] // self.size
        if free - self.error > needed:
            cost += 12.0
        if self.rules.shared:
            return cost
        blocks, sure = 0, True
        for place in victims:
            many, certain = self.blocks(state, state.running[place], k - 1)
            blocks += many
            sure &= certain and state.running[place].phase == "decode"
        if sure:
            # others may have finished with the step, and so given back more, but not less
            grown, doubt = self._growth(state, k)
            short = blocks - grown - drop
            spread = 1.0 + self.error + doubt
            if short > 0:
                cost += min(6.0, 0.5 * (short / spread) ** 2)
            elif self.rules.priority:
                cost += min(2.0, 0.5 * (short / spread) ** 2)
        elif drop <= -self.error:
            cost += 1.0
        return cost

    def _admit_cost(
        self, state: Hypothesis, k: int, going: int, redoing: int, resumed: tuple[int, ...], new: int
    ) -> float:
        cost = 0.0
        redone = [state.waiting[i] for i in resumed if state.waiting[i].out]
        if self.rules.resumed_as_context:
            cost += self._sent_again_cost(state, k, going + new, redone)
            # only the first chunk is sent as new
            cost += 10.0 if self.excess[k] and not redoing else 0.0
        else:
            cost += self._redone_cost(state, k, redoing, redone)
        if len(resumed) < len(state.waiting) and not self.rules.priority:
            cost += 6.0 if new else self._head_cost(state, k, state.waiting[len(resumed)])
            return cost
        if self.known:
            cost += self._left_cost(state, k, new)
            here, known = state.next_new, len(self.position)
            # A damaged line may count more requests than there are: those that are not known are not gone through.
            cost += 3.0 * max(0, here + new - max(here, known))
            for i in range(here, min(here + new, known)):
                if self.position[i] > k + 1:
                    cost += 3.0
        return cost

    def _room(self, state: Hypothesis, k: int) -> float | None:
        """Blocks that were free when step k had been scheduled; None where something else than blocks ended the admission."""
        if self.requests[k] >= self.rules.seats > 0 or self.total[k] >= self.rules.budget > 0:
            return None
        before = self.used[k - 1]
        if self.late:  # what ended with the step before was still held
            before = max(before, self.used[k - 2]) if k >= 2 else before
        if before != before:
            return None
        grown = 0.0 if self.late else self._growth(state, k)[0]
        return self.rules.usable - before - grown - self.rules.watermark - self.error

    def _head_cost(self, state: Hypothesis, k: int, head: LiveRequest) -> float:
        """An evicted request is left waiting although its blocks are there."""
        room = self._room(state, k)
        if room is None or not head.out:  # evicted before its prompt was done: its length is not known
            return 0.0
        prompt, sure = state.prompt(head)
        need = (prompt + head.out) / self.size + 2.0
        if not sure:
            need *= 1.5
        return 3.0 if room >= need else 0.0

    def _left_cost(self, state: Hypothesis, k: int, new: int) -> float:
        """The first of the queue is left there although seats, budget and probably blocks are there."""
        first = state.next_new + new
        if first >= len(self.position) or self.position[first] >= k - 1:
            return 0.0
        if not state.running and not new:
            return 3.0
        room = self._room(state, k)
        if room is None:
            return 0.0
        longer = 1.0 - bisect_left(self.prompts, room * self.size) / max(1, len(self.prompts))
        return min(2.0, -0.5 * log(max(longer, 0.02)))

    def _sent_again_cost(self, state: Hypothesis, k: int, others: int, redone: list[LiveRequest]) -> float:
        """Resumed requests that are sent as new ones bring all their tokens as context."""
        if not redone or self.rules.caching:
            return 0.0
        expected, sure = 0.0, True
        for live in redone:
            prompt, certain = state.prompt(live)
            expected += min(prompt + live.out, self.rules.threshold or np.inf)
            sure &= certain
        tokens = self.context_tokens[k]
        cut = self.total[k] >= self.rules.budget > 0
        if (cut and tokens <= expected) or (others and tokens >= expected + others):
            return 0.0
        off = abs(tokens - expected)
        if sure:
            return 0.0 if off < 0.5 else min(8.0, 3.0 + 0.02 * off)
        return min(4.0, 0.5 * (off / (0.6 * expected + self.size)) ** 2)

    def _redone_cost(self, state: Hypothesis, k: int, redoing: int, redone: list[LiveRequest]) -> float:
        """Recomputed tokens of a step are those of the requests that resume in it."""
        excess = self.excess[k]
        if not redone:
            return 10.0 if excess and not redoing else 0.0
        if not excess:
            return 1.0 if self.rules.caching else 6.0
        if redoing or self.rules.caching:
            return 0.0
        expected, sure, least = 0.0, True, 0
        for live in redone:
            prompt, certain = state.prompt(live)
            expected += min(prompt + live.out, self.rules.threshold or np.inf) - 1
            least += min(live.out, self.rules.threshold or live.out)
            sure &= certain
        cut = self.total[k] >= self.rules.budget > 0
        if excess < least and not cut:
            return 8.0
        if cut and excess <= expected:
            return 0.0
        off = abs(excess - expected)
        if sure:
            return 0.0 if off < 0.5 else min(8.0, 3.0 + 0.02 * off)
        return min(4.0, 0.5 * (off / (0.6 * expected + self.size)) ** 2)
