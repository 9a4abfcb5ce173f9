"""The sketch's decisions: what a step computes, who is admitted, who is evicted, and what blocks that takes."""

from __future__ import annotations

import heapq
from collections import deque

from reference_engine.sketch.request import Batch, SketchRequest, SketchRules

__all__ = ["SketchScheduler"]


class SketchScheduler:
    """V1's and V0's decisions over counts of blocks, first come first served, with recompute preemption.

    Decoding requests form a bulk which a step moves on by one `tick` without touching them; `crossing[i]` of them take
    a block in each step that begins at a tick of remainder i by the block size. `singles` are the others, the tail of
    `running`; `groups` counts who uses each shared head. `now` is the clock of its owner.
    """

    def __init__(self, rules: SketchRules) -> None:
        self.rules = rules
        self.free = rules.blocks
        self.now = 0.0
        self.running: list[SketchRequest] = []
        self.singles: list[SketchRequest] = []
        self.queue: deque[SketchRequest] = deque()
        self.groups: dict[int, list[int]] = {}
        self.tick = 0
        self.members: dict[int, SketchRequest] = {}
        self.base_sum = 0
        self.crossing = [0] * rules.block_size
        self.finishes: list[tuple[int, int]] = []
        self.credited = 0
        self.preemptions = 0
        self.recomputed = 0
        self.preempted_at: list[float] = []
        self._budget = 0

    def join(self, request: SketchRequest) -> None:
        """Let a request that has caught up decode with the bulk."""
        tick = self.tick
        request.bulk = True
        request.base = request.computed - tick
        request.output_base = request.output - tick
        self.members[request.id] = request
        self.base_sum += request.base
        self.crossing[-request.base % self.rules.block_size] += 1
        heapq.heappush(self.finishes, (request.limit - request.output_base, request.id))

    def leave(self, request: SketchRequest) -> None:
        """Take a request out of the bulk and write its plain fields."""
        size = self.rules.block_size
        request.bulk = False
        request.computed = request.base + self.tick
        request.output = request.output_base + self.tick
        request.held = -(-request.computed // size) - request.shared // size
        del self.members[request.id]
        self.base_sum -= request.base
        self.crossing[-request.base % size] -= 1

    def dissolve(self) -> None:
        """All requests on their own again, for a step in which blocks or budget are short."""
        for request in list(self.members.values()):
            self.leave(request)
        self.finishes = []
        self.singles = self.running.copy()

    def next_finish(self) -> int:
        """The tick at which the first member has its last token."""
        finishes = self.finishes
        while True:
            tick, request_id = finishes[0]
            request = self.members.get(request_id)
            if request is not None and request.limit - request.output_base == tick:
                return tick
            heapq.heappop(finishes)

    def blocks_of(self, steps: int) -> int:
        """Blocks that the bulk takes in so many steps."""
        crossing, size = self.crossing, self.rules.block_size
        rounds, rest = divmod(steps, size)
        total = rounds * len(self.members)
        start = self.tick % size
        for i in range(start, start + rest):
            total += crossing[i % size]
        return total

    def steps_of_free_blocks(self) -> int:
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

    def _schedule(self, batch: Batch, request: SketchRequest, tokens: int) -> None:
        request.computed += tokens
        batch.chunks.append(request)
        batch.kv_tokens += request.computed
        known = request.prompt + request.output
        if tokens == 1 and request.output > 0 and request.computed == known:
            batch.decodes += 1
        else:
            batch.prefill += tokens

    def _move_bulk(self, batch: Batch) -> None:
        """The bulk's part in a step: a token each, and the blocks for it."""
        count = len(self.members)
        if count:
            self.free -= self.crossing[self.tick % self.rules.block_size]
            batch.members = count
            batch.decodes += count
            batch.kv_tokens += self.base_sum + count * self.tick + count

    def walk(self, batch: Batch) -> bool:
        """Running requests in order; True when nobody was evicted, so that others may be admitted."""
        plan = self._plan()
        if plan is None:
            self.dissolve()
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
            self.leave(victim)
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
                tokens = min(request.prompt + request.output - request.computed, left, self._chunk())
                if tokens <= 0:
                    return None
                end = request.computed + tokens
                new = max(0, -(-end // size) - request.shared // size - request.held)
                plan.append((request, tokens, new))
                left -= tokens
        self._budget = budget
        return plan

    def _walk_singly(self, batch: Batch) -> bool:
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

    def admit(self, batch: Batch) -> None:
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

    def head_fits(self) -> bool:
        """Whether the head of the queue could be admitted in a step without prefills."""
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

    def release(self, request: SketchRequest) -> None:
        """Give back a request's blocks, and a shared head that nobody uses any more."""
        self.free += request.held
        request.held = 0
        if request.group >= 0:
            group = self.groups[request.group]
            group[0] -= 1
            if group[0] == 0:
                self.free += request.shared // self.rules.block_size

    def _evict(self, victim: SketchRequest) -> None:
        self.release(victim)
        self.recomputed += victim.computed
        victim.computed = 0
        victim.preemptions += 1
        self.preemptions += 1
        self.preempted_at.append(self.now)
        self.queue.appendleft(victim)

    def prefill_v0(self, batch: Batch) -> bool:
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

    def decode_v0(self, batch: Batch) -> None:
        """V0: every decode wants a free block, whether it needs one or not."""
        need = self.crossing[self.tick % self.rules.block_size] if self.members else 0
        while self.running:
            last = self._crosses(self.running[-1])
            if self.free - (need - last) >= 1:
                break
            need -= last
            self._evict_tail()
        self._move_bulk(batch)
