"""What the fast path covers, and the block pool that it takes for an engine."""

from __future__ import annotations

from reference_engine.model.config_part import EngineConfig
from reference_engine.v1.blocks import BlockPool, Contents, CountedPool
from reference_engine.v1.owned_pool import OwnedPool
from reference_engine.v1.profile import profile_of

__all__ = ["bulk_possible", "fast_pool"]


def bulk_possible(config: EngineConfig) -> bool:
    """Whether the fast path knows the version: not the priority of 0.9.2 - 0.11.0, not the first async tail."""
    profile = profile_of(config.version)
    if config.engine != "vllm-v1":
        return False
    if config.async_scheduling and profile.async_tail == "extra":
        return False
    priority = config.policy == "priority" and profile.priority_policy
    return not priority or profile.victim_rollback == "full"


def fast_pool(config: EngineConfig, sharing: bool) -> CountedPool | OwnedPool | BlockPool:
    """A pool that only counts where it can: no caching, or caching without content in common (`sharing` False).

    Under `priority` a victim may have registered a block in the step that evicts it, which `OwnedPool` cannot hold.
    """
    usable = config.num_blocks - 1  # the null block
    profile = profile_of(config.version)
    if not config.enable_prefix_caching:
        return CountedPool(usable)
    if sharing or (config.policy == "priority" and profile.priority_policy):
        return BlockPool(usable, Contents(config.block_size), profile.unhashed_first)
    return OwnedPool(usable, profile.unhashed_first)
