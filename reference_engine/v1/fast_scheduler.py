"""The V1 scheduler of the fast path: decoding requests move together, only the others are looked at one by one.

Between two events (an admission, a finish, a shortage of blocks) every request of the decoding batch gets one token a
step. Whatever does not follow that pattern takes the batch apart again and walks its requests as `V1Scheduler` does, so
that decisions are the plain scheduler's in every step.

The fast path's decisions written out in full, to be held against the plain scheduler's.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol, cast

from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import DecodingBatch
from reference_engine.model.request import RequestRecord, RequestState
from reference_engine.model.step import RequestId, Step
from reference_engine.v1.batch import Chunk, FastState, fast_pool
from reference_engine.v1.blocks import BlockPool, CountedPool, Pool, UnsharedPool
from reference_engine.v1.scheduler import V1Scheduler

__all__ = ["Demand", "Planned", "V1FastScheduler", "full_step"]
Planned = tuple[FastState, int, int]  # a request outside the decoding batch, its tokens, its new blocks


class Demand(Protocol):
    """Blocks by batch."""

    def __len__(self) -> int: ...

    def __getitem__(self, batch: int, /) -> Sized: ...


def _stamp(state: FastState) -> int:
    return state.stamp


class V1FastScheduler(V1Scheduler):
    """Decides one batch after the other; `left_batch` and `retired` tell its owner who left the decoding batch
    meanwhile.

    Args:
        config: an engine for which `fast_path_covers` holds.
        sharing: prompts may share content, so that blocks must be known by content.
    """

    pool: Pool

    def __init__(self, config: EngineConfig, sharing: bool) -> None:
        super().__init__(config, self._pool_of(config, sharing))
        pool = self.pool
        self.block_pool = pool if isinstance(pool, BlockPool) else None
        self.count_pool = pool if isinstance(pool, CountedPool | UnsharedPool) else None
        self.size = config.block_size
        self.output_lag = 1 if config.async_scheduling else 0
        self.batch = -1
        self.decoding_batch: DecodingBatch[FastState] = DecodingBatch(config.block_size)
        self.singles: list[FastState] = []
        self.left_batch: list[tuple[FastState, int]] = []
        self.retired: list[FastState] = []
        self.skipped: list[FastState] = []
        self.stamps = 0
        self._joined = 0
        self._spare: Step | None = None

    def _pool_of(self, config: EngineConfig, sharing: bool) -> Pool:
        return fast_pool(config, sharing)

    @property
    def fast_running(self) -> list[FastState]:
        """The running list; whoever is in it came by `enter`."""
        return cast("list[FastState]", self.running)

    @property
    def fast_requests(self) -> dict[RequestId, FastState]:
        """The requests inside by id; whoever is in it came by `enter`."""
        return cast("dict[RequestId, FastState]", self.states)

    def enter(self, record: RequestRecord) -> FastState:
        """Queue a new request."""
        state = FastState(record, self.config.max_model_len)
        self.states[state.id] = state
        self.waiting.add_request(state)
        return state

    # ---- one batch ----

    def decide(self) -> tuple[Step, list[Chunk], int]:
        """Decide the next batch.

        Returns:
            The step's events (`scheduled` only holds the singles), their chunks, and how many requests decode.
        """
        self.batch += 1
        if self.output_lag:
            self.retired = self.retire(self.batch - 1)
        self._joined = 0
        step, self._spare = self._spare or Step(), None
        self._token_budget = self.config.max_num_batched_tokens
        self._threshold = self._long_prefill_threshold()
        step.blocked = None
        if self.skipped:
            self.skipped = []
        if not self._schedule_running_together(step):
            self._schedule_running_singly(step)
        members = self.decoding_batch.count
        if step.preempted:
            step.blocked = "kv"
        elif self.waiting:
            self._schedule_waiting_if_room(step)
        if step.scheduled:
            return step, self._advance_chunks(step), members
        if not step.preempted:
            self._spare = step
        return step, [], members

    def _schedule_waiting_if_room(self, step: Step) -> None:
        """As `_schedule_waiting`, after a look at the commonest reasons not to admit anybody."""
        if self._token_budget > 0 and len(self.running) < self.max_num_running_reqs:
            self._schedule_waiting(step)
        else:
            step.blocked = "seat" if len(self.running) >= self.max_num_running_reqs else "budget"

    def _admit(self, state: RequestState, start: int, num_new_tokens: int, hit: int, step: Step) -> None:
        super()._admit(state, start, num_new_tokens, hit, step)
        assert isinstance(state, FastState)
        self._listed.clear()
        self.stamps += 1
        state.stamp = self.stamps
        self.singles.append(state)

    def _advance_chunks(self, step: Step) -> list[Chunk]:
        """Count the tokens of the singles as computed; who has caught up joins the decoding batch."""
        chunks = []
        fast_requests = self.fast_requests
        for request_id, num_new_tokens in step.scheduled.items():
            state = fast_requests[request_id]
            start = state.num_computed_tokens
            state.num_computed_tokens = end = start + num_new_tokens
            sampled = end >= state.num_prompt_tokens + state.num_output_tokens + state.num_output_placeholders
            if sampled:
                if self.output_lag:
                    state.num_output_placeholders += 1
                self._join(state)
            chunks.append(Chunk(state, start, end, sampled))
        self.singles = [s for s in self.singles if not (s.decoding or s.draining)]
        return chunks

    # ---- the decoding batch ----

    def _join(self, state: FastState) -> None:
        """From the next batch on a request gets one token in each; unless this one brings its last."""
        output = state.num_output_tokens + (state.num_output_placeholders if self.output_lag else 1)
        if output >= state.max_output_tokens:
            state.draining = True
            return
        self.decoding_batch.join(state, self.batch, output)
        self._joined += state.base

    def leave(self, state: FastState, last: int) -> None:
        """Take a request out of the decoding batch after batch number `last` and write its plain fields."""
        state.num_computed_tokens = num_computed_tokens = self.decoding_batch.leave(state, last)
        state.num_output_tokens = state.output_base + last - self.output_lag
        state.num_output_placeholders = self.output_lag
        if num_computed_tokens > state.record.reached:
            state.record.reached = num_computed_tokens
        if self.count_pool is not None:
            state.num_blocks = -(-num_computed_tokens // self.size)
            in_flight = 1 if self.output_lag and state.first <= last else 0
            state.registered = (num_computed_tokens - in_flight) // self.size

    def _leave_now(self, state: FastState) -> None:
        """Leave while the newest batch is decided; `left_batch` keeps the request's first decode step."""
        self.left_batch.append((state, state.first))
        self.leave(state, self.batch - 1)

    def retire(self, batch: int) -> list[FastState]:
        """The decoding requests whose last token comes with a batch, taken out of the decoding batch."""
        retired = self.decoding_batch.finishing_in(batch)
        for state in retired:
            self.leave(state, batch)
            state.draining = True
        return retired

    def _take_batch_apart(self) -> None:
        """All decoding requests become singles again."""
        members = [state for phase in self.decoding_batch.phases for state in phase]
        members.sort(key=_stamp)
        for state in members:
            self._leave_now(state)
        self.singles = [s for s in self.fast_running if not s.draining]

    @property
    def uneventful(self) -> bool:
        """Whether the next batch can be like this one: only decoding requests, and a queue whose head stays where it
        is.

        A step without events has been decided since the last arrival. What kept the head then keeps it now, unless
        cached blocks come and go (`BlockPool`), or prompts change places in the queue while they wait.
        """
        members = self.decoding_batch.count
        if self.singles or not members or members != len(self.running):
            return False
        if not self.waiting or len(self.running) >= self.max_num_running_reqs:
            return True
        whole = not self.config.enable_chunked_prefill
        return self.count_pool is not None and not (whole and self.profile.unchunked_prompt == "skipped")

    def allocate_decoding(self, batch: int) -> int:
        """Hand the decoding requests of an uneventful batch their blocks by name; returns the free blocks left."""
        self.batch = batch
        for state in sorted(self.decoding_batch.needing_block(batch), key=_stamp):
            self.pool.allocate_new_blocks(state, 1)
        self._register([])
        return self.pool.num_free_blocks

    @property
    def demand(self) -> Demand:
        """By batch number modulo its length, something as long as the blocks that the batch asks for (or at most asks
        for)."""
        return self.decoding_batch.phases

    def end_decode_stretch(self, batch: int, free: int) -> None:
        """Uneventful batches have passed: `batch` is the newest, `free` blocks are left."""
        self.batch = batch
        if self.count_pool is not None:
            self.count_pool.take(self.count_pool.num_free_blocks - free)

    def head(self) -> RequestState | None:
        """The request that would block all others: the first running one, or the first in the queue."""
        if self.running:
            return self.running[0]
        return self.waiting.peek_request() if self.waiting else None

    def decoding_tokens(self, members: int) -> int:
        """Computed tokens, after the newest batch, of those that were decoding when it was decided."""
        return self.decoding_batch.base_sum - self._joined + members * self.batch

    def remove(self, state: FastState) -> None:
        """Drop an aborted request that is not in the decoding batch (any more)."""
        if state in self.singles:
            self.singles.remove(state)
        self._drop(state)

    def finish(self, state: FastState) -> None:
        """Drop a request that has its last token; asynchronous: its newest block is made findable before."""
        if self.output_lag and state.status == "running":
            state.num_output_placeholders = 0
            self._cache_blocks(state, state.num_computed_tokens)
        self._drop(state)

    # ---- the walk over the running list ----

    def _schedule_running_singly(self, step: Step) -> None:
        """The plain walk, request by request."""
        self._take_batch_apart()
        self._listed.clear()
        self._schedule_running(step)
        self.singles = [s for s in self.fast_running if not s.draining]
        self.skipped = [s for s in self.singles if s.id not in step.scheduled]

    def _schedule_running_together(self, step: Step) -> bool:
        """The walk when everybody gets what he wants; False when budget or policy ask for the plain one."""
        decoding_batch = self.decoding_batch
        if decoding_batch.count > self._token_budget:
            return False
        needing_block = decoding_batch.needing_block(self.batch)
        plan: list[Planned] = []
        need = len(needing_block)
        if self.singles:
            token_budget, full_budget = self._plan(plan), self._token_budget
            if token_budget < 0:
                self._token_budget = full_budget
                return False
            need += sum(new for _state, _tokens, new in plan)
        else:
            token_budget = self._token_budget - decoding_batch.count
        if need > self.pool.num_free_blocks:
            if self.by_priority:
                self._token_budget = self.config.max_num_batched_tokens
                return False
            self._schedule_running_short_of_blocks(step, plan, needing_block)
            return True
        self._token_budget = token_budget
        self._allocate_planned(step, plan, needing_block)
        return True

    def _plan(self, plan: list[Planned]) -> int:
        """Fill `plan` with (request, tokens, new blocks) of the single ones; returns the budget left, -1 if short."""
        first = self.singles[0].stamp
        tail: list[FastState] = []
        for state in reversed(self.fast_running):
            tail.append(state)
            if state.stamp <= first:
                break
        token_budget = full = self._token_budget
        token_budget -= self.decoding_batch.count - sum(s.decoding for s in tail)
        for state in reversed(tail):
            if state.draining:
                continue
            if token_budget <= 0:
                return -1
            if state.decoding:
                token_budget -= 1
                continue
            self._token_budget = token_budget
            num_new_tokens = self._num_new_tokens(state)
            self._token_budget = full
            if num_new_tokens == 0:
                return -1
            token_budget -= num_new_tokens
            plan.append(
                (
                    state,
                    num_new_tokens,
                    self._num_blocks_for(state.num_computed_tokens + num_new_tokens) - state.num_blocks,
                )
            )
        return token_budget

    def _allocate_planned(self, step: Step, plan: list[Planned], needing_block: set[FastState]) -> None:
        """Everybody's blocks are free: hand them out."""
        if self.count_pool is not None:
            self.count_pool.take(len(needing_block))
            for state, _tokens, new in plan:
                self.pool.allocate_new_blocks(state, new)
        else:
            growing = [(s.stamp, s, 1) for s in needing_block]
            growing += [(s.stamp, s, new) for s, _tokens, new in plan]
            growing.sort()
            for _stamp, state, new in growing:
                self.pool.allocate_new_blocks(state, new)
        for state, num_new_tokens, _new in plan:
            step.scheduled[state.id] = num_new_tokens
        self._register(plan)

    def _register(self, plan: list[Planned]) -> None:
        """Make the blocks findable that become full with this batch (asynchronous: with the token before).

        The decoding requests' blocks only have names in a `BlockPool`; else what they cached follows from their
        position.
        """
        full = [
            (s.stamp, s, min(s.num_computed_tokens + num_new_tokens, s.num_tokens) // self.size)
            for s, num_new_tokens, _new in plan
        ]
        if self.block_pool is not None:
            ahead, batch = 1 - self.output_lag, self.batch
            full += [
                (s.stamp, s, (s.base + batch - self.output_lag) // self.size)
                for s in self.decoding_batch.needing_block(batch + ahead)
            ]
            full.sort()
        for _stamp, state, blocks in full:
            self.pool.cache_blocks(state, blocks)

    def _schedule_running_short_of_blocks(self, step: Step, plan: list[Planned], needing_block: set[FastState]) -> None:
        """FCFS with too few blocks: in running order, whoever lacks one preempts from the tail until it fits."""
        wanting = [(s.stamp, s, 0, 1) for s in needing_block]
        wanting += [(s.stamp, s, num_new_tokens, new) for s, num_new_tokens, new in plan]
        wanting.sort()
        for _stamp, state, num_new_tokens, new in wanting:
            if state.status == "preempted" or not self._make_room(step, state, new):
                break
            if num_new_tokens:
                self.pool.allocate_new_blocks(state, max(new, 0))
                step.scheduled[state.id] = num_new_tokens
            elif self.count_pool is not None:
                self.count_pool.take(1)
            else:
                self.pool.allocate_new_blocks(state, 1)
        self._register([entry for entry in plan if entry[0].id in step.scheduled])

    def _make_room(self, step: Step, state: FastState, new: int) -> bool:
        """Evict from the tail until `new` blocks are free; False when the request itself had to go."""
        while new > self.pool.num_free_blocks:
            if self._preempt_last(step) is state:
                return False
        return True

    def _preempt_last(self, step: Step) -> FastState:
        preempted_req = self.fast_running[-1]
        if preempted_req.decoding:
            self._leave_now(preempted_req)
        elif not preempted_req.draining:
            self.singles.remove(preempted_req)
        self._preempt_request(preempted_req, 0, step)
        return preempted_req


def full_step(scheduler: V1FastScheduler, step: Step) -> Step:
    """The newest decision with all decoding requests in it, as the plain scheduler would tell it."""
    batch = scheduler.batch
    full = Step(
        preempted=list(step.preempted),
        new=list(step.new),
        resumed=list(step.resumed),
        hits=dict(step.hits),
        blocked=step.blocked,
        waiting=[s.id for s in scheduler.waiting.in_order()],
        free_blocks=scheduler.pool.num_free_blocks,
    )
    for state in scheduler.fast_running:
        full.running.append(state.id)
        full.num_computed_tokens.append(state.base + batch if state.decoding else state.num_computed_tokens)
        if state.decoding and state.first <= batch:
            full.scheduled[state.id] = 1
        elif state.id in step.scheduled:
            full.scheduled[state.id] = step.scheduled[state.id]
    return full
