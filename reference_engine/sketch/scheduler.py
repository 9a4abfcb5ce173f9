"""The sketch's decisions: what a step computes, who is admitted, who is preempted, and what blocks that takes."""

from __future__ import annotations

import heapq
from collections import deque

from reference_engine.model.decoding import DecodingCounts
from reference_engine.sketch.request import SketchBatch, SketchRequest, SketchRules

__all__ = ["SketchScheduler"]


class SketchScheduler:
    """V1's and V0's decisions over counts of blocks, first come first served, with recompute preemption.

    Decoding requests form a batch, counted in `counts`, which moves on without touching them: by one `decode_step` a
    step, with drafts by as many as the tokens that each gets. `singles` are the others, the tail of `running`; `groups`
    counts who uses each shared head; `resumed` counts requests with output that ran again, `resuming_steps` the steps in which some did; `given`: the share of a prompt that the cache has kept of its talk so far. `now` is the clock of its owner.
    """

    def __init__(self, rules: SketchRules) -> None:
        self.rules = rules
        self.num_free_blocks = rules.blocks
        self.now = 0.0
        self.running: list[SketchRequest] = []
        self.singles: list[SketchRequest] = []
        self.waiting: deque[SketchRequest] = deque()
        self.groups: dict[int, list[int]] = {}
        self.decode_step = 0
        self.decoding_requests: dict[int, SketchRequest] = {}
        self.counts = DecodingCounts(rules.block_size, rules.spare)
        self.finishes: list[tuple[int, int]] = []
        self.credited = 0
        self.preemptions = 0
        self.recomputed = 0
        self.preempted_at: list[float] = []
        self.resumed = self.resuming_steps = 0
        self.given = 0.0
        self._token_budget = 0
        self._carry = 0.0
        self._resuming_at = -1.0

    def note_resumption(self, request: SketchRequest) -> None:
        """Count a request that runs again after it was preempted, and the step in which it does."""
        if request.preemptions and request.output:
            self.resumed += 1
            if self.now != self._resuming_at:
                self.resuming_steps += 1
                self._resuming_at = self.now

    def join(self, request: SketchRequest) -> None:
        """Let a request that has caught up join the decoding batch."""
        decode_step = self.decode_step
        request.decoding = True
        request.base = request.num_computed_tokens - decode_step
        request.output_base = request.output - decode_step
        self.decoding_requests[request.id] = request
        self.counts.add(request.base)
        heapq.heappush(self.finishes, (request.limit - request.output_base, request.id))

    def leave(self, request: SketchRequest) -> None:
        """Take a request out of the decoding batch and write its plain fields."""
        size = self.rules.block_size
        request.decoding = False
        request.num_computed_tokens = request.base + self.decode_step
        request.output = request.output_base + self.decode_step
        request.num_blocks = -(-(request.num_computed_tokens + self.rules.spare) // size) - request.shared // size
        del self.decoding_requests[request.id]
        self.counts.remove(request.base)

    def take_batch_apart(self) -> None:
        """All requests on their own again, for a step in which blocks or budget are short."""
        for request in list(self.decoding_requests.values()):
            self.leave(request)
        self.finishes = []
        self.singles = self.running.copy()

    def next_finish(self) -> int:
        """The decode step at which the first decoding request has its last token."""
        finishes = self.finishes
        while True:
            decode_step, request_id = finishes[0]
            request = self.decoding_requests.get(request_id)
            if request is not None and request.limit - request.output_base == decode_step:
                return decode_step
            heapq.heappop(finishes)

    def steps_of_free_blocks(self, enough: int) -> int:
        """How many decode steps the free blocks last, at most `enough`; V0 wants one free at every append."""
        num_free_blocks = self.num_free_blocks - self.rules.v0
        if num_free_blocks >= self.counts.count * (enough // self.rules.block_size + 1):
            return enough  # whoever needs one when
        return min(enough, self.counts.steps_of(self.decode_step, num_free_blocks))

    def blocks_of(self, steps: int) -> int:
        """Blocks that the decoding batch takes in so many steps."""
        return self.counts.blocks_of(self.decode_step, steps)

    def _schedule(self, batch: SketchBatch, request: SketchRequest, tokens: int) -> None:
        batch.in_prompt |= request.num_computed_tokens < request.prompt
        request.num_computed_tokens += tokens
        batch.chunks.append(request)
        batch.kv_tokens += request.num_computed_tokens
        known = request.prompt + request.output
        if tokens == 1 and request.output > 0 and request.num_computed_tokens == known:
            batch.drafted.add(request.id)
            batch.decodes += 1
            batch.prefill += self.rules.drafts
        else:
            batch.prefill += tokens

    def _next_gain(self) -> int:
        """Tokens that each decoding request gets in the next step: whole ones, that come to the mean in the long run."""
        mean = self.rules.step_tokens
        if mean == 1.0:
            return 1
        self._carry += mean
        gain = int(self._carry)
        self._carry -= gain
        return gain

    def _move_decoding(self, batch: SketchBatch) -> None:
        """The decoding requests' part in a step: their tokens, and the blocks for them."""
        count = self.counts.count
        if count:
            drafts = self.rules.drafts
            self.num_free_blocks -= self.counts.blocks_of(self.decode_step, batch.gain)
            batch.num_decoding = count
            batch.decodes += count
            batch.prefill += count * drafts
            batch.kv_tokens += self.counts.num_computed_tokens(self.decode_step + 1 + drafts)

    def schedule_running(self, batch: SketchBatch) -> bool:
        """Running requests in order; True when nobody was preempted, so that others may be admitted."""
        batch.gain = self._next_gain()
        plan = self._plan(batch.gain)
        if plan is None:
            self.take_batch_apart()
            return self._schedule_running_singly(batch)
        need = self.counts.blocks_of(self.decode_step, batch.gain) if self.decoding_requests else 0
        need += sum(new for _request, _tokens, new in plan)
        calm = need <= self.num_free_blocks
        while need > self.num_free_blocks:
            # who lacks a block preempts from the tail: what the tail wanted is then not needed either
            preempted_req = self.running[-1]
            need -= plan.pop()[2] if plan else self._blocks_of_one(preempted_req, batch.gain)
            self._preempt_last()
        self._move_decoding(batch)
        for request, tokens, new in plan:
            self.num_free_blocks -= new
            request.num_blocks += new
            self._token_budget -= tokens
            self._schedule(batch, request, tokens)
        return calm

    def _blocks_of_one(self, request: SketchRequest, gain: int) -> int:
        """Blocks that a request of the decoding batch takes in the next step."""
        return self.counts.blocks_of_one(request.base, self.decode_step, gain)

    def _preempt_last(self) -> None:
        preempted_req = self.running.pop()
        if preempted_req.decoding:
            self.leave(preempted_req)
        else:
            self.singles.pop()
        self._preempt_request(preempted_req)

    def _end_of(self, request: SketchRequest, tokens: int, gain: int) -> int:
        """Where a request that is scheduled `tokens` will hold blocks to: a decoding one gets `gain` tokens at once."""
        end = request.num_computed_tokens + tokens
        return end + gain - 1 if tokens == 1 and request.output and end == request.prompt + request.output else end

    def _chunk(self) -> int:
        """The longest part of a prompt that goes into this step."""
        rules = self.rules
        if rules.chunk_needs_company and len(self.running) + len(self.waiting) <= 1:
            return rules.token_budget
        return rules.chunk

    def _plan(self, gain: int) -> list[tuple[SketchRequest, int, int]] | None:
        """(request, tokens, new blocks) of the singles, the tail of the list; None where the budget is short."""
        rules, singles = self.rules, self.singles
        token_budget = rules.token_budget - self.counts.count * (1 + rules.drafts)
        if token_budget < 0:
            return None
        size = rules.block_size
        plan: list[tuple[SketchRequest, int, int]] = []
        if singles:
            if singles[0] is not self.running[-len(singles)]:
                return None
            left = token_budget
            for request in singles:
                tokens = min(request.prompt + request.output - request.num_computed_tokens, left, self._chunk())
                if tokens <= 0:
                    return None
                end = self._end_of(request, tokens, gain)
                new = max(0, -(-(end + rules.spare) // size) - request.shared // size - request.num_blocks)
                plan.append((request, tokens, new))
                left -= tokens
        self._token_budget = token_budget
        return plan

    def _schedule_running_singly(self, batch: SketchBatch) -> bool:
        rules, running = self.rules, self.running
        size = rules.block_size
        token_budget = rules.token_budget
        calm = True
        index = 0
        while index < len(running) and token_budget > 0:
            request = running[index]
            tokens = min(request.prompt + request.output - request.num_computed_tokens, token_budget, self._chunk())
            end = self._end_of(request, tokens, batch.gain)
            need = -(-(end + rules.spare) // size) - request.shared // size - request.num_blocks
            gone = False
            while need > self.num_free_blocks:
                calm = False
                preempted_req = running.pop()
                self._preempt_request(preempted_req)
                if preempted_req is request:
                    gone = True
                    break
            if gone:
                break
            if need > 0:
                self.num_free_blocks -= need
                request.num_blocks += need
            token_budget -= tokens + (rules.drafts if tokens == 1 and request.output else 0)
            self._schedule(batch, request, tokens)
            index += 1
        self._token_budget = token_budget
        self.singles = running.copy()
        return calm

    def schedule_waiting(self, batch: SketchBatch) -> None:
        """Waiting requests from the head, while `max_num_running_reqs`, budget and blocks last."""
        rules, waiting = self.rules, self.waiting
        token_budget = self._token_budget
        inside = batch.in_prompt
        while waiting and token_budget > 0 and len(self.running) < rules.max_num_running_reqs:
            request = waiting[0]
            hit = self._hit(request)
            tokens = request.prompt + request.output - hit
            if rules.whole_prompts and tokens > token_budget:
                break
            padding = 0 if inside or tokens != 1 else self._padding(batch, hit, token_budget)
            if padding is None:
                break
            chunk = min(tokens, token_budget, self._chunk())
            request.tried = True
            if not self._fits(request, hit + chunk, hit + tokens):
                break
            waiting.popleft()
            self._start(request, hit, hit + chunk)
            token_budget -= chunk + padding
            self.running.append(request)
            self.singles.append(request)
            self._schedule(batch, request, chunk)
            batch.prefill += padding
            batch.kv_tokens += padding

    def _padding(self, batch: SketchBatch, hit: int, token_budget: int) -> int | None:
        """Padding drafts for a request with one token left beside running decodes; None: it has to wait."""
        drafts, rule = self.rules.drafts, self.rules.padding
        beside = batch.num_decoding or batch.chunks or (rule == "hit" and hit > 0)
        if rule == "none" or not beside:
            return 0
        longest = self.rules.config.max_model_len
        if rule == "hit" and hit + 1 + drafts + 1 > longest:
            return 0
        if hit + 1 + drafts > longest or 1 + drafts > token_budget:
            return None
        return drafts

    def head_fits(self) -> bool:
        """Whether the head of the queue could be admitted in a step without prefills."""
        rules = self.rules
        if len(self.running) >= rules.max_num_running_reqs:
            return False
        left = rules.token_budget - len(self.running) * (1 + rules.drafts)
        if not rules.v0 and left <= 0:
            return False
        request = self.waiting[0]
        request.tried = True
        known = request.prompt + request.output
        end = known if rules.v0 else min(known, self._hit(request) + min(left, self._chunk()))
        return self._fits(request, end, known)

    def _fits(self, request: SketchRequest, end: int, known: int) -> bool:
        """Whether there are blocks for a first chunk up to `end`, and with the gate for all `known` tokens."""
        rules = self.rules
        num_free_blocks = self.num_free_blocks - (rules.watermark_blocks if self.running or rules.v0 else 0)
        tokens = max(end + rules.spare, known if rules.gate else 0)  # `_start` takes the spare places too
        need = -(-tokens // rules.block_size)
        if request.group >= 0 and self.groups.get(request.group, (0,))[0] > 0:
            need -= request.shared // rules.block_size
        return need <= num_free_blocks

    def _hit(self, request: SketchRequest) -> int:
        """Tokens that are cached: of the shared head all, once somebody of the group has run; of talks that went on the share `given`."""
        if self.given and not request.preemptions:
            size = self.rules.block_size
            return min(int(self.given * request.prompt), request.prompt - 1) // size * size
        return request.shared if request.group in self.groups else 0

    def _start(self, request: SketchRequest, hit: int, end: int) -> None:
        size = self.rules.block_size
        self.note_resumption(request)
        if request.group >= 0:
            group = self.groups.setdefault(request.group, [0])
            if group[0] == 0:
                self.num_free_blocks -= request.shared // size
            group[0] += 1
        request.num_blocks = max(0, -(-(end + self.rules.spare) // size) - request.shared // size)
        self.num_free_blocks -= request.num_blocks
        request.num_computed_tokens = hit
        if request.started is None:
            request.started = self.now
            request.given = hit if self.given else 0
            request.credit = request.prompt - (0 if self.rules.credits_hits else hit)

    def free(self, request: SketchRequest) -> None:
        """Give back a request's blocks, and a shared head that nobody uses any more."""
        self.num_free_blocks += request.num_blocks
        request.num_blocks = 0
        if request.group >= 0:
            group = self.groups[request.group]
            group[0] -= 1
            if group[0] == 0:
                self.num_free_blocks += request.shared // self.rules.block_size

    def _preempt_request(self, preempted_req: SketchRequest) -> None:
        self.free(preempted_req)
        self.recomputed += preempted_req.num_computed_tokens
        preempted_req.num_computed_tokens = 0
        preempted_req.preemptions += 1
        self.preemptions += 1
        self.preempted_at.append(self.now)
        self.waiting.appendleft(preempted_req)

    def schedule_prefills_v0(self, batch: SketchBatch) -> bool:
        """V0 without chunks: a step of whole prompts, whenever one fits."""
        rules, waiting = self.rules, self.waiting
        token_budget = rules.token_budget
        while waiting and len(self.running) < rules.max_num_running_reqs:
            request = waiting[0]
            tokens = request.prompt + request.output
            request.tried = True
            if tokens > token_budget or not self._fits(request, tokens, tokens):
                break
            waiting.popleft()
            self._start(request, 0, tokens)
            if self.rules.credits_hits:
                self.credited += tokens if request.first is not None else 0
            token_budget -= tokens
            self.running.append(request)
            self.singles.append(request)
            self._schedule(batch, request, tokens)
        return bool(batch.chunks)

    def schedule_decodes_v0(self, batch: SketchBatch) -> None:
        """V0: every decode wants a free block, whether it needs one or not."""
        need = self.counts.blocks_of(self.decode_step, 1) if self.decoding_requests else 0
        while self.running:
            last = self._blocks_of_one(self.running[-1], 1)
            if self.num_free_blocks - (need - last) >= 1:
                break
            need -= last
            self._preempt_last()
        self._move_decoding(batch)
