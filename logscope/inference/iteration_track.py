"""Who ran in which step: the scheduler's queue and running list, rebuilt from what each step scheduled.

With first come, first served the counts of a step say nearly all. Requests are admitted in the order of their
arrival, victims are taken from the end of the running list and return to the head of the queue, and a running
request gets a token in every step. `track` follows that from step to step: between two steps it looks for the
cheapest account of the change (finished, evicted, resumed, admitted, prompts that go on), and applies it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from logscope.inference.iteration_steps import Arrivals, Steps

__all__ = ["History", "Rules", "Span", "Track", "track"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the scheduler was allowed to do. `usable` blocks without the null block, 0 for what is not known."""

    budget: int
    seats: int
    usable: int
    block_size: int
    threshold: int
    caching: bool
    asynchronous: bool
    resumed_as_context: bool  # the second model runner sends a resumed request as a new one
    exact_limits: bool  # requests run to their limit unless the steps say otherwise


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive steps of one kind in a request's life: "prefill", "decode" or "recompute", both ends included."""

    kind: str
    first: int
    last: int


@dataclass(slots=True)
class History:
    """One request through the steps. `request` is its place among the arrivals, -1 where the log has no line of it.

    `evicted`: the steps whose scheduling evicted it; `finished`: the step that delivered its last token;
    `outputs`: tokens delivered; `prompt`: prompt tokens computed, `redone`: those lost to evictions before the first token (both
    shared evenly where a step prefills several requests); `aborted`: the client went away; `lost`: (step, missing lines before it).
    """

    request: int
    spans: list[Span] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    finished: int | None = None
    outputs: int = 0
    prompt: float = 0.0
    redone: float = 0.0
    aborted: bool = False
    before_log: bool = False
    lost: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first_token(self) -> int | None:
        """The step that delivered the first token."""
        if self.before_log or not self.outputs:
            return None
        return next((s.last for s in reversed(self.spans) if s.kind == "prefill"), None)


@dataclass(slots=True)
class Track:
    """All histories, and how well the steps were explained.

    `cost`: how far from the rules the accounts had to go, summed over steps; `doubtful`: evictions that another account
    of nearly the same cost does without (or would add); `groups`: per step with prefill the histories that shared its context
    tokens; `resumes`: per step with recomputed tokens the histories that shared its excess.
    """

    histories: list[History]
    cost: float = 0.0
    doubtful: int = 0
    blind_steps: int = 0
    groups: list[tuple[int, list[int]]] = field(default_factory=list)
    resumes: list[tuple[int, list[int]]] = field(default_factory=list)

    @property
    def evictions(self) -> list[tuple[int, int]]:
        """(step, history) of each eviction, in order."""
        found = [(k, i) for i, h in enumerate(self.histories) for k in h.evicted]
        return sorted(found)


@dataclass(slots=True)
class _Live:
    number: int
    history: History
    limit: int
    exact: bool
    phase: str
    start: int
    out: int = 0
    mark: int = 0

    def outputs(self, step: int) -> int:
        """Tokens delivered by the end of a step."""
        return self.out + (step - self.mark) if self.phase == "decode" else self.out


@dataclass(slots=True)
class _Account:
    """One way to explain a change: prompts and recomputations that go on, and who left and came."""

    cost: float
    open_prompts: int = 0
    open_resumes: int = 0
    extra_finished: int = 0
    evicted: int = 0
    resumed: int = 0
    new: int = 0


def track(steps: Steps, arrivals: Arrivals, rules: Rules) -> Track:
    """Follow the steps; the histories stand in the order of admission."""
    return _Tracker(steps, arrivals, rules).run()


class _Tracker:
    def __init__(self, steps: Steps, arrivals: Arrivals, rules: Rules) -> None:
        self.rules, self.arrivals = rules, arrivals
        self.count = len(steps)
        self.c = steps.context.tolist()
        self.ct = steps.context_tokens.tolist()
        self.g = steps.generation.tolist()
        self.ex = steps.excess.tolist()
        self.total = steps.tokens.tolist()
        self.n = steps.requests.tolist()
        self.used = steps.used.tolist()
        self.error = steps.used_error
        self.lost = steps.lost.tolist()
        self.position = arrivals.position.tolist()
        self.gone = arrivals.gone.tolist()
        self.limit = arrivals.limit.tolist()
        self.exact = arrivals.exact.tolist()
        self.running: list[_Live] = []
        self.waiting: deque[_Live] = deque()
        self.next_new = 0
        self.track = Track([])
        # a stopped request of the asynchronous scheduler was scheduled once more before its last token was known
        self.late = 1 if rules.asynchronous else 0

    def run(self) -> Track:
        if not self.count:
            return self.track
        self._begin()
        for k in self._eventful():
            self._enter(k)
        self._end()
        return self.track

    # -- which steps need a look ------------------------------------------------------------------

    def _eventful(self) -> Iterator[int]:
        """Steps at which something came, went, or was recomputed; in all others each running request got a token."""
        n, c, ex = np.array(self.n), np.array(self.c), np.array(self.ex)
        busy = (c > 0) | (ex > 0)
        eventful = busy.copy()
        eventful[1:] |= busy[:-1] | (np.diff(n) != 0)
        eventful |= np.array(self.lost) > 0
        gone = np.array([p for p in self.gone if p < self.count], dtype=np.int64)
        for shift in (0, 1, 2):
            eventful[np.minimum(gone + shift, self.count - 1)] = True
        return iter(np.flatnonzero(eventful[1:]) + 1)

    # -- the first and the last step --------------------------------------------------------------

    def _begin(self) -> None:
        for _ in range(self.g[0]):
            live = self._unknown(0)
            live.phase = "decode"
            self.running.append(live)
        for _ in range(self.c[0]):
            self.running.append(self._admit_new(0))
        self._share(0)

    def _unknown(self, step: int) -> _Live:
        """A request that was running before the log's first step, or whose line is missing."""
        history = History(-1, before_log=True)
        live = _Live(len(self.track.histories), history, 0, False, "prefill", step, 0, step - 1)
        self.track.histories.append(history)
        return live

    def _end(self) -> None:
        last = self.count - 1
        full = self.total[last] == self.rules.budget
        for i, live in enumerate(list(self.running)):
            if live.phase != "decode" and not (full and i == len(self.running) - 1):
                self._complete(live, last)
        for live in self.running:
            live.history.outputs = live.outputs(last)
            if live.phase == "decode" and last >= live.start:
                live.history.spans.append(Span("decode", live.start, last))
            if live.limit and live.history.outputs >= live.limit:
                live.history.finished = last
        for live in self.waiting:
            live.history.outputs = live.out

    # -- one change -------------------------------------------------------------------------------

    def _enter(self, k: int) -> None:
        """Explain how the running list after step k - 1 became what step k scheduled."""
        if self.lost[k]:
            self._pass_over(k)
        prompts = [r for r in self.running if r.phase == "prefill"]
        resumes = [r for r in self.running if r.phase == "recompute"]
        accounts = sorted(self._accounts(k, prompts, resumes), key=lambda a: a.cost)
        if not accounts:
            self._start_over(k, prompts, resumes)
            return
        best = accounts[0]
        self.track.cost += best.cost
        for other in accounts[1:]:
            if other.cost > best.cost + 1.0:
                break
            if other.evicted != best.evicted:
                self.track.doubtful += abs(other.evicted - best.evicted)
                break
        self._apply(k, best, prompts, resumes)

    def _accounts(self, k: int, prompts: list[_Live], resumes: list[_Live]) -> Iterator[_Account]:
        """All accounts that agree with the counts of step k."""
        rules = self.rules
        full = self.total[k - 1] >= rules.budget > 0
        last = self.running[-1].phase if self.running else ""
        for open_prompts in range(len(prompts) + 1):
            for open_resumes in range(len(resumes) + 1):
                cost = self._open_cost(full and last == "prefill", open_prompts)
                cost += self._open_cost(full and last == "recompute", open_resumes)
                if cost > 9 and not self.lost[k]:
                    continue
                forced = self._forced(k, prompts, resumes, open_prompts, open_resumes)
                alive = len(self.running) - len(forced)
                base = _Account(cost, open_prompts, open_resumes)
                yield from self._without_eviction(k, base, alive)
                yield from self._with_eviction(k, base, alive, forced)

    def _open_cost(self, expected: bool, count: int) -> float:
        """A prompt goes on in the next step when the budget cut it; with a threshold several may."""
        if expected:
            return 4.0 if count == 0 else 6.0 * (count - 1)
        return (0.5 if self.rules.threshold else 6.0) * count

    def _without_eviction(self, k: int, base: _Account, alive: int) -> Iterator[_Account]:
        carried = self.c[k] - base.open_prompts
        for resumed in range(len(self.waiting) + 1):
            if self.rules.resumed_as_context:
                new = carried - resumed
            else:
                new = carried - sum(1 for i in range(resumed) if self.waiting[i].out == 0)
            if new < 0:
                continue
            extra = alive + new + resumed - self.n[k]
            cost = base.cost + self._finish_cost(k, extra) + self._admit_cost(k, base, resumed, new)
            yield _Account(cost, base.open_prompts, base.open_resumes, extra, 0, resumed, new)

    def _with_eviction(
        self, k: int, base: _Account, alive: int, forced: set[int]
    ) -> Iterator[_Account]:
        gone = alive - self.n[k]
        staying = [r for r in self.running if r.number not in forced]
        ending = [r.phase for r in reversed(staying)]
        for evicted in range(1, gone + 2):
            if evicted > len(staying):
                break
            cut = min(base.open_prompts, ending[:evicted].count("prefill"))
            if self.c[k] != base.open_prompts - cut:
                continue
            extra = gone - evicted
            cost = base.cost + self._finish_cost(k, extra) + self._evict_cost(k, evicted)
            if self.ex[k] and not base.open_resumes:
                cost += 8.0
            yield _Account(cost, base.open_prompts, base.open_resumes, extra, evicted)

    def _finish_cost(self, k: int, extra: int) -> float:
        """Finishes that no limit foretells: they show as blocks given back, before the step that lacks the request."""
        if extra <= 0:
            return -5.0 * extra
        leaving = sum(
            1 for r in self.running if r.history.request >= 0 and self.gone[r.history.request] <= k
        )
        extra = max(0, extra - leaving)
        if self.lost[k]:
            return 0.5 * extra
        free = sum(1 for r in self.running if not r.exact)
        cost = 0.3 * min(extra, free) + 6.0 * max(0, extra - free)
        drop = self._drop(k - 1 - self.late)
        if extra and drop is not None and drop <= self.error:
            cost += 3.0
        return cost

    def _drop(self, step: int) -> float | None:
        """Blocks by which the use fell with a step's end; None where the lines do not say."""
        if step < 1:
            return None
        drop = self.used[step - 1] - self.used[step]
        return drop if drop == drop else None

    def _evict_cost(self, k: int, evicted: int) -> float:
        """Blocks are only taken away when they lack, and the use falls (or stays) as the victim's are given back."""
        seen = k - self.late
        drop = self._drop(seen)
        if drop is None:
            return 0.5 * evicted
        cost = 0.2 * evicted
        free = self.rules.usable - self.used[seen - 1]
        needed = len(self.running) + 1
        if self.c[k - 1]:
            needed += self.total[k - 1] // max(1, self.rules.block_size)
        if free - self.error > needed:
            cost += 12.0
        if drop <= -self.error:
            cost += 1.0
        return cost

    def _admit_cost(self, k: int, base: _Account, resumed: int, new: int) -> float:
        cost = 0.0
        if not self.rules.resumed_as_context:
            redone = sum(1 for i in range(resumed) if self.waiting[i].out)
            if redone and not self.ex[k]:
                cost += 1.0 if self.rules.caching else 6.0
            if self.ex[k] and not redone and not base.open_resumes:
                cost += 10.0
        if new and resumed < len(self.waiting):
            cost += 6.0
        here = self.next_new
        known = len(self.position)
        for i in range(here, here + new):
            if i >= known or self.position[i] > k + 1:
                cost += 3.0 if self.arrivals.known else 0.0
        return cost

    def _forced(
        self,
        k: int,
        prompts: list[_Live],
        resumes: list[_Live],
        open_prompts: int,
        open_resumes: int,
    ) -> set[int]:
        """Requests whose last token was delivered by step k - 1."""
        going_on = {r.number for r in prompts[len(prompts) - open_prompts :]}
        going_on |= {r.number for r in resumes[len(resumes) - open_resumes :]}
        forced = set()
        for live in self.running:
            if not live.limit or live.number in going_on:
                continue
            outputs = live.outputs(k - 1) + (live.phase != "decode")
            if outputs >= live.limit:
                forced.add(live.number)
        return forced

    # -- applying an account ----------------------------------------------------------------------

    def _apply(self, k: int, best: _Account, prompts: list[_Live], resumes: list[_Live]) -> None:
        forced = self._forced(k, prompts, resumes, best.open_prompts, best.open_resumes)
        for live in (
            *prompts[: len(prompts) - best.open_prompts],
            *resumes[: len(resumes) - best.open_resumes],
        ):
            self._complete(live, k - 1)
        for live in [r for r in self.running if r.number in forced]:
            if best.extra_finished < 0:  # it went on beyond what its line allows
                best.extra_finished += 1
                live.limit = 0
                live.exact = False
                continue
            self._finish(live, k - 1)
        for live in self._likely_finished(k, best.extra_finished):
            self._finish(live, max(k - 1 - self.late, live.mark))
        for _ in range(best.evicted):
            if self.running:
                self._evict(self.running.pop(), k)
        for _ in range(best.resumed):
            live = self.waiting.popleft()
            live.phase = "recompute" if live.out else "prefill"
            live.start = k
            self.running.append(live)
        for _ in range(best.new):
            self.running.append(self._admit_new(k))
        self._share(k)

    def _complete(self, live: _Live, step: int) -> None:
        """A prompt or a recomputation is done: the request got a token, from here on one a step."""
        live.history.spans.append(Span(live.phase, live.start, step))
        live.phase = "decode"
        live.out += 1
        live.mark = step
        live.start = step + 1

    def _finish(self, live: _Live, step: int) -> None:
        self.running.remove(live)
        live.history.outputs = live.outputs(step)
        live.history.finished = step
        if live.phase == "decode" and step >= live.start:
            live.history.spans.append(Span("decode", live.start, step))
        request = live.history.request
        live.history.aborted = request >= 0 and self.gone[request] <= step + 2

    def _evict(self, live: _Live, k: int) -> None:
        if live.phase == "decode":
            if k - 1 >= live.start:
                live.history.spans.append(Span("decode", live.start, k - 1))
        else:
            live.history.spans.append(Span(live.phase, live.start, k - 1))
            if live.phase == "prefill":
                live.history.redone += live.history.prompt
                live.history.prompt = 0.0
        live.out = live.outputs(k - 1)
        live.phase = "waiting"
        live.history.outputs = live.out
        live.history.evicted.append(k)
        self.waiting.appendleft(live)

    def _admit_new(self, k: int) -> _Live:
        while self.next_new < len(self.gone) and self.gone[self.next_new] < k:
            self.next_new += 1  # aborted while it waited
        if self.next_new >= len(self.position):
            live = self._unknown(k)
            live.history.before_log = False
            return live
        i = self.next_new
        self.next_new += 1
        history = History(i)
        exact = self.exact[i] or (self.rules.exact_limits and self.limit[i] > 0)
        live = _Live(len(self.track.histories), history, self.limit[i], exact, "prefill", k)
        self.track.histories.append(history)
        return live

    def _share(self, k: int) -> None:
        """Note who shared the step's context tokens and its recomputed ones."""
        members = [r for r in self.running if r.phase == "prefill"]
        resumed = [r for r in self.running if r.phase == "recompute"]
        if self.rules.resumed_as_context:
            members = members + resumed
        if members and self.ct[k]:
            self.track.groups.append((k, [r.number for r in members]))
            for live in members:
                if live.phase == "prefill":
                    live.history.prompt += self.ct[k] / len(members)
        if resumed and self.ex[k] and not self.rules.resumed_as_context:
            self.track.resumes.append((k, [r.number for r in resumed]))

    def _likely_finished(self, k: int, count: int) -> list[_Live]:
        """Who left without having reached a known limit: aborted ones first, then those whose blocks fit what was freed."""
        if count <= 0:
            return []
        able = [r for r in self.running if r.phase == "decode"]
        left = [r for r in able if r.history.request >= 0 and self.gone[r.history.request] <= k][
            :count
        ]
        count -= len(left)
        able = [r for r in able if r not in left and not r.exact] or [
            r for r in able if r not in left
        ]
        if not count or not able:
            return left
        step = k - 1 - self.late
        drop = self._drop(step)
        if drop is None or drop <= 0 or count > 2 or self.lost[k]:
            able.sort(key=lambda r: -r.outputs(k - 1))
            return left + able[:count]
        freed = drop + sum(self._grows(r, step) for r in self.running)
        choice = min(
            combinations(able, min(count, len(able))),
            key=lambda some: (
                abs(sum(self._blocks(r, step) for r in some) - freed),
                -sum(r.outputs(step) for r in some),
            ),
        )
        return left + list(choice)

    def _blocks(self, live: _Live, step: int) -> int:
        """Blocks that a request holds during a step."""
        size = max(1, self.rules.block_size)
        return -(-(round(live.history.prompt) + live.outputs(step) - 1) // size)

    def _grows(self, live: _Live, step: int) -> int:
        """1 where a decoding request took a new block in a step."""
        if live.phase != "decode" or step <= live.mark:
            return 0
        return self._blocks(live, step) - self._blocks(live, step - 1)

    # -- where the lines do not suffice -----------------------------------------------------------

    def _pass_over(self, k: int) -> None:
        """Lines of some steps are missing: everybody who ran got a token in each of them."""
        lost = self.lost[k]
        self.track.blind_steps += lost
        for live in self.running:
            if live.phase == "decode":
                live.mark -= lost
                live.history.lost.append((k, lost))

    def _start_over(self, k: int, prompts: list[_Live], resumes: list[_Live]) -> None:
        """No account fits (lines are missing): keep those who can have stayed, and take the rest as new."""
        self.track.cost += 20.0
        for live in (*prompts, *resumes):
            self._complete(live, k - 1)
        while len(self.running) > self.g[k]:
            able = [
                r for r in self.running if r.limit and r.outputs(k - 1) >= r.limit
            ] or self.running
            self._finish(able[0], k - 1)
        while len(self.running) < self.g[k]:
            live = self.waiting.popleft() if self.waiting else self._admit_new(k)
            live.phase, live.start, live.mark = "decode", k, k - 1
            self.running.append(live)
        for _ in range(self.c[k]):
            self.running.append(self._admit_new(k))
        self._share(k)
