"""Requests that decode in bulk: each gets one token in every tick, and none is touched until something happens to it.

A tick is a step in which they all get their token: every batch of V1, every batch of V0 that is not prefills alone.
`Member` is such a request, `Bulk` all of a scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from reference_engine.model.ledger import RequestRecord
from reference_engine.model.request import RequestState

__all__ = ["MEMBER_FIELDS", "Bulk", "BulkBatch", "Member", "MemberT"]

MEMBER_FIELDS = (
    "base",
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
"""The slots of a `Member`, for its subclasses: only these know which state they extend."""


_NO_SLOTS: tuple[str, ...] = ()


class Member(RequestState):
    """A request that may decode in bulk.

    While `bulk` is set, tick j leaves it at `base + j` computed tokens and brings its output to `out_base + j` tokens;
    `first` is its first tick as a member and `finish` the tick of its last token. The plain fields are written again
    when it leaves. `mark_time` and `mark_disturbed`: clock and disturbance total (ns) from which its decode time
    counts; `wait_from`: when it was evicted (ns); `queued`: the replay's queue totals at its entry.
    """

    __slots__ = _NO_SLOTS  # laid out by the subclass

    record: RequestRecord
    bulk: bool
    base: int
    out_base: int
    first: int
    finish: int
    mark_time: int
    mark_disturbed: int
    wait_from: int
    queued: tuple[int, int, int]

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record.request, max_model_len)
        self.record = record
        self.bulk = False
        self.base = self.out_base = self.first = self.finish = 0
        self.mark_time = self.mark_disturbed = self.wait_from = 0
        self.queued = (0, 0, 0)


MemberT = TypeVar("MemberT", bound=Member)


class Bulk(Generic[MemberT]):
    """The members of a scheduler's bulk, by what will happen to them.

    A member's block demand depends only on its position within a block, so `phases` holds the members by the tick,
    modulo the block size, in which they need the next one.
    """

    __slots__ = ("_finish_at", "_finishes", "base_sum", "count", "phases", "size")

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.count = 0
        self.base_sum = 0
        self.phases: list[set[MemberT]] = [set() for _ in range(block_size)]
        self._finish_at: dict[int, list[MemberT]] = {}
        self._finishes: list[int] = []

    def join(self, state: MemberT, tick: int, output: int) -> None:
        """From the next tick on a request gets one token in each; this one leaves it with `output` tokens."""
        state.bulk = True
        state.base = base = state.computed - tick
        state.out_base = output - tick
        state.first = tick + 1
        state.finish = finish = tick + state.limit - output
        if finish in self._finish_at:
            self._finish_at[finish].append(state)
        else:
            self._finish_at[finish] = [state]
            heappush(self._finishes, finish)
        self.phases[(1 - base) % self.size].add(state)
        self.count += 1
        self.base_sum += base

    def leave(self, state: MemberT, tick: int) -> int:
        """Take a request out after a tick; returns its computed tokens (which, as its output, are the caller's to write)."""
        state.bulk = False
        self.phases[(1 - state.base) % self.size].discard(state)
        self.count -= 1
        self.base_sum -= state.base
        return state.base + tick

    def crossing(self, tick: int) -> set[MemberT]:
        """The members that need a block in a tick."""
        return self.phases[tick % self.size]

    def tokens(self, tick: int) -> int:
        """Computed tokens of all members after a tick."""
        return self.base_sum + self.count * tick

    def due(self, tick: int) -> list[MemberT]:
        """The members whose last token comes with a tick. To be asked of each tick that brings one."""
        named = self._finish_at.pop(tick, None)
        if named is None:
            return []
        # one that left is still named, and one that left and came back is named twice
        return [s for s in dict.fromkeys(named) if s.bulk and s.finish == tick]

    def next_finish(self) -> int:
        """The next tick that brings a last token (or that did, before its request was evicted)."""
        finishes = self._finishes
        while finishes[0] not in self._finish_at:
            heappop(finishes)
        return finishes[0]


@dataclass(slots=True, kw_only=True)
class BulkBatch:
    """A batch on the device, with what the log of steps says of it. Times in ns.

    `members`: bulk requests in it; `chunks`: the requests outside the bulk that get tokens in it; `disturbed`: the part
    of its time that a decoding request owes to prefill tokens; `progress`: it computes something for the first time.
    `free` to `preempted`: as it was decided.
    """

    start: int
    end: int
    members: int
    chunks: Sequence[object]
    prefill_tokens: int
    decode_requests: int
    kv_tokens: int
    disturbed: int
    progress: bool
    free: int
    running: int
    waiting: int
    preempted: int
