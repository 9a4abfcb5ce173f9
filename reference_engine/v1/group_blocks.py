"""One request's blocks in one KV-cache group, by kind of attention (vLLM: `v1/core/single_type_kv_cache_manager.py`).

A table is a list by position: block j covers tokens j x size to (j + 1) x size - 1. A position whose block went back to
the pool, or was never taken, is a `HOLE`. `SharedPool` is the one pool that all groups draw from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from reference_engine.model.kv_group import KvGroup, sequence_blocks
from reference_engine.model.step import RequestId

__all__ = ["HOLE", "NEVER", "ChunkedLocalBlocks", "GroupBlocks", "GroupRules", "SharedPool", "SlidingBlocks", "Table"]

HOLE = -1
NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What the configuration and its version decide for all groups.

    `max_model_len`, `in_flight_tokens` (what the batches in flight may hold at once), `alignment` (hits end on its
    multiples) and `hash_block` in tokens. `retention`: None registers densely, 0 only the ends that a resend or a
    sibling can use, N > 0 also every N tokens. `drop`: the drafting head drops a hit's last block (EAGLE), `lowered`:
    the ends kept under retention lie one `alignment` lower for it. `retained`: tokens kept below a sliding window.
    `scratch_is_future`: releases that count the drafts' blocks as not computed when a state's blocks go back (0.24).
    `reregisters`: a state that is registered already counts as written again in a step that holds it (0.32).
    """

    max_model_len: int
    in_flight_tokens: int
    alignment: int
    hash_block: int
    retention: int | None = None
    drop: bool = False
    lowered: bool = False
    retained: int = 0
    scratch_is_future: bool = False
    reregisters: bool = False


class SharedPool:
    """The pool of all groups: ids in a first-in-first-out free list, contents findable by (hash, group)."""

    def __init__(self, usable: int, unhashed_first: bool) -> None:
        self.usable = usable
        self.unhashed_first = unhashed_first
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(usable))
        self._users = [0] * usable
        self._key: list[tuple[int, int] | None] = [None] * usable
        self._ages: set[int] = set()  # registered, though nothing ever finds them
        self._cached: dict[tuple[int, int], dict[int, None]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the free list, registered ones included."""
        return len(self._free)

    def find(self, key: tuple[int, int]) -> int | None:
        """The block registered first under a content in a group."""
        blocks = self._cached.get(key)
        return next(iter(blocks)) if blocks else None

    def is_registered(self, block: int) -> bool:
        """Whether a block is found by its content, or ages as one that is."""
        return self._key[block] is not None or block in self._ages

    def key_of(self, block: int) -> tuple[int, int] | None:
        """What a block is registered under."""
        return self._key[block]

    def is_unused(self, block: int) -> bool:
        """Whether no request holds it."""
        return self._users[block] == 0

    def touch(self, block: int) -> None:
        """One more request holds a registered block."""
        if self._users[block] == 0:
            del self._free[block]
        self._users[block] += 1

    def take(self, count: int) -> list[int]:
        """New blocks from the front of the free list; what they held is forgotten."""
        taken = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._users[block] = 1
            taken.append(block)
        return taken

    def register(self, block: int, key: tuple[int, int]) -> None:
        """Make a block findable; what it was registered under before is forgotten."""
        self._forget(block)
        self._key[block] = key
        self._cached.setdefault(key, {})[block] = None

    def let_age(self, block: int) -> None:
        """Treat a block as registered when it is freed, without making it findable."""
        if self._key[block] is None:
            self._ages.add(block)

    def _forget(self, block: int) -> None:
        self._ages.discard(block)
        key = self._key[block]
        if key is None:
            return
        self._key[block] = None
        blocks = self._cached[key]
        del blocks[block]
        if not blocks:
            del self._cached[key]

    def give_back(self, blocks: Iterable[int]) -> None:
        """Take blocks back in this order; those of others stay. The unregistered ones are reused first."""
        plain = []
        for block in blocks:
            self._users[block] -= 1
            if self._users[block]:
                continue
            if self.unhashed_first and not self.is_registered(block):
                plain.append(block)
            else:
                self._free[block] = None
        for block in reversed(plain):
            self._free[block] = None
            self._free.move_to_end(block, last=False)


@dataclass(slots=True)
class Table:
    """A request's blocks in a group.

    `registered`: positions that were looked at for registration; `left`: positions at the start that are all holes;
    `gives_at`: processed tokens before which no more of them can be (`KvCacheCoordinator.decode`).
    """

    blocks: list[int] = field(default_factory=list)
    registered: int = 0
    left: int = 0
    gives_at: int = 0

    @property
    def held(self) -> int:
        """Blocks without the holes."""
        return len(self.blocks) - self.blocks.count(HOLE)


class GroupBlocks:
    """A group of full attention, and what all kinds have in common. Lengths in tokens, results in blocks.

    `marked`: the drafting head's layers are in this group, or in one that is looked up together with it.
    """

    def __init__(self, group: KvGroup, number: int, pool: SharedPool, rules: GroupRules) -> None:
        self.group = group
        self.number = number
        self.pool = pool
        self.rules = rules
        self.size = group.block_size
        self.marked = rules.drop and group.eagle
        self.tables: dict[RequestId, Table] = {}
        self.written: set[tuple[int, int]] = set()
        """States registered in this step; nobody can start from them before the next one."""
        window = group.kind in ("sliding", "chunked_local")
        self.cap = (
            sequence_blocks(group, rules.max_model_len, rules.in_flight_tokens, retained=rules.retained)
            if window
            else None
        )

    def skipped(self, computed: int) -> int:
        """Tokens before the first that the next one still sees."""
        return 0

    def next_give(self, processed: int) -> int:
        """Processed tokens, more than these, at which a whole block more leaves the window."""
        return NEVER

    def need(
        self,
        request_id: RequestId,
        end: int,
        hit: Sequence[int],
        computed: int,
        main: int,
        gate: bool,
        ends_prompt: bool,
    ) -> int:
        """Blocks that a request lacks for `end` tokens; hit blocks that lie in the free list cost one each.

        Args:
            request_id: who.
            end: tokens that must have a place, the drafts' lookahead included.
            hit: cached blocks that the request brings, by position.
            computed: tokens that it has computed or found.
            main: as `end`, without the lookahead.
            gate: it is the check of the whole sequence.
            ends_prompt: the last of these tokens ends the prompt (or what a resumed request computes again).
        """
        required = -(-end // self.size)
        if gate and self.cap is not None:
            required = min(required, self.cap)
        table = self.tables.get(request_id)
        if table is not None:
            return max(required - len(table.blocks), 0)
        over = self.skipped(computed) // self.size
        return max(required - max(over, len(hit)), 0) + self._unused(hit[over:])

    def _unused(self, hit: Sequence[int]) -> int:
        return sum(block != HOLE and self.pool.is_unused(block) for block in hit)

    def start(self, request_id: RequestId, hit: Sequence[int], computed: int) -> None:
        """Open a request's table with the blocks that it found, those that its window left as holes."""
        over = self.skipped(computed) // self.size
        kept = list(hit[over:])
        for block in kept:
            if block != HOLE:
                self.pool.touch(block)
        blocks = [HOLE] * over + kept
        self.tables[request_id] = Table(blocks, len(blocks), over)

    def grow(self, request_id: RequestId, end: int, main: int) -> None:
        """Take the blocks for `end` tokens."""
        table = self.tables[request_id]
        new = -(-end // self.size) - len(table.blocks)
        if new > 0:
            table.blocks += self.pool.take(new)

    def leave_window(self, request_id: RequestId, processed: int) -> None:
        """Give back the whole blocks that lie before the window of the next token."""
        table = self.tables.get(request_id)
        if table is None:
            return
        blocks = table.blocks
        over = min(self.skipped(processed) // self.size, len(blocks))
        if over <= table.left:
            return
        gone = []
        for position in range(over - 1, table.left - 1, -1):
            if blocks[position] != HOLE:
                gone.append(blocks[position])
                blocks[position] = HOLE
        table.left = over
        self.pool.give_back(gone)

    def free(self, request_id: RequestId) -> None:
        """Give all blocks of a request back, the last position first."""
        table = self.tables.pop(request_id, None)
        if table is not None:
            self.pool.give_back(block for block in reversed(table.blocks) if block != HOLE)

    def register(self, request_id: RequestId, tokens: int, hashes: Sequence[int], ends: Sequence[int]) -> None:
        """Make the full blocks of the first `tokens` tokens findable; `hashes` by `hash_block`, `ends`: see `_kept`."""
        table = self.tables[request_id]
        full = tokens // self.size
        if full <= table.registered:
            return
        kept = self._kept(table.registered, full, ends)
        for position in range(table.registered, full):
            block = table.blocks[position]
            if block != HOLE and (kept is None or position in kept):
                self.pool.register(block, self.key(hashes, position))
                self._wrote(block)
        table.registered = full

    def key(self, hashes: Sequence[int], position: int) -> tuple[int, int]:
        """What the block at a position is registered under."""
        return hashes[(position + 1) * self.size // self.rules.hash_block - 1], self.number

    def _wrote(self, block: int) -> None:
        """A block was registered."""

    def _kept(self, first: int, last: int, ends: Sequence[int]) -> set[int] | None:
        """Which of the positions first..last are registered: those from which a request that ends a prefix at one of
        `ends` can start; None for all."""
        return None

    def register_tail(self, request_id: RequestId, tokens: int, prompt: int) -> None:
        """The prompt's last hash unit ends inside a longer block: that block ages as a registered one."""
        unit = self.rules.hash_block
        if self.size == unit:
            return
        end = prompt // unit * unit
        if end == 0 or end > tokens or end % self.size == 0:
            return
        blocks = self.tables[request_id].blocks
        position = end // self.size
        if position < len(blocks) and blocks[position] != HOLE:
            self.pool.let_age(blocks[position])


class SlidingBlocks(GroupBlocks):
    """A sliding window: the last `window` tokens are seen."""

    def skipped(self, computed: int) -> int:
        """All before the window of the next token, and before what several MTP modules keep."""
        return max(0, computed - self.group.window + 1 - self.rules.retained)

    def next_give(self, processed: int) -> int:
        """When the window has passed the end of the next block."""
        over = self.skipped(processed) // self.size
        return (over + 1) * self.size + self.group.window - 1 + self.rules.retained

    def run_needed(self, dropping: bool) -> int:
        """Blocks in a row that a hit needs, one more where the last is dropped."""
        return -(-(self.group.window - 1) // self.size) + dropping

    def register_tail(self, request_id: RequestId, tokens: int, prompt: int) -> None:
        """Windows are registered by whole blocks only."""

    def _kept(self, first: int, last: int, ends: Sequence[int]) -> set[int] | None:
        rules = self.rules
        shift = int(self.marked)
        if rules.retention == 0 and (first - shift) * self.size >= max(ends):
            return set()
        need = self.run_needed(self.marked)
        stretch = rules.alignment if rules.retention is None else rules.retention
        kept = set()
        if stretch:
            blocks = stretch // self.size
            if need >= blocks:
                return None
            kept = {p for p in range(max(first, shift), last) if (p - shift) % blocks >= blocks - need}
        if rules.retention is not None:
            for end in ends:
                edge = end // rules.alignment * rules.alignment // self.size + shift
                kept.update(range(max(first, edge - need), min(last, edge)))
        return kept


class ChunkedLocalBlocks(GroupBlocks):
    """Chunked-local attention: a token sees its own chunk. Always registered densely."""

    def skipped(self, computed: int) -> int:
        """All before the chunk of the next token."""
        return computed // self.group.window * self.group.window

    def next_give(self, processed: int) -> int:
        """With the next chunk."""
        return (processed // self.group.window + 1) * self.group.window

    def register_tail(self, request_id: RequestId, tokens: int, prompt: int) -> None:
        """Chunks are registered by whole blocks only."""
