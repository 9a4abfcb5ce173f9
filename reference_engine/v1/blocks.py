"""The KV block pool: blocks are handed out from the front of a free list and keep their content until then.

`BlockPool` knows each block, its hash and its users (prefix caching); `CountedPool` only counts (no caching, where
no decision depends on which block it is). The null block of V1 is held by the pool itself and is never handed out.

A block pool with prefix caching for workloads in which no two requests share content.

Then only an evicted request can ever hit cached blocks, namely its own, and these are given up from its tail on. So
the free list is a row of segments, and no block needs a name: `BlockPool` decides the same (a property test says so).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Protocol

from reference_engine.model.request import Request, RequestState

__all__ = ["BlockPool", "Contents", "CountedPool", "Pool", "UnsharedPool"]
Run = tuple[str, int, int]  # stream, index of its first token, tokens


class Pool(Protocol):
    """What the scheduler asks of a pool. Counts are in blocks."""

    @property
    def usable(self) -> int:
        """Blocks of the pool, the null block not counted."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the free list."""

    def get_computed_blocks(self, state: RequestState, most: int) -> tuple[int, int]:
        """(cached full blocks at the start of the request, at most `most`; how many of them lie in the free list)."""

    def admit(self, state: RequestState, hit: int, new: int) -> None:
        """Give a request its `hit` cached blocks and `new` ones from the free list."""

    def allocate_new_blocks(self, state: RequestState, new: int) -> None:
        """Give a running request `new` blocks from the free list."""

    def cache_blocks(self, state: RequestState, full: int) -> None:
        """Make the first `full` blocks of a request findable by content."""

    def free(self, state: RequestState) -> None:
        """Take all blocks of a request back."""


class CountedPool:
    """A pool without prefix caching: a number of free blocks."""

    __slots__ = ("num_free_blocks", "usable")

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self.num_free_blocks = usable

    def get_computed_blocks(self, state: RequestState, most: int) -> tuple[int, int]:
        """Nothing is ever cached."""
        return 0, 0

    def take(self, blocks: int) -> None:
        """Take blocks for requests whose own count is kept elsewhere (the fast path)."""
        self.num_free_blocks -= blocks

    def admit(self, state: RequestState, hit: int, new: int) -> None:
        """As `grow`: there are no hits."""
        self.allocate_new_blocks(state, new)

    def allocate_new_blocks(self, state: RequestState, new: int) -> None:
        """Count `new` blocks from free to held."""
        self.num_free_blocks -= new
        state.num_blocks += new

    def cache_blocks(self, state: RequestState, full: int) -> None:
        """Nothing to register."""

    def free(self, state: RequestState) -> None:
        """Count all held blocks as free."""
        self.num_free_blocks += state.num_blocks
        state.num_blocks = 0


class Contents:
    """Hashes of the contents of full blocks: equal content after equal content has an equal hash.

    A prompt is a concatenation of stream prefixes (`Request.prompt`), output token k of a request is token k of the
    stream `o<id>`. A block's content is the runs of tokens in it and the hash of the block before it. As in vLLM
    (`v1/core/kv_cache_utils.py`) a hash stands for its content: 64 bits keep ten million blocks apart with a chance of
    all but 3 in a million, and need no table of everything ever seen. With `lookahead` a block's hash also covers so many
    tokens after it.
    """

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        self.block_size = block_size
        self.lookahead = lookahead

    def extend(self, state: RequestState, full: int) -> None:
        """Fill `state.hashes` up to `full` blocks."""
        hashes = state.hashes
        before = hashes[-1] if hashes else -1
        size, prompt = self.block_size, state.num_prompt_tokens
        if len(hashes) * size >= prompt and not self.lookahead:  # blocks of the answer: one run each
            stream = f"o{state.id}"
            for start in range(len(hashes) * size - prompt, full * size - prompt, size):
                before = hash((before, ((stream, start, size),)))
                hashes.append(before)
            return
        for runs in _block_runs(state.request, len(hashes), full, self.block_size, self.lookahead):
            before = hash((before, runs))
            hashes.append(before)


def _block_runs(request: Request, first: int, last: int, size: int, ahead: int) -> Iterator[tuple[Run, ...]]:
    """The runs of stream tokens in each of the blocks first..last of a request's sequence."""
    prompt = request.prompt
    if prompt is None:
        prompt = ((f"p{request.id}", request.prompt_tokens),)
    pieces = iter((*prompt, (f"o{request.id}", last * size + ahead)))
    stream, length = next(pieces)
    offset = 0  # where the piece begins
    position = first * size + (ahead if first else 0)
    for block in range(first, last):
        end = (block + 1) * size + ahead
        if offset <= position and end <= offset + length:  # nearly all blocks of a long piece
            yield ((stream, position - offset, end - position),)
            position = end
            continue
        runs = []
        while position < end:
            while offset + length <= position:
                offset += length
                stream, length = next(pieces)
            tokens = min(end, offset + length) - position
            runs.append((stream, position - offset, tokens))
            position += tokens
        yield tuple(runs)


class BlockPool:
    """A pool with prefix caching (vLLM: `v1/core/block_pool.py`, `v1/core/kv_cache_manager.py`).

    The free list is first in, first out; a block that is taken from it loses its hash. Released blocks go back
    last-to-first, so that the tail of a sequence is reused before its head; with `unhashed_first` (0.23.0 on) those
    without a hash go to the front of the list. Equal contents may be held twice: a lookup gives the one registered
    first.
    """

    def __init__(self, usable: int, contents: Contents, unhashed_first: bool) -> None:
        self.usable = usable
        self.contents = contents
        self.unhashed_first = unhashed_first
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(usable))
        self._users = [0] * usable
        self._hash: list[int | None] = [None] * usable
        self._cached: dict[int, dict[int, None]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the free list, cached ones included."""
        return len(self._free)

    def get_computed_blocks(self, state: RequestState, most: int) -> tuple[int, int]:
        """The longest run of cached blocks from the start, and how many of them nobody uses."""
        self.contents.extend(state, most)
        hit = unused = 0
        for number in state.hashes[:most]:
            blocks = self._cached.get(number)
            if not blocks:
                break
            hit += 1
            unused += self._users[next(iter(blocks))] == 0
        return hit, unused

    def admit(self, state: RequestState, hit: int, new: int) -> None:
        """Use the cached blocks first (they leave the free list), then take new ones."""
        for number in state.hashes[:hit]:
            block = next(iter(self._cached[number]))
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1
            state.blocks.append(block)
        state.num_blocks = state.registered = hit
        self.allocate_new_blocks(state, new)

    def allocate_new_blocks(self, state: RequestState, new: int) -> None:
        """Take blocks from the front of the free list; what they held is forgotten."""
        for _ in range(new):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._users[block] = 1
            state.blocks.append(block)
        state.num_blocks += new

    def _forget(self, block: int) -> None:
        number = self._hash[block]
        if number is None:
            return
        self._hash[block] = None
        blocks = self._cached[number]
        del blocks[block]
        if not blocks:
            del self._cached[number]

    def cache_blocks(self, state: RequestState, full: int) -> None:
        """Hash the blocks that became full; it happens when they are scheduled, before they are computed."""
        if full <= state.registered:
            return
        self.contents.extend(state, full)
        for index in range(state.registered, full):
            block, number = state.blocks[index], state.hashes[index]
            self._hash[block] = number
            self._cached.setdefault(number, {})[block] = None
        state.registered = full

    def free(self, state: RequestState) -> None:
        """Give the blocks back, last first; those still used by others stay."""
        freed = []
        for block in reversed(state.blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                freed.append(block)
        for block in freed:
            if self._hash[block] is not None or not self.unhashed_first:
                self._free[block] = None
        if self.unhashed_first:
            for block in reversed(freed):
                if self._hash[block] is None:
                    self._free[block] = None
                    self._free.move_to_end(block, last=False)
        state.blocks = []
        state.num_blocks = state.registered = 0


Segment = list[int]  # [blocks left, 1 if they belong to an evicted request]


class UnsharedPool:
    """Free blocks in the order in which they will be reused, grouped by who left them there."""

    __slots__ = ("_segments", "num_free_blocks", "unhashed_first", "usable")

    def __init__(self, usable: int, unhashed_first: bool) -> None:
        self.usable = usable
        self.num_free_blocks = usable
        self.unhashed_first = unhashed_first
        self._segments: deque[Segment] = deque([[usable, 0]])

    def get_computed_blocks(self, state: RequestState, most: int) -> tuple[int, int]:
        """The blocks that are left of an evicted request; all of them lie in the free list."""
        segment = state.segment
        if segment is None:
            return 0, 0
        hit = min(segment[0], most)
        return hit, hit

    def admit(self, state: RequestState, hit: int, new: int) -> None:
        """Take the request's own blocks out of their segment, then new ones from the front."""
        if state.segment is not None:
            state.segment[0] -= hit
            state.segment[1] = 0
            state.segment = None
        self.num_free_blocks -= hit
        state.num_blocks = state.registered = hit
        self.allocate_new_blocks(state, new)

    def allocate_new_blocks(self, state: RequestState, new: int) -> None:
        """Take blocks from the front of the free list."""
        self.take(new)
        state.num_blocks += new

    def take(self, blocks: int) -> None:
        """Take blocks for requests whose own count is kept elsewhere (the fast path)."""
        self.num_free_blocks -= blocks
        segments = self._segments
        while blocks:
            first = segments[0]
            if first[0] > blocks:
                first[0] -= blocks
                return
            blocks -= first[0]
            first[0] = 0
            segments.popleft()

    def cache_blocks(self, state: RequestState, full: int) -> None:
        """Count the blocks that carry a hash."""
        if full > state.registered:
            state.registered = full

    def free(self, state: RequestState) -> None:
        """Give the blocks back; those of an evicted request can be found again until they are taken."""
        hashed, plain = state.registered, state.num_blocks - state.registered
        self.num_free_blocks += state.num_blocks
        state.num_blocks = state.registered = 0
        segments = self._segments
        if plain:
            if not self.unhashed_first:
                self._append(plain)
            elif segments and not segments[0][1]:
                segments[0][0] += plain
            else:
                segments.appendleft([plain, 0])
        if state.status == "finished":
            self._append(hashed)
        elif hashed:
            state.segment = [hashed, 1]
            segments.append(state.segment)

    def _append(self, blocks: int) -> None:
        if self._segments and not self._segments[-1][1]:
            self._segments[-1][0] += blocks
        else:
            self._segments.append([blocks, 0])
