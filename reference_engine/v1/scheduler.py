"""vLLM's V1 scheduler, step by step, as `v1/core/sched/scheduler.py` decides from 0.8.5 on.

`V1Scheduler` is the plain reference: it walks every request in every step. What differs between releases stands on
the `SemanticsProfile` of the configured version.
"""

from __future__ import annotations

from reference_engine.model import SchedulerFailedError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request, RequestState
from reference_engine.model.step import Outcome, RequestId, Step
from reference_engine.v1.blocks import BlockPool, Contents, CountedPool, Pool
from reference_engine.v1.profile import DraftRules, profile_of
from reference_engine.v1.queue import FcfsQueue, PrefillCadence, PriorityQueue, WaitingQueue

__all__ = ["V1Scheduler"]


def _default_pool(config: EngineConfig) -> Pool:
    usable = config.num_blocks - 1  # the null block
    if not config.enable_prefix_caching:
        return CountedPool(usable)
    unhashed_first = profile_of(config.version).unhashed_first
    contents = Contents(config.block_size, DraftRules.of(config, profile_of(config.version)).hash_lookahead)
    return BlockPool(usable, contents, unhashed_first)


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
        self.max_num_running_reqs = self.profile.max_num_running_reqs(config)
        gate = config.reserve_full_isl
        self.gate = self.profile.full_sequence_gate and (gate is None or gate)
        fraction = (config.watermark or 0.0) if self.profile.watermark else 0.0
        self.watermark_blocks = int(fraction * config.num_blocks)
        self.hit_unit = config.block_size
        self.drafts = DraftRules.of(config, self.profile)
        self._lookahead = self.drafts.num_lookahead_tokens
        self._slots = self.drafts.budget_slots
        self._not_cached = self.drafts.hash_lookahead + self.drafts.uncached_tail
        self.cadence = PrefillCadence(config.prefill_schedule_interval if self.profile.prefill_interval else 1)
        self._token_budget = 0
        self._threshold = 0
        self._holds_prompts = False
        self._just_dropped: dict[RequestId, RequestState] = {}
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
        self._token_budget = self.config.max_num_batched_tokens - self.drafts.budget_share
        self._threshold = self._long_prefill_threshold()
        self._listed.clear()
        self._holds_prompts = self.cadence.holds(self.running)
        self._schedule_running(step)
        if step.preempted:
            step.blocked = "kv"
        else:
            self._schedule_waiting(step)
        self._check()
        self.cadence.count(self.states, step.scheduled, self._holds_prompts, len(self.waiting))
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
                    break
            if state.status != "running":
                if self.by_priority and self.profile.goes_on_after_self:
                    continue
                return
            step.scheduled[state.id] = num_new_tokens
            self._listed.add(state.id)
            self._token_budget -= num_new_tokens + self._slots
            if state.num_drafts:
                self._schedule_drafts(state, num_new_tokens, step)
            index += 1

    def _schedule_drafts(self, state: RequestState, num_new_tokens: int, step: Step) -> None:
        """What a running request computes beyond its known tokens are drafts to verify; others are forgotten."""
        known = state.num_tokens + state.num_output_placeholders
        drafts = state.num_computed_tokens + num_new_tokens - known
        if drafts > 0:
            step.drafts[state.id] = drafts
        state.num_drafts = 0

    def _num_new_tokens(self, state: RequestState) -> int:
        """Tokens for a running request: what it lacks, within threshold, budget and model length."""
        computed = state.num_computed_tokens
        if self._holds_prompts and computed < state.num_prompt_tokens:
            return 0
        wanted = state.num_tokens + state.num_output_placeholders + state.num_drafts - computed
        if 0 < self._threshold < wanted:
            wanted = self._threshold
        wanted = min(wanted, self._token_budget - self._slots, self.config.max_model_len - 1 - computed)
        if state.num_output_placeholders:
            wanted = min(wanted, self._async_tail(state))
        if wanted <= 0:
            return 0
        return self._leave_prompt_tail(state, computed, wanted) if self.drafts.prompt_tail else wanted

    def _leave_prompt_tail(self, state: RequestState, start: int, num_new_tokens: int) -> int:
        """Several MTP modules: a chunk ends with the known tokens or so many before their end."""
        tail = self.drafts.prompt_tail
        left = state.num_tokens - start - num_new_tokens
        if 0 < left < tail:
            return max(0, num_new_tokens - (tail - left))
        return num_new_tokens

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
        new = self._num_blocks_for(end + self._lookahead) - state.num_blocks
        if new > self.pool.num_free_blocks:
            return False
        if new > 0:
            self.pool.allocate_new_blocks(state, new)
        self._cache_blocks(state, min(end, state.num_tokens))
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
        preempted_req.num_drafts = 0
        preempted_req.status = "preempted"
        self.waiting.prepend_request(preempted_req)
        step.preempted.append(preempted_req.id)
        scheduled = preempted_req.id in step.scheduled
        if scheduled and self.profile.victim_rollback != "kept":
            self._listed.discard(preempted_req.id)
            if self.profile.victim_rollback == "full":
                self._token_budget += step.scheduled.pop(preempted_req.id)
                step.drafts.pop(preempted_req.id, None)
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
            start = state.num_computed_tokens + hit * self.hit_unit
            num_new_tokens = state.num_tokens - start
            if 0 < self._threshold < num_new_tokens:
                num_new_tokens = self._threshold
            if self._holds_prompts and num_new_tokens != 1:
                break
            padding = self._padding(start, num_new_tokens, step) if self.drafts.num_spec_tokens else 0
            if padding is None:
                break
            budget = self._token_budget - self._slots
            if num_new_tokens > budget and self._whole_prompts_only():
                if self.profile.unchunked_prompt == "stops":
                    break
                skipped.append(self.waiting.pop_request())
                continue
            num_new_tokens = min(num_new_tokens + padding, budget)
            if self.drafts.prompt_tail:
                num_new_tokens = self._leave_prompt_tail(state, start, num_new_tokens)
                if num_new_tokens <= 0 < budget and self.profile.passes_over:
                    skipped.append(self.waiting.pop_request())
                    continue
            num_new_tokens = self._first_chunk(state, start, num_new_tokens)
            if num_new_tokens <= 0:
                break
            if not self._fits(state, start + num_new_tokens, hit, unused):
                step.blocked = "kv"
                break
            self._admit(self.waiting.pop_request(), start, num_new_tokens, hit, step)
            if padding:
                step.drafts[state.id] = padding
                step.padded.add(state.id)
        if self.waiting and step.blocked is None:
            step.blocked = "seat" if len(self.running) >= self.max_num_running_reqs else "budget"
        elif skipped and step.blocked is None:
            step.blocked = "budget"
        if self.profile.passes_over:
            skipped.reverse()
        for state in skipped:  # 0.9.2 - 0.11.2: back to the front one by one, so in reversed order
            self.waiting.prepend_request(state)

    def _padding(self, start: int, num_new_tokens: int, step: Step) -> int | None:
        """Padding drafts for a request with one token left beside running decodes (0.28.0 on); None: it has to wait."""
        drafts, rule = self.drafts.num_spec_tokens, self.profile.draft_padding
        if rule == "none" or num_new_tokens != 1:
            return 0
        hit = rule == "hit" and start > 0
        if not (step.scheduled or hit) or self._runs_prompt(step):
            return 0
        longest = self.config.max_model_len
        if rule == "hit" and start + 1 + drafts + 1 > longest:
            return 0
        if start + 1 + drafts > longest or 1 + drafts + self._slots > self._token_budget:
            return None
        return drafts

    def _runs_prompt(self, step: Step) -> bool:
        """Whether a running request is scheduled that is inside its prompt."""
        admitted = {*step.new, *step.resumed}
        states = (self.states[i] for i in step.scheduled if i not in admitted)
        return any(state.num_computed_tokens < state.num_prompt_tokens for state in states)

    def _whole_prompts_only(self) -> bool:
        return not (self.config.enable_chunked_prefill or self.profile.unchunked_prompt == "chunked")

    def _cache_hit(self, state: RequestState) -> tuple[int, int]:
        """Cached blocks at the start of a request, never its last token's; only for one that has computed nothing."""
        if state.num_computed_tokens:
            return 0, 0
        ahead = self.drafts.hash_lookahead
        most = (state.num_tokens - 1) // self.config.block_size
        if ahead > 1:
            most = max(0, state.num_tokens - ahead) // self.config.block_size
        hit, unused = self.pool.get_computed_blocks(state, most)
        if hit and self.drafts.drops_block:
            return self.pool.get_computed_blocks(state, hit - 1)
        return hit, unused

    def _fits(self, state: RequestState, end: int, hit: int, unused: int) -> bool:
        """Blocks for the first chunk, and with the gate (0.19.0 on) those of all known tokens, are free now."""
        free = self.pool.num_free_blocks
        if self.running:
            free -= self.watermark_blocks
        if self.gate and self._num_blocks_for(state.num_tokens) - hit + unused > free:
            return False
        return self._num_blocks_for(end + self._lookahead) - hit + unused <= free

    def _admit(self, state: RequestState, start: int, num_new_tokens: int, hit: int, step: Step) -> None:
        self._take_first_blocks(state, start + num_new_tokens, hit)
        (step.resumed if state.status == "preempted" else step.new).append(state.id)
        if start:  # 0.9.2 - 0.11.0: also what a victim kept by mistake
            step.hits[state.id] = start
        state.status = "running"
        state.num_computed_tokens = start
        self.running.append(state)
        step.scheduled[state.id] = num_new_tokens
        self._listed.add(state.id)
        self._token_budget -= num_new_tokens + self._slots

    def _first_chunk(self, state: RequestState, start: int, num_new_tokens: int) -> int:
        """Tokens of an admitted request's first chunk; 0 ends admission."""
        return num_new_tokens

    def _take_first_blocks(self, state: RequestState, end: int, hit: int) -> None:
        """Give an admitted request the blocks that it hits and the new ones for its first `end` tokens."""
        self.pool.admit(state, hit, self._num_blocks_for(end + self._lookahead) - hit)
        self._cache_blocks(state, min(end, state.num_tokens))

    def _cache_blocks(self, state: RequestState, num_tokens: int) -> None:
        """Make the full blocks of a request's first `num_tokens` tokens findable."""
        if self._not_cached:
            num_tokens = min(num_tokens, state.num_tokens - self.drafts.hash_lookahead) - self.drafts.uncached_tail
        self.pool.cache_blocks(state, num_tokens // self.config.block_size)

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

    def _check(self) -> None:
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
                if caught_up:
                    state.num_output_placeholders += 1 + step.drafts.get(request_id, 0)
                    state.num_drafts = self.drafts.num_spec_tokens
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
        dropped, self._just_dropped = self._just_dropped, {}
        for request_id in step.sampled:
            state = self.states.get(request_id)
            if state is None:  # finished or aborted while this step was in flight
                if request_id in dropped:
                    self._verify_drafts(dropped[request_id], step, outcome)
                continue
            delivered = 1
            if step.drafts:
                accepted = self._verify_drafts(state, step, outcome)
                delivered = min(1 + accepted, state.max_output_tokens - state.num_output_tokens)
                if delivered > 1:
                    outcome.delivered[request_id] = delivered
            state.num_output_tokens += delivered
            outcome.tokens.append(request_id)
            if self.config.async_scheduling:
                self._replace_placeholders(state, delivered)
            elif self.drafts.num_spec_tokens:
                state.num_drafts = state.propose_drafts(self.drafts.num_spec_tokens)
                if self.profile.caches_in_update:
                    self._cache_blocks(state, state.num_computed_tokens)
            if state.num_output_tokens >= state.max_output_tokens:
                self._drop(state)
                outcome.finished.append(request_id)
        outcome.free_blocks = self.pool.num_free_blocks
        return outcome

    def _verify_drafts(self, state: RequestState, step: Step, outcome: Outcome) -> int:
        """The accepted drafts of a request in a step; the places of the rejected ones count as not computed."""
        drafts = step.drafts.get(state.id, 0)
        if drafts == 0:
            return 0
        accepted = 0
        if state.id not in step.padded:
            accepted = state.accept_drafts(drafts, self.config.acceptance)
        outcome.accepted[state.id] = accepted
        if state.num_computed_tokens > 0:
            state.num_computed_tokens -= drafts - accepted
        if state.num_output_placeholders > 0:
            state.num_output_placeholders -= drafts - accepted
        return accepted

    def _replace_placeholders(self, state: RequestState, delivered: int) -> None:
        """Asynchronous: placeholders became tokens, which may complete a block (async_scheduler.py)."""
        state.num_output_placeholders -= delivered
        if state.num_output_placeholders < 0:
            raise SchedulerFailedError(
                f"the asynchronous scheduler of vLLM {self.config.version} stops here with an AssertionError: request "
                f"{state.id!r} got more tokens than it had placeholders"
            )
        if state.status == "running":
            self._cache_blocks(state, state.num_computed_tokens - state.num_output_placeholders)

    def _drop(self, state: RequestState) -> None:
        was, state.status = state.status, "finished"
        if was == "running":
            self.running.remove(state)
            self.pool.free(state)
        else:
            self.waiting.remove_request(state)
        del self.states[state.id]
        if self.drafts.num_spec_tokens and self.config.async_scheduling:
            self._just_dropped[state.id] = state
