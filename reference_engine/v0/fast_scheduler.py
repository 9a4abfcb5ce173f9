"""The V0 scheduler of the fast path: decoding requests move together, only the others are looked at one by one.

A decode step is a batch in which all decoding requests get a token; a batch of prefills alone is none. Only
the walk over the running queue differs from `V0Scheduler`, and it falls back to that one whenever somebody lacks a
block or the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import cast

from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import DECODING_FIELDS, DecodingBatch, DecodingRequest
from reference_engine.model.request import RequestRecord
from reference_engine.model.step import RequestId
from reference_engine.v0.blocks import CountingPool
from reference_engine.v0.profile import profile_for
from reference_engine.v0.scheduler import V0Scheduler
from reference_engine.v0.step import Decisions, V0State, V0Step

__all__ = ["V0FastScheduler", "V0FastState", "v0_fast_path_covers"]


def v0_fast_path_covers(config: EngineConfig) -> bool:
    """Whether the fast path knows this engine.

    It knows FCFS without prefix caching, delays or several partial prefills, since 0.5.5 (with chunks since 0.6.4).
    """
    profile = profile_for(config.version)
    if config.engine != "vllm-v0" or config.enable_prefix_caching or profile.sorted_by_arrival:
        return False
    if config.enable_chunked_prefill and profile.new_prefills_first:
        return False
    if config.delay_factor > 0 or (config.policy == "priority" and profile.priority):
        return False
    return config.max_num_partial_prefills == 1 or not profile.partial_prefills


class V0FastState(DecodingRequest, V0State):
    """A request that may join the decoding batch.

    `had_decode_step` says of one that left whether it had a decode step in it.
    """

    __slots__ = (*DECODING_FIELDS, "had_decode_step")

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record, max_model_len)
        self.had_decode_step = False


class V0FastScheduler(V0Scheduler):
    """Decides as `V0Scheduler`; `left_batch` tells its owner who left the decoding batch in the last decision.

    Args:
        config: an engine for which `v0_fast_path_covers` holds.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        pool = self.memory.gpu
        assert isinstance(pool, CountingPool)  # as without prefix caching
        self.pool = pool
        self.size = config.block_size
        self.decode_step = 0
        self.decoding_batch: DecodingBatch[V0FastState] = DecodingBatch(config.block_size)
        self.left_batch: list[V0FastState] = []
        self.dropped: list[V0FastState] = []
        self.in_step = 0
        self._eventless = V0Step()  # one for all decode steps without an event: nobody writes to it

    @property
    def fast_requests(self) -> dict[RequestId, V0FastState]:
        """The requests inside by id; whoever is in it came by `enter`."""
        return cast("dict[RequestId, V0FastState]", self.states)

    @property
    def fast_running(self) -> deque[V0FastState]:
        """The running queue; whoever is in it came by `enter`."""
        return cast("deque[V0FastState]", self.running)

    def head(self) -> RequestId | None:
        """The request that a run without progress is waiting for."""
        for queue in (self.running, self.waiting, self.swapped):
            if queue:
                return queue[0].id
        return None

    def enter(self, record: RequestRecord) -> V0FastState:
        """Queue a new request."""
        state = V0FastState(record, self.config.max_model_len)
        self.states[state.id] = state
        self.waiting.append(state)
        return state

    def decide(self, now: float) -> V0Step:
        """Decide the next batch: `scheduled` only holds what is outside the decoding batch, whose size is `in_step`."""
        self.in_step = 0
        self.dropped = []
        if not self.waiting and not self.swapped and self._all_decode() and self._decode_step():
            return self._eventless
        decisions = self._decide(now)
        step = decisions.step()
        self._close(decisions, step)
        self.dropped = cast("list[V0FastState]", decisions.dropped())
        return step

    def join(self, state: V0FastState) -> None:
        """A request that has just got a token, and not its last, joins the decoding batch from the next decode step on."""
        self.decoding_batch.join(state, self.decode_step, state.num_output_tokens)

    def leave(self, state: V0FastState) -> None:
        """Take a request out of the decoding batch after the current decode step and write its plain fields."""
        state.had_decode_step = state.first <= self.decode_step
        state.num_computed_tokens = state.seen = num_computed_tokens = self.decoding_batch.leave(
            state, self.decode_step
        )
        state.num_output_tokens = state.output_base + self.decode_step
        state.num_blocks = -(-num_computed_tokens // self.size)
        state.record.reached = max(state.record.reached, num_computed_tokens)

    def retire(self) -> list[V0FastState]:
        """Take those out of the decoding batch whose last token came with the current decode step, in running order."""
        retired = self.decoding_batch.finishing_in(self.decode_step)
        for state in retired:
            self.leave(state)
        if len(retired) > 1:
            place = {id(state): index for index, state in enumerate(self.running)}
            retired.sort(key=lambda state: place[id(state)])
        return retired

    def finish(self, states: Iterable[V0State]) -> None:
        """Free requests that have got their last token."""
        for state in states:
            state.status = "finished"
            del self.states[state.id]
            self.running.remove(state)
            self.pool.free(state)

    def decoding_tokens(self) -> int:
        """Computed tokens of all decoding requests after the current decode step."""
        return self.decoding_batch.num_computed_tokens(self.decode_step)

    def full_step(self, step: V0Step) -> V0Step:
        """The step with the decoding requests in their places, as `V0Scheduler` writes it."""
        full = V0Step(**{name: getattr(step, name) for name in V0Step.__dataclass_fields__})
        members: dict[int | str, int] = {}
        if self.in_step:
            members = {s.id: 1 for s in self.fast_running if s.decoding}
        others = list(step.scheduled.items())
        prefills, decodes = others[: step.prefill_groups], others[step.prefill_groups :]
        full.scheduled = {**dict(prefills), **members, **dict(decodes)}
        positions = {i: self.fast_requests[i].base + self.decode_step for i in members}
        full.spans = {**step.spans, **{i: (end - 1, end) for i, end in positions.items()}}
        full.sampled = [i for i in full.scheduled if i in members or i in step.sampled]
        self._describe(full)
        full.num_computed_tokens = [
            s.base + self.decode_step if s.decoding else s.num_computed_tokens for s in self.fast_running
        ]
        return full

    def _all_decode(self) -> bool:
        return 0 < self.decoding_batch.count == len(self.running)

    def _decode_step(self) -> bool:
        """Give every decoding request its token if blocks and budget allow; False leaves everything as it was."""
        members = self.decoding_batch.count
        if not 0 < members <= self.config.max_num_batched_tokens:
            return False
        decode_step = self.decode_step + 1
        needing_block = self.decoding_batch.needing_block(decode_step)
        last = self.running[members - 1]
        before_last = len(needing_block) - (last in needing_block)
        if self.pool.num_free_blocks < 1 + before_last:  # one free block for each append, full block or not
            return False
        self.pool.num_free_blocks -= len(needing_block)
        self.decode_step = decode_step
        self.in_step = members
        return True

    def _run(self, decisions: Decisions) -> None:
        if not self._run_together(decisions):
            self._take_batch_apart()
            super()._run(decisions)

    def _run_together(self, decisions: Decisions) -> bool:
        """The walk when decoding requests come first, then prefills under way, and all get what they want."""
        if self.chunked and self.swapped:
            return False
        members = self.decoding_batch.count
        fast_running = self.fast_running
        singles = [fast_running[index] for index in range(members - len(fast_running), 0)]
        if any(s.decoding or not s.in_prefill for s in singles):
            return False
        if singles and not self._singles_fit(singles):
            return False
        if not self._decode_step():
            if singles or not 0 < members <= self.config.max_num_batched_tokens:
                return False
            self._decode_step_short_of_blocks(decisions)
        decisions.num_batched_tokens = self.decoding_batch.count
        if self.chunked:
            decisions.num_curr_seqs = self.decoding_batch.count + len(singles)
        for _ in singles:
            self.running.pop()
        for state in singles:
            tokens = decisions.chunk(state.uncomputed)
            decisions.num_batched_tokens += tokens
            decisions.running_prefills.append((state, tokens))
        return True

    def _decode_step_short_of_blocks(self, decisions: Decisions) -> None:
        """A decode step with too few blocks: in running order, whoever sees none free evicts from the end."""
        needing_block = self.decoding_batch.needing_block(self.decode_step + 1)
        for state in list(self.fast_running):
            if not state.decoding:
                break  # evicted, and so are all behind it
            while self.pool.num_free_blocks < 1:
                preempted_req = self.fast_running.pop()
                self.leave(preempted_req)
                self.left_batch.append(preempted_req)
                self._preempt(preempted_req, decisions.preempted, decisions.swapped_out)
                if preempted_req is state:
                    break
            else:
                self.pool.num_free_blocks -= state in needing_block
        if self.decoding_batch.count:
            self.decode_step += 1
            self.in_step = self.decoding_batch.count

    def _singles_fit(self, singles: list[V0FastState]) -> bool:
        """Each gets at least one token of the budget, and sees the free block that its append asks for."""
        left = self.config.max_num_batched_tokens - self.decoding_batch.count
        for state in singles:
            if left <= 0:
                return False
            left -= min(left, state.uncomputed)
        return self.pool.num_free_blocks > len(self.decoding_batch.needing_block(self.decode_step + 1))

    def _take_batch_apart(self) -> None:
        """All decoding requests become single again."""
        for state in self.fast_running:
            if state.decoding:
                self.leave(state)
                self.left_batch.append(state)
