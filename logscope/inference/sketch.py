"""The particle filter's engine: scheduling decisions as the reference engine makes them, many steps in one stride.

`SketchReplay` keeps counts of blocks instead of blocks and no ledger; where all running requests decode and nothing can
change, it strides to the next event with a closed form. It covers what a log lets us infer: recompute preemption, first
come first served, V1 and V0, prompts with a shared head. What comes of an inference is replayed by the reference engine.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from logscope.inference.step_times import StepCost
from reference_engine.clock import kv_usage
from reference_engine.config import EngineConfig
from reference_engine.profile import profile_of

__all__ = ["Lengths", "SketchReplay", "SketchRequest", "SketchRules"]

V0_WATERMARK = (
    0.01  # share of the blocks that V0 keeps free when it admits (0.3.0 .. 0.10.2, cache_config)
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A request's latent lengths in tokens: prompt, output, and the head of the prompt that group `group` shares."""

    prompt: int
    output: int
    shared: int = 0
    group: int = -1


@dataclass(frozen=True, slots=True)
class SketchRules:
    """What the sketch needs of a configuration; blocks are usable ones (without V1's null block).

    `chunk`: the longest part of a prompt in a step; since 0.31 (`chunk_needs_company`) only while others are there.
    """

    config: EngineConfig
    blocks: int
    block_size: int
    budget: int
    seats: int
    reserve: int
    gate: bool
    chunk: int
    chunk_needs_company: bool
    whole_prompts: bool
    v0: bool
    credits_hits: bool

    @classmethod
    def of(cls, config: EngineConfig) -> SketchRules:
        """Derive the rules of an engine's version."""
        v0 = config.engine == "vllm-v0"
        profile = profile_of(config.version)
        share = V0_WATERMARK if v0 else (config.watermark or 0.0) if profile.watermark else 0.0
        gate = v0 or (profile.full_sequence_gate and config.reserve_full_isl is not False)
        return cls(
            config=config,
            blocks=config.num_blocks if v0 else config.num_blocks - 1,
            block_size=config.block_size,
            budget=config.max_num_batched_tokens,
            seats=config.max_num_seqs,
            reserve=int(share * config.num_blocks),
            gate=gate,
            chunk=config.long_prefill_token_threshold or config.max_num_batched_tokens,
            chunk_needs_company=profile.live_threshold,
            whole_prompts=not config.enable_chunked_prefill,
            v0=v0 and not config.enable_chunked_prefill,
            credits_hits=_credits_hits(config.version),
        )

    def usage(self, free: int) -> float:
        """The usage figure that this version prints, 0..1."""
        return kv_usage(self.config, free)


def _credits_hits(version: str) -> bool:
    """Until 0.15 the prompt throughput counts whole prompts, later only what was computed."""
    parts = version.lstrip("v").split(".")
    try:
        return (int(parts[0]), int(parts[1])) < (0, 16)
    except (ValueError, IndexError):
        return False


class SketchRequest:
    """One request inside the sketch; lengths in tokens, times in seconds, `held` in blocks of its own.

    While it is in the `bulk`, `computed` and `output` are old: they are `base` and `output_base` plus the engine's tick.
    """

    __slots__ = (
        "arrival",
        "base",
        "bulk",
        "computed",
        "credit",
        "end",
        "first",
        "group",
        "held",
        "id",
        "limit",
        "output",
        "output_base",
        "preemptions",
        "prompt",
        "shared",
        "started",
        "tried",
    )

    def __init__(self, request_id: int, lengths: Lengths, arrival: float) -> None:
        self.id = request_id
        self.arrival = arrival
        self.computed = 0
        self.output = 0
        self.held = 0
        self.preemptions = 0
        self.credit = 0
        self.first: float | None = None
        self.end: float | None = None
        self.started: float | None = None
        self.tried = False
        self.bulk = False
        self.base = 0
        self.output_base = 0
        self.resize(lengths)

    def resize(self, lengths: Lengths) -> None:
        """Take other lengths, before the first step."""
        self.prompt = lengths.prompt
        self.limit = lengths.output
        self.shared = lengths.shared
        self.group = lengths.group

    @property
    def lengths(self) -> Lengths:
        """The lengths as they are assumed."""
        return Lengths(self.prompt, self.limit, self.shared, self.group)

    def copy(self) -> SketchRequest:
        """An independent copy."""
        new = SketchRequest.__new__(SketchRequest)
        new.id = self.id
        new.arrival = self.arrival
        new.computed = self.computed
        new.output = self.output
        new.held = self.held
        new.preemptions = self.preemptions
        new.credit = self.credit
        new.first = self.first
        new.end = self.end
        new.started = self.started
        new.prompt = self.prompt
        new.limit = self.limit
        new.shared = self.shared
        new.group = self.group
        new.tried = self.tried
        new.bulk = self.bulk
        new.base = self.base
        new.output_base = self.output_base
        return new


class _Batch:
    """A step on the device."""

    __slots__ = ("chunks", "decodes", "kv_tokens", "members", "prefill", "seconds")

    def __init__(self) -> None:
        self.chunks: list[SketchRequest] = []
        self.members = 0
        self.prefill = 0
        self.decodes = 0
        self.kv_tokens = 0
        self.seconds = 0.0


class SketchReplay:
    """An engine on a virtual clock. `add`, `advance`, `fork`; totals and gauges are plain attributes.

    `work` sums what the steps computed: (steps, prefill tokens, decode tokens, KV tokens read, squares of the steps'
    prefill tokens); `busy` is their time in seconds. `done` holds the requests that finished since the last fork,
    `stalls` the steps that were made to last (start, end).

    Decoding requests form a bulk which a step moves on by one `tick` without touching them; `crossing[i]` of them take
    a block in each step that begins at a tick of remainder i by the block size.
    """

    def __init__(self, rules: SketchRules, cost: StepCost) -> None:
        self.rules = rules
        self.cost = cost
        self.free = rules.blocks
        self.now = 0.0
        self.running: list[SketchRequest] = []
        self.singles: list[SketchRequest] = []
        self.queue: deque[SketchRequest] = deque()
        self.pending: deque[SketchRequest] = deque()
        self.aborts: list[tuple[float, int]] = []
        self.done: list[SketchRequest] = []
        self.groups: dict[int, list[int]] = {}
        self.tick = 0
        self.members: dict[int, SketchRequest] = {}
        self.base_sum = 0
        self.crossing = [0] * rules.block_size
        self.finishes: list[tuple[int, int]] = []
        self.generated = 0
        self.credited = 0
        self.preemptions = 0
        self.recomputed = 0
        self.busy = 0.0
        self.work = [0.0] * 5
        self.preempted_at: list[float] = []
        self.stalls: list[tuple[float, float]] = []
        self.stall: tuple[int, float] | None = None
        self._flight: _Batch | None = None
        self._budget = 0
        self.shown_running = 0
        self.shown_waiting = 0
        self.shown_free = rules.blocks

    @property
    def usage(self) -> float:
        """KV usage after the last completed step, as the version prints it."""
        return self.rules.usage(self.shown_free)

    def fork(self) -> SketchReplay:
        """An independent copy; `done` and `preempted_at` start empty."""
        new = SketchReplay.__new__(SketchReplay)
        new.__dict__.update(self.__dict__)
        moved = {r.id: r.copy() for r in self.running}
        new.running = list(moved.values())
        new.singles = [moved[r.id] for r in self.singles]
        new.members = {i: moved[i] for i in self.members}
        new.queue = deque([r.copy() for r in self.queue])
        new.pending = deque([r.copy() for r in self.pending])
        new.done = []
        new.preempted_at = []
        new.stalls = self.stalls.copy()
        new.aborts = self.aborts.copy()
        new.crossing = self.crossing.copy()
        new.finishes = self.finishes.copy()
        new.work = self.work.copy()
        new.groups = {k: v.copy() for k, v in self.groups.items()} if self.groups else {}
        flight = self._flight
        if flight is not None:
            copied = _Batch()
            copied.chunks = [moved[r.id] for r in flight.chunks if r.id in moved]
            copied.members = flight.members
            copied.prefill, copied.decodes = flight.prefill, flight.decodes
            copied.kv_tokens, copied.seconds = flight.kv_tokens, flight.seconds
            new._flight = copied
        return new

    def output_of(self, request: SketchRequest) -> int:
        """Tokens that a request has so far."""
        return request.output_base + self.tick if request.bulk else request.output

    def relimit(self, request: SketchRequest, limit: int) -> None:
        """Let a request under way end after `limit` output tokens, one more than it has at the least."""
        request.limit = max(limit, self.output_of(request) + 1)
        if request.bulk:
            heapq.heappush(self.finishes, (request.limit - request.output_base, request.id))

    def add(
        self, request_id: int, lengths: Lengths, arrival: float, abort: float | None = None
    ) -> None:
        """Announce a request; arrivals come in order. `abort`: when its client goes away."""
        self.pending.append(SketchRequest(request_id, lengths, arrival))
        if abort is not None:
            heapq.heappush(self.aborts, (max(abort, arrival + 1e-3), request_id))

    def unstarted(self) -> Iterable[SketchRequest]:
        """Requests that no decision depends on so far, in order: their lengths may still be changed."""
        for request in self.queue:
            if not request.tried:
                yield request
        yield from self.pending

    def refused(self) -> list[SketchRequest]:
        """Requests without a step that did not fit when it was their turn: that has shaped what happened."""
        return [r for r in self.queue if r.tried and r.first is None and not r.preemptions]

    def in_prefill(self) -> list[SketchRequest]:
        """Requests that were started and have no token yet."""
        return [r for r in self.running if r.first is None] + [
            r for r in self.queue if r.first is None and r.preemptions
        ]

    def prolong(self, end: float) -> bool:
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
                if not self.running and not self.queue:
                    if not self.pending or self.pending[0].arrival >= until:
                        return
                    self.now = max(self.now, self.pending[0].arrival)
                elif self.now >= until:
                    return
                while self.pending and self.pending[0].arrival <= self.now:
                    self.queue.append(self.pending.popleft())
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
                    if request.bulk:
                        self._leave(request)
                    else:
                        self.singles.remove(request)
                    self._release(request)
            self.running = [r for r in self.running if r.id != gone]
            self.queue = deque([r for r in self.queue if r.id != gone])

    # ---- the bulk ----

    def _join(self, request: SketchRequest) -> None:
        tick = self.tick
        request.bulk = True
        request.base = request.computed - tick
        request.output_base = request.output - tick
        self.members[request.id] = request
        self.base_sum += request.base
        self.crossing[-request.base % self.rules.block_size] += 1
        heapq.heappush(self.finishes, (request.limit - request.output_base, request.id))

    def _leave(self, request: SketchRequest) -> None:
        """Take a request out of the bulk and write its plain fields."""
        size = self.rules.block_size
        request.bulk = False
        request.computed = request.base + self.tick
        request.output = request.output_base + self.tick
        request.held = -(-request.computed // size) - request.shared // size
        del self.members[request.id]
        self.base_sum -= request.base
        self.crossing[-request.base % size] -= 1

    def _dissolve(self) -> None:
        """All requests on their own again, for a step in which blocks or budget are short."""
        for request in list(self.members.values()):
            self._leave(request)
        self.finishes = []
        self.singles = self.running.copy()

    def _next_finish(self) -> int:
        """The tick at which the first member has its last token."""
        finishes = self.finishes
        while True:
            tick, request_id = finishes[0]
            request = self.members.get(request_id)
            if request is not None and request.limit - request.output_base == tick:
                return tick
            heapq.heappop(finishes)

    # ---- many steps at once ----

    def _stride(self, until: float) -> bool:
        """Steps in which all running requests decode and nothing is admitted, evicted, or arrives."""
        count = len(self.members)
        if not count or self.singles or count > self.rules.budget:
            return False
        if self.queue and self._head_fits():
            return False
        steps = min(self._next_finish() - self.tick, self._steps_of_free_blocks())
        if self.stall is not None:
            steps = min(steps, (self.stall[0] - self.generated) // count)
        if steps <= 0:
            return False
        kv = self.base_sum + count * self.tick + count
        first, growth = self.cost.decode(count, kv), self.cost.growth(count)
        steps = _fitting(first, growth, until - self.now, steps)
        if steps <= 0:
            return False
        if self.pending:
            # the first step that starts at or after an arrival sees it
            before = _fitting(first, growth, self.pending[0].arrival - self.now, steps)
            steps = min(steps, before + 1)
        if self.aborts:
            before = _fitting(first, growth, self.aborts[0][0] - self.now, steps)
            steps = min(steps, before + 1)
        seconds = first * steps + growth * steps * (steps - 1) / 2
        self.now += seconds
        self.busy += seconds
        self.generated += count * steps
        work = self.work
        work[0] += steps
        work[2] += count * steps
        work[3] += kv * steps + count * steps * (steps - 1) / 2
        self.free -= self._blocks_of(steps)
        self.tick += steps
        self._retire()
        self._show()
        return True

    def _blocks_of(self, steps: int) -> int:
        """Blocks that the bulk takes in so many steps."""
        crossing, size = self.crossing, self.rules.block_size
        rounds, rest = divmod(steps, size)
        total = rounds * len(self.members)
        start = self.tick % size
        for i in range(start, start + rest):
            total += crossing[i % size]
        return total

    def _steps_of_free_blocks(self) -> int:
        """How many decode steps the free blocks last; V0 wants one free block at every append."""
        free = self.free - (1 if self.rules.v0 else 0)
        if free < 0:
            return 0
        crossing, size = self.crossing, self.rules.block_size
        rounds, rest = divmod(free, len(self.members))
        start = self.tick % size
        for i in range(size):
            rest -= crossing[(start + i) % size]
            if rest < 0:
                return rounds * size + i
        return rounds * size + size

    # ---- one step ----

    def _decide(self) -> None:
        batch = _Batch()
        evictions = self.preemptions
        if self.rules.v0:
            if not self._prefill_v0(batch):
                self._decode_v0(batch)
        elif self._walk(batch):
            self._admit(batch)
        scheduled = len(batch.chunks) + batch.members
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
        if self.queue:
            stuck = self.queue.popleft()
            stuck.end = None

    def _schedule(self, batch: _Batch, request: SketchRequest, tokens: int) -> None:
        request.computed += tokens
        batch.chunks.append(request)
        batch.kv_tokens += request.computed
        known = request.prompt + request.output
        if tokens == 1 and request.output > 0 and request.computed == known:
            batch.decodes += 1
        else:
            batch.prefill += tokens

    def _move_bulk(self, batch: _Batch) -> None:
        """The bulk's part in a step: a token each, and the blocks for it."""
        count = len(self.members)
        if count:
            self.free -= self.crossing[self.tick % self.rules.block_size]
            batch.members = count
            batch.decodes += count
            batch.kv_tokens += self.base_sum + count * self.tick + count

    def _walk(self, batch: _Batch) -> bool:
        """Running requests in order; True when nobody was evicted, so that others may be admitted."""
        plan = self._plan()
        if plan is None:
            self._dissolve()
            return self._walk_singly(batch)
        need = self.crossing[self.tick % self.rules.block_size] if self.members else 0
        need += sum(new for _request, _tokens, new in plan)
        calm = need <= self.free
        while need > self.free:
            # who lacks a block evicts from the tail: what the tail wanted is then not needed either
            victim = self.running[-1]
            need -= plan.pop()[2] if plan else self._crosses(victim)
            self._evict_tail()
        self._move_bulk(batch)
        for request, tokens, new in plan:
            self.free -= new
            request.held += new
            self._budget -= tokens
            self._schedule(batch, request, tokens)
        return calm

    def _crosses(self, member: SketchRequest) -> int:
        """Whether a member of the bulk takes a block in the next step."""
        return int((member.base + self.tick) % self.rules.block_size == 0)

    def _evict_tail(self) -> None:
        victim = self.running.pop()
        if victim.bulk:
            self._leave(victim)
        else:
            self.singles.pop()
        self._evict(victim)

    def _chunk(self) -> int:
        """The longest part of a prompt that goes into this step."""
        rules = self.rules
        if rules.chunk_needs_company and len(self.running) + len(self.queue) <= 1:
            return rules.budget
        return rules.chunk

    def _plan(self) -> list[tuple[SketchRequest, int, int]] | None:
        """(request, tokens, new blocks) of those outside the bulk, the tail of the list; None where the budget is short."""
        rules, singles = self.rules, self.singles
        budget = rules.budget - len(self.members)
        if budget < 0:
            return None
        size = rules.block_size
        plan: list[tuple[SketchRequest, int, int]] = []
        if singles:
            if singles[0] is not self.running[-len(singles)]:
                return None
            left = budget
            for request in singles:
                tokens = min(
                    request.prompt + request.output - request.computed, left, self._chunk()
                )
                if tokens <= 0:
                    return None
                end = request.computed + tokens
                new = max(0, -(-end // size) - request.shared // size - request.held)
                plan.append((request, tokens, new))
                left -= tokens
        self._budget = budget
        return plan

    def _walk_singly(self, batch: _Batch) -> bool:
        rules, running = self.rules, self.running
        size = rules.block_size
        budget = rules.budget
        calm = True
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            tokens = min(request.prompt + request.output - request.computed, budget, self._chunk())
            need = -(-(request.computed + tokens) // size) - request.shared // size - request.held
            gone = False
            while need > self.free:
                calm = False
                victim = running.pop()
                self._evict(victim)
                if victim is request:
                    gone = True
                    break
            if gone:
                break
            if need > 0:
                self.free -= need
                request.held += need
            budget -= tokens
            self._schedule(batch, request, tokens)
            index += 1
        self._budget = budget
        self.singles = running.copy()
        return calm

    def _admit(self, batch: _Batch) -> None:
        """Waiting requests from the head, while seats, budget and blocks last."""
        rules, queue = self.rules, self.queue
        budget = self._budget
        while queue and budget > 0 and len(self.running) < rules.seats:
            request = queue[0]
            hit = self._hit(request)
            tokens = request.prompt + request.output - hit
            if rules.whole_prompts and tokens > budget:
                break
            chunk = min(tokens, budget, self._chunk())
            request.tried = True
            if not self._fits(request, hit + (tokens if rules.gate else chunk)):
                break
            queue.popleft()
            self._start(request, hit, hit + chunk)
            budget -= chunk
            self.running.append(request)
            self.singles.append(request)
            self._schedule(batch, request, chunk)

    def _head_fits(self) -> bool:
        rules = self.rules
        if len(self.running) >= rules.seats:
            return False
        if not rules.v0 and rules.budget <= len(self.running):
            return False
        request = self.queue[0]
        request.tried = True
        tokens = request.prompt + request.output
        if not rules.gate:
            left = min(rules.budget - len(self.running), self._chunk())
            tokens = min(tokens, self._hit(request) + left)
        return self._fits(request, tokens)

    def _fits(self, request: SketchRequest, tokens: int) -> bool:
        rules = self.rules
        free = self.free - (rules.reserve if self.running or rules.v0 else 0)
        need = -(-tokens // rules.block_size)
        if request.group >= 0 and self.groups.get(request.group, (0,))[0] > 0:
            need -= request.shared // rules.block_size
        return need <= free

    def _hit(self, request: SketchRequest) -> int:
        """Tokens of the shared head that are cached: all, once somebody of the group has run."""
        return request.shared if request.group in self.groups else 0

    def _start(self, request: SketchRequest, hit: int, end: int) -> None:
        size = self.rules.block_size
        if request.group >= 0:
            group = self.groups.setdefault(request.group, [0])
            if group[0] == 0:
                self.free -= request.shared // size
            group[0] += 1
        request.held = max(0, -(-end // size) - request.shared // size)
        self.free -= request.held
        request.computed = hit
        if request.started is None:
            request.started = self.now
            request.credit = request.prompt - (0 if self.rules.credits_hits else hit)

    def _release(self, request: SketchRequest) -> None:
        self.free += request.held
        request.held = 0
        if request.group >= 0:
            group = self.groups[request.group]
            group[0] -= 1
            if group[0] == 0:
                self.free += request.shared // self.rules.block_size

    def _evict(self, victim: SketchRequest) -> None:
        self._release(victim)
        self.recomputed += victim.computed
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self.preempted_at.append(self.now)
        self.queue.appendleft(victim)

    def _prefill_v0(self, batch: _Batch) -> bool:
        """V0 without chunks: a step of whole prompts, whenever one fits."""
        rules, queue = self.rules, self.queue
        budget = rules.budget
        while queue and len(self.running) < rules.seats:
            request = queue[0]
            tokens = request.prompt + request.output
            request.tried = True
            if tokens > budget or not self._fits(request, tokens):
                break
            queue.popleft()
            self._start(request, 0, tokens)
            if self.rules.credits_hits:
                self.credited += tokens if request.first is not None else 0
            budget -= tokens
            self.running.append(request)
            self.singles.append(request)
            self._schedule(batch, request, tokens)
        return bool(batch.chunks)

    def _decode_v0(self, batch: _Batch) -> None:
        """V0: every decode wants a free block, whether it needs one or not."""
        need = self.crossing[self.tick % self.rules.block_size] if self.members else 0
        while self.running:
            last = self._crosses(self.running[-1])
            if self.free - (need - last) >= 1:
                break
            need -= last
            self._evict_tail()
        self._move_bulk(batch)

    def _complete(self, flight: _Batch) -> None:
        self._flight = None
        self.now += flight.seconds
        self.busy += flight.seconds
        work = self.work
        work[0] += 1
        work[1] += flight.prefill
        work[2] += flight.decodes
        work[3] += flight.kv_tokens
        work[4] += flight.prefill * flight.prefill
        if flight.members:
            self.tick += 1
            self.generated += len(self.members)
        joined = False
        for request in flight.chunks:
            if request.computed == request.prompt + request.output and not request.bulk:
                joined = True
                if request.first is None:
                    request.first = self.now
                    self.credited += request.credit
                request.output += 1
                self.generated += 1
                self._join(request)
        if joined:
            self.singles = [r for r in self.singles if not r.bulk]
        self._retire()
        self._show()

    def _retire(self) -> None:
        """Members that have their last token leave the engine."""
        if not self.members or self._next_finish() > self.tick:
            return
        gone = set()
        while self.members and self._next_finish() <= self.tick:
            request = self.members[self.finishes[0][1]]
            self._leave(request)
            request.end = self.now
            self._release(request)
            self.done.append(request)
            gone.add(request.id)
        self.running = [r for r in self.running if r.id not in gone]

    def _show(self) -> None:
        self.shown_running = len(self.running)
        self.shown_waiting = len(self.queue)
        self.shown_free = self.free


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
