"""What V0's scheduler asks of its blocks: whether a request fits, may append, can be swapped out or in.

Rules of vLLM 0.8.5, `core/block_manager.py`; older releases by their profile.
"""

from __future__ import annotations

from reference_engine.model.config_part import EngineConfig
from reference_engine.model.errors import SchedulerFailedError
from reference_engine.v0.blocks import make_pools
from reference_engine.v0.profile import V0Profile
from reference_engine.v0.v0_state import V0State

__all__ = ["V0Memory"]

WATERMARK = 0.01


class V0Memory:
    """The GPU's and the CPU's pool with the rules of admission, growth and swapping."""

    def __init__(self, config: EngineConfig, profile: V0Profile) -> None:
        self.gpu, self.cpu = make_pools(
            config.num_blocks,
            config.num_cpu_blocks,
            config.block_size,
            config.enable_prefix_caching,
        )
        self.watermark = int(WATERMARK * config.num_blocks)
        self.block_size = config.block_size
        self.first_manager = profile.first_block_manager

    def room_for(self, state: V0State) -> str:
        """Whether all blocks of a prompt fit above the watermark: "now", "later" or "never". Hits do not help."""
        blocks = -(-state.tokens // self.block_size)
        if self.gpu.total - blocks < self.watermark:
            return "never"
        return "now" if self.gpu.free - blocks >= self.watermark else "later"

    def room_to_return(self, state: V0State) -> str:
        """The same for a swapped request: "now", "later" or "never"."""
        touched = self._blocks_to_swap(state, to_gpu=True)
        if touched > self.gpu.total:
            return "never"
        return "now" if self.gpu.free - touched >= self.watermark else "later"

    def can_append(self, state: V0State) -> bool:
        """A free block for the worst case: even where the last block has room, one must be free."""
        return self.gpu.free >= self._blocks_to_append(state)

    def swap_out(self, state: V0State) -> None:
        """Move a request to the CPU. Raises `SchedulerFailedError` when it has no room, as the real engine does."""
        touched = self._blocks_to_swap(state, to_gpu=False)
        if touched > self.cpu.free:
            raise SchedulerFailedError(
                f"request {state.id!r} cannot be swapped out: {touched} CPU blocks are needed, {self.cpu.free} are "
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
            self.gpu.release(state)
        elif state.status == "swapped":
            self.cpu.release(state)

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
            return state.held + (1 if to_gpu else 0)
        pool = self.gpu if to_gpu else self.cpu
        return pool.full_blocks_touched(state) + self._blocks_to_append(state)
