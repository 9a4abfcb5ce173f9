"""The V1 scheduler of the fast path: decoding requests move in bulk, only the others are looked at one by one.

Between two events (an admission, a finish, a shortage of blocks) every decoding request gets one token a step, as a
member of the bulk. Whatever does not follow that pattern takes the members apart again and walks them as `V1Scheduler`
does, so that decisions are the plain scheduler's in every step.

The fast path's decisions written out in full, to be held against the plain scheduler's.
"""

from __future__ import annotations

from typing import cast

from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import Bulk
from reference_engine.model.ledger import RequestRecord
from reference_engine.model.request import RequestState
from reference_engine.model.step import RequestId, Step
from reference_engine.v1.batch import Chunk, FastState, fast_pool
from reference_engine.v1.blocks import BlockPool, Pool
from reference_engine.v1.scheduler import V1Scheduler

__all__ = ["BulkScheduler", "written_out"]
Planned = tuple[FastState, int, int]  # a request outside the bulk, its tokens, its new blocks


def _stamp(state: FastState) -> int:
    return state.stamp


class BulkScheduler(V1Scheduler):
    """Decides one batch after the other; `left` and `retired` tell its owner who left the bulk meanwhile.

    Args:
        config: an engine for which `bulk_possible` holds.
        sharing: prompts may share content, so that blocks must be known by content.
    """

    pool: Pool

    def __init__(self, config: EngineConfig, sharing: bool) -> None:
        pool = fast_pool(config, sharing)
        super().__init__(config, pool)
        self.block_pool = pool if isinstance(pool, BlockPool) else None
        self.count_pool = None if isinstance(pool, BlockPool) else pool
        self.size = config.block_size
        self.lag = 1 if config.async_scheduling else 0
        self.batch = -1
        self.bulk: Bulk[FastState] = Bulk(config.block_size)
        self.single: list[FastState] = []
        self.left: list[tuple[FastState, int]] = []
        self.retired: list[FastState] = []
        self.skipped: list[FastState] = []
        self.stamps = 0
        self._joined = 0
        self._spare: Step | None = None

    @property
    def walk(self) -> list[FastState]:
        """The running list; whoever is in it came by `enter`."""
        return cast("list[FastState]", self.running)

    @property
    def known(self) -> dict[RequestId, FastState]:
        """The requests inside by id; whoever is in it came by `enter`."""
        return cast("dict[RequestId, FastState]", self.states)

    def enter(self, record: RequestRecord) -> FastState:
        """Queue a new request."""
        state = FastState(record, self.config.max_model_len)
        self.states[state.id] = state
        self.waiting.add(state)
        return state

    # ---- one batch ----

    def decide(self) -> tuple[Step, list[Chunk], int]:
        """Decide the next batch.

        Returns:
            The step's events (`scheduled` only holds those outside the bulk), their chunks, and the bulk's size.
        """
        self.batch += 1
        if self.lag:
            self.retired = self.retire(self.batch - 1)
        self._joined = 0
        step, self._spare = self._spare or Step(), None
        self._budget = self.config.max_num_batched_tokens
        self._threshold = self._long_prefill_threshold()
        step.blocked = None
        if self.skipped:
            self.skipped = []
        if not self._walk_in_bulk(step):
            self._walk_singly(step)
        members = self.bulk.count
        if step.preempted:
            step.blocked = "kv"
        elif self.waiting:
            self._admit_ready(step)
        if step.scheduled:
            return step, self._advance_chunks(step), members
        if not step.preempted:
            self._spare = step
        return step, [], members

    def _admit_ready(self, step: Step) -> None:
        """As `_admit_waiting`, after a look at the commonest reasons not to admit anybody."""
        if self._budget > 0 and len(self.running) < self.seats:
            self._admit_waiting(step)
        else:
            step.blocked = "seat" if len(self.running) >= self.seats else "budget"

    def _admit(self, state: RequestState, start: int, tokens: int, hit: int, step: Step) -> None:
        super()._admit(state, start, tokens, hit, step)
        assert isinstance(state, FastState)
        self._listed.clear()
        self.stamps += 1
        state.stamp = self.stamps
        self.single.append(state)

    def _advance_chunks(self, step: Step) -> list[Chunk]:
        """Count the tokens of those outside the bulk as computed; who has caught up joins the bulk."""
        chunks = []
        known = self.known
        for request_id, tokens in step.scheduled.items():
            state = known[request_id]
            start = state.computed
            state.computed = end = start + tokens
            sampled = end >= state.prompt + state.output + state.placeholders
            if sampled:
                if self.lag:
                    state.placeholders += 1
                self._join(state)
            chunks.append(Chunk(state, start, end, sampled))
        self.single = [s for s in self.single if not (s.bulk or s.draining)]
        return chunks

    # ---- the bulk ----

    def _join(self, state: FastState) -> None:
        """From the next batch on a request gets one token in each; unless this one brings its last."""
        output = state.output + (state.placeholders if self.lag else 1)
        if output >= state.limit:
            state.draining = True
            return
        self.bulk.join(state, self.batch, output)
        self._joined += state.base

    def leave(self, state: FastState, last: int) -> None:
        """Take a request out of the bulk after batch number `last` and write its plain fields."""
        state.computed = computed = self.bulk.leave(state, last)
        state.output = state.out_base + last - self.lag
        state.placeholders = self.lag
        if computed > state.record.reached:
            state.record.reached = computed
        if self.count_pool is not None:
            state.held = -(-computed // self.size)
            in_flight = 1 if self.lag and state.first <= last else 0
            state.registered = (computed - in_flight) // self.size

    def _leave_now(self, state: FastState) -> None:
        """Leave while the newest batch is decided; `left` keeps the request's first batch as a member."""
        self.left.append((state, state.first))
        self.leave(state, self.batch - 1)

    def retire(self, batch: int) -> list[FastState]:
        """The members whose last token comes with a batch, taken out of the bulk."""
        retired = self.bulk.due(batch)
        for state in retired:
            self.leave(state, batch)
            state.draining = True
        return retired

    def _take_apart(self) -> None:
        """All members become single again."""
        members = [state for phase in self.bulk.phases for state in phase]
        members.sort(key=_stamp)
        for state in members:
            self._leave_now(state)
        self.single = [s for s in self.walk if not s.draining]

    @property
    def uneventful(self) -> bool:
        """Whether the next batch can be like this one: only members, and a queue whose head stays where it is.

        A step without events has been decided since the last arrival. What kept the head then keeps it now, unless
        cached blocks come and go (`BlockPool`), or prompts change places in the queue while they wait.
        """
        members = self.bulk.count
        if self.single or not members or members != len(self.running):
            return False
        if not self.waiting or len(self.running) >= self.seats:
            return True
        whole = not self.config.enable_chunked_prefill
        return self.count_pool is not None and not (whole and self.profile.unchunked_prompt == "skipped")

    def allot_members(self, batch: int) -> None:
        """Hand the members of an uneventful batch their blocks by name (`BlockPool`)."""
        self.batch = batch
        for state in sorted(self.bulk.crossing(batch), key=_stamp):
            self.pool.grow(state, 1)
        self._register([])

    def coasted(self, batch: int, free: int) -> None:
        """Uneventful batches have passed: `batch` is the newest, `free` blocks are left."""
        self.batch = batch
        if self.count_pool is not None:
            self.count_pool.take(self.count_pool.free - free)

    def head(self) -> RequestState | None:
        """The request that would block all others: the first running one, or the first in the queue."""
        if self.running:
            return self.running[0]
        return self.waiting.head() if self.waiting else None

    def member_tokens(self, members: int) -> int:
        """Computed tokens of those that were members when the newest batch was walked, after it."""
        return self.bulk.base_sum - self._joined + members * self.batch

    def remove(self, state: FastState) -> None:
        """Drop an aborted request that is not in the bulk (any more)."""
        if state in self.single:
            self.single.remove(state)
        self._drop(state)

    def finish(self, state: FastState) -> None:
        """Drop a request that has its last token; asynchronous: its newest block is made findable before."""
        if self.lag and state.status == "running":
            state.placeholders = 0
            self.pool.register(state, state.computed // self.size)
        self._drop(state)

    # ---- the walk over the running list ----

    def _walk_singly(self, step: Step) -> None:
        """The plain walk, request by request."""
        self._take_apart()
        self._listed.clear()
        self._walk_running(step)
        self.single = [s for s in self.walk if not s.draining]
        self.skipped = [s for s in self.single if s.id not in step.scheduled]

    def _walk_in_bulk(self, step: Step) -> bool:
        """The walk when everybody gets what he wants; False when budget or policy ask for the plain one."""
        bulk = self.bulk
        if bulk.count > self._budget:
            return False
        crossing = bulk.crossing(self.batch)
        plan: list[Planned] = []
        need = len(crossing)
        if self.single:
            budget, full_budget = self._plan(plan), self._budget
            if budget < 0:
                self._budget = full_budget
                return False
            need += sum(new for _state, _tokens, new in plan)
        else:
            budget = self._budget - bulk.count
        if need > self.pool.free:
            if self.by_priority:
                self._budget = self.config.max_num_batched_tokens
                return False
            self._walk_short(step, plan, crossing)
            return True
        self._budget = budget
        self._allot(step, plan, crossing)
        return True

    def _plan(self, plan: list[Planned]) -> int:
        """Fill `plan` with (request, tokens, new blocks) of the single ones; returns the budget left, -1 if short."""
        first = self.single[0].stamp
        tail: list[FastState] = []
        for state in reversed(self.walk):
            tail.append(state)
            if state.stamp <= first:
                break
        budget = full = self._budget
        budget -= self.bulk.count - sum(s.bulk for s in tail)
        for state in reversed(tail):
            if state.draining:
                continue
            if budget <= 0:
                return -1
            if state.bulk:
                budget -= 1
                continue
            self._budget = budget
            tokens = self._tokens_to_run(state)
            self._budget = full
            if tokens == 0:
                return -1
            budget -= tokens
            plan.append((state, tokens, self._blocks(state.computed + tokens) - state.held))
        return budget

    def _allot(self, step: Step, plan: list[Planned], crossing: set[FastState]) -> None:
        """Everybody's blocks are free: hand them out."""
        if self.count_pool is not None:
            self.count_pool.take(len(crossing))
            for state, _tokens, new in plan:
                self.pool.grow(state, new)
        else:
            growing = [(s.stamp, s, 1) for s in crossing]
            growing += [(s.stamp, s, new) for s, _tokens, new in plan]
            growing.sort()
            for _stamp, state, new in growing:
                self.pool.grow(state, new)
        for state, tokens, _new in plan:
            step.scheduled[state.id] = tokens
        self._register(plan)

    def _register(self, plan: list[Planned]) -> None:
        """Make the blocks findable that become full with this batch (asynchronous: with the token before).

        The members' blocks are only named in a `BlockPool`; else what they registered follows from their position.
        """
        full = [(s.stamp, s, min(s.computed + tokens, s.tokens) // self.size) for s, tokens, _new in plan]
        if self.block_pool is not None:
            ahead, batch = 1 - self.lag, self.batch
            full += [(s.stamp, s, (s.base + batch - self.lag) // self.size) for s in self.bulk.crossing(batch + ahead)]
            full.sort()
        for _stamp, state, blocks in full:
            self.pool.register(state, blocks)

    def _walk_short(self, step: Step, plan: list[Planned], crossing: set[FastState]) -> None:
        """FCFS with too few blocks: in running order, whoever lacks one evicts from the tail until it fits."""
        wanting = [(s.stamp, s, 0, 1) for s in crossing]
        wanting += [(s.stamp, s, tokens, new) for s, tokens, new in plan]
        wanting.sort()
        for _stamp, state, tokens, new in wanting:
            if state.status == "preempted" or not self._make_room(step, state, new):
                break
            if tokens:
                self.pool.grow(state, max(new, 0))
                step.scheduled[state.id] = tokens
            elif self.count_pool is not None:
                self.count_pool.take(1)
            else:
                self.pool.grow(state, 1)
        self._register([entry for entry in plan if entry[0].id in step.scheduled])

    def _make_room(self, step: Step, state: FastState, new: int) -> bool:
        """Evict from the tail until `new` blocks are free; False when the request itself had to go."""
        while new > self.pool.free:
            if self._evict_tail(step) is state:
                return False
        return True

    def _evict_tail(self, step: Step) -> FastState:
        victim = self.walk[-1]
        if victim.bulk:
            self._leave_now(victim)
        elif not victim.draining:
            self.single.remove(victim)
        self._evict(victim, 0, step)
        return victim


def written_out(scheduler: BulkScheduler, step: Step) -> Step:
    """The newest decision with all members in it, as the plain scheduler would tell it."""
    batch = scheduler.batch
    full = Step(
        preempted=list(step.preempted),
        new=list(step.new),
        resumed=list(step.resumed),
        hits=dict(step.hits),
        blocked=step.blocked,
        waiting=[s.id for s in scheduler.waiting.in_order()],
        free_blocks=scheduler.pool.free,
    )
    for state in scheduler.walk:
        full.running.append(state.id)
        full.num_computed.append(state.base + batch if state.bulk else state.computed)
        if state.bulk and state.first <= batch:
            full.scheduled[state.id] = 1
        elif state.id in step.scheduled:
            full.scheduled[state.id] = step.scheduled[state.id]
    return full
