"""The accounts of one change: how the running list before a step can have become what the step scheduled.

`Explanations.of` lists them with their costs (see `iteration_costs`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from logscope.inference.steps.costs import ExplanationCosts
from logscope.inference.steps.state import Hypothesis

__all__ = ["MARGIN", "Explanation", "Explanations"]

MARGIN = 6.0  # of cost over the cheapest, within which an explanation stays in the race
_FEW = 12  # requests of which every pair is looked at
_HOPELESS = 9.0
_CHOICES = 5  # ways to say who it was, for one way to say how many


@dataclass(frozen=True, slots=True)
class Explanation:
    """One way to explain a change. Numbers are places in the running list as it was.

    `complete`: prompts and recomputations that ended with the step before; `finished`: reached their limit with it; `lifted`:
    reached it and go on; `leavers`: ended for a reason of their own, at step `left_at`; `anybody`: so many more ended, nothing tells who;
    `evicted`: places of the victims, in order; `resumed`: places in the queue; `new`: admitted for the first time.
    """

    cost: float
    complete: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    lifted: tuple[int, ...] = ()
    leavers: tuple[int, ...] = ()
    anybody: int = 0
    left_at: int = 0
    evicted: tuple[int, ...] = ()
    resumed: tuple[int, ...] = ()
    new: int = 0


class Explanations(ExplanationCosts):
    """Lists accounts for a log's steps."""

    def of(self, state: Hypothesis, k: int, ceiling: float) -> Iterator[Explanation]:
        """All accounts that agree with the counts of step k and cost no more than `ceiling`, nor `MARGIN` more than the cheapest."""
        self._ceiling = ceiling
        for explanation in self._all(state, k):
            if explanation.cost <= self._ceiling:
                self._ceiling = min(self._ceiling, explanation.cost + MARGIN)
                yield explanation

    def _all(self, state: Hypothesis, k: int) -> Iterator[Explanation]:
        self.forget()
        prompts = [i for i, r in enumerate(state.running) if r.phase == "prefill"]
        resumes = [i for i, r in enumerate(state.running) if r.phase == "recompute"]
        full = self.total[k - 1] >= self.rules.budget > 0
        last = state.running[-1].phase if state.running else ""
        decoding = [
            i for i, r in enumerate(state.running) if r.limit and r.phase == "decode" and r.outputs(k - 1) >= r.limit
        ]
        for going in range(len(prompts) + 1):
            for redoing in range(len(resumes) + 1):
                if self.rules.threshold:
                    cost = self._chunk_cost(k - 1, len(prompts) - going, len(prompts), full)
                    cost += 0.1 * redoing
                else:
                    cost = self._open_cost(full and last == "prefill", going)
                    cost += self._open_cost(full and last == "recompute", redoing)
                if cost > _HOPELESS:
                    continue
                for more, complete in self._completions(prompts, resumes, going, redoing):
                    forced = decoding + [
                        i
                        for i in complete
                        if state.running[i].limit and state.running[i].out + 1 >= state.running[i].limit
                    ]
                    base = Explanation(cost + more, complete, tuple(forced))
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
        missing = threshold * self.context[step] - self.context_tokens[step]
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
        self, state: Hypothesis, k: int, base: Explanation, going: int, redoing: int
    ) -> Iterator[Explanation]:
        carried = self.context[k] - going
        alive = len(state.running) - len(base.finished)
        for resumed in self._resumable(state):
            if self.rules.resumed_as_context:
                new = carried - len(resumed)
            else:
                new = carried - sum(1 for i in resumed if state.waiting[i].out == 0)
            if new < 0:
                continue
            extra = alive + new + len(resumed) - self.requests[k]
            if self.rules.threshold and abs(extra) > 1:
                continue
            cost = self._admit_cost(state, k, going, redoing, resumed, new)
            if base.cost + cost > 2 * _HOPELESS:
                continue
            yield from self._ended(state, k, replace(base, cost=base.cost + cost, resumed=resumed, new=new), extra)

    def _resumable(self, state: Hypothesis) -> Iterator[tuple[int, ...]]:
        """Which of the evicted may run again: the first ones; by priority any one or two, or all."""
        places = range(len(state.waiting))
        if not self.rules.priority:
            for count in range(len(state.waiting) + 1):
                yield tuple(range(count))
            return
        for count in range(min(2, len(state.waiting)) + 1):
            yield from combinations(places, count)
        for count in range(3, len(state.waiting) + 1):
            yield tuple(range(count))

    def _with_eviction(
        self, state: Hypothesis, k: int, base: Explanation, going: int, redoing: int
    ) -> Iterator[Explanation]:
        gone = len(state.running) - len(base.finished) - self.requests[k]
        staying = [i for i in range(len(state.running)) if i not in base.finished]
        for evicted in range(1, min(gone + 1, len(staying)) + 1):
            for victims in self._victims(staying, evicted):
                cut = sum(1 for i in victims if i not in base.complete and state.running[i].phase == "prefill")
                if self.context[k] != going - cut:
                    continue
                cost = base.cost + self._evict_cost(state, k, victims)
                if self.excess[k] and not redoing:
                    cost += 8.0
                yield from self._ended(state, k, replace(base, cost=cost, evicted=victims), gone - evicted)

    def _victims(self, staying: list[int], count: int) -> Iterator[tuple[int, ...]]:
        """Victims are taken from the end of the running list; by priority it may be anyone."""
        last = tuple(reversed(staying[-count:]))
        yield last
        if self.rules.priority and count == 1:
            yield from ((i,) for i in staying if (i,) != last)

    # -- who ended ----------------------------------------------------------------------------------

    def _ended(self, state: Hypothesis, k: int, base: Explanation, extra: int) -> Iterator[Explanation]:
        """Say who ended besides those at their limit: `extra` more, or fewer."""
        if base.cost > self._ceiling:
            return
        if extra == 0:
            yield base
            return
        if extra < 0:
            if -extra <= len(base.finished):
                yield replace(
                    base, cost=base.cost - 5.0 * extra, finished=base.finished[-extra:], lifted=base.finished[:-extra]
                )
            return
        taken = {*base.finished, *base.evicted}
        able = [
            i for i, r in enumerate(state.running) if i not in taken and (r.phase == "decode" or i in base.complete)
        ]
        aborted = [
            i for i, r in enumerate(state.running) if i not in taken and r.request >= 0 and self.gone[r.request] <= k
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
            if len(able) >= extra:  # two requests were taken for one another before; it is open which
                yield replace(base, anybody=extra)
            return
        base = replace(base, cost=base.cost + 0.3 * extra)
        yield from self._by_themselves(state, base, extra, free)
        if self.late and self.unlimited:
            # a limit of which the log says nothing is foreseen by the scheduler
            yield from self._by_themselves(state, replace(base, left_at=k - 1), extra, free)

    def _by_themselves(
        self, state: Hypothesis, base: Explanation, extra: int, free: list[int]
    ) -> Iterator[Explanation]:
        freed, doubt = self.freed(state, base.left_at)
        if freed is None:
            fits = [i for i in free if self._limit_fits(state, i, base.left_at)]
            if self.rules.priority and extra == 1 and fits:
                for place in fits[:_CHOICES]:
                    yield replace(base, leavers=(*base.leavers, place))
                return
            yield replace(base, anybody=extra)
            return
        if freed <= 0.5 + self.error + doubt:
            base = replace(base, cost=base.cost + 3.0)
        if extra > 2 or self.rules.shared:
            yield replace(base, anybody=extra)
        else:
            yield from self._fitting(state, base, extra, free, freed, doubt)

    def _sets(
        self, able: list[int], held: list[tuple[int, bool, float]], extra: int, freed: float
    ) -> Iterator[tuple[int, ...]]:
        """Who may have ended together: all sets, or of many requests those pairs whose blocks come near."""
        if extra < 2 or len(able) <= _FEW:
            yield from combinations(able, extra)
            return
        order = sorted(able, key=lambda i: held[i][0])
        blocks = [held[i][0] for i in order]
        for place, one in enumerate(order):
            near = bisect_left(blocks, freed - blocks[place])
            for other in order[max(place + 1, near - 1) : max(place + 1, near + 2)]:
                yield tuple(sorted((one, other)))

    def _fitting(
        self, state: Hypothesis, base: Explanation, extra: int, able: list[int], freed: float, doubt: float
    ) -> Iterator[Explanation]:
        """Those whose blocks fit what was freed, the best few."""
        step = base.left_at + self.late
        held = self._held_by(state, step)
        freed -= sum(held[place][0] for place in base.finished)
        spread = 0.35 + self.error + doubt
        found: list[tuple[float, tuple[int, ...]]] = []
        for some in self._sets(able, held, extra, freed):
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
            if self.rules.priority:
                cost += sum(3.0 for p in some if not self._limit_fits(state, p, base.left_at))
            found.append((cost, some))
        found.sort()
        for cost, some in found[:_CHOICES]:
            yield replace(base, cost=base.cost + cost, leavers=(*base.leavers, *some))
