"""The V0 scheduler of the fast path: decoding requests move in bulk, only the others are looked at one by one.

A *beat* is a batch in which the members of the bulk decode one token each; a batch of prefills alone is none. A
member's block demand depends only on its position within a block, so members are kept by the beat, modulo the block
size, in which they need the next block. Only the walk over the running queue differs from `V0Scheduler`, and it falls
back to that one whenever somebody lacks a block or the budget.
"""

from __future__ import annotations

from collections.abc import Iterable

from .config import EngineConfig
from .ledger import RequestRecord
from .steps import RequestId
from .v0 import V0Scheduler
from .v0_blocks import CountingPool
from .v0_profile import profile_for
from .v0_state import V0State
from .v0_turn import Turn, V0Step

__all__ = ["BulkState", "V0BulkScheduler", "v0_bulk_possible"]


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


class BulkState(V0State):
    """A request that may be a bulk member: then nothing of it is touched while it decodes.

    While `bulk` is set, beat number j leaves it at `base + j` computed tokens and brings its output to `out_base + j`;
    `first` and `finish` are its first and its last beat; `beaten` says after it left whether it had one. `mark_time` and `mark_disturbed`: clock and disturbance total
    (ns) from which its decode time counts; `wait_from`: when it was evicted (ns); `queued`: queue totals at entry.
    """

    __slots__ = (
        "base",
        "beaten",
        "bulk",
        "finish",
        "first",
        "mark_disturbed",
        "mark_time",
        "out_base",
        "queued",
        "record",
        "wait_from",
    )

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record.request, max_model_len)
        self.record = record
        self.bulk = self.beaten = False
        self.base = self.out_base = self.first = self.finish = 0
        self.mark_time = self.mark_disturbed = self.wait_from = 0
        self.queued = (0, 0, 0)


class V0BulkScheduler(V0Scheduler):
    """Decides as `V0Scheduler`; `left` tells its owner who left the bulk in the last decision, and after which beat.

    Args:
        config: an engine for which `v0_bulk_possible` holds.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.size = config.block_size
        self.beat = 0
        self.members = 0
        self.base_sum = 0
        self.phases: list[set[BulkState]] = [set() for _ in range(config.block_size)]
        self.finish_at: dict[int, list[BulkState]] = {}
        self.left: list[BulkState] = []
        self.dropped: list[BulkState] = []
        self.in_step = 0

    @property
    def live(self) -> dict[RequestId, BulkState]:
        """All requests inside, by id."""
        return self.states  # type: ignore[return-value]

    def head(self) -> RequestId | None:
        """The request that a run without progress is waiting for."""
        for queue in (self.running, self.waiting, self.swapped):
            if queue:
                return queue[0].id
        return None

    @property
    def pool(self) -> CountingPool:
        """The GPU's pool; without prefix caching it only counts."""
        pool = self.memory.gpu
        assert isinstance(pool, CountingPool)
        return pool

    def enter(self, record: RequestRecord) -> BulkState:
        """Queue a new request."""
        state = BulkState(record, self.config.max_model_len)
        self.states[state.id] = state
        self.waiting.append(state)
        return state

    def decide(self, now: float) -> V0Step:
        """Decide the next batch: `scheduled` only holds what is outside the bulk, whose size is `in_step`."""
        self.in_step = 0
        self.dropped = []
        if not self.waiting and not self.swapped and self._all_decode() and self._beat():
            return V0Step()
        turn = self._decide(now)
        step = turn.step()
        self._close(turn, step)
        self.dropped = turn.dropped()  # type: ignore[assignment]
        return step

    def join(self, state: BulkState) -> None:
        """A request that has just got a token, and not its last, decodes in bulk from the next beat on."""
        beat = self.beat
        state.bulk = True
        state.base = state.computed - beat
        state.out_base = state.output - beat
        state.first = beat + 1
        state.finish = beat + state.limit - state.output
        self.finish_at.setdefault(state.finish, []).append(state)
        self.phases[(1 - state.base) % self.size].add(state)
        self.members += 1
        self.base_sum += state.base

    def leave(self, state: BulkState) -> None:
        """Take a request out of the bulk after the current beat and write its plain fields."""
        state.bulk = False
        state.beaten = state.first <= self.beat
        self.phases[(1 - state.base) % self.size].discard(state)
        self.members -= 1
        self.base_sum -= state.base
        computed = state.base + self.beat
        state.computed = state.seen = computed
        state.output = state.out_base + self.beat
        state.held = -(-computed // self.size)
        state.record.reached = max(state.record.reached, computed)

    def retire(self) -> list[BulkState]:
        """The members whose last token came with the current beat, in running order, taken out of the bulk."""
        retired = []
        for state in self.finish_at.pop(self.beat, []):
            if state.bulk and state.finish == self.beat:  # not one that left, or left and came back
                self.leave(state)
                retired.append(state)
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
        return self.base_sum + self.members * self.beat

    def written_out(self, step: V0Step) -> V0Step:
        """The step with the bulk's members in their places, as `V0Scheduler` writes it."""
        full = V0Step(**{name: getattr(step, name) for name in V0Step.__dataclass_fields__})
        members: dict[int | str, int] = {}
        if self.in_step:
            members = {s.id: 1 for s in self.running if s.bulk}  # type: ignore[attr-defined]
        others = list(step.scheduled.items())
        prefills, decodes = others[: step.prefill_groups], others[step.prefill_groups :]
        full.scheduled = {**dict(prefills), **members, **dict(decodes)}
        positions = {i: self.states[i].base + self.beat for i in members}  # type: ignore[attr-defined]
        full.spans = {**step.spans, **{i: (end - 1, end) for i, end in positions.items()}}
        full.sampled = [i for i in full.scheduled if i in members or i in step.sampled]
        self._describe(full)
        full.num_computed = [
            s.base + self.beat if s.bulk else s.computed  # type: ignore[attr-defined]
            for s in self.running
        ]
        return full

    def _all_decode(self) -> bool:
        return 0 < self.members == len(self.running)

    def _beat(self) -> bool:
        """Give every member its token if blocks and budget allow; False leaves everything as it was."""
        if not 0 < self.members <= self.config.max_num_batched_tokens:
            return False
        beat = self.beat + 1
        crossing = self.phases[beat % self.size]
        last = self.running[self.members - 1]
        before_last = len(crossing) - (last in crossing)
        if self.pool.free < 1 + before_last:  # one free block for each append, full block or not
            return False
        self.pool.free -= len(crossing)
        self.beat = beat
        self.in_step = self.members
        return True

    def _run(self, turn: Turn) -> None:
        if not self._run_in_bulk(turn):
            self._take_apart()
            super()._run(turn)

    def _run_in_bulk(self, turn: Turn) -> bool:
        """The walk when the running queue holds members, then prefills under way, and all get what they want."""
        if self.chunked and self.swapped:
            return False
        count = len(self.running) - self.members
        singles = [self.running[index] for index in range(-count, 0)]
        if any(s.bulk or not s.in_prefill for s in singles):  # type: ignore[attr-defined]
            return False
        if singles and not self._singles_fit(singles):
            return False
        if not self._beat():
            if singles or not 0 < self.members <= self.config.max_num_batched_tokens:
                return False
            self._beat_short(turn)
        turn.tokens = self.members
        if self.chunked:
            turn.seats = self.members + len(singles)
        for _ in singles:
            self.running.pop()
        for state in singles:
            tokens = turn.chunk(state.uncomputed)
            turn.tokens += tokens
            turn.running_prefills.append((state, tokens))
        return True

    def _beat_short(self, turn: Turn) -> None:
        """A beat with too few blocks: in running order, whoever sees none free evicts from the end."""
        crossing = self.phases[(self.beat + 1) % self.size]
        for state in list(self.running):
            if not state.bulk:  # type: ignore[attr-defined]
                break  # evicted, and so are all behind it
            while self.pool.free < 1:
                victim: BulkState = self.running.pop()  # type: ignore[assignment]
                self.leave(victim)
                self.left.append(victim)
                self._preempt(victim, turn.preempted, turn.swapped_out)
                if victim is state:
                    break
            else:
                self.pool.free -= state in crossing
        if self.members:
            self.beat += 1
            self.in_step = self.members

    def _singles_fit(self, singles: list[V0State]) -> bool:
        """Each gets at least one token of the budget, and sees the free block that its append asks for."""
        left = self.config.max_num_batched_tokens - self.members
        for state in singles:
            if left <= 0:
                return False
            left -= min(left, state.uncomputed)
        crossing = self.phases[(self.beat + 1) % self.size]
        return self.pool.free > len(crossing)

    def _take_apart(self) -> None:
        """All members become single again."""
        for state in self.running:
            if state.bulk:  # type: ignore[attr-defined]
                self.leave(state)  # type: ignore[arg-type]
                self.left.append(state)  # type: ignore[arg-type]
