"""V0's block pools: one that only counts, one with prefix caching; the GPU and the CPU have one each.

Rules of vLLM 0.8.5, `core/block/naive_block.py`, `core/block/prefix_caching_block.py` and `core/evictor.py`.

What V0's scheduler asks of its blocks: whether a request fits, may append, can be swapped out or in.

Rules of vLLM 0.8.5, `core/block_manager.py`; older releases by their profile.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import Protocol

from reference_engine.model import SchedulerFailedError
from reference_engine.model.config import EngineConfig
from reference_engine.v0.profile import V0Profile
from reference_engine.v0.step import V0State
from reference_engine.v1.blocks import Contents

__all__ = ["CachingPool", "CountingPool", "V0Memory", "V0Pool", "make_pools"]
NEVER_ACCESSED = -1.0
STALE_ENTRIES = 50
"""The evictor's heap is rebuilt when it holds more entries than this for each block."""

_Entry = tuple[float, int, int, int, int]
"""(last access, -depth, block, -running count, content): the evictor's order; of one block the newest entry counts."""


class V0Pool(Protocol):
    """The blocks of one device."""

    total: int

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be taken now (with prefix caching also those that are only cached)."""

    def allocate(self, state: V0State) -> None:
        """Build the block table of all known tokens of a request."""

    def append(self, state: V0State) -> None:
        """Take in the known tokens that the table has not seen yet (one at most)."""

    def free(self, state: V0State) -> None:
        """Free the whole table."""

    def full_blocks_touched(self, state: V0State) -> int:
        """Blocks that its full blocks may take when they are swapped into this pool."""

    def take_over(self, state: V0State, source: V0Pool) -> None:
        """Move its table from `source` into this pool."""

    def cached_tokens(self, state: V0State) -> int:
        """Tokens of the longest cached prefix of whole blocks; 0 without prefix caching."""

    def mark_computed(self) -> None:
        """The step is scheduled: blocks that got full in it can be hit from the next step on."""


class CountingPool:
    """Without prefix caching only the numbers matter.

    Every method that takes blocks raises `SchedulerFailedError` when there are none, as the real allocator does.
    """

    __slots__ = ("block_size", "num_free_blocks", "total")

    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.num_free_blocks = total
        self.block_size = block_size

    def allocate(self, state: V0State) -> None:
        """Take all blocks of the known tokens."""
        state.seen = state.num_tokens
        state.num_blocks = -(-state.seen // self.block_size)
        self._take(state.num_blocks)

    def append(self, state: V0State) -> None:
        """A block more when the last one is full."""
        fast_requests = state.num_prompt_tokens + state.num_output_tokens
        if state.seen < fast_requests:
            if state.seen % self.block_size == 0:
                state.num_blocks += 1
                self._take(1)
            state.seen = fast_requests

    def free(self, state: V0State) -> None:
        """Give all blocks back."""
        self.num_free_blocks += state.num_blocks
        state.num_blocks = state.seen = 0

    def full_blocks_touched(self, state: V0State) -> int:
        """All its full blocks; the last, partly filled one is not counted here."""
        return state.seen // self.block_size

    def take_over(self, state: V0State, source: V0Pool) -> None:
        """Move the counts."""
        if isinstance(source, CountingPool):
            source.num_free_blocks += state.num_blocks
        self._take(state.num_blocks)

    def cached_tokens(self, state: V0State) -> int:
        """Nothing is cached."""
        return 0

    def mark_computed(self) -> None:
        """Nothing to mark."""

    def _take(self, blocks: int) -> None:
        if blocks > self.num_free_blocks:
            raise SchedulerFailedError("the allocator has no free block (NoFreeBlocksError)")
        self.num_free_blocks -= blocks


class CachingPool:
    """A pool in which full blocks stay findable by content until their place is needed.

    Blocks that never got full are taken first, the last freed of them before the others. Then the cached ones nobody
    uses: the least recently used first, among equals the deepest in its sequence, then the lowest number. One content
    is held once: a block that gets full with a content that is cached already is given up for the cached one.
    """

    def __init__(self, total: int, contents: Contents) -> None:
        self.total = total
        self.contents = contents
        self.block_size = contents.block_size
        self._plain = list(range(total - 1, -1, -1))
        self._cached: dict[int, int] = {}
        self._hash: list[int | None] = [None] * total
        self._users = [0] * total
        self._accessed = [NEVER_ACCESSED] * total
        self._computed = [False] * total
        self._touched: set[int] = set()
        self._unused: dict[int, tuple[float, int, int]] = {}
        self._heap: list[_Entry] = []
        self._entries = 0

    @property
    def num_free_blocks(self) -> int:
        """Plain free blocks and cached ones that nobody uses."""
        return len(self._plain) + len(self._unused)

    def allocate(self, state: V0State) -> None:
        """Share the full blocks whose content is cached, computed or not; take the rest."""
        state.seen = state.num_tokens
        full = state.seen // self.block_size
        self.contents.extend(state, full)
        state.blocks = [self._find_or_take(number) for number in state.hashes[:full]]
        if state.seen % self.block_size:
            state.blocks.append(self._take())
        state.num_blocks = len(state.blocks)

    def append(self, state: V0State) -> None:
        """A block more when the last one is full; one that gets full is published."""
        fast_requests = state.num_prompt_tokens + state.num_output_tokens
        if state.seen == fast_requests:
            return
        if state.seen % self.block_size == 0:
            state.blocks.append(self._take())
        state.seen = fast_requests
        if fast_requests % self.block_size == 0:
            full = len(state.blocks)
            self.contents.extend(state, full)
            state.blocks[-1] = self._publish(state.blocks[-1], state.hashes[full - 1])
        state.num_blocks = len(state.blocks)

    def free(self, state: V0State) -> None:
        """Free the table; its blocks bear the time at which the request was last scheduled."""
        if state.last_access is not None:
            for block in state.blocks:
                self._accessed[block] = state.last_access
        self._give_up(state)
        state.blocks = []
        state.num_blocks = state.seen = 0

    def full_blocks_touched(self, state: V0State) -> int:
        """Full blocks that are not cached here, or cached and unused; those in use cost nothing."""
        touched = 0
        for number in state.hashes[: state.seen // self.block_size]:
            block = self._cached.get(number)
            touched += block is None or block in self._unused
        return touched

    def take_over(self, state: V0State, source: V0Pool) -> None:
        """Free the blocks there, then find or take them here."""
        if isinstance(source, CachingPool):
            source._give_up(state)
        full = state.seen // self.block_size
        moved = [self._find_or_take(n) for n in state.hashes[:full]]
        moved.extend(self._take() for _ in range(state.num_blocks - full))
        state.blocks = moved

    def cached_tokens(self, state: V0State) -> int:
        """The hit, by binary search over the full blocks as in the real one; a hit block must be computed."""
        full = state.num_tokens // self.block_size
        self.contents.extend(state, full)
        hashes = state.hashes[:full]
        return bisect_left(hashes, True, key=self._is_miss) * self.block_size

    def mark_computed(self) -> None:
        """Count what got full since the last call as computed, even if only a chunk of it is."""
        for block in self._touched:
            self._computed[block] = True
        self._touched.clear()

    def _is_miss(self, number: int) -> bool:
        block = self._cached.get(number)
        return block is None or not (self._computed[block] or block in self._unused)

    def _find_or_take(self, number: int) -> int:
        block = self._cached.get(number)
        if block is None:
            return self._publish(self._take(), number)
        self._share(block)
        return block

    def _share(self, block: int) -> None:
        self._users[block] += 1
        if self._users[block] == 1:
            self._unused.pop(block, None)
            self._computed[block] = True

    def _publish(self, block: int, number: int) -> int:
        cached = self._cached.get(number)
        if cached is None:
            self._cached[number] = block
            self._hash[block] = number
            self._touched.add(block)
            return block
        self._give_back(block, 0)
        self._share(cached)
        return cached

    def _take(self) -> int:
        block = self._plain.pop() if self._plain else self._evict()
        self._users[block] = 1
        self._computed[block] = False
        return block

    def _give_up(self, state: V0State) -> None:
        for depth, block in enumerate(state.blocks, 1):
            self._give_back(block, depth)

    def _give_back(self, block: int, depth: int) -> None:
        self._users[block] -= 1
        if self._users[block]:
            return
        accessed, self._accessed[block] = self._accessed[block], NEVER_ACCESSED
        self._computed[block] = False
        number = self._hash[block]
        if number is None:
            self._plain.append(block)
            return
        self._unused[block] = (accessed, depth, number)
        self._entries += 1
        heappush(self._heap, self._entry(block, self._entries))
        if len(self._heap) > STALE_ENTRIES * len(self._unused):
            self._heap = [self._entry(block, self._entries) for block in self._unused]
            heapify(self._heap)

    def _entry(self, block: int, count: int) -> _Entry:
        accessed, depth, number = self._unused[block]
        return (accessed, -depth, block, -count, number)

    def _evict(self) -> int:
        while self._heap:
            accessed, _depth, block, _count, number = heappop(self._heap)
            if block not in self._unused or self._unused[block][0] != accessed:
                continue  # left over from an earlier stay among the unused
            if self._hash[block] != number:
                raise SchedulerFailedError("the evictor named a block of another content (AssertionError)")
            del self._unused[block]
            del self._cached[number]
            self._hash[block] = None
            return block
        raise SchedulerFailedError("the allocator has no free block (NoFreeBlocksError)")


def make_pools(num_blocks: int, num_cpu_blocks: int, block_size: int, caching: bool) -> tuple[V0Pool, V0Pool]:
    """The GPU's and the CPU's pool."""
    if not caching:
        return CountingPool(num_blocks, block_size), CountingPool(num_cpu_blocks, block_size)
    contents = Contents(block_size)
    return CachingPool(num_blocks, contents), CachingPool(num_cpu_blocks, contents)


WATERMARK = 0.01


class V0Memory:
    """The GPU's and the CPU's pool with the rules of admission, growth and swapping."""

    def __init__(self, config: EngineConfig, profile: V0Profile) -> None:
        self.gpu, self.cpu = make_pools(
            config.num_blocks, config.num_cpu_blocks, config.block_size, config.enable_prefix_caching
        )
        self.watermark_blocks = int(WATERMARK * config.num_blocks)
        self.block_size = config.block_size
        self.first_manager = profile.first_block_manager

    def room_for(self, state: V0State) -> str:
        """Whether all blocks of a prompt fit above the watermark: "now", "later" or "never". Hits do not help."""
        blocks = -(-state.num_tokens // self.block_size)
        if self.gpu.total - blocks < self.watermark_blocks:
            return "never"
        return "now" if self.gpu.num_free_blocks - blocks >= self.watermark_blocks else "later"

    def room_to_return(self, state: V0State) -> str:
        """The same for a swapped request: "now", "later" or "never"."""
        touched = self._blocks_to_swap(state, to_gpu=True)
        if touched > self.gpu.total:
            return "never"
        return "now" if self.gpu.num_free_blocks - touched >= self.watermark_blocks else "later"

    def can_append(self, state: V0State) -> bool:
        """A free block for the worst case: even where the last block has room, one must be free."""
        return self.gpu.num_free_blocks >= self._blocks_to_append(state)

    def swap_out(self, state: V0State) -> None:
        """Move a request to the CPU. Raises `SchedulerFailedError` when it has no room, as the real engine does."""
        touched = self._blocks_to_swap(state, to_gpu=False)
        if touched > self.cpu.num_free_blocks:
            raise SchedulerFailedError(
                f"request {state.id!r} cannot be swapped out: {touched} CPU blocks are needed, {self.cpu.num_free_blocks} are "
                "free (the engine stops with a RuntimeError in scheduler.py: lack of CPU swap space)"
            )
        self.cpu.take_over(state, self.gpu)
        state.status = "swapped"

    def swap_in(self, state: V0State) -> None:
        """Move a request back to the GPU and let it append."""
        self.gpu.take_over(state, self.cpu)
        state.status = "running"
        self.gpu.append(state)

    def drop(self, state: V0State) -> None:
        """Free the blocks of an aborted request, wherever they are."""
        if state.status == "running":
            self.gpu.free(state)
        elif state.status == "swapped":
            self.cpu.free(state)

    def _blocks_to_append(self, state: V0State) -> int:
        """Blocks that the next append touches: one, but none in a prompt that ends with its last block.

        A later chunk of a prompt appends nothing, and still counts as touching a partly filled last block
        (0.8.5, `core/block/block_table.py`).
        """
        if self.first_manager:
            return 1
        if state.in_prefill and state.seen % self.block_size == 0:
            return 0
        return 1

    def _blocks_to_swap(self, state: V0State, *, to_gpu: bool) -> int:
        """Blocks that a swap is expected to take: the full ones and what the next append touches."""
        if self.first_manager:
            return state.num_blocks + (1 if to_gpu else 0)
        pool = self.gpu if to_gpu else self.cpu
        return pool.full_blocks_touched(state) + self._blocks_to_append(state)
