"""One hypothesis of the scheduler's state between two steps: the running list, the waiting queue, what has ended.

States are copied often and changed little: a request that changes is replaced, never altered in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from logscope.inference.steps.observed import History, Span

__all__ = ["Hypothesis", "LiveRequest", "PrefillGroup"]


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A request inside the engine. `phase`: "prefill", "decode", "recompute" or "waiting", since step `start`.

    `out` tokens were delivered by the end of step `mark`; a decoding request gets one a step since. `tokens`: of its prompt, as far
    as steps of its own tell; `group`: the requests with which it shared steps, -1 for none; `known`: its prompt's length where something tells.
    """

    number: int
    request: int
    limit: int
    exact: bool
    phase: str
    start: int
    out: int = 0
    mark: int = 0
    tokens: int = 0
    group: int = -1
    known: int | None = None
    redone: float = 0.0
    spans: tuple[Span, ...] = ()
    evicted: tuple[int, ...] = ()
    before_log: bool = False

    def outputs(self, step: int) -> int:
        """Tokens delivered by the end of a step."""
        return self.out + (step - self.mark) if self.phase == "decode" else self.out


@dataclass(frozen=True, slots=True)
class PrefillGroup:
    """Requests that were prefilled together: tokens of all, members, those of them that are known, and whether that is rough."""

    tokens: int = 0
    members: int = 0
    known_tokens: int = 0
    known: int = 0
    rough: bool = False

    @property
    def share(self) -> float:
        """The mean length of those that are not known."""
        left = self.tokens - self.known_tokens
        unknown = self.members - self.known
        return left / unknown if left > unknown > 0 else 1.0


class Hypothesis:
    """One hypothesis of who runs and who waits after a step. `done` is a chain of (history number, history, the chain before); `cost` grows with what goes against the rules."""

    __slots__ = ("cost", "done", "evictions", "groups", "next_new", "numbers", "running", "taken", "waiting")

    def __init__(self) -> None:
        self.running: list[LiveRequest] = []
        self.waiting: list[LiveRequest] = []
        self.done: Any = None
        self.groups: dict[int, PrefillGroup] = {}
        self.taken: frozenset[int] = frozenset()
        self.numbers = 0
        self.next_new = 0
        self.cost = 0.0
        self.evictions = 0

    def copy(self) -> Hypothesis:
        """A copy that shares what never changes."""
        new = Hypothesis.__new__(Hypothesis)
        for name in Hypothesis.__slots__:
            setattr(new, name, getattr(self, name))
        new.running = self.running.copy()
        new.waiting = self.waiting.copy()
        new.groups = self.groups.copy()
        return new

    def signature(self) -> tuple[Any, ...]:
        """Equal for states that will go on alike."""
        return (
            tuple((r.request, r.number if r.request < 0 else 0, r.out - r.mark, r.phase) for r in self.running),
            tuple((r.request, r.out) for r in self.waiting),
            self.next_new,
        )

    # -- lengths ----------------------------------------------------------------------------------

    def prompt(self, live: LiveRequest) -> tuple[float, bool]:
        """A request's prompt length in tokens, and whether it is certain."""
        if live.known is not None:
            return float(live.known), True
        if live.group < 0:
            return float(live.tokens), not live.before_log
        group = self.groups[live.group]
        return group.share, group.members - group.known <= 1 and not group.rough

    def learn(self, live: LiveRequest, prompt: int, exact: bool = False) -> LiveRequest:
        """A request's prompt length came to light, exactly or to within a block or so."""
        if live.known is None and live.group >= 0:
            group = self.groups[live.group]
            self.groups[live.group] = replace(
                group, known_tokens=group.known_tokens + prompt, known=group.known + 1, rough=group.rough or not exact
            )
        return replace(live, known=prompt)

    def share(self, step: int, members: list[int], tokens: int, rough: bool = False) -> None:
        """The prompts at these places of the running list were given `tokens` (or about so many) together in a step."""
        if len(members) == 1 and self.running[members[0]].group < 0 and not rough:
            place = members[0]
            live = self.running[place]
            self.running[place] = replace(live, tokens=live.tokens + tokens)
            return
        groups = sorted({self.running[i].group for i in members} - {-1})
        number = groups[0] if groups else step
        total = self.groups.get(number, PrefillGroup())
        for other in groups[1:]:
            gone = self.groups[other]
            total = PrefillGroup(
                total.tokens + gone.tokens,
                total.members + gone.members,
                total.known_tokens + gone.known_tokens,
                total.known + gone.known,
                total.rough or gone.rough,
            )
        total = replace(total, tokens=total.tokens + tokens, rough=total.rough or rough)
        for i in members:
            live = self.running[i]
            if live.group < 0:
                total = replace(total, tokens=total.tokens + live.tokens, members=total.members + 1)
            self.running[i] = replace(live, group=number, tokens=0)
        if len(groups) > 1:
            self.running = [replace(r, group=number) if r.group in groups else r for r in self.running]
            self.waiting = [replace(r, group=number) if r.group in groups else r for r in self.waiting]
            for other in groups[1:]:
                self.groups[other] = total
        self.groups[number] = total

    # -- who a request is, where the order of admission does not tell ------------------------------------

    def match(self, live: LiveRequest, step: int, by_limit: dict[int, list[int]], position: list[int]) -> int | None:
        """The first request not taken yet that ends after so many tokens and had come before this one was admitted."""
        admitted = live.spans[0].first if live.spans else live.start
        outputs = live.outputs(step) if live.phase == "decode" else live.out + 1
        for i in by_limit.get(outputs, ()):
            if position[i] > admitted + 1:
                return None
            if i not in self.taken:
                return i
        return None

    def name(self, place: int, request: int) -> None:
        """It is known now who this is."""
        self.taken |= {request}
        self.running[place] = replace(self.running[place], request=request)

    # -- changes of one request -------------------------------------------------------------------

    def complete(self, place: int, step: int) -> None:
        """A prompt or a recomputation ended with this step: the request got a token, from here on one a step."""
        live = self.running[place]
        self.running[place] = replace(
            live,
            phase="decode",
            out=live.out + 1,
            mark=step,
            start=step + 1,
            spans=(*live.spans, Span(live.phase, live.start, step)),
        )

    def finish(self, place: int, step: int, aborted: bool) -> None:
        """A request got its last token in this step."""
        live = self.running.pop(place)
        spans = live.spans
        if live.phase == "decode" and step >= live.start:
            spans = (*spans, Span("decode", live.start, step))
        self._end(live, spans, step, max(live.outputs(step), live.out), aborted)

    def evict(self, place: int, k: int) -> None:
        """A request of the running list goes back to the head of the queue while step k is scheduled."""
        live = self.running.pop(place)
        spans, redone = live.spans, live.redone
        tokens, group = live.tokens, live.group
        if live.phase == "decode":
            if k - 1 >= live.start:
                spans = (*spans, Span("decode", live.start, k - 1))
        else:
            spans = (*spans, Span(live.phase, live.start, k - 1))
            if live.phase == "prefill":
                prompt, _ = self.prompt(live)
                if live.group >= 0:  # the budget cut it: half a mean prompt is taken out of the group
                    prompt /= 2
                    live = self.learn(live, round(prompt))
                redone, tokens, group = redone + prompt, 0, -1
                live = replace(live, known=None)
        self.waiting.insert(
            0,
            replace(
                live,
                phase="waiting",
                out=live.outputs(k - 1),
                mark=k - 1,
                spans=spans,
                evicted=(*live.evicted, k),
                redone=redone,
                tokens=tokens,
                group=group,
            ),
        )
        self.evictions += 1

    def resume(self, place: int, k: int) -> None:
        """One of the queue, evicted before, runs again."""
        live = self.waiting.pop(place)
        self.running.append(replace(live, phase="recompute" if live.out else "prefill", start=k))

    def close(self, last: int) -> None:
        """The log ends: keep what is still inside."""
        for live in (*self.running, *self.waiting):
            outputs = live.outputs(last)
            spans = live.spans
            if live.phase == "decode" and last >= live.start:
                spans = (*spans, Span("decode", live.start, last))
            finished = last if live.limit and outputs >= live.limit and live.phase == "decode" else None
            self._end(live, spans, finished, outputs, False)
        self.running, self.waiting = [], []

    def _end(
        self, live: LiveRequest, spans: tuple[Span, ...], finished: int | None, outputs: int, aborted: bool
    ) -> None:
        self.done = ((live, spans, finished, outputs, aborted), self.done)

    def histories(self) -> tuple[History, ...]:
        """All that ended, in the order of their numbers."""
        found: dict[int, History] = {}
        chain = self.done
        while chain is not None:
            (live, spans, finished, outputs, aborted), chain = chain
            prompt, sure = self.prompt(live)
            found[live.number] = History(
                live.request,
                spans,
                live.evicted,
                finished,
                outputs,
                prompt,
                sure,
                live.redone,
                aborted,
                live.before_log,
            )
        return tuple(found[number] for number in sorted(found))
