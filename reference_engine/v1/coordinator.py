"""Several KV-cache groups together: prefix hits on which all of them agree, and blocks for all of them or none.

As vLLM's `v1/core/kv_cache_coordinator.py` and `v1/core/kv_cache_manager.py` (allocate_slots).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reference_engine.model.kv_group import KvGroup, alignment_of
from reference_engine.model.request import RequestState
from reference_engine.model.step import RequestId
from reference_engine.v1.blocks import Contents
from reference_engine.v1.group_blocks import (
    HOLE,
    NEVER,
    ChunkedLocalBlocks,
    GroupBlocks,
    GroupRules,
    SharedPool,
    SlidingBlocks,
    Table,
)
from reference_engine.v1.state_blocks import AlignedStateBlocks, StateBlocks

__all__ = ["CacheHit", "KvCacheCoordinator", "LookupRules", "hash_block_of"]

Tables = list[list[int]]


@dataclass(frozen=True, slots=True)
class LookupRules:
    """What a version's lookup does besides the rules that all share.

    `past_known`: the drafting head's groups look for the block that they drop up to the last known token (0.32 on; before,
    that one is left out). `state_margin`: they take state groups along (0.24).
    `trims_full`: a second pass keeps full attention within its own hit (0.28 on). `hash_lookahead`: tokens after a
    block that its hash covers too (0.33 with EAGLE). `held_back`: newest tokens that several MTP modules never register.
    `tail_with_last`: the prompt's last token counts where a block is registered for the prompt's end (0.28 to 0.31).
    """

    past_known: bool = True
    state_margin: bool = False
    trims_full: bool = True
    hash_lookahead: int = 0
    held_back: int = 0
    tail_with_last: bool = False


@dataclass(slots=True)
class CacheHit:
    """A prefix hit: its tokens, each group's cached blocks by position, and how far the longest of them reached."""

    tokens: int
    blocks: Tables
    longest: int = 0


def hash_block_of(groups: Sequence[KvGroup]) -> int:
    """Tokens that one hash stands for."""
    if any(group.is_state and group.mode == "all" for group in groups):
        return alignment_of(groups)
    return math.gcd(*(group.block_size for group in groups))


class KvCacheCoordinator:
    """The blocks of all requests in all groups of one engine.

    `junctions`: tokens that a request shares with an earlier one beyond what all groups still have, by request.
    """

    def __init__(
        self, groups: Sequence[KvGroup], pool: SharedPool, rules: GroupRules, lookup: LookupRules, prefix_caching: bool
    ) -> None:
        self.pool = pool
        self.rules = rules
        self.lookup = lookup
        self.prefix_caching = prefix_caching
        self.groups = [_blocks_of(group, number, pool, rules) for number, group in enumerate(groups)]
        self.junctions: dict[RequestId, int] = {}
        self._contents = Contents(rules.hash_block, lookup.hash_lookahead)
        self._kinds = self._by_kind()

    def _by_kind(self) -> list[list[GroupBlocks]]:
        """Groups that are looked up together, full attention first; one marked group marks its kind."""
        kinds: dict[tuple[object, ...], list[GroupBlocks]] = {}
        for blocks in self.groups:
            group = blocks.group
            key = (group.kind, group.block_size, group.window, group.mode, group.spec_blocks, group.checkpoint)
            kinds.setdefault(key, []).append(blocks)
        for kind in kinds.values():
            marked = any(blocks.marked for blocks in kind)
            for blocks in kind:
                blocks.marked = marked
        return sorted(kinds.values(), key=lambda kind: kind[0].group.kind != "full")

    def new_step(self) -> None:
        """A step begins: states written in the last one can be hit."""
        for blocks in self.groups:
            blocks.written.clear()

    def held(self, request_id: RequestId) -> list[int]:
        """Blocks that a request really holds in each group."""
        return [b.tables[request_id].held if request_id in b.tables else 0 for b in self.groups]

    # ---- allocation ----

    def allocate(
        self,
        state: RequestState,
        hit: CacheHit | None,
        tokens: int,
        *,
        lookahead: int = 0,
        processed: int | None = None,
        whole: bool = False,
        reserve: int = 0,
    ) -> bool:
        """Blocks for the next `tokens` tokens of a request in all groups; False (and none taken) when they lack.

        Args:
            state: who; `num_computed_tokens` without the hit.
            hit: the prefix hit of a request that is admitted, None for a running one.
            tokens: tokens of this step.
            lookahead: tokens of places beyond them, for drafts.
            processed: computed tokens without those of the batches in flight (default: all).
            whole: all known tokens must fit now (the full-sequence gate).
            reserve: blocks that must stay free.
        """
        longest = self.rules.max_model_len
        found = hit.blocks if hit is not None else [[]] * len(self.groups)
        computed = state.num_computed_tokens + (hit.tokens if hit is not None else 0)
        free = self.pool.num_free_blocks - reserve
        if whole:
            known = min(state.num_tokens, longest)
            if self._need(state, known, found, computed, known, True) > free:
                return False
        main = computed + tokens
        end = min(main + lookahead, longest)
        for blocks in self.groups:
            blocks.leave_window(state.id, computed if processed is None else max(0, processed))
        free = self.pool.num_free_blocks - reserve
        if self._need(state, end, found, computed, main, False) > free:
            return False
        if hit is not None:
            for blocks, cached in zip(self.groups, found, strict=True):
                blocks.start(state.id, cached, computed)
        for blocks in self.groups:
            blocks.grow(state.id, end, main)
        return True

    def tables(self, request_id: RequestId) -> list[Table]:
        """A request's blocks in each group, for `decode`."""
        return [blocks.tables[request_id] for blocks in self.groups]

    def decode(self, state: RequestState, tables: Sequence[Table], processed: int, known: int) -> bool:
        """As `allocate` and `register` for the next token of a request that decodes without drafts; False (and no block
        taken) when blocks lack. Only the groups in which something happens are touched.

        Args:
            state: who; its `num_computed_tokens` are those before this token.
            tables: its tables.
            processed: computed tokens without those of the batches in flight, where the release looks at that.
            known: tokens whose blocks may be registered.
        """
        computed = state.num_computed_tokens
        growing = []
        for blocks, table in zip(self.groups, tables, strict=True):
            if processed >= table.gives_at:
                blocks.leave_window(state.id, processed)
                table.gives_at = blocks.next_give(processed)
            if computed >= len(table.blocks) * blocks.size:
                growing.append(blocks)
        if len(growing) > self.pool.num_free_blocks:
            return False
        for blocks in growing:
            blocks.grow(state.id, computed + 1, computed + 1)
        if self.prefix_caching:
            aligned = self.rules.alignment
            if known // aligned * aligned // self.groups[0].size > tables[0].registered:
                self.register(state, known)
        return True

    def next_change(self, tables: Sequence[Table], computed: int, in_flight: int, unprocessed: int) -> int:
        """Computed tokens at which `decode` next has something to do.

        Args:
            tables: the request's tables, after a `decode`.
            computed: tokens after it.
            in_flight: tokens of the batches in flight, which are not known yet.
            unprocessed: as many, where windows wait for them.
        """
        change = NEVER
        for blocks, table in zip(self.groups, tables, strict=True):
            change = min(change, len(table.blocks) * blocks.size, table.gives_at + unprocessed)
        if self.prefix_caching:
            aligned, known = self.rules.alignment, computed - in_flight
            change = min(change, (known // aligned + 1) * aligned - 1 + in_flight)
        return max(change, computed)

    def _need(self, state: RequestState, end: int, found: Tables, computed: int, main: int, gate: bool) -> int:
        ends_prompt = main >= max(state.num_prompt_tokens, state.num_tokens - 1)
        return sum(
            blocks.need(state.id, end, cached, computed, main, gate, ends_prompt)
            for blocks, cached in zip(self.groups, found, strict=True)
        )

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the free list of the one pool."""
        return self.pool.num_free_blocks

    def free(self, state: RequestState) -> None:
        """Give back all blocks of a request, group by group."""
        for blocks in self.groups:
            blocks.free(state.id)

    def forget(self, request_id: RequestId) -> None:
        """A request is gone for good."""
        self.junctions.pop(request_id, None)

    # ---- registration ----

    def register(self, state: RequestState, tokens: int) -> None:
        """Make the full blocks of a request's first `tokens` tokens findable, in the groups that keep them."""
        if not self.prefix_caching:
            return
        rules, lookup = self.rules, self.lookup
        tokens = min(tokens, max(0, state.num_tokens - lookup.hash_lookahead))
        whole = tokens // rules.alignment * rules.alignment
        settled = max(0, tokens - lookup.held_back)
        beyond = settled // rules.alignment * rules.alignment
        hashes = self._hashes(state, tokens)
        ends = self._ends(state) if rules.retention is not None or rules.reregisters else ()
        for blocks in self.groups:
            upto = whole
            if len(self.groups) == 1:
                upto = settled
            elif blocks.marked and whole > 0:
                upto = min(settled, beyond + blocks.size)
            blocks.register(state.id, upto, hashes, ends)
            blocks.register_tail(state.id, upto, state.num_prompt_tokens - (0 if lookup.tail_with_last else 1))

    def _hashes(self, state: RequestState, tokens: int) -> list[int]:
        full = tokens // self.rules.hash_block
        if full > len(state.hashes):
            self._contents.extend(state, full)
        return state.hashes

    def _ends(self, state: RequestState) -> list[int]:
        """Prefixes of a request that sparse retention keeps: a resend's, and the one that it shares with another."""
        prompt, lower = state.num_prompt_tokens, self.rules.alignment
        ends = [prompt - 1]
        if self.rules.lowered:
            ends = [max(0, (end // lower - 1) * lower) for end in (prompt - 1, prompt)]
        junction = self.junctions.get(state.id, 0)
        if junction:
            ends.append(junction)
        return ends

    # ---- lookup ----

    def find_longest_cache_hit(self, state: RequestState) -> CacheHit:
        """The longest prefix that all groups have, never with the last known token; remembers the junction."""
        if not self.prefix_caching:
            return CacheHit(0, [[] for _ in self.groups])
        known = state.num_tokens
        self._hashes(state, max(0, known - self.lookup.hash_lookahead))
        hit = self._agree(state.hashes, known)
        self.junctions[state.id] = hit.longest if hit.longest > hit.tokens else 0
        return hit

    def _agree(self, hashes: Sequence[int], known: int) -> CacheHit:
        """Ask all kinds in turn, each within what the others left, until nobody shortens the hit."""
        found: dict[int, list[int]] = {}
        own: dict[int, int] = {}
        dropped: set[int] = set()
        limit = known if self.lookup.past_known else known - 1
        length, longest = known - 1, 0
        only_two = len(self._kinds) == 2 and self._kinds[0][0].group.kind == "full"
        while True:
            current = length
            for kind, members in enumerate(self._kinds):
                lead = members[0]
                if lead.group.kind == "full" and lead.number in own:
                    current = self._trimmed(current, own[lead.number], lead.size)
                    continue
                dropping = lead.marked and kind not in dropped
                tables, reached = self._look(members, hashes, self._reach(lead, current, limit, dropping), dropping)
                if dropping:
                    dropped.add(kind)
                elif reached < current:
                    dropped.clear()
                current = reached
                for blocks, table in zip(members, tables, strict=True):
                    found[blocks.number] = table
                    own[blocks.number] = reached
                longest = max(longest, current)
            if current >= length:
                break
            length = current
            if only_two:
                break
        for members in self._kinds:
            if members[0].group.kind == "full":
                for blocks in members:
                    del found[blocks.number][-(-length // blocks.size) :]
        return CacheHit(length, [found[number] for number in range(len(self.groups))], longest)

    def _trimmed(self, current: int, own: int, size: int) -> int:
        if self.lookup.trims_full:
            return min(current, own)
        return current // size * size

    def _reach(self, lead: GroupBlocks, current: int, limit: int, dropping: bool) -> int:
        """How far a kind looks: one block further where it will drop the last one."""
        if len(self.groups) == 1 or not dropping or (lead.group.is_state and not self.lookup.state_margin):
            return current
        return min(current + lead.size, limit)

    def _look(
        self, members: Sequence[GroupBlocks], hashes: Sequence[int], most: int, dropping: bool
    ) -> tuple[Tables, int]:
        """The longest hit of one kind within `most` tokens: a table for each member, and the tokens."""
        lead = members[0]
        most = min(most, len(hashes) * self.rules.hash_block)
        if isinstance(lead, SlidingBlocks):
            return self._look_back(members, hashes, most, lead.run_needed(dropping), dropping)
        if lead.group.is_state:
            return self._look_for_state(members, hashes, most)
        if lead.group.kind == "chunked_local":
            over = most // lead.group.window * lead.group.window // lead.size
            return self._run(members, hashes, most, over, False)
        return self._run(members, hashes, most, 0, dropping)

    def _blocks_at(self, members: Sequence[GroupBlocks], hashes: Sequence[int], position: int) -> list[int] | None:
        """The cached block of each member at a position, None unless all have one."""
        at = []
        for blocks in members:
            block = self.pool.find(blocks.key(hashes, position))
            if block is None:
                return None
            at.append(block)
        return at

    def _run(
        self, members: Sequence[GroupBlocks], hashes: Sequence[int], most: int, over: int, dropping: bool
    ) -> tuple[Tables, int]:
        """The run of cached blocks from position `over` on; what lies before it counts as present."""
        size = members[0].size
        tables: Tables = [[HOLE] * over for _ in members]
        for position in range(over, most // size):
            at = self._blocks_at(members, hashes, position)
            if at is None:
                break
            for table, block in zip(tables, at, strict=True):
                table.append(block)
        length = len(tables[0]) * size
        if dropping and length:
            length -= size
        length -= length % self.rules.alignment
        for table in tables:
            del table[-(-length // size) :]
        return tables, length

    def _look_back(
        self, members: Sequence[GroupBlocks], hashes: Sequence[int], most: int, need: int, dropping: bool
    ) -> tuple[Tables, int]:
        """The rightmost run of `need` cached blocks; one that reaches the start counts at any length."""
        size, aligned = members[0].size, self.rules.alignment
        tables: Tables = [[HOLE] * (most // size) for _ in members]
        run = 0
        full = False
        for position in range(most // size - 1, -1, -1):
            at = self._blocks_at(members, hashes, position)
            if at is None:
                run = 0
                continue
            if run == 0 and (position + (0 if dropping else 1)) * size % aligned:
                continue
            for table, block in zip(tables, at, strict=True):
                table[position] = block
            run += 1
            if run >= need:
                full = True
                break
        for table in tables:
            if full:
                del table[position + run :]
            else:
                del table[run:]
        keep = len(tables[0])
        if not full:
            keep -= keep * size % aligned // size
        if dropping and keep:
            keep -= 1
            keep -= keep * size % aligned // size
        for table in tables:
            del table[keep:]
        return tables, keep * size

    def _look_for_state(self, members: Sequence[GroupBlocks], hashes: Sequence[int], most: int) -> tuple[Tables, int]:
        """The rightmost state that ends on a multiple of the alignment."""
        size = members[0].size
        for position in range(most // size - 1, -1, -1):
            at = self._blocks_at(members, hashes, position)
            if at is not None and (position + 1) * size % self.rules.alignment == 0:
                return [[HOLE] * position + [block] for block in at], (position + 1) * size
        return [[] for _ in members], 0


def _blocks_of(group: KvGroup, number: int, pool: SharedPool, rules: GroupRules) -> GroupBlocks:
    """The blocks of a group by its kind."""
    if group.is_state:
        return (AlignedStateBlocks if group.mode == "align" else StateBlocks)(group, number, pool, rules)
    kinds = {"sliding": SlidingBlocks, "chunked_local": ChunkedLocalBlocks}
    return kinds.get(group.kind, GroupBlocks)(group, number, pool, rules)
