"""The sketch for models with several KV-cache groups: what a request holds follows from its length alone.

Between two changes of anybody's blocks (a block's end, a window that leaves one behind, a state that moves on) the decoding
batch takes nothing, so strides end there. Shared heads save tokens here, not blocks. With prefix caching a request that was
evicted starts again from its last state, if that and the blocks before it were not taken meanwhile: in a small pool of long
blocks that is the difference between a token and a block to compute again.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from reference_engine.cost.step_time import StepCost
from reference_engine.model.kv_group import KvGroup, next_change, sequence_blocks
from reference_engine.sketch.engine import SketchReplay
from reference_engine.sketch.request import SketchBatch, SketchRequest, SketchRules
from reference_engine.v1.profile import profile_of

__all__ = ["HybridSketch", "make_sketch"]


def make_sketch(rules: SketchRules, cost: StepCost) -> SketchReplay:
    """The sketch of an engine."""
    return HybridSketch(rules, cost) if rules.config.kv_groups else SketchReplay(rules, cost)


def _held(group: KvGroup, computed: int, tokens: int) -> int:
    """Blocks of a group after a step that computes `tokens` tokens more than `computed`."""
    size, end = group.block_size, computed + tokens
    if group.is_state and group.mode != "all":
        moved = group.mode == "align" and computed > 0 and -(-end // size) > -(-computed // size)
        return 1 + group.spec_blocks + moved
    gone = 0
    if group.kind == "sliding":
        gone = max(0, computed - group.window + 1) // size
    elif group.kind == "chunked_local":
        gone = computed // group.window * group.window // size
    elif group.is_state:
        gone = max(0, computed - 1) // size
    return -(-end // size) - gone


class FreeOrder:
    """Free blocks in the order in which they are taken: those without content, then registered ones, oldest first.

    A registered segment is (blocks, owner, kind, tokens): "full" blocks from the sequence's start, or the "state" after so
    many tokens in all groups.
    """

    __slots__ = ("_number", "plain", "segments")

    def __init__(self, blocks: int) -> None:
        self.plain = blocks
        self.segments: OrderedDict[int, tuple[int, int, str, int]] = OrderedDict()
        self._number = 0

    def copy(self) -> FreeOrder:
        """An independent copy."""
        new = FreeOrder(self.plain)
        new.segments = self.segments.copy()
        new._number = self._number
        return new

    def take(self, blocks: int) -> None:
        """Take blocks from the front."""
        plain = min(blocks, self.plain)
        self.plain -= plain
        blocks -= plain
        while blocks and self.segments:
            number, (count, owner, kind, tokens) = next(iter(self.segments.items()))
            if count <= blocks:
                del self.segments[number]
                blocks -= count
            else:
                # full blocks are taken from the sequence's end; a state is of no use without a part of it
                self.segments[number] = count - blocks, owner if kind == "full" else -1, kind, tokens
                blocks = 0

    def add(self, blocks: int, owner: int, kind: str, tokens: int) -> None:
        """Registered blocks come to the end."""
        if blocks > 0:
            self._number += 1
            self.segments[self._number] = blocks, owner, kind, tokens

    def kept(self, owner: int, kind: str, blocks: int, tokens: int | None = None) -> list[int]:
        """The segments of a request that hold at least so many blocks (of the state after `tokens`)."""
        return [
            number
            for number, (count, by, what, at) in self.segments.items()
            if by == owner and what == kind and count >= blocks and tokens in (None, at)
        ]


class HybridSketch(SketchReplay):
    """As `SketchReplay`, over the groups of a configuration."""

    def __init__(self, rules: SketchRules, cost: StepCost) -> None:
        super().__init__(rules, cost)
        config = rules.config
        self.kv_groups = config.kv_groups or ()
        self.changes: list[tuple[int, int]] = []  # (decode step, request) at which blocks change
        batches = 2 if config.async_scheduling else 1
        in_flight = config.max_num_batched_tokens * batches
        self._caps = [sequence_blocks(g, config.max_model_len, in_flight) for g in self.kv_groups]
        aligned = [g.block_size for g in self.kv_groups if g.is_state and g.mode == "align"]
        self._aligned = aligned[0] if aligned else 0
        self._states = len(aligned)
        self._dense = not profile_of(config.version).sparse_retention and config.retention_interval is None
        self.order = FreeOrder(rules.blocks) if aligned and config.enable_prefix_caching else None

    def fork(self) -> SketchReplay:
        """An independent copy."""
        new = super().fork()
        assert isinstance(new, HybridSketch)
        new.changes = self.changes.copy()
        if self.order is not None:
            new.order = self.order.copy()
        return new

    def _needed(self, computed: int, tokens: int) -> int:
        return sum(_held(group, computed, tokens) for group in self.kv_groups)

    # ---- the decoding batch ----

    def join(self, request: SketchRequest) -> None:
        """Let a request that has caught up join the decoding batch."""
        super().join(request)
        # its first step gives back what the prompt's last chunk still needed
        heapq.heappush(self.changes, (self.decode_step, request.id))

    def leave(self, request: SketchRequest) -> None:
        """Take a request out of the decoding batch; the blocks that it holds are those of its last change."""
        held = request.num_blocks
        super().leave(request)
        request.num_blocks = held

    def _due(self) -> int:
        """The decode step in which somebody's blocks change next."""
        changes = self.changes
        while changes:
            step, request_id = changes[0]
            if request_id in self.decoding_requests and step >= self.decode_step:
                return step
            heapq.heappop(changes)
        return 1 << 60

    def blocks_of(self, steps: int) -> int:
        """A stride ends before anybody's blocks change."""
        return 0

    def steps_of_free_blocks(self, enough: int) -> int:
        """Decode steps before anybody's blocks change, at most `enough`."""
        return min(enough, max(0, self._due() - self.decode_step))

    # ---- one step ----

    def schedule_running(self, batch: SketchBatch) -> bool:
        """Running requests in order; True when nobody was evicted."""
        rules, running = self.rules, self.running
        budget, calm, index = rules.token_budget, True, 0
        batch.gain = self._next_gain()
        changing = self._changing(batch.gain)
        while index < len(running) and budget > 0:
            request = running[index]
            tokens = 1
            if not request.decoding:
                tokens = self._cut(request, min(self._missing(request), budget, self._chunk()))
                if tokens <= 0:
                    index += 1
                    continue
            if not request.decoding or request.id in changing:
                calm &= self._make_room(request, batch.gain if request.decoding else tokens)
                if index >= len(running):
                    break
            if request.decoding:
                tokens += rules.drafts
            else:
                self._schedule(batch, request, tokens)
            budget -= tokens
            index += 1
        for request in running[index:]:  # the budget ended before them
            if request.decoding:
                self.leave(request)
                self.singles.append(request)
        decoding = self.counts.count
        if decoding:
            batch.num_decoding = decoding
            batch.decodes += decoding
            batch.prefill += decoding * rules.drafts
            batch.kv_tokens += self.counts.num_computed_tokens(self.decode_step + 1 + rules.drafts)
        self._token_budget = budget
        return calm

    def _missing(self, request: SketchRequest) -> int:
        return request.prompt + request.output - request.num_computed_tokens

    def _changing(self, gain: int) -> set[int]:
        """Members whose blocks change in this step, which brings each `gain` tokens; their next change is noted."""
        found = set()
        while self._due() < self.decode_step + gain:
            request = self.decoding_requests[heapq.heappop(self.changes)[1]]
            found.add(request.id)
        for request_id in found:
            request = self.decoding_requests[request_id]
            computed = request.base + self.decode_step + gain
            at = min(next_change(group, computed) for group in self.kv_groups)
            heapq.heappush(self.changes, (at - request.base, request_id))
        return found

    def _make_room(self, request: SketchRequest, tokens: int) -> bool:
        """Give a running request its blocks; evict from the tail until they are there. False when somebody had to go."""
        computed = request.base + self.decode_step if request.decoding else request.num_computed_tokens
        new = self._needed(computed, tokens) - request.num_blocks
        calm = True
        while new > self.num_free_blocks:
            calm = False
            victim = self.running.pop()
            if victim.decoding:
                self.leave(victim)
            elif victim in self.singles:
                self.singles.remove(victim)
            self._preempt_request(victim)
            if victim is request:
                return False
        self.num_free_blocks -= new
        request.num_blocks += new
        if self.order is not None:
            self._note(request, computed, new)
        return calm

    def _note(self, request: SketchRequest, computed: int, new: int) -> None:
        """Blocks were taken, or (new < 0) the state before was given back."""
        order = self.order
        assert order is not None
        if new >= 0:
            order.take(new)
            return
        end = (computed - 1) // self._aligned * self._aligned
        if self._is_kept(request, end):
            order.add(-new, request.id, "state", end)
        else:
            order.plain -= new

    def _is_kept(self, request: SketchRequest, end: int) -> bool:
        """Whether the state after `end` tokens was registered: sparsely that of the prompt's end, and of an eviction's."""
        if end <= 0:
            return False
        return self._dense or request.preemptions > 0 or end == (request.prompt - 1) // self._aligned * self._aligned

    def _hit(self, request: SketchRequest) -> int:
        """Tokens from which a request starts: its own last state, or the shared head."""
        hit = super()._hit(request)
        order, size = self.order, self._aligned
        if order is None or not request.preemptions:
            return hit
        end = (request.prompt + request.output - 1) // size * size
        if end and order.kept(request.id, "full", end // size) and order.kept(request.id, "state", self._states, end):
            return max(hit, end)
        return hit

    def _cut(self, request: SketchRequest, tokens: int) -> int:
        """State layers: a prompt's chunk ends where a state is kept."""
        size = self._aligned
        start, known = request.num_computed_tokens, request.prompt + request.output
        prompt_end = max(request.prompt, known - 1)
        if not size or start >= prompt_end:
            return tokens
        end, last = start + tokens, (known - 1) // size * size
        if end < prompt_end and (end // size * size > start or size <= self.rules.token_budget):
            end = end // size * size
        if start < last < end:
            end = last
        return end - start

    def _fits(self, request: SketchRequest, end: int, known: int) -> bool:
        tokens = known if self.rules.gate else end
        free = self.num_free_blocks - (self.rules.watermark_blocks if self.running else 0)
        hit = self._hit(request) if self.order is not None else 0
        need = 0
        for group, cap in zip(self.kv_groups, self._caps, strict=True):
            need += min(_held(group, hit if group.is_state else 0, tokens - (hit if group.is_state else 0)), cap)
        return need <= free

    def _start(self, request: SketchRequest, hit: int, end: int) -> None:
        self.note_resumption(request)
        if request.group >= 0:
            self.groups.setdefault(request.group, [0])
        request.num_computed_tokens = hit
        if request.started is None:
            request.started = self.now
            request.credit = request.prompt - (0 if self.rules.credits_hits else hit)
        own = self.order is not None and request.preemptions > 0 and hit > request.shared
        if own:
            self.recomputed -= hit
        request.num_blocks = self._needed(hit if own else 0, end - (hit if own else 0))
        self.num_free_blocks -= request.num_blocks
        if self.order is not None:
            self._take_own(request, hit if own else 0)

    def _take_own(self, request: SketchRequest, hit: int) -> None:
        """Take what a request found of its own out of the free list, and the rest from its front."""
        order = self.order
        assert order is not None
        found = 0
        if hit:
            full = order.kept(request.id, "full", hit // self._aligned)[-1]
            state = order.kept(request.id, "state", self._states, hit)[-1]
            found = order.segments.pop(full)[0] + order.segments.pop(state)[0]
            order.plain += max(0, found - request.num_blocks)
        order.take(max(0, request.num_blocks - found))

    def schedule_waiting(self, batch: SketchBatch) -> None:
        """Waiting requests from the head, while running slots, budget and blocks last."""
        rules, waiting = self.rules, self.waiting
        budget, inside = self._token_budget, batch.in_prompt
        while waiting and budget > 0 and len(self.running) < rules.max_num_running_reqs:
            request = waiting[0]
            hit = self._hit(request)
            tokens = request.prompt + request.output - hit
            if rules.whole_prompts and tokens > budget:
                break
            padding = 0 if inside or tokens != 1 else self._padding(batch, hit, budget)
            if padding is None:
                break
            request.tried = True
            request.num_computed_tokens = hit
            chunk = self._cut(request, min(tokens, budget, self._chunk()))
            request.num_computed_tokens = 0
            if chunk <= 0 or not self._fits(request, hit + chunk + padding, hit + tokens):
                break
            waiting.popleft()
            self._start(request, hit, hit + chunk)
            budget -= chunk + padding
            self.running.append(request)
            self.singles.append(request)
            self._schedule(batch, request, chunk)
            batch.prefill += padding
            batch.kv_tokens += padding

    def free(self, request: SketchRequest) -> None:
        """Give back a request's blocks."""
        self.num_free_blocks += request.num_blocks
        if self.order is not None:
            self._give_back(request)
        request.num_blocks = 0

    def _give_back(self, request: SketchRequest) -> None:
        """A request's blocks come back: full ones and a state at a block's end registered, the rest without content."""
        order, size, computed = self.order, self._aligned, request.num_computed_tokens
        assert order is not None
        owner = request.id if request.end is None else -1
        full = computed // size
        states = request.num_blocks + -computed // size
        end = computed if computed % size == 0 else (computed - 1) // size * size
        registered = 0
        if self._is_kept(request, end) and (computed % size == 0 or states > self._states):
            registered = self._states
        order.plain += max(0, request.num_blocks - full - registered)
        order.add(registered, owner, "state", end)
        order.add(full, owner, "full", computed)
