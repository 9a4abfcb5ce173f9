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
        self.seats = config.max_num_seqs
        if self.profile.live_threshold and config.max_num_active_seqs is not None:
            self.seats = min(self.seats, config.max_num_active_seqs)
        gate = config.reserve_full_isl
        self.gate = self.profile.full_sequence_gate and (gate is None or gate)
        fraction = (config.watermark or 0.0) if self.profile.watermark else 0.0
        self.watermark = int(fraction * config.num_blocks)
        self._budget = 0
        self._threshold = 0
        self._listed: set[RequestId] = set()

    @property
    def unfinished(self) -> int:
        """Requests that are waiting or running."""
        return len(self.states)

    def add(self, request: Request) -> None:
        """Queue a new request."""
        state = RequestState(request, self.config.max_model_len)
        self.states[request.id] = state
        self.waiting.add(state)

    def abort(self, request_id: RequestId) -> None:
        """Drop a request and free its blocks; an output of it that is still in flight is thrown away."""
        state = self.states.get(request_id)
        if state is not None:
            self._drop(state)

    def schedule(self, now: float = 0.0) -> Step:
        """One step: running requests first, then (if nobody was evicted) the waiting queue from its head."""
        step = Step()
        self._budget = self.config.max_num_batched_tokens
        self._threshold = self._long_prefill_threshold()
        self._listed.clear()
        self._walk_running(step)
        if step.preempted:
            step.blocked = "kv"
        else:
            self._admit_waiting(step)
        self._check(step)
        self._advance(step)
        self._record(step)
        return step

    def _walk_running(self, step: Step) -> None:
        """Give each running request its tokens, in order; evict until its blocks fit."""
        index = 0
        while index < len(self.running) and self._budget > 0:
            state = self.running[index]
            tokens = self._tokens_to_run(state)
            if tokens == 0:
                index += 1
                continue
            while not self._grow(state, tokens):
                victim = self._victim()
                index = self._evict(victim, index, step)
                if victim is state:
                    return
            step.scheduled[state.id] = tokens
            self._listed.add(state.id)
            self._budget -= tokens
            index += 1

    def _tokens_to_run(self, state: RequestState) -> int:
        """Tokens for a running request: what it lacks, within threshold, budget and model length."""
        wanted = state.tokens + state.placeholders - state.computed
        if 0 < self._threshold < wanted:
            wanted = self._threshold
        wanted = min(wanted, self._budget, self.config.max_model_len - 1 - state.computed)
        if state.placeholders:
            wanted = min(wanted, self._async_tail(state))
        return max(wanted, 0)

    def _async_tail(self, state: RequestState) -> int:
        """Tokens that a request with outputs in flight may still compute: none after its last token (0.11.1 on)."""
        end = state.prompt + state.request.output_tokens
        if self.profile.async_tail == "capped":  # 0.11.1 - 0.11.2
            return min(end, self.config.max_model_len) - 1 - state.computed
        if (
            self.profile.async_tail == "skipped"  # since 0.12.0
            and state.computed + 2 - state.placeholders >= end
        ):
            return 0
        return self.config.max_model_len

    def _grow(self, state: RequestState, tokens: int) -> bool:
        """Allocate for `tokens` more (kv_cache_manager.py: allocate_slots); False when blocks lack."""
        end = state.computed + tokens
        new = self._blocks(end) - state.held
        if new > self.pool.free:
            return False
        if new > 0:
            self.pool.grow(state, new)
        self.pool.register(state, min(end, state.tokens) // self.config.block_size)
        return True

    def _victim(self) -> RequestState:
        """FCFS: the last of the running list. Priority: the first of the worst (priority, arrival)."""
        if self.by_priority:
            return max(self.running, key=lambda r: (r.priority, r.arrival))
        return self.running[-1]

    def _evict(self, victim: RequestState, index: int, step: Step) -> int:
        """Take a request off its blocks and back to the queue; returns where the walk goes on."""
        position = self.running.index(victim) if self.by_priority else len(self.running) - 1
        del self.running[position]
        self.pool.release(victim)
        victim.computed = 0
        victim.status = "preempted"
        self.waiting.put_back(victim)
        step.preempted.append(victim.id)
        scheduled = victim.id in step.scheduled
        if scheduled and self.profile.victim_rollback != "kept":
            self._listed.discard(victim.id)
            if self.profile.victim_rollback == "full":
                self._budget += step.scheduled.pop(victim.id)
        cursor = self.profile.cursor
        moved = (cursor == "scheduled" and scheduled) or (cursor == "position" and position < index)
        return index - 1 if moved else index

    def _admit_waiting(self, step: Step) -> None:
        """Admit from the head of the queue while budget and seats last; the first that does not fit ends it."""
        skipped: list[RequestState] = []
        while self.waiting and self._budget > 0:
            if len(self.running) >= self.seats:
                break
            state = self.waiting.head()
            hit, unused = self._cache_hit(state)
            start = state.computed + hit * self.config.block_size
            tokens = state.tokens - start
            if 0 < self._threshold < tokens:
                tokens = self._threshold
            if tokens > self._budget and self._whole_prompts():
                if self.profile.unchunked_prompt == "stops":
                    break
                skipped.append(self.waiting.pop())
                continue
            tokens = min(tokens, self._budget)
            if not self._fits(state, start + tokens, hit, unused):
                step.blocked = "kv"
                break
            self._admit(self.waiting.pop(), start, tokens, hit, step)
        if self.waiting and step.blocked is None:
            step.blocked = "seat" if len(self.running) >= self.seats else "budget"
        elif skipped and step.blocked is None:
            step.blocked = "budget"
        for state in skipped:  # 0.9.2 - 0.11.2: back to the front one by one, so in reversed order
            self.waiting.put_back(state)

    def _whole_prompts(self) -> bool:
        return not (self.config.enable_chunked_prefill or self.profile.unchunked_prompt == "chunked")

    def _cache_hit(self, state: RequestState) -> tuple[int, int]:
        """Cached blocks at the start of a request, never its last token's; only for one that has computed nothing."""
        if state.computed:
            return 0, 0
        return self.pool.lookup(state, (state.tokens - 1) // self.config.block_size)

    def _fits(self, state: RequestState, end: int, hit: int, unused: int) -> bool:
        """Blocks for the first chunk, and with the gate (0.19.0 on) those of all known tokens, are free now."""
        free = self.pool.free
        if self.running:
            free -= self.watermark
        if self.gate and self._blocks(state.tokens) - hit + unused > free:
            return False
        return self._blocks(end) - hit + unused <= free

    def _admit(self, state: RequestState, start: int, tokens: int, hit: int, step: Step) -> None:
        self.pool.admit(state, hit, self._blocks(start + tokens) - hit)
        self.pool.register(state, min(start + tokens, state.tokens) // self.config.block_size)
        (step.resumed if state.status == "preempted" else step.new).append(state.id)
        if start:  # 0.9.2 - 0.11.0: also what a victim kept by mistake
            step.hits[state.id] = start
        state.status = "running"
        state.computed = start
        self.running.append(state)
        step.scheduled[state.id] = tokens
        self._listed.add(state.id)
        self._budget -= tokens

    def _blocks(self, tokens: int) -> int:
        """Blocks for a sequence of so many tokens, at most `max_model_len`."""
        return -(-min(tokens, self.config.max_model_len) // self.config.block_size)

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
        for request_id, tokens in step.scheduled.items():
            state = self.states[request_id]
            step.spans[request_id] = (state.computed, state.computed + tokens)
            state.computed += tokens
            caught_up = state.computed >= state.tokens + state.placeholders
            if self.config.async_scheduling:
                state.placeholders += caught_up
                # 0.10.2 with priority: a victim that stays scheduled still has its older placeholder
                caught_up = state.placeholders > 0
            if caught_up:
                step.sampled.append(request_id)

    def _record(self, step: Step) -> None:
        step.running = [state.id for state in self.running]
        step.waiting = [state.id for state in self.waiting.in_order()]
        step.num_computed = [state.computed for state in self.running]
        step.free_blocks = self.pool.free

    def update(self, step: Step) -> Outcome:
        """Deliver a token to each sampled request, free those that finish (scheduler.py: update_from_output)."""
        outcome = Outcome([], [], 0)
        for request_id in step.sampled:
            state = self.states.get(request_id)
            if state is None:  # finished or aborted while this step was in flight
                continue
            state.output += 1
            outcome.tokens.append(request_id)
            if self.config.async_scheduling:
                self._settle(state)
            if state.output >= state.limit:
                self._drop(state)
                outcome.finished.append(request_id)
        outcome.free_blocks = self.pool.free
        return outcome

    def _settle(self, state: RequestState) -> None:
        """Asynchronous: a placeholder became a token, which may complete a block (async_scheduler.py)."""
        state.placeholders -= 1
        if state.placeholders < 0:
            raise SchedulerFailedError(
                f"the asynchronous scheduler of vLLM {self.config.version} stops here with an AssertionError: request "
                f"{state.id!r} got more tokens than it had placeholders"
            )
        if state.status == "running":
            full = (state.computed - state.placeholders) // self.config.block_size
            self.pool.register(state, full)

    def _drop(self, state: RequestState) -> None:
        was, state.status = state.status, "finished"
        if was == "running":
            self.running.remove(state)
            self.pool.release(state)
        else:
            self.waiting.remove(state)
        del self.states[state.id]
