"""The V0 scheduler of the fast path: decoding requests move in bulk, only the others are looked at one by one.

A *beat* is a batch in which the members of the bulk decode one token each; a batch of prefills alone is none. Only
the walk over the running queue differs from `V0Scheduler`, and it falls back to that one whenever somebody lacks a
block or the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import cast

from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import MEMBER_FIELDS, Bulk, Member
from reference_engine.model.ledger import RequestRecord
from reference_engine.model.step import RequestId
from reference_engine.v0.blocks import CountingPool
from reference_engine.v0.profile import profile_for
from reference_engine.v0.scheduler import V0Scheduler
from reference_engine.v0.step import Turn, V0State, V0Step

__all__ = ["V0BulkScheduler", "V0FastState", "v0_bulk_possible"]


def v0_bulk_possible(config: EngineConfig) -> bool:
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


class V0FastState(Member, V0State):
    """A request that may be a bulk member; a tick of its bulk is a beat.

    `beaten` says of one that left whether it had a beat.
    """

    __slots__ = (*MEMBER_FIELDS, "beaten")

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record, max_model_len)
        self.beaten = False


class V0BulkScheduler(V0Scheduler):
    """Decides as `V0Scheduler`; `left` tells its owner who left the bulk in the last decision, and after which beat.

    Args:
        config: an engine for which `v0_bulk_possible` holds.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        pool = self.memory.gpu
        assert isinstance(pool, CountingPool)  # as without prefix caching
        self.pool = pool
        self.size = config.block_size
        self.beat = 0
        self.bulk: Bulk[V0FastState] = Bulk(config.block_size)
        self.left: list[V0FastState] = []
        self.dropped: list[V0FastState] = []
        self.in_step = 0
        self._eventless = V0Step()  # one for all beats without an event: nobody writes to it

    @property
    def known(self) -> dict[RequestId, V0FastState]:
        """The requests inside by id; whoever is in it came by `enter`."""
        return cast("dict[RequestId, V0FastState]", self.states)

    @property
    def walk(self) -> deque[V0FastState]:
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
        """Decide the next batch: `scheduled` only holds what is outside the bulk, whose size is `in_step`."""
        self.in_step = 0
        self.dropped = []
        if not self.waiting and not self.swapped and self._all_decode() and self._beat():
            return self._eventless
        turn = self._decide(now)
        step = turn.step()
        self._close(turn, step)
        self.dropped = cast("list[V0FastState]", turn.dropped())
        return step

    def join(self, state: V0FastState) -> None:
        """A request that has just got a token, and not its last, decodes in bulk from the next beat on."""
        self.bulk.join(state, self.beat, state.output)

    def leave(self, state: V0FastState) -> None:
        """Take a request out of the bulk after the current beat and write its plain fields."""
        state.beaten = state.first <= self.beat
        state.computed = state.seen = computed = self.bulk.leave(state, self.beat)
        state.output = state.out_base + self.beat
        state.held = -(-computed // self.size)
        state.record.reached = max(state.record.reached, computed)

    def retire(self) -> list[V0FastState]:
        """The members whose last token came with the current beat, in running order, taken out of the bulk."""
        retired = self.bulk.due(self.beat)
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
            self.pool.release(state)

    def member_tokens(self) -> int:
        """Computed tokens of all members after the current beat."""
        return self.bulk.tokens(self.beat)

    def written_out(self, step: V0Step) -> V0Step:
        """The step with the bulk's members in their places, as `V0Scheduler` writes it."""
        full = V0Step(**{name: getattr(step, name) for name in V0Step.__dataclass_fields__})
        members: dict[int | str, int] = {}
        if self.in_step:
            members = {s.id: 1 for s in self.walk if s.bulk}
        others = list(step.scheduled.items())
        prefills, decodes = others[: step.prefill_groups], others[step.prefill_groups :]
        full.scheduled = {**dict(prefills), **members, **dict(decodes)}
        positions = {i: self.known[i].base + self.beat for i in members}
        full.spans = {**step.spans, **{i: (end - 1, end) for i, end in positions.items()}}
        full.sampled = [i for i in full.scheduled if i in members or i in step.sampled]
        self._describe(full)
        full.num_computed = [s.base + self.beat if s.bulk else s.computed for s in self.walk]
        return full

    def _all_decode(self) -> bool:
        return 0 < self.bulk.count == len(self.running)

    def _beat(self) -> bool:
        """Give every member its token if blocks and budget allow; False leaves everything as it was."""
        members = self.bulk.count
        if not 0 < members <= self.config.max_num_batched_tokens:
            return False
        beat = self.beat + 1
        crossing = self.bulk.crossing(beat)
        last = self.running[members - 1]
        before_last = len(crossing) - (last in crossing)
        if self.pool.free < 1 + before_last:  # one free block for each append, full block or not
            return False
        self.pool.free -= len(crossing)
        self.beat = beat
        self.in_step = members
        return True

    def _run(self, turn: Turn) -> None:
        if not self._run_in_bulk(turn):
            self._take_apart()
            super()._run(turn)

    def _run_in_bulk(self, turn: Turn) -> bool:
        """The walk when the running queue holds members, then prefills under way, and all get what they want."""
        if self.chunked and self.swapped:
            return False
        members = self.bulk.count
        walk = self.walk
        singles = [walk[index] for index in range(members - len(walk), 0)]
        if any(s.bulk or not s.in_prefill for s in singles):
            return False
        if singles and not self._singles_fit(singles):
            return False
        if not self._beat():
            if singles or not 0 < members <= self.config.max_num_batched_tokens:
                return False
            self._beat_short(turn)
        turn.tokens = self.bulk.count
        if self.chunked:
            turn.seats = self.bulk.count + len(singles)
        for _ in singles:
            self.running.pop()
        for state in singles:
            tokens = turn.chunk(state.uncomputed)
            turn.tokens += tokens
            turn.running_prefills.append((state, tokens))
        return True

    def _beat_short(self, turn: Turn) -> None:
        """A beat with too few blocks: in running order, whoever sees none free evicts from the end."""
        crossing = self.bulk.crossing(self.beat + 1)
        for state in list(self.walk):
            if not state.bulk:
                break  # evicted, and so are all behind it
            while self.pool.free < 1:
                victim = self.walk.pop()
                self.leave(victim)
                self.left.append(victim)
                self._preempt(victim, turn.preempted, turn.swapped_out)
                if victim is state:
                    break
            else:
                self.pool.free -= state in crossing
        if self.bulk.count:
            self.beat += 1
            self.in_step = self.bulk.count

    def _singles_fit(self, singles: list[V0FastState]) -> bool:
        """Each gets at least one token of the budget, and sees the free block that its append asks for."""
        left = self.config.max_num_batched_tokens - self.bulk.count
        for state in singles:
            if left <= 0:
                return False
            left -= min(left, state.uncomputed)
        return self.pool.free > len(self.bulk.crossing(self.beat + 1))

    def _take_apart(self) -> None:
        """All members become single again."""
        for state in self.walk:
            if state.bulk:
                self.leave(state)
                self.left.append(state)
