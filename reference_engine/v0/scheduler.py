"""The scheduler of vLLM's V0 engine as `core/scheduler.py` of 0.8.5 decides; older releases by their profile.

Default mode: a step holds only prefills or only decodes, and prefills go first. Chunked mode: decodes and running
prefills first, then new prefills in what is left of the budget.
"""

from __future__ import annotations

from collections import deque
from itertools import chain

from reference_engine.model import SchedulerFailedError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Outcome, RequestId, Step
from reference_engine.v0.blocks import V0Memory
from reference_engine.v0.profile import profile_for
from reference_engine.v0.step import Decisions, V0State, V0Step

__all__ = ["V0Scheduler"]

# of the model's length: a prompt beyond it is "long" when nothing else is configured
LONG_PREFILL_SHARE = 0.04


class V0Scheduler:
    """The decisions of one V0 engine; obeys the `Scheduler` protocol.

    Raises `SchedulerFailedError` where the real scheduler raises: no CPU block left to swap to, a swapped victim of
    the priority policy, or more running requests than batched tokens allow.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.profile = profile_for(config.version)
        self.memory = V0Memory(config, self.profile)
        self.waiting: deque[V0State] = deque()
        self.running: deque[V0State] = deque()
        self.swapped: deque[V0State] = deque()
        self.states: dict[RequestId, V0State] = {}
        self.chunked = config.enable_chunked_prefill and self.profile.chunked
        self.by_priority = config.policy == "priority" and self.profile.priority and not self.chunked
        self.swaps = config.preemption_mode == "swap" and self.profile.mode_selectable
        self.partial_prefills = config.max_num_partial_prefills if self.chunked and self.profile.partial_prefills else 1
        self.looks_up = config.enable_prefix_caching and self.profile.hits_cost_nothing
        self.long_prefill = config.long_prefill_token_threshold
        if self.partial_prefills > 1 and self.long_prefill == 0:
            self.long_prefill = int(config.max_model_len * LONG_PREFILL_SHARE)
        self._prompt_limit = config.max_model_len
        if not self.chunked:
            self._prompt_limit = min(config.max_model_len, config.max_num_batched_tokens)
        self._delayed: tuple[list[V0State], list[V0State]] | None = None
        self._previous_time = 0.0
        self._previous_was_prompt = False
        self._prompt_latency = 0.0

    @property
    def unfinished(self) -> int:
        """Requests that are waiting, running or swapped out."""
        return len(self.states)

    def add_request(self, request: Request) -> None:
        """Queue a new request at the end."""
        state = V0State(request, self.config.max_model_len)
        self.states[request.id] = state
        self.waiting.append(state)

    def abort(self, request_id: RequestId) -> None:
        """Drop a request wherever it is and free its blocks; unknown ids are passed over."""
        state = self.states.pop(request_id, None)
        if state is None:
            return
        for queue in (self.waiting, self.running, self.swapped):
            if state in queue:
                queue.remove(state)
        self.memory.drop(state)
        state.status = "finished"

    def schedule(self, now: float) -> Step:
        """One step.

        Raises:
            SchedulerFailedError: the real scheduler raises here.
        """
        decisions = self._decide(now)
        step = decisions.step()
        self._close(decisions, step)
        self._describe(step)
        return step

    def _decide(self, now: float) -> Decisions:
        decisions = Decisions(self.config, now, self.looks_up)
        if self.profile.sorted_by_arrival and self.config.delay_factor > 0:
            self._delayed = (list(self.waiting), list(self.running))
        if self.chunked:
            self._schedule_chunked(decisions)
        else:
            self._schedule_default(decisions)
        if (
            decisions.num_batched_tokens > self.config.max_num_batched_tokens
            or decisions.num_curr_seqs > self.config.max_num_seqs
        ):
            raise SchedulerFailedError(
                "more was scheduled than max_num_batched_tokens or max_num_seqs allow "
                "(the engine stops with an AssertionError in scheduler.py)"
            )
        return decisions

    def _schedule_default(self, decisions: Decisions) -> None:
        """Prefills, or else decodes; swapped requests come back only in a step that evicted nobody."""
        decisions.num_curr_seqs = len(self.running)
        if self.swapped:
            decisions.blocked = "kv"
        else:
            self._admit(decisions)
        if decisions.prefills or (decisions.ignored and self.profile.ignored_ends_step):
            self.running.extend(state for state, _tokens in decisions.prefills)
            return
        if self.by_priority:
            self._preempt_by_priority(decisions)
        self._run(decisions)
        if not decisions.evicted:
            self._swap_in(decisions)
        self.waiting.extendleft(decisions.preempted)
        self.running.extend(chain(decisions.decodes, decisions.swapped_decodes))
        self.swapped.extend(decisions.swapped_out)

    def _schedule_chunked(self, decisions: Decisions) -> None:
        """Decodes and running prefills, then the swapped, then new prefills, even in a step that evicted."""
        if self.partial_prefills > 1:
            queues = (self.running, self.waiting)
            decisions.share_budget(*queues, self.partial_prefills, self.long_prefill)
        self._run(decisions)
        if not decisions.evicted:
            self._swap_in(decisions)
        self._admit(decisions)
        self.waiting.extendleft(decisions.preempted)
        running_prefills = decisions.running_prefills
        if self.profile.partial_prefills:  # those that finish in this step come first
            running_prefills = sorted(running_prefills, key=lambda c: c[0].uncomputed != c[1])
        new = [state for state, _tokens in decisions.prefills]
        walked = decisions.decodes + [state for state, _tokens in running_prefills]
        back = decisions.swapped_decodes + [state for state, _tokens in decisions.swapped_prefills]
        if self.profile.new_prefills_first:
            self.running.extend(new + walked + back)
        else:
            self.running.extend(back + walked + new)
        self.swapped.extend(decisions.swapped_out)

    def _new_tokens(self, state: V0State) -> tuple[int, int]:
        """(uncached, cached) tokens that a request wants next."""
        wanted = state.uncomputed
        if not (state.in_prefill and self.looks_up):
            return wanted, 0
        if state.cached is None:
            state.cached = self.memory.gpu.cached_tokens(state)
        if state.cached < state.num_computed_tokens and state.status == "swapped":
            raise SchedulerFailedError(
                f"request {state.id!r} was swapped out in the middle of its prefill and cannot come back with prefix "
                "caching (the engine stops with an AssertionError in scheduler.py)"
            )
        hit = max(0, state.cached - state.num_computed_tokens)
        if 0 < hit == wanted:  # something must be computed to get a token
            hit -= 1
        return wanted - hit, hit

    def _forget_hit(self, state: V0State) -> None:
        """Since 0.9.2: a request that is not admitted looks its hit up again.

        The real one forgets a swapped request twice if it has to wait twice, and fails.
        """
        if self.looks_up and self.profile.hits_looked_up_anew:
            if state.cached is None:
                raise SchedulerFailedError(
                    f"swapped request {state.id!r} had to wait for budget or a seat twice, which prefix caching does "
                    "not survive in this version (the engine stops with an AssertionError in prefix_caching_block.py)"
                )
            state.cached = None

    def _run(self, decisions: Decisions) -> None:
        """Walk the running queue; who cannot append a token evicts from its end, or itself when it is the last."""
        if self.profile.sorted_by_arrival:
            self.running = deque(sorted(self.running, key=lambda state: state.arrival))
        queue = self.running
        while queue:
            tokens = 1
            if self.chunked:
                tokens = decisions.chunk(self._new_tokens(queue[0])[0])
                if tokens == 0:
                    break
            state = queue.popleft()
            if self._make_room(state, decisions):
                self._take_along(state, tokens, decisions)

    def _make_room(self, state: V0State, decisions: Decisions) -> bool:
        """Evict until `state` can append; False when it had to go itself.

        The test is the worst case: a free block for every request, even where the last block has room
        (0.8.5, `core/block_manager.py`).
        """
        while not self.memory.can_append(state):
            preempted_req = self.running.pop() if self.running else state
            self._preempt(preempted_req, decisions.preempted, decisions.swapped_out)
            if preempted_req is state:
                return False
        return True

    def _take_along(self, state: V0State, tokens: int, decisions: Decisions) -> None:
        self.memory.gpu.append(state)
        decisions.num_batched_tokens += tokens
        if self.chunked:
            decisions.num_curr_seqs += 1
        if state.in_prefill:
            decisions.running_prefills.append((state, tokens))
        else:
            decisions.decodes.append(state)

    def _preempt(self, state: V0State, recomputed: list[V0State], swapped_out: list[V0State]) -> None:
        """Take a running request's blocks: to be recomputed, or swapped out to the CPU."""
        if not self.swaps:
            self.memory.gpu.free(state)
            state.restart()
            recomputed.append(state)
            return
        self.memory.swap_out(state)
        swapped_out.append(state)

    def _swap_in(self, decisions: Decisions) -> None:
        """Bring back swapped requests from the head, as long as blocks, watermark and budget allow.

        A request swapped out in the middle of its prefill wants the whole rest at once, also in chunked mode.
        """
        if self.profile.sorted_by_arrival:
            self.swapped = deque(sorted(self.swapped, key=lambda state: state.arrival))
        while self.swapped:
            state = self.swapped[0]
            room = self.memory.room_to_return(state)
            if room == "never":
                decisions.given_up.append(self.swapped.popleft())
                continue
            if room == "later":
                break
            uncached, cached = self._new_tokens(state)
            if not decisions.affords(uncached):
                self._forget_hit(state)
                break
            self.swapped.popleft()
            self.memory.swap_in(state)
            decisions.swapped_in.append(state)
            decisions.num_batched_tokens += uncached
            decisions.num_curr_seqs += 1
            if state.in_prefill:
                decisions.swapped_prefills.append((state, uncached + cached))
            else:
                decisions.swapped_decodes.append(state)

    def _admit(self, decisions: Decisions) -> None:
        """Admit prompts from the head; all blocks of a prompt are taken at once, its chunk may be shorter."""
        if self.profile.partial_prefills and decisions.num_batched_tokens >= self.config.max_num_batched_tokens:
            decisions.blocked = "budget" if self.waiting else None
            return
        passed_over: list[V0State] = []
        while self._delay_is_over(decisions.now) and self.waiting:
            state = self.waiting[0]
            if state.status == "swapped":
                raise _swapped_in_waiting(state)
            if self._is_one_long_too_many(state, decisions):
                passed_over.append(self.waiting.popleft())
                continue
            uncached, cached = self._new_tokens(state)
            if self.chunked:
                uncached = decisions.chunk(uncached)
            room = self.memory.room_for(state)
            if uncached + cached > self._prompt_limit or room == "never":
                decisions.ignored.append(self.waiting.popleft())
                continue
            if room == "later":
                decisions.blocked = "kv"
                self._forget_hit(state)
                break
            too_padded = self.profile.padded_prefill and decisions.is_padded_by(state.num_tokens)
            if too_padded or not decisions.affords(uncached):
                decisions.blocked = "seat" if decisions.num_curr_seqs >= self.config.max_num_seqs else "budget"
                self._forget_hit(state)
                break
            self.waiting.popleft()
            self._admit_one(state, uncached, cached, decisions)
        if decisions.blocked is None and (self.waiting or passed_over):
            decisions.blocked = "budget"
        self.waiting.extendleft(reversed(passed_over))
        self._previous_was_prompt = bool(decisions.prefills)

    def _admit_one(self, state: V0State, uncached: int, cached: int, decisions: Decisions) -> None:
        self.memory.gpu.allocate(state)
        state.status = "running"
        decisions.long_prefills += state.uncomputed > self.long_prefill
        decisions.prefills.append((state, uncached + cached))
        decisions.num_batched_tokens += uncached
        if self.profile.padded_prefill:
            decisions.num_batched_tokens = len(decisions.prefills) * max(
                tokens for _state, tokens in decisions.prefills
            )
        decisions.num_curr_seqs += 1

    def _is_one_long_too_many(self, state: V0State, decisions: Decisions) -> bool:
        """Short prompts may pass a long one while `max_long_partial_prefills` long ones are under way."""
        return (
            self.partial_prefills > 1
            and state.uncomputed > self.long_prefill
            and decisions.long_prefills >= self.config.max_long_partial_prefills
        )

    def _delay_is_over(self, now: float) -> bool:
        """`delay_factor`: hold prompts until the oldest has waited that many times the last prompt step's duration."""
        if self._previous_was_prompt:
            self._prompt_latency = now - self._previous_time
        self._previous_time, self._previous_was_prompt = now, False
        if self.config.delay_factor <= 0:
            return True
        waiting, running = self._delayed or (self.waiting, self.running)
        if not waiting or not running:
            return True
        oldest = min(state.arrival for state in waiting)
        return now - oldest > self.config.delay_factor * self._prompt_latency

    def _preempt_by_priority(self, decisions: Decisions) -> None:
        """Evict the worst running requests for a strictly better head of the queue, which is admitted later.

        The head is the one of the queue as it stands; only then is the queue sorted.
        """
        running = sorted(self.running, key=lambda state: state.rank)
        if self.waiting:
            head = self.waiting.popleft()
            uncached = self._new_tokens(head)[0] if head.status == "waiting" else 0
            while running and running[-1].rank > head.rank:
                if head.status == "swapped":
                    raise _swapped_in_waiting(head)
                if self.memory.room_for(head) == "now" and decisions.affords(uncached):
                    break
                preempted_req = running.pop()
                decisions.num_curr_seqs -= 1
                self._preempt(preempted_req, decisions.forced, decisions.forced_out)
                self.waiting.appendleft(preempted_req)
            self.waiting.appendleft(head)
            if head.status == "waiting":
                self._forget_hit(head)
        self.waiting = deque(sorted(self.waiting, key=lambda state: state.rank))
        self.running = deque(running)

    def _close(self, decisions: Decisions, step: V0Step) -> None:
        """After the decisions: blocks count as computed, ignored requests are forgotten."""
        if step.scheduled:
            self.memory.gpu.mark_computed()
        for state in decisions.dropped():
            state.status = "finished"
            del self.states[state.id]
        if self.waiting:
            step.blocked = "kv" if decisions.preempted or decisions.blocked is None else decisions.blocked

    def _describe(self, step: V0Step) -> None:
        """Write down the queues as they stand now."""
        step.running = [state.id for state in self.running]
        step.waiting = [state.id for state in self.waiting]
        step.swapped = [state.id for state in self.swapped]
        step.num_computed_tokens = [state.num_computed_tokens for state in self.running]
        step.free_blocks = self.memory.gpu.num_free_blocks

    def update_from_output(self, step: Step) -> Outcome:
        """Hand a token to each request that has caught up; free what finished, in the order of the running queue."""
        outcome = Outcome([], [], 0)
        for request_id in step.sampled:
            state = self.states.get(request_id)
            if state is None:  # aborted while the step ran
                continue
            state.num_output_tokens += 1
            outcome.tokens.append(request_id)
            if state.num_output_tokens >= state.max_output_tokens:
                state.status = "finished"
                outcome.finished.append(request_id)
                del self.states[request_id]
        if outcome.finished:
            for state in self.running:
                if state.status == "finished":
                    self.memory.gpu.free(state)
            self.running = deque(state for state in self.running if state.status != "finished")
        outcome.free_blocks = self.memory.gpu.num_free_blocks
        return outcome


def _swapped_in_waiting(state: V0State) -> SchedulerFailedError:
    return SchedulerFailedError(
        f"request {state.id!r} was swapped out by the priority policy and stands in the waiting queue "
        "(the engine stops with an AssertionError in scheduler.py)"
    )
