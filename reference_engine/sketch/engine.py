"""The particle filter's engine: scheduling decisions as the reference engine makes them, many steps in one stride.

`SketchReplay` keeps counts of blocks instead of blocks and no ledger; where all running requests decode and nothing can
change, it strides to the next event with a closed form. It covers what a log lets us infer: recompute preemption, first
come first served, V1 and V0, prompts with a shared head. What comes of an inference is replayed by the reference
engine.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable

from reference_engine.cost.step_time import StepCost
from reference_engine.sketch.request import Lengths, SketchBatch, SketchRequest, SketchRules
from reference_engine.sketch.scheduler import SketchScheduler

__all__ = ["SketchReplay"]

# The reference engine's clock counts whole nanoseconds: what is closer than half of one happens at the same time.
_SAME_TIME_S = 0.5e-9


class SketchReplay(SketchScheduler):
    """An engine on a virtual clock. `add`, `advance`, `fork`; totals and gauges are plain attributes.

    `work` sums what the steps computed: (steps, prefill tokens, decode tokens, KV tokens read, squares of the steps'
    prefill tokens); `busy` is their time in seconds. `done` holds the requests that finished since the last fork,
    `stalls` the steps that were made to last (start, end).
    """

    def __init__(self, rules: SketchRules, cost: StepCost) -> None:
        super().__init__(rules)
        self.cost = cost
        self.pending: deque[SketchRequest] = deque()
        self.aborts: list[tuple[float, int]] = []
        self.done: list[SketchRequest] = []
        self.generated = 0
        self.busy = 0.0
        self.work = [0.0] * 5
        self.stalls: list[tuple[float, float]] = []
        self.stall: tuple[int, float] | None = None
        self._flight: SketchBatch | None = None
        self.shown_running = 0
        self.shown_waiting = 0
        self.shown_free = rules.blocks

    @property
    def usage(self) -> float:
        """KV usage after the last completed step, as the version prints it."""
        return self.rules.usage(self.shown_free)

    def fork(self) -> SketchReplay:
        """An independent copy; `done` and `preempted_at` start empty."""
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        moved = {r.id: r.copy() for r in self.running}
        new.running = list(moved.values())
        new.singles = [moved[r.id] for r in self.singles]
        new.decoding_requests = {i: moved[i] for i in self.decoding_requests}
        new.waiting = deque([r.copy() for r in self.waiting])
        new.pending = deque([r.copy() for r in self.pending])
        new.done = []
        new.preempted_at = []
        new.stalls = self.stalls.copy()
        new.aborts = self.aborts.copy()
        new.counts = self.counts.copy()
        new.finishes = self.finishes.copy()
        new.work = self.work.copy()
        new.groups = {k: v.copy() for k, v in self.groups.items()} if self.groups else {}
        flight = self._flight
        if flight is not None:
            copied = SketchBatch()
            copied.chunks = [moved[r.id] for r in flight.chunks if r.id in moved]
            copied.drafted = flight.drafted
            copied.num_decoding, copied.gain = flight.num_decoding, flight.gain
            copied.prefill, copied.decodes = flight.prefill, flight.decodes
            copied.kv_tokens, copied.seconds = flight.kv_tokens, flight.seconds
            new._flight = copied
        return new

    def output_of(self, request: SketchRequest) -> int:
        """Tokens that a request has so far."""
        return request.output_base + self.decode_step if request.decoding else request.output

    def set_output_limit(self, request: SketchRequest, limit: int) -> None:
        """Let a request under way end after `limit` output tokens, one more than it has at the least."""
        request.limit = max(limit, self.output_of(request) + 1)
        if request.decoding:
            heapq.heappush(self.finishes, (request.limit - request.output_base, request.id))

    def add(self, request_id: int, lengths: Lengths, arrival: float, abort: float | None = None) -> None:
        """Announce a request; arrivals come in order. `abort`: when its client goes away."""
        self.pending.append(SketchRequest(request_id, lengths, arrival))
        if abort is not None:
            heapq.heappush(self.aborts, (max(abort, arrival + 1e-3), request_id))

    def unstarted(self) -> Iterable[SketchRequest]:
        """Requests that no decision depends on so far, in order: their lengths may still be changed."""
        for request in self.waiting:
            if not request.tried:
                yield request
        yield from self.pending

    def refused(self) -> list[SketchRequest]:
        """Requests without a step that did not fit when it was their turn: that has shaped what happened."""
        return [r for r in self.waiting if r.tried and r.first is None and not r.preemptions]

    def in_prefill(self) -> list[SketchRequest]:
        """Requests that were started and have no token yet."""
        return [r for r in self.running if r.first is None] + [
            r for r in self.waiting if r.first is None and r.preemptions
        ]

    def end_step_at(self, end: float) -> bool:
        """Let the step under way end at `end`; False when there is none."""
        if self._flight is None:
            return False
        self._flight.seconds = max(1e-3, end - self.now)
        if self.stalls:
            self.stalls[-1] = (self.stalls[-1][0], end)
        return True

    def advance(self, until: float) -> None:
        """Let time pass: all steps that end by `until` are done, the one under way is decided."""
        while True:
            if self._flight is None:
                if not self.running and not self.waiting:
                    if not self.pending or self.pending[0].arrival >= until:
                        return
                    self.now = max(self.now, self.pending[0].arrival)
                elif self.now >= until:
                    return
                while self.pending and self.pending[0].arrival <= self.now + _SAME_TIME_S:
                    self.waiting.append(self.pending.popleft())
                if self.aborts and self.aborts[0][0] <= self.now:
                    self._abort()
                    continue
                if self._stride(until):
                    continue
                self._decide()
            flight = self._flight
            if flight is None:
                continue
            if self.now + flight.seconds > until:
                return
            self._complete(flight)

    def _abort(self) -> None:
        """Drop those whose clients went away by now."""
        while self.aborts and self.aborts[0][0] <= self.now:
            _at, gone = heapq.heappop(self.aborts)
            for request in self.running:
                if request.id == gone:
                    if request.decoding:
                        self.leave(request)
                    else:
                        self.singles.remove(request)
                    self.free(request)
            self.running = [r for r in self.running if r.id != gone]
            self.waiting = deque([r for r in self.waiting if r.id != gone])

    def _stride(self, until: float) -> bool:
        """Steps in which all running requests decode and nothing is admitted, preempted, or arrives."""
        count, rules, counts = self.counts.count, self.rules, self.counts
        if not count or self.singles or count * (1 + rules.drafts) > rules.token_budget:
            return False
        if self.waiting and self.head_fits():
            return False
        steps = self.next_finish() - self.decode_step
        if self.stall is not None:
            steps = min(steps, (self.stall[0] - self.generated) // count)
        if steps <= 0:
            return False
        drafts = count * rules.drafts
        kv = counts.num_computed_tokens(self.decode_step + 1) + drafts
        # a decode step of the batch is a token of each: with drafts a share of a step of the engine
        first = self.cost.seconds(drafts, count, kv, count) / rules.step_tokens
        growth = self.cost.growth(count) / rules.step_tokens
        steps = _fitting(first, growth, until - self.now, steps)
        if steps <= 0:
            return False
        if self.pending:
            # the first step that starts at or after an arrival sees it
            before = _fitting(first, growth, self.pending[0].arrival - _SAME_TIME_S - self.now, steps)
            steps = min(steps, before + 1)
        if self.aborts:
            before = _fitting(first, growth, self.aborts[0][0] - self.now, steps)
            steps = min(steps, before + 1)
        steps = self.steps_of_free_blocks(steps)
        if steps <= 0:
            return False
        seconds = first * steps + growth * steps * (steps - 1) / 2
        self.now += seconds
        self.busy += seconds
        self.generated += count * steps
        work = self.work
        done = steps / rules.step_tokens
        work[0] += done
        work[1] += drafts * done
        work[2] += count * done
        work[3] += (kv * steps + count * steps * (steps - 1) / 2) / rules.step_tokens
        work[4] += drafts * drafts * done
        self.num_free_blocks -= self.blocks_of(steps)
        self.decode_step += steps
        self._retire()
        self._show()
        return True

    def _decide(self) -> None:
        batch = SketchBatch()
        evictions = self.preemptions
        if self.rules.v0:
            if not self.schedule_prefills_v0(batch):
                self.schedule_decodes_v0(batch)
        elif self.schedule_running(batch):
            self.schedule_waiting(batch)
        scheduled = len(batch.chunks) + batch.num_decoding
        if not scheduled:
            if evictions == self.preemptions:
                self._give_up()
            return
        batch.seconds = self.cost.seconds(batch.prefill, batch.decodes, batch.kv_tokens, scheduled)
        if self.stall is not None and self.generated >= self.stall[0]:
            batch.seconds = max(batch.seconds, self.stall[1] - self.now)
            self.stalls.append((self.now, self.stall[1]))
            self.stall = None
        self._flight = batch

    def _give_up(self) -> None:
        """Nothing can run: the head wants more than there is. Such a request is dropped, as no engine would end it."""
        if self.waiting:
            stuck = self.waiting.popleft()
            stuck.end = None

    def _complete(self, flight: SketchBatch) -> None:
        self._flight = None
        self.now += flight.seconds
        self.busy += flight.seconds
        work = self.work
        work[0] += 1
        work[1] += flight.prefill
        work[2] += flight.decodes
        work[3] += flight.kv_tokens
        work[4] += flight.prefill * flight.prefill
        if flight.num_decoding:
            self.decode_step += flight.gain
            self.generated += flight.gain * self.counts.count
        joined = False
        for request in flight.chunks:
            if request.num_computed_tokens == request.prompt + request.output and not request.decoding:
                joined = True
                if request.first is None:
                    request.first = self.now
                    self.credited += request.credit
                gain = flight.gain if request.id in flight.drafted else 1
                request.output += gain
                request.num_computed_tokens += gain - 1
                self.generated += gain
                self.join(request)
        if joined:
            self.singles = [r for r in self.singles if not r.decoding]
        self._retire()
        self._show()

    def _retire(self) -> None:
        """Members that have their last token leave the engine."""
        if not self.decoding_requests or self.next_finish() > self.decode_step:
            return
        gone = set()
        while self.decoding_requests and self.next_finish() <= self.decode_step:
            request = self.decoding_requests[self.finishes[0][1]]
            self.leave(request)
            self.generated -= request.output - request.limit  # drafts beyond its last token
            request.end = self.now
            self.free(request)
            self.done.append(request)
            gone.add(request.id)
        self.running = [r for r in self.running if r.id not in gone]

    def _show(self) -> None:
        self.shown_running = len(self.running)
        self.shown_waiting = len(self.waiting)
        self.shown_free = self.num_free_blocks


def _fitting(first: float, growth: float, seconds: float, most: int) -> int:
    """How many steps of first, first + growth, first + 2 growth … seconds end within `seconds`; at most `most`."""
    if seconds <= 0:
        return 0
    if first * most + growth * most * (most - 1) / 2 <= seconds:
        return most
    if growth <= 0:
        return min(most, int(seconds / first)) if first > 0 else most
    linear = first - growth / 2
    return min(most, int((math.sqrt(linear * linear + 2 * growth * seconds) - linear) / growth))
