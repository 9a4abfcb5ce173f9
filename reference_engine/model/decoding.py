"""Requests that decode together: each gets one token in every decode step, and none is touched until its next event.

A decode step is a step in which all of them get a token: every batch of V1, every batch of V0 that is not prefills
alone. `DecodingRequest` is such a request, `DecodingBatch` holds all of a scheduler's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from reference_engine.model.request import RequestRecord, RequestState

__all__ = [
    "DECODING_FIELDS",
    "DecodingBatch",
    "DecodingCounts",
    "DecodingRequest",
    "DecodingT",
    "DueBatch",
    "FastBatch",
]

DECODING_FIELDS = (
    "base",
    "decoding",
    "due",
    "finish",
    "first",
    "mark_disturbed",
    "mark_time",
    "output_base",
    "queued",
    "record",
    "wait_from",
)
"""The slots of a `DecodingRequest`, for its subclasses: only these know which state they extend."""


_NO_SLOTS: tuple[str, ...] = ()


class DecodingRequest(RequestState):
    """A request that may decode together.

    While `decoding` is set, decode step j leaves it at `base + j` computed tokens and `output_base + j` output tokens;
    `first` is its first decode step in the batch and `finish` the one of its last token; `due`: when to look at its blocks
    (`DueBatch`). The plain fields are written again when it leaves. `mark_time` and `mark_disturbed`: clock and disturbance total (ns) from which its decode time
    counts; `wait_from`: when it was preempted (ns); `queued`: the replay's queue totals at its entry.
    """

    __slots__ = _NO_SLOTS  # laid out by the subclass

    record: RequestRecord
    decoding: bool
    base: int
    output_base: int
    first: int
    finish: int
    due: int
    mark_time: int
    mark_disturbed: int
    wait_from: int
    queued: tuple[int, int, int]

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record.request, max_model_len)
        self.record = record
        self.decoding = False
        self.base = self.output_base = self.first = self.finish = self.due = 0
        self.mark_time = self.mark_disturbed = self.wait_from = 0
        self.queued = (0, 0, 0)


DecodingT = TypeVar("DecodingT", bound=DecodingRequest)


class DecodingTotals:
    """What the requests of a decoding batch have in common.

    A request joins with its `base`: it has `base + j` computed tokens after decode step j. When it needs its next block
    depends only on its position within a block, its phase: the decode step, modulo the block size, in which it needs one.
    """

    __slots__ = ("base_sum", "count", "size")

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.count = 0
        self.base_sum = 0

    def phase_of(self, base: int) -> int:
        """The decode step, modulo the block size, in which a request needs a block."""
        return (1 - base) % self.size

    def num_computed_tokens(self, decode_step: int) -> int:
        """Computed tokens of all requests after a decode step."""
        return self.base_sum + self.count * decode_step


class DecodingCounts(DecodingTotals):
    """A decoding batch that counts its requests and does not know them.

    `needing` counts them by phase. `spare`: places beyond its next token that each holds, in tokens (for drafts).
    """

    __slots__ = ("needing", "spare")

    def __init__(self, block_size: int, spare: int = 0) -> None:
        super().__init__(block_size)
        self.needing = [0] * block_size
        self.spare = spare

    def copy(self) -> DecodingCounts:
        """An independent copy."""
        new = DecodingCounts.__new__(DecodingCounts)
        new.size, new.spare = self.size, self.spare
        new.count, new.base_sum = self.count, self.base_sum
        new.needing = self.needing.copy()
        return new

    def add(self, base: int) -> None:
        """One request more."""
        self.needing[self.phase_of(base + self.spare)] += 1
        self.count += 1
        self.base_sum += base

    def remove(self, base: int) -> None:
        """One request less."""
        self.needing[self.phase_of(base + self.spare)] -= 1
        self.count -= 1
        self.base_sum -= base

    def blocks_of_one(self, base: int, decode_step: int, steps: int) -> int:
        """Blocks that a request takes in the `steps` decode steps after `decode_step`."""
        held = base + self.spare + decode_step - 1
        return (held + steps) // self.size - held // self.size

    def blocks_of(self, decode_step: int, steps: int) -> int:
        """Blocks that all take in the `steps` decode steps after `decode_step`."""
        needing, size = self.needing, self.size
        if steps == 1:
            return needing[(decode_step + 1) % size]
        rounds, rest = divmod(steps, size)
        total = rounds * self.count
        for step in range(decode_step + 1, decode_step + 1 + rest):
            total += needing[step % size]
        return total

    def steps_of(self, decode_step: int, blocks: int) -> int:
        """How many decode steps after `decode_step` so many blocks last."""
        if blocks < 0:
            return 0
        needing, size = self.needing, self.size
        rounds, rest = divmod(blocks, self.count)
        for i in range(size):
            rest -= needing[(decode_step + 1 + i) % size]
            if rest < 0:
                return rounds * size + i
        return rounds * size + size


class DecodingBatch(DecodingTotals, Generic[DecodingT]):
    """The requests of a scheduler that decode together, by what will happen to them.

    When a request needs its next block depends only on its position within a block, so `phases` holds the requests by
    the decode step, modulo the block size, in which they need one. `base_sum` is the sum of their `base`.
    """

    __slots__ = ("_finish_at", "_finishes", "phases")

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.phases: list[set[DecodingT]] = [set() for _ in range(block_size)]
        self._finish_at: dict[int, list[DecodingT]] = {}
        self._finishes: list[int] = []

    def join(self, state: DecodingT, decode_step: int, output: int) -> None:
        """From the next decode step on a request gets one token in each; this one leaves it with `output` tokens."""
        state.decoding = True
        state.base = base = state.num_computed_tokens - decode_step
        state.output_base = output - decode_step
        state.first = decode_step + 1
        state.finish = finish = decode_step + state.max_output_tokens - output
        if finish in self._finish_at:
            self._finish_at[finish].append(state)
        else:
            self._finish_at[finish] = [state]
            heappush(self._finishes, finish)
        self.phases[self.phase_of(base)].add(state)
        self.count += 1
        self.base_sum += base

    def leave(self, state: DecodingT, decode_step: int) -> int:
        """Take a request out after a decode step; returns its computed tokens, which the caller writes, as its output."""
        state.decoding = False
        self.phases[self.phase_of(state.base)].discard(state)
        self.count -= 1
        self.base_sum -= state.base
        return state.base + decode_step

    def needing_block(self, decode_step: int) -> set[DecodingT]:
        """The requests that need a block in a decode step."""
        return self.phases[decode_step % self.size]

    def finishing_in(self, decode_step: int) -> list[DecodingT]:
        """The requests whose last token comes with a decode step. To be asked of each decode step that brings one."""
        named = self._finish_at.pop(decode_step, None)
        if named is None:
            return []
        # one that left is still named, and one that left and came back is named twice
        return [s for s in dict.fromkeys(named) if s.decoding and s.finish == decode_step]

    def next_finish(self) -> int:
        """The next decode step that brings a last token (or that did, before its request was preempted)."""
        finishes = self._finishes
        while finishes[0] not in self._finish_at:
            heappop(finishes)
        return finishes[0]


class DueBatch(DecodingBatch[DecodingT]):
    """A decoding batch whose requests say themselves in which decode step something next happens to their blocks.

    As a sequence it is the most blocks that each decode step may take, as something of that length.
    """

    __slots__ = ("_due", "most")

    def __init__(self, most: int) -> None:
        super().__init__(1)
        self.most = most
        self._due: dict[int, set[DecodingT]] = {}

    def wake(self, state: DecodingT, decode_step: int) -> None:
        """Something happens to a request's blocks in a decode step, and nothing before."""
        state.due = decode_step
        self._due.setdefault(decode_step, set()).add(state)

    def join(self, state: DecodingT, decode_step: int, output: int) -> None:
        """As `DecodingBatch.join`; its first decode step is one to look at."""
        super().join(state, decode_step, output)
        self.wake(state, decode_step + 1)

    def needing_block(self, decode_step: int) -> set[DecodingT]:
        """The requests to look at in a decode step; one that left and came back may have been named before."""
        return {s for s in self._due.pop(decode_step, ()) if s.decoding and s.due == decode_step}

    def pass_over(self, decode_step: int) -> None:
        """A decode step is over, whoever was due in it."""
        self._due.pop(decode_step, None)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, decode_step: int) -> range:
        return range(self.most * len(self._due.get(decode_step, ())))


@dataclass(slots=True, kw_only=True)
class FastBatch:
    """A batch on the device, with what the log of steps says of it. Times in ns.

    `num_decoding`: requests of the decoding batch in it; `chunks`: the other requests that get tokens in it;
    `disturbed`: the part of its time that a decoding request owes to prefill tokens; `progress`: it computes something
    for the first time. `free` to `preempted`: as it was decided.
    """

    start: int
    end: int
    num_decoding: int
    chunks: Sequence[object]
    prefill_tokens: int
    decode_requests: int
    kv_tokens: int
    disturbed: int
    progress: bool
    free_blocks: int
    running: int
    waiting: int
    preempted: int
