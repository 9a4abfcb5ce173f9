"""vLLM's V1 scheduler, step by step, as `v1/core/sched/scheduler.py` decides from 0.8.5 on.

`V1Scheduler` is the plain reference: it walks every request in every step. What differs between releases stands on
the `SemanticsProfile` of the configured version.
"""

from __future__ import annotations

from reference_engine.model.config import EngineConfig
from reference_engine.model.errors import SchedulerFailedError
from reference_engine.model.request import Request, RequestState
from reference_engine.model.step import Outcome, RequestId, Step
from reference_engine.v1.blocks import BlockPool, Contents, CountedPool, Pool
from reference_engine.v1.profile import profile_of
from reference_engine.v1.queue import FcfsQueue, PriorityQueue, WaitingQueue

__all__ = ["V1Scheduler"]


def _default_pool(config: EngineConfig) -> Pool:
    usable = config.num_blocks - 1  # the null block
    if not config.enable_prefix_caching:
        return CountedPool(usable)
    unhashed_first = profile_of(config.version).unhashed_first
    return BlockPool(usable, Contents(config.block_size), unhashed_first)


class V1Scheduler:
    """The decisions of one V1 engine; obeys the `Scheduler` protocol.

    Raises `SchedulerFailedError` where the real scheduler of the version raises.
    """

    def __init__(self, config: EngineConfig, pool: Pool | None = None) -> None:
        self.config = config
        self.profile = profile_of(config.version)
        self.pool = _default_pool(config) if pool is None else pool
        self.by_priority = config.policy == "priority" and self.profile.priority_policy
        self.running: list[RequestState] = []
        self.waiting: WaitingQueue = PriorityQueue(self.profile.tie_order) if self.by_priority else FcfsQueue()
        self.states: dict[RequestId, RequestState] = {}
        self.max_num_running_reqs = config.max_num_seqs
        if self.profile.live_threshold and config.max_num_active_seqs is not None:
            self.max_num_running_reqs = min(self.max_num_running_reqs, config.max_num_active_seqs)
        gate = config.reserve_full_isl
        self.gate = self.profile.full_sequence_gate and (gate is None or gate)
        fraction = (config.watermark or 0.0) if self.profile.watermark else 0.0
        self.watermark_blocks = int(fraction * config.num_blocks)
        self._token_budget = 0
        self._threshold = 0
        self._listed: set[RequestId] = set()

    @property
    def unfinished(self) -> int:
        """Requests that are waiting or running."""
        return len(self.states)

    def add_request(self, request: Request) -> None:
        """Queue a new request."""
        state = RequestState(request, self.config.max_model_len)
        self.states[request.id] = state
        self.waiting.add_request(state)

    def abort(self, request_id: RequestId) -> None:
        """Drop a request and free its blocks; an output of it that is still in flight is thrown away."""
        state = self.states.get(request_id)
        if state is not None:
            self._drop(state)

    def schedule(self, now: float = 0.0) -> Step:
        """One step: running requests first, then (if nobody was preempted) the waiting queue from its head."""
        step = Step()
        self._token_budget = self.config.max_num_batched_tokens
        self._threshold = self._long_prefill_threshold()
        self._listed.clear()
        self._schedule_running(step)
        if step.preempted:
            step.blocked = "kv"
        else:
            self._schedule_waiting(step)
        self._check(step)
        self._advance(step)
        self._record(step)
        return step

    def _schedule_running(self, step: Step) -> None:
        """Give each running request its tokens, in order; preempt until its blocks fit."""
        index = 0
        while index < len(self.running) and self._token_budget > 0:
            state = self.running[index]
            num_new_tokens = self._num_new_tokens(state)
            if num_new_tokens == 0:
                index += 1
                continue
            while not self._allocate_slots(state, num_new_tokens):
                preempted_req = self._choose_victim()
                index = self._preempt_request(preempted_req, index, step)
                if preempted_req is state:
                    return
            step.scheduled[state.id] = num_new_tokens
            self._listed.add(state.id)
            self._token_budget -= num_new_tokens
            index += 1

    def _num_new_tokens(self, state: RequestState) -> int:
        """Tokens for a running request: what it lacks, within threshold, budget and model length."""
        wanted = state.num_tokens + state.num_output_placeholders - state.num_computed_tokens
        if 0 < self._threshold < wanted:
            wanted = self._threshold
        wanted = min(wanted, self._token_budget, self.config.max_model_len - 1 - state.num_computed_tokens)
        if state.num_output_placeholders:
            wanted = min(wanted, self._async_tail(state))
        return max(wanted, 0)

    def _async_tail(self, state: RequestState) -> int:
        """Tokens that a request with outputs in flight may still compute: none after its last token (0.11.1 on)."""
        end = state.num_prompt_tokens + state.request.output_tokens
        if self.profile.async_tail == "capped":  # 0.11.1 - 0.11.2
            return min(end, self.config.max_model_len) - 1 - state.num_computed_tokens
        if (
            self.profile.async_tail == "skipped"  # since 0.12.0
            and state.num_computed_tokens + 2 - state.num_output_placeholders >= end
        ):
            return 0
        return self.config.max_model_len

    def _allocate_slots(self, state: RequestState, num_new_tokens: int) -> bool:
        """Allocate for `num_new_tokens` more (kv_cache_manager.py: allocate_slots); False when blocks lack."""
        end = state.num_computed_tokens + num_new_tokens
        new = self._num_blocks_for(end) - state.num_blocks
        if new > self.pool.num_free_blocks:
            return False
        if new > 0:
            self.pool.allocate_new_blocks(state, new)
        self.pool.cache_blocks(state, min(end, state.num_tokens) // self.config.block_size)
        return True

    def _choose_victim(self) -> RequestState:
        """FCFS: the last of the running list. Priority: the first of the worst (priority, arrival)."""
        if self.by_priority:
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return self.running[-1]

    def _preempt_request(self, preempted_req: RequestState, index: int, step: Step) -> int:
        """Take a request's blocks and put it back into the queue; returns where the walk goes on."""
        position = self.running.index(preempted_req) if self.by_priority else len(self.running) - 1
        del self.running[position]
        self.pool.free(preempted_req)
        preempted_req.num_computed_tokens = 0
        preempted_req.status = "preempted"
        self.waiting.prepend_request(preempted_req)
        step.preempted.append(preempted_req.id)
        scheduled = preempted_req.id in step.scheduled
        if scheduled and self.profile.victim_rollback != "kept":
            self._listed.discard(preempted_req.id)
            if self.profile.victim_rollback == "full":
                self._token_budget += step.scheduled.pop(preempted_req.id)
        cursor = self.profile.cursor
        moved = (cursor == "scheduled" and scheduled) or (cursor == "position" and position < index)
        return index - 1 if moved else index

    def _schedule_waiting(self, step: Step) -> None:
        """Admit from the head of the queue while budget and running slots last; the first that does not fit ends it."""
        skipped: list[RequestState] = []
        while self.waiting and self._token_budget > 0:
            if len(self.running) >= self.max_num_running_reqs:
                break
            state = self.waiting.peek_request()
            hit, unused = self._cache_hit(state)
            start = state.num_computed_tokens + hit * self.config.block_size
            num_new_tokens = state.num_tokens - start
            if 0 < self._threshold < num_new_tokens:
                num_new_tokens = self._threshold
            if num_new_tokens > self._token_budget and self._whole_prompts_only():
                if self.profile.unchunked_prompt == "stops":
                    break
                skipped.append(self.waiting.pop_request())
                continue
            num_new_tokens = min(num_new_tokens, self._token_budget)
            if not self._fits(state, start + num_new_tokens, hit, unused):
                step.blocked = "kv"
                break
            self._admit(self.waiting.pop_request(), start, num_new_tokens, hit, step)
        if self.waiting and step.blocked is None:
            step.blocked = "seat" if len(self.running) >= self.max_num_running_reqs else "budget"
        elif skipped and step.blocked is None:
            step.blocked = "budget"
        for state in skipped:  # 0.9.2 - 0.11.2: back to the front one by one, so in reversed order
            self.waiting.prepend_request(state)

    def _whole_prompts_only(self) -> bool:
        return not (self.config.enable_chunked_prefill or self.profile.unchunked_prompt == "chunked")

    def _cache_hit(self, state: RequestState) -> tuple[int, int]:
        """Cached blocks at the start of a request, never its last token's; only for one that has computed nothing."""
        if state.num_computed_tokens:
            return 0, 0
        return self.pool.get_computed_blocks(state, (state.num_tokens - 1) // self.config.block_size)

    def _fits(self, state: RequestState, end: int, hit: int, unused: int) -> bool:
        """Blocks for the first chunk, and with the gate (0.19.0 on) those of all known tokens, are free now."""
        free = self.pool.num_free_blocks
        if self.running:
            free -= self.watermark_blocks
        if self.gate and self._num_blocks_for(state.num_tokens) - hit + unused > free:
            return False
        return self._num_blocks_for(end) - hit + unused <= free

    def _admit(self, state: RequestState, start: int, num_new_tokens: int, hit: int, step: Step) -> None:
        self.pool.admit(state, hit, self._num_blocks_for(start + num_new_tokens) - hit)
        self.pool.cache_blocks(state, min(start + num_new_tokens, state.num_tokens) // self.config.block_size)
        (step.resumed if state.status == "preempted" else step.new).append(state.id)
        if start:  # 0.9.2 - 0.11.0: also what a victim kept by mistake
            step.hits[state.id] = start
        state.status = "running"
        state.num_computed_tokens = start
        self.running.append(state)
        step.scheduled[state.id] = num_new_tokens
        self._listed.add(state.id)
        self._token_budget -= num_new_tokens

    def _num_blocks_for(self, num_tokens: int) -> int:
        """Blocks for a sequence of so many tokens, at most `max_model_len`."""
        return -(-min(num_tokens, self.config.max_model_len) // self.config.block_size)

    def _long_prefill_threshold(self) -> int:
        """The longest chunk of a step, 0 for none. Since 0.31.0 it looks at the number of live requests."""
        threshold = self.config.long_prefill_token_threshold
        if not self.profile.live_threshold:
            return threshold
        live = len(self.running) + len(self.waiting)
        if live <= 1:
            return 0
        if threshold and self.config.long_prefill_adaptive:
            return max(threshold, self.config.max_num_batched_tokens // live)
        return threshold

    def _check(self, step: Step) -> None:
        """The real scheduler's own assertion at the end of schedule() (reached by priority victims before 0.10.2)."""
        if len(self._listed) > len(self.running):
            raise SchedulerFailedError(
                f"the scheduler of vLLM {self.config.version} stops here with an AssertionError in scheduler.py: "
                f"{len(self._listed)} requests were scheduled but only {len(self.running)} are running"
            )

    def _advance(self, step: Step) -> None:
        """Count the scheduled tokens as computed; whoever has caught up will get a token."""
        for request_id, num_new_tokens in step.scheduled.items():
            state = self.states[request_id]
            step.spans[request_id] = (state.num_computed_tokens, state.num_computed_tokens + num_new_tokens)
            state.num_computed_tokens += num_new_tokens
            caught_up = state.num_computed_tokens >= state.num_tokens + state.num_output_placeholders
            if self.config.async_scheduling:
                state.num_output_placeholders += caught_up
                # 0.10.2 with priority: a victim that stays scheduled still has its older placeholder
                caught_up = state.num_output_placeholders > 0
            if caught_up:
                step.sampled.append(request_id)

    def _record(self, step: Step) -> None:
        step.running = [state.id for state in self.running]
        step.waiting = [state.id for state in self.waiting.in_order()]
        step.num_computed_tokens = [state.num_computed_tokens for state in self.running]
        step.free_blocks = self.pool.num_free_blocks

    def update_from_output(self, step: Step) -> Outcome:
        """Deliver a token to each sampled request, free those that finish (scheduler.py: update_from_output)."""
        outcome = Outcome([], [], 0)
        for request_id in step.sampled:
            state = self.states.get(request_id)
            if state is None:  # finished or aborted while this step was in flight
                continue
            state.num_output_tokens += 1
            outcome.tokens.append(request_id)
            if self.config.async_scheduling:
                self._replace_placeholder(state)
            if state.num_output_tokens >= state.max_output_tokens:
                self._drop(state)
                outcome.finished.append(request_id)
        outcome.free_blocks = self.pool.num_free_blocks
        return outcome

    def _replace_placeholder(self, state: RequestState) -> None:
        """Asynchronous: a placeholder became a token, which may complete a block (async_scheduler.py)."""
        state.num_output_placeholders -= 1
        if state.num_output_placeholders < 0:
            raise SchedulerFailedError(
                f"the asynchronous scheduler of vLLM {self.config.version} stops here with an AssertionError: request "
                f"{state.id!r} got more tokens than it had placeholders"
            )
        if state.status == "running":
            full = (state.num_computed_tokens - state.num_output_placeholders) // self.config.block_size
            self.pool.cache_blocks(state, full)

    def _drop(self, state: RequestState) -> None:
        was, state.status = state.status, "finished"
        if was == "running":
            self.running.remove(state)
            self.pool.free(state)
        else:
            self.waiting.remove_request(state)
        del self.states[state.id]
