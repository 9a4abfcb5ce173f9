"""One request's blocks in a group of state layers (vLLM: `MambaManager` in `v1/core/single_type_kv_cache_manager.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from reference_engine.model.kv_group import KvGroup
from reference_engine.model.step import RequestId
from reference_engine.v1.group_blocks import HOLE, GroupBlocks, GroupRules, SharedPool

__all__ = ["AlignedStateBlocks", "StateBlocks"]


class StateBlocks(GroupBlocks):
    """State layers in the modes "none" (one block) and "all" (a state for each block)."""

    def skipped(self, computed: int) -> int:
        """Only the last token's state is needed."""
        return max(0, computed - 1)

    def next_give(self, processed: int) -> int:
        """With the first token of the next block."""
        return (self.skipped(processed) // self.size + 1) * self.size + 1

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
        """As for attention, with a block for each draft."""
        if self._just_written(hit):
            return self.pool.usable + 1
        return super().need(
            request_id, end + self.size * self.group.spec_blocks, hit, computed, main, gate, ends_prompt
        )

    def _just_written(self, hit: Sequence[int]) -> bool:
        if not hit or hit[-1] == HOLE:
            return False
        return self.pool.key_of(hit[-1]) in self.written

    def grow(self, request_id: RequestId, end: int, main: int) -> None:
        """As for attention, with a block for each draft."""
        super().grow(request_id, end + self.size * self.group.spec_blocks, main)

    def leave_window(self, request_id: RequestId, processed: int) -> None:
        """As for windows."""
        super().leave_window(request_id, self._settled(processed))

    def _settled(self, processed: int) -> int:
        return max(0, processed - self.group.spec_blocks) if self.rules.scratch_is_future else processed

    def register_tail(self, request_id: RequestId, tokens: int, prompt: int) -> None:
        """States are registered at the ends of blocks only."""

    def _wrote(self, block: int) -> None:
        key = self.pool.key_of(block)
        if key is not None:
            self.written.add(key)

    def _kept(self, first: int, last: int, ends: Sequence[int]) -> set[int] | None:
        rules = self.rules
        if rules.retention is None:
            return None
        if rules.retention == 0 and first * self.size >= max(ends):
            return set()
        kept = set()
        if rules.retention:
            blocks = rules.retention // self.size
            if blocks <= 1:
                return None
            kept = {p for p in range(first, last) if (p + 1) % blocks == 0}
        kept.update(end // rules.alignment * rules.alignment // self.size - 1 for end in ends)
        return kept


class AlignedStateBlocks(StateBlocks):
    """State layers in the mode "align": the running state, the one before until it is processed, holes before that.

    With drafts the last `spec_blocks` positions are scratch and move along.
    """

    def __init__(self, group: KvGroup, number: int, pool: SharedPool, rules: GroupRules) -> None:
        super().__init__(group, number, pool, rules)
        self._moved: set[RequestId] = set()  # requests whose running state has a block
        self._last_state: dict[RequestId, int] = {}
        self._checkpoints: dict[RequestId, tuple[int, int]] = {}  # exported in this step: tokens, position

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
        """At most the running state's block (with the scratch blocks at first), and one more for an exported state."""
        if self._just_written(hit):
            return self.pool.usable + 1
        table = self.tables.get(request_id)
        length = len(table.blocks) if table else 0
        new = -(-main // self.size) + self.group.spec_blocks - len(hit) - length
        exported = self._exported(request_id, computed, main, hit) if ends_prompt or self.rules.retention != 0 else 0
        if not gate:
            if exported:
                self._checkpoints[request_id] = (exported, -(-main // self.size) - 2)
            else:
                self._checkpoints.pop(request_id, None)
        moved = request_id in self._moved
        if new > 0 and not (exported and moved):
            new = 1 + bool(exported) + (0 if moved else self.group.spec_blocks)
        return max(new, 0) + self._unused(hit)

    def _exported(self, request_id: RequestId, start: int, end: int, hit: Sequence[int]) -> int:
        """Tokens of the state that the chunk start..end exports from its inside; 0 if it exports none."""
        unit = self.rules.hash_block
        at = (end - 1) // unit * unit - (unit if self.rules.drop else 0)
        position = -(-end // self.size) - 2
        if not self.group.checkpoint or start % unit or not start + unit <= at < end:
            return 0
        if position <= (start - 1) // self.size or position < 0:
            return 0
        table = self.tables.get(request_id)
        blocks = table.blocks if table else hit
        free_place = position >= len(blocks) or blocks[position] == HOLE
        scratch = request_id in self._moved and position >= len(blocks) - self.group.spec_blocks
        return at if free_place or scratch else 0

    def exports(self, start: int, end: int) -> bool:
        """Whether a chunk may export the last state that can be hit (the scheduler then need not stop there)."""
        unit = self.rules.hash_block
        at = (end - 1) // unit * unit - (unit if self.rules.drop else 0)
        position = -(-end // self.size) - 2
        return (
            self.group.checkpoint
            and start % unit == 0
            and position > (start - 1) // self.size
            and start + unit <= at < end
        )

    def grow(self, request_id: RequestId, end: int, main: int) -> None:
        """Move the running state (and the scratch blocks) to the position of the last token."""
        blocks = self.tables[request_id].blocks
        scratch = self.group.spec_blocks
        required = -(-main // self.size) + scratch
        exported = int(request_id in self._checkpoints)
        moved = request_id in self._moved
        self._moved.add(request_id)
        length = len(blocks)
        if required <= length and not exported:
            return
        if moved:
            self._last_state[request_id] = length - 1 - scratch
        elif length:
            self._last_state[request_id] = length - 1
        over = required - scratch - 1
        if length < over:
            blocks += [HOLE] * (over - exported - length)
        if moved and not exported:
            for position in range(length - scratch, min(length, over)):
                blocks.append(blocks[position])
                blocks[position] = HOLE
        blocks += self.pool.take(max(required - len(blocks), 0))

    def leave_window(self, request_id: RequestId, processed: int) -> None:
        """As for windows, and the state before the last one, which need not be next to it."""
        super().leave_window(request_id, processed)
        position = self._last_state.get(request_id)
        if position is None or position >= -(-self._settled(processed) // self.size) - 1:
            return
        blocks = self.tables[request_id].blocks
        if blocks[position] != HOLE:
            self.pool.give_back([blocks[position]])
            blocks[position] = HOLE

    def free(self, request_id: RequestId) -> None:
        """Give all blocks back and forget where the state was."""
        self._moved.discard(request_id)
        self._last_state.pop(request_id, None)
        self._checkpoints.pop(request_id, None)
        super().free(request_id)

    def register(self, request_id: RequestId, tokens: int, hashes: Sequence[int], ends: Sequence[int]) -> None:
        """Also the state that this step exports."""
        super().register(request_id, tokens, hashes, ends)
        if self.rules.reregisters:
            table = self.tables[request_id]
            for end in ends[:1]:
                position = end // self.rules.alignment * self.rules.alignment // self.size - 1
                if 0 <= position == tokens // self.size - 1 and table.blocks[position] != HOLE:
                    self._wrote(table.blocks[position])
        exported = self._checkpoints.get(request_id)
        if exported is None:
            return
        at, position = exported
        block = self.tables[request_id].blocks[position]
        key = hashes[at // self.rules.hash_block - 1], self.number
        if block != HOLE and self.pool.key_of(block) != key:
            self.pool.register(block, key)
            self.written.add(key)
