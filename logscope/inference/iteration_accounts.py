"""The accounts of one change: how the running list before a step can have become what the step scheduled.

`Accounts.of` lists them with their costs. A cost is what an account asks one to believe, in the unit of a log-likelihood: 0 for
what the rules foretell, more for what they do not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import log

import numpy as np

from logscope.inference.iteration_arrivals import Arrivals
from logscope.inference.iteration_history import Rules
from logscope.inference.iteration_state import Live, State
from logscope.inference.iteration_steps import Steps

__all__ = ["MARGIN", "Account", "Accounts"]

MARGIN = 6.0  # of cost over the cheapest, within which an account stays in the race
_HOPELESS = 9.0
_SOON = 200  # steps before the log's end in which an evicted request may still wait
_CHOICES = 5  # ways to say who it was, for one way to say how many


@dataclass(frozen=True, slots=True)
class Account:
    """One way to explain a change. Numbers are places in the running list as it was.

    `complete`: prompts and recomputations that ended with the step before; `finished`: reached their limit with it; `lifted`:
    reached it and go on; `leavers`: ended for a reason of their own, at step `left_at`; `anybody`: so many more ended, nothing tells who;
    `evicted`: from the end of the list; `resumed` of the queue's head; `new`: admitted for the first time.
    """

    cost: float
    complete: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    lifted: tuple[int, ...] = ()
    leavers: tuple[int, ...] = ()
    anybody: int = 0
    left_at: int = 0
    evicted: int = 0
    resumed: int = 0
    new: int = 0


class Accounts:
    """Lists accounts for a log's steps. The lists `c`, `ct`, `g`, `n`, `total`, `excess`, `used`, `lost` are the steps' own figures."""

    def __init__(self, steps: Steps, arrivals: Arrivals, rules: Rules) -> None:
        self.rules = rules
        self.count = len(steps)
        self.c: list[int] = steps.context.tolist()
        self.ct: list[int] = steps.context_tokens.tolist()
        self.g: list[int] = steps.generation.tolist()
        self.excess: list[int] = steps.excess.tolist()
        self.total: list[int] = steps.tokens.tolist()
        self.n: list[int] = steps.requests.tolist()
        self.used: list[float] = steps.used.tolist()
        self.error = steps.used_error
        self.lost: list[int] = steps.lost.tolist()
        self.position: list[int] = arrivals.position.tolist()
        self.gone: list[int] = arrivals.gone.tolist()
        self.known = arrivals.known
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

    def of(self, state: State, k: int, ceiling: float) -> Iterator[Account]:
        """All accounts that agree with the counts of step k and cost no more than `ceiling`, nor `MARGIN` more than the cheapest."""
        self._ceiling = ceiling
        for account in self._all(state, k):
            if account.cost <= self._ceiling:
                self._ceiling = min(self._ceiling, account.cost + MARGIN)
                yield account

    def _all(self, state: State, k: int) -> Iterator[Account]:
        self._grown.clear()
        self._held.clear()
        prompts = [i for i, r in enumerate(state.running) if r.phase == "prefill"]
        resumes = [i for i, r in enumerate(state.running) if r.phase == "recompute"]
        full = self.total[k - 1] >= self.rules.budget > 0
        last = state.running[-1].phase if state.running else ""
        decoding = [
            i
            for i, r in enumerate(state.running)
            if r.limit and r.phase == "decode" and r.outputs(k - 1) >= r.limit
        ]
        for going in range(len(prompts) + 1):
            for redoing in range(len(resumes) + 1):
                if self.rules.threshold:
                    cost = self._chunk_cost(k - 1, len(prompts) - going, len(prompts), full)
                    cost += 0.1 * redoing
                else:
                    cost = self._open_cost(full and last == "prefill", going)
                    cost += self._open_cost(full and last == "recompute", redoing)
                if cost > _HOPELESS and not self.lost[k]:
                    continue
                for more, complete in self._completions(prompts, resumes, going, redoing):
                    forced = decoding + [
                        i
                        for i in complete
                        if state.running[i].limit
                        and state.running[i].out + 1 >= state.running[i].limit
                    ]
                    base = Account(cost + more, complete, tuple(forced))
                    yield from self._without_eviction(state, k, base, going, redoing)
                    yield from self._with_eviction(state, k, base, going, redoing)

    def _open_cost(self, expected: bool, count: int) -> float:
        """A prompt goes on in the next step when the budget cut it."""
        if expected:
            return 4.0 if count == 0 else 6.0 * (count - 1)
        return 12.0 * count

    def _chunk_cost(self, step: int, ended: int, prompts: int, cut: bool) -> float:
        """With a threshold a prompt's chunk is that long until its last, which is shorter but for chance."""
        if not prompts:
            return 0.0
        threshold = self.rules.threshold
        missing = threshold * self.c[step] - self.ct[step]
        fewest = -(-missing // max(1, threshold - 1)) - cut
        return 4.0 * max(0, fewest - ended) + (2.0 * ended if missing <= 0 else 0.0)

    def _completions(
        self, prompts: list[int], resumes: list[int], going: int, redoing: int
    ) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Which prompts and recomputations ended: the first ones, as the budget cuts the last; with a threshold perhaps others."""
        done = tuple(resumes[: len(resumes) - redoing])
        usual = tuple(prompts[: len(prompts) - going])
        yield 0.0, (*usual, *done)
        if self.rules.threshold and usual and going:
            others = [some for some in combinations(prompts, len(usual)) if some != usual]
            for some in others[: _CHOICES - 1]:
                yield 0.2, (*some, *done)

    # -- the two kinds of accounts ------------------------------------------------------------------

    def _without_eviction(
        self, state: State, k: int, base: Account, going: int, redoing: int
    ) -> Iterator[Account]:
        carried = self.c[k] - going
        alive = len(state.running) - len(base.finished)
        for resumed in range(len(state.waiting) + 1):
            if self.rules.resumed_as_context:
                new = carried - resumed
            else:
                new = carried - sum(1 for r in state.waiting[:resumed] if r.out == 0)
            if new < 0:
                continue
            extra = alive + new + resumed - self.n[k]
            if self.rules.threshold and abs(extra) > 1 and not self.lost[k]:
                continue
            cost = self._admit_cost(state, k, going, redoing, resumed, new)
            if base.cost + cost > 2 * _HOPELESS:
                continue
            yield from self._ended(
                state, k, replace(base, cost=base.cost + cost, resumed=resumed, new=new), extra
            )

    def _with_eviction(
        self, state: State, k: int, base: Account, going: int, redoing: int
    ) -> Iterator[Account]:
        gone = len(state.running) - len(base.finished) - self.n[k]
        staying = [i for i in range(len(state.running)) if i not in base.finished]
        for evicted in range(1, gone + 2):
            if evicted > len(staying):
                break
            victims = staying[-evicted:]
            cut = sum(
                1 for i in victims if i not in base.complete and state.running[i].phase == "prefill"
            )
            if self.c[k] != going - cut:
                continue
            cost = base.cost + self._evict_cost(state, k, victims)
            if self.excess[k] and not redoing:
                cost += 8.0
            yield from self._ended(
                state, k, replace(base, cost=cost, evicted=evicted), gone - evicted
            )

    # -- who ended ----------------------------------------------------------------------------------

    def _ended(self, state: State, k: int, base: Account, extra: int) -> Iterator[Account]:
        """Say who ended besides those at their limit: `extra` more, or fewer."""
        if base.cost > self._ceiling:
            return
        if extra == 0:
            yield base
            return
        if extra < 0:
            if -extra <= len(base.finished):
                yield replace(
                    base,
                    cost=base.cost - 5.0 * extra,
                    finished=base.finished[-extra:],
                    lifted=base.finished[:-extra],
                )
            return
        taken = {*base.finished}
        if base.evicted:
            staying = [i for i in range(len(state.running)) if i not in taken]
            taken |= set(staying[-base.evicted :])
        able = [
            i
            for i, r in enumerate(state.running)
            if i not in taken and (r.phase == "decode" or i in base.complete)
        ]
        aborted = [
            i
            for i, r in enumerate(state.running)
            if i not in taken and r.request >= 0 and self.gone[r.request] <= k
        ][:extra]
        extra -= len(aborted)
        able = [i for i in able if i not in aborted]
        base = replace(base, leavers=tuple(aborted), left_at=k - 1 - self.late)
        if not extra:
            yield base
            return
        free = [i for i in able if not state.running[i].exact]
        if len(free) < extra:
            base = replace(base, cost=base.cost + 6.0 * (extra - len(free)))
            if (
                len(able) >= extra
            ):  # two requests were taken for one another before; it is open which
                yield replace(base, anybody=extra)
            return
        base = replace(base, cost=base.cost + 0.3 * extra)
        yield from self._by_themselves(state, k, base, extra, free)
        if self.late and self.unlimited:
            # a limit of which the log says nothing is foreseen by the scheduler
            yield from self._by_themselves(state, k, replace(base, left_at=k - 1), extra, free)

    def _by_themselves(
        self, state: State, k: int, base: Account, extra: int, free: list[int]
    ) -> Iterator[Account]:
        freed, doubt = self.freed(state, base.left_at)
        if freed is None or self.lost[k]:
            yield replace(base, anybody=extra)
            return
        if freed <= 0.5 + self.error + doubt:
            base = replace(base, cost=base.cost + 3.0)
        if extra > 2 or self.rules.shared:
            yield replace(base, anybody=extra)
        else:
            yield from self._fitting(state, base, extra, free, freed, doubt)

    def freed_in(self, state: State, step: int) -> tuple[float | None, float]:
        """As `freed`, for any state at any time."""
        self._grown.clear()
        return self.freed(state, step)

    def freed(self, state: State, step: int) -> tuple[float | None, float]:
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

    def _fitting(
        self, state: State, base: Account, extra: int, able: list[int], freed: float, doubt: float
    ) -> Iterator[Account]:
        """Those whose blocks fit what was freed, the best few."""
        step = base.left_at + self.late
        held = self._held_by(state, step)
        freed -= sum(held[place][0] for place in base.finished)
        spread = 0.35 + self.error + doubt
        found: list[tuple[float, tuple[int, ...]]] = []
        for some in combinations(able, extra):
            total = sum(held[place][0] for place in some)
            off = total - freed
            if all(held[place][1] for place in some):
                cost = min(4.5, 0.5 * (off / spread) ** 2)
            else:
                share = sum(held[place][2] for place in some)
                cost = 1.0 + min(3.5, 0.5 * (off / (0.6 * share + 1.0)) ** 2)
                shortest = sum(state.running[p].outputs(step) for p in some) / self.size
                if freed + spread < shortest:
                    cost += 5.0
            found.append((cost, some))
        found.sort()
        for cost, some in found[:_CHOICES]:
            yield replace(
                base,
                cost=base.cost + cost,
                leavers=(*base.leavers, *some),
            )

    # -- blocks -------------------------------------------------------------------------------------

    def blocks(self, state: State, live: Live, step: int) -> tuple[int, bool]:
        """Blocks that a request holds during a step, and whether its length is certain."""
        prompt, sure = state.prompt(live)
        return -(-(round(prompt) + max(0, live.outputs(step) - 1)) // self.size), sure

    def _held_by(self, state: State, step: int) -> list[tuple[int, bool, float]]:
        """For each running request: blocks that it holds, whether that is certain, and how many are in doubt."""
        if step not in self._held:
            found = []
            for live in state.running:
                blocks, sure = self.blocks(state, live, step)
                found.append((blocks, sure, 0.0 if sure else state.prompt(live)[0] / self.size))
            self._held[step] = found
        return self._held[step]

    def _growth(self, state: State, step: int) -> tuple[float, float]:
        """Blocks taken in a step, and how uncertain that is; reckoned once for a state."""
        if step not in self._grown:
            self._grown[step] = self._growth_of(state, step)
        return self._grown[step]

    def _growth_of(self, state: State, step: int) -> tuple[float, float]:
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
        for tokens, many in ((self.ct[step], self.c[step]), (self.excess[step] + 1, 1)):
            if tokens <= 1:
                continue
            if many == 1:
                grown += -(-tokens // self.size)
            else:
                grown += tokens / self.size + 0.5 * many
                doubt += 0.1 * many
        return grown, doubt**0.5

    # -- costs ----------------------------------------------------------------------------------------

    def _evict_cost(self, state: State, k: int, victims: list[int]) -> float:
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
        if self.c[k - 1]:
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
            if short > 0:
                cost += min(6.0, 0.5 * (short / (1.0 + self.error + doubt)) ** 2)
        elif drop <= -self.error:
            cost += 1.0
        return cost

    def _admit_cost(
        self, state: State, k: int, going: int, redoing: int, resumed: int, new: int
    ) -> float:
        cost = 0.0
        redone = [r for r in state.waiting[:resumed] if r.out]
        if self.rules.resumed_as_context:
            cost += self._sent_again_cost(state, k, going + new, redone)
            # only the first chunk is sent as new
            cost += 10.0 if self.excess[k] and not redoing else 0.0
        else:
            cost += self._redone_cost(state, k, redoing, redone)
        if resumed < len(state.waiting):
            cost += 6.0 if new else self._head_cost(state, k, state.waiting[resumed])
            return cost
        if self.known:
            cost += self._left_cost(state, k, new)
            here, known = state.next_new, len(self.position)
            for i in range(here, here + new):
                if i >= known or self.position[i] > k + 1:
                    cost += 3.0
        return cost

    def _room(self, state: State, k: int) -> float | None:
        """Blocks that were free when step k had been scheduled; None where something else than blocks ended the admission."""
        if self.n[k] >= self.rules.seats > 0 or self.total[k] >= self.rules.budget > 0:
            return None
        before = self.used[k - 1]
        if self.late:  # what ended with the step before was still held
            before = max(before, self.used[k - 2]) if k >= 2 else before
        if before != before:
            return None
        grown = 0.0 if self.late else self._growth(state, k)[0]
        return self.rules.usable - before - grown - self.rules.watermark - self.error

    def _head_cost(self, state: State, k: int, head: Live) -> float:
        """An evicted request is left waiting although its blocks are there."""
        room = self._room(state, k)
        if room is None:
            return 0.0
        prompt, sure = state.prompt(head)
        need = (prompt + head.out) / self.size + 2.0
        if not sure:
            need *= 1.5
        return 3.0 if room >= need else 0.0

    def _left_cost(self, state: State, k: int, new: int) -> float:
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

    def _sent_again_cost(self, state: State, k: int, others: int, redone: list[Live]) -> float:
        """Resumed requests that are sent as new ones bring all their tokens as context."""
        if not redone or self.rules.caching:
            return 0.0
        expected, sure = 0.0, True
        for live in redone:
            prompt, certain = state.prompt(live)
            expected += min(prompt + live.out, self.rules.threshold or np.inf)
            sure &= certain
        tokens = self.ct[k]
        cut = self.total[k] >= self.rules.budget > 0
        if (cut and tokens <= expected) or (others and tokens >= expected + others):
            return 0.0
        off = abs(tokens - expected)
        if sure:
            return 0.0 if off < 0.5 else min(8.0, 3.0 + 0.02 * off)
        return min(4.0, 0.5 * (off / (0.6 * expected + self.size)) ** 2)

    def _redone_cost(self, state: State, k: int, redoing: int, redone: list[Live]) -> float:
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
