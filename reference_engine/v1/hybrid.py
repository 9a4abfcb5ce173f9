"""The V1 scheduler for models with several KV-cache groups: the same decisions over blocks of all groups together."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import DueBatch
from reference_engine.model.kv_group import alignment_of, next_change
from reference_engine.model.request import RequestState
from reference_engine.model.step import Outcome, RequestId, Step
from reference_engine.v1.batch import Chunk, FastState
from reference_engine.v1.blocks import Pool
from reference_engine.v1.coordinator import CacheHit, KvCacheCoordinator, LookupRules, hash_block_of
from reference_engine.v1.fast_scheduler import Demand, Planned, V1FastScheduler
from reference_engine.v1.group_blocks import GroupRules, SharedPool
from reference_engine.v1.profile import DraftRules, SemanticsProfile, profile_of
from reference_engine.v1.scheduler import V1Scheduler
from reference_engine.v1.state_blocks import AlignedStateBlocks

__all__ = ["HybridFastScheduler", "HybridScheduler", "coordinator_of"]


def coordinator_of(config: EngineConfig, profile: SemanticsProfile) -> KvCacheCoordinator:
    """The blocks of an engine whose configuration names several groups (or one that is not full attention)."""
    groups = config.kv_groups or ()
    batches = 2 if config.async_scheduling and profile.window_of_processed else 1
    drafts = DraftRules.of(config, profile)
    drop = drafts.drops_block
    if drop and not any(group.eagle for group in groups):
        groups = tuple(replace(group, eagle=True) for group in groups)
    rules = GroupRules(
        max_model_len=config.max_model_len,
        in_flight_tokens=config.max_num_batched_tokens * batches,
        alignment=alignment_of(groups),
        hash_block=hash_block_of(groups),
        retention=_retention(config, profile),
        drop=drop,
        lowered=drop and profile.sparse_retention,
        retained=drafts.uncached_tail,
        scratch_is_future=not profile.window_of_processed,
        reregisters=profile.reregisters_states,
    )
    lookup = LookupRules(
        past_known=profile.sparse_retention,
        state_margin=not profile.window_of_processed,
        trims_full=profile.window_of_processed,
        hash_lookahead=drafts.hash_lookahead,
        held_back=drafts.uncached_tail,
        tail_with_last=profile.window_of_processed and not profile.sparse_retention,
    )
    pool = SharedPool(config.num_blocks - 1, profile.unhashed_first)
    return KvCacheCoordinator(groups, pool, rules, lookup, config.enable_prefix_caching)


def _retention(config: EngineConfig, profile: SemanticsProfile) -> int | None:
    """Tokens between the states and windows that stay findable; None for all, 0 for those at the ends of prompts."""
    said = config.retention_interval
    if said is None:
        return 0 if profile.sparse_retention else None
    return None if isinstance(said, str) else said


class HybridScheduler(V1Scheduler):
    """Decides as `V1Scheduler`; blocks come from a `KvCacheCoordinator`."""

    def __init__(self, config: EngineConfig, pool: Pool | None = None) -> None:
        # of the pool the base class only asks the free list; all that takes or finds blocks is overridden
        super().__init__(config, self._pool_of(config) if pool is None else pool)
        self.blocks = cast("KvCacheCoordinator", self.pool)
        self.hit_unit = self.blocks.rules.alignment
        self.aligned = next((b for b in self.blocks.groups if isinstance(b, AlignedStateBlocks)), None)
        self._found: CacheHit | None = None
        self._in_flight: dict[RequestId, int] = {}
        self._quiet: dict[RequestId, int] = {}  # computed tokens below which a decode changes nothing

    def _pool_of(self, config: EngineConfig, sharing: bool = True) -> Pool:
        return cast("Pool", coordinator_of(config, profile_of(config.version)))

    def schedule(self, now: float = 0.0) -> Step:
        """As `V1Scheduler.schedule`; states written in the last step can be hit now."""
        self.blocks.new_step()
        return super().schedule(now)

    def _num_new_tokens(self, state: RequestState) -> int:
        return self._first_chunk(state, state.num_computed_tokens, super()._num_new_tokens(state))

    def _first_chunk(self, state: RequestState, start: int, num_new_tokens: int) -> int:
        """A prompt's chunk where states are kept: cut at the end of a block."""
        if self.aligned is None or num_new_tokens == 0:
            return num_new_tokens
        prompt_end = max(state.num_prompt_tokens, state.num_tokens - 1)
        if start >= prompt_end:
            return num_new_tokens
        end = start + num_new_tokens
        last = self._last_state(state, self.aligned, start, end, prompt_end)
        junction = self.blocks.junctions.get(state.id, 0)
        if self.profile.junction_stops:
            return self._stop(self.aligned.size, start, end, prompt_end, last, junction)
        if state.status == "running":
            junction = 0
        return self._stop_until_0_27(self.aligned.size, start, end, last, junction)

    def _last_state(
        self, state: RequestState, aligned: AlignedStateBlocks, start: int, end: int, prompt_end: int
    ) -> int:
        """Tokens of the last state of a prompt that can be hit; 0 where a chunk exports it from its inside."""
        if end >= prompt_end and aligned.exports(start, end):
            return 0
        size = aligned.size
        if self.blocks.rules.drop:
            return state.num_tokens // size * size - size
        if self.profile.sparse_retention:
            return (state.num_tokens - max(1, self.blocks.lookup.hash_lookahead)) // size * size
        return state.num_tokens // size * size

    def _stop(self, size: int, start: int, end: int, prompt_end: int, last: int, junction: int) -> int:
        """Tokens of a chunk start..end (scheduler.py: _mamba_block_aligned_split, 0.28.0 on)."""
        if end < prompt_end:
            longest = self.config.max_num_batched_tokens
            if self.config.long_prefill_token_threshold:
                longest = min(longest, self.config.long_prefill_token_threshold)
            whole = end // size * size
            if whole > start or size <= longest:
                end = whole
        stops = [last]
        if start % size and last:
            stops.append((start // size + 1) * size)
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
            if self.blocks.rules.drop and self.profile.hash_lookahead:
                stops.append(stops[-1] - size)
        return max(min((stop for stop in stops if start < stop < end), default=end) - start, 0)

    def _stop_until_0_27(self, size: int, start: int, end: int, last: int, junction: int) -> int:
        """Before 0.28.0 a chunk keeps to whole blocks, and only the first stops at the junction."""
        if end < last:
            end = start + (end - start) // size * size
        elif start < last < end:
            end = last
        shared = junction - start
        if size <= shared < end - start:
            end = start + shared // size * size
        return end - start

    def _allocate_slots(self, state: RequestState, num_new_tokens: int) -> bool:
        if num_new_tokens == 1 and state.num_computed_tokens < self._quiet.get(state.id, 0):
            return True
        if not self._allocate_in_groups(state, num_new_tokens):
            return False
        if num_new_tokens == 1 and not self.drafts.num_spec_tokens and self._unprocessed(state) <= 1:
            self._quiet[state.id] = self._next_change(state.num_computed_tokens + 1)
        return True

    def _unprocessed(self, state: RequestState) -> int:
        """Tokens of a request that are in flight."""
        return self._in_flight.get(state.id, 0)

    def _next_change(self, computed: int) -> int:
        """Computed tokens until which a decoding request neither takes, gives back nor registers a block."""
        lag = 1 if self.config.async_scheduling else 0
        unit = self.blocks.rules.hash_block
        changes = [next_change(b.group, computed) for b in self.blocks.groups]
        if lag:  # what is given back follows the processed tokens
            changes += [next_change(b.group, computed - lag) + lag for b in self.blocks.groups]
        return min(*changes, -(-(computed + 1 - lag) // unit) * unit - 1 + lag)

    def _allocate_in_groups(self, state: RequestState, num_new_tokens: int) -> bool:
        processed = None
        if self.profile.window_of_processed:
            processed = state.num_computed_tokens - self._unprocessed(state)
        lookahead = self.drafts.num_lookahead_tokens
        if not self.blocks.allocate(state, None, num_new_tokens, lookahead=lookahead, processed=processed):
            return False
        self._cache_blocks(state, min(state.num_computed_tokens + num_new_tokens, state.num_tokens))
        return True

    def _cache_hit(self, state: RequestState) -> tuple[int, int]:
        self._found = self.blocks.find_longest_cache_hit(state)
        return self._found.tokens // self.hit_unit, 0

    def _fits(self, state: RequestState, end: int, hit: int, unused: int) -> bool:
        """The blocks of all groups for the first chunk are taken, if they (and with the gate all) are there."""
        found = self._found
        assert found is not None
        reserve = self.watermark_blocks if self.running else 0
        lookahead = self.drafts.num_lookahead_tokens
        return self.blocks.allocate(
            state, found, end - found.tokens, lookahead=lookahead, whole=self.gate, reserve=reserve
        )

    def _take_first_blocks(self, state: RequestState, end: int, hit: int) -> None:
        self._cache_blocks(state, min(end, state.num_tokens))

    def _cache_blocks(self, state: RequestState, num_tokens: int) -> None:
        self.blocks.register(state, num_tokens)

    def _preempt_request(self, preempted_req: RequestState, index: int, step: Step) -> int:
        self._quiet.pop(preempted_req.id, None)
        return super()._preempt_request(preempted_req, index, step)

    def _advance(self, step: Step) -> None:
        super()._advance(step)
        for request_id, tokens in step.scheduled.items():
            self._in_flight[request_id] = self._in_flight.get(request_id, 0) + tokens

    def _record(self, step: Step) -> None:
        super()._record(step)
        if len(self.blocks.groups) > 1:
            step.group_blocks = [self.blocks.held(state.id) for state in self.running]

    def update_from_output(self, step: Step) -> Outcome:
        """As `V1Scheduler.update_from_output`; the step's tokens are processed now."""
        for request_id, tokens in step.scheduled.items():
            if request_id in self.states:
                self._in_flight[request_id] -= tokens
        return super().update_from_output(step)

    def _drop(self, state: RequestState) -> None:
        super()._drop(state)
        self._in_flight.pop(state.id, None)
        self._quiet.pop(state.id, None)
        self.blocks.forget(state.id)


class HybridFastScheduler(V1FastScheduler, HybridScheduler):
    """The fast path over several groups: a decoding request is looked at only where its blocks change."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, True)
        self.due: DueBatch[FastState] = DueBatch(len(self.blocks.groups))
        self.decoding_batch = self.due

    def _pool_of(self, config: EngineConfig, sharing: bool = True) -> Pool:
        return HybridScheduler._pool_of(self, config, sharing)

    def decide(self) -> tuple[Step, list[Chunk], int]:
        """As `V1FastScheduler.decide`; states written in the last step can be hit now."""
        self.blocks.new_step()
        decided = super().decide()
        self.due.pass_over(self.batch)
        return decided

    def _advance_chunks(self, step: Step) -> list[Chunk]:
        for request_id, tokens in step.scheduled.items():
            state = self.fast_requests[request_id]
            state.sent, state.sent_in = tokens, self.batch
        return super()._advance_chunks(step)

    def _unprocessed(self, state: RequestState) -> int:
        assert isinstance(state, FastState)
        if not self.output_lag:
            return 0
        if state.decoding and self.batch > state.first:
            return 1
        return state.sent if state.sent_in == self.batch - 1 else 0

    def leave(self, state: FastState, last: int) -> None:
        """As `V1FastScheduler.leave`; remembers the token in flight."""
        if state.first <= last:
            state.sent, state.sent_in = 1, last
        super().leave(state, last)

    def _schedule_running_together(self, step: Step) -> bool:
        full = token_budget = self._token_budget
        if self.due.count > full:
            return False
        plan: list[Planned] = []
        if self.singles:
            token_budget = self._plan(plan)
            if token_budget < 0:
                return False
        else:
            token_budget -= self.due.count
        if self.by_priority and self._most_needed(plan) > self.pool.num_free_blocks:
            return False
        self._token_budget = token_budget
        wanting = [(s.stamp, s, 1) for s in self.due.needing_block(self.batch)]
        wanting += [(s.stamp, s, tokens) for s, tokens, _new in plan]
        wanting.sort()
        for _stamp, state, tokens in wanting:
            if state.status == "preempted" or not self._advance_blocks(state, tokens, step):
                break
            if not state.decoding:
                step.scheduled[state.id] = tokens
        return True

    def _most_needed(self, plan: list[Planned]) -> int:
        """No fewer blocks than this batch takes."""
        smallest = min(blocks.size for blocks in self.blocks.groups)
        tokens = sum(tokens // smallest + 2 for _state, tokens, _new in plan)
        return len(self.due[self.batch]) + len(self.blocks.groups) * tokens

    def _advance_blocks(self, state: FastState, tokens: int, step: Step) -> bool:
        """Blocks for a request's next tokens, evicting from the tail until they fit; False when it had to go itself."""
        if not state.decoding:
            while not self._allocate_in_groups(state, tokens):
                if self._preempt_last(step) is state:
                    return False
            return True
        lag, batch = self.output_lag, self.batch
        state.num_computed_tokens = computed = state.base + batch - 1
        state.num_output_tokens = state.output_base + batch - 1 - lag
        if batch <= state.first + lag:  # what its last chunk did may not be settled
            while not self._allocate_in_groups(state, 1):
                if self._preempt_last(step) is state:
                    return False
            self.due.wake(state, batch + 1)
            return True
        if batch == state.first + lag + 1:
            state.tables = self.blocks.tables(state.id)
        unprocessed = lag if self.profile.window_of_processed else 0
        while not self.blocks.decode(state, state.tables, computed - unprocessed, computed + 1 - lag):
            if self._preempt_last(step) is state:
                return False
        change = self.blocks.next_change(state.tables, computed + 1, lag, unprocessed)
        self.due.wake(state, change - state.base + 1)
        return True

    def allocate_decoding(self, batch: int) -> int:
        """As `V1FastScheduler.allocate_decoding`; windows give blocks back."""
        self.batch = batch
        self.blocks.new_step()
        nobody = Step()
        for state in sorted(self.due.needing_block(batch), key=lambda s: s.stamp):
            self._advance_blocks(state, 1, nobody)
        return self.pool.num_free_blocks

    @property
    def demand(self) -> Demand:
        """The most blocks that a batch may take."""
        return self.due
