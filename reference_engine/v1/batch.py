"""A batch of the fast path: decoding requests by number, all others as chunks.

A request on the fast path of V1.

What the fast path covers, and the block pool that it takes for an engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import DECODING_FIELDS, DecodingRequest, FastBatch
from reference_engine.model.request import DECODE, RequestRecord, RequestState, chunk_kind
from reference_engine.v1.blocks import BlockPool, Contents, CountedPool, UnsharedPool
from reference_engine.v1.group_blocks import Table
from reference_engine.v1.profile import profile_of

__all__ = ["Chunk", "ChunkLoad", "FastState", "V1FastBatch", "fast_path_covers", "fast_pool", "load_of"]


class FastState(DecodingRequest):
    """A request that may join the decoding batch; every batch is a decode step.

    `draining`: its last token is in flight (asynchronous only). `stamp` orders requests as the running list does.
    With several KV-cache groups only: `sent`: tokens of its newest chunk, which was in batch `sent_in`; `tables`: its blocks
    in each group.
    """

    __slots__ = (*DECODING_FIELDS, "draining", "sent", "sent_in", "stamp", "tables")

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record, max_model_len)
        self.draining = False
        self.stamp = self.sent = self.sent_in = 0
        self.tables: list[Table] = []


@dataclass(slots=True)
class Chunk:
    """One single request's tokens in a batch: positions start..end; sampled: a token follows."""

    state: FastState
    start: int
    end: int
    sampled: bool


@dataclass(slots=True, kw_only=True)
class V1FastBatch(FastBatch):
    """A batch of V1.

    `deliveries`: decoding requests that still want their token; `leaving`: those that left the decoding batch while it
    was under way; `finishing`: those whose last token it brings; `skipped`: running requests without a token in it.
    """

    number: int
    deliveries: int
    chunks: list[Chunk]
    head: RequestState | None
    kinds: list[int]
    skipped: list[FastState]
    leaving: list[FastState] = field(default_factory=list)
    finishing: list[FastState] = field(default_factory=list)

    @property
    def uneventful(self) -> bool:
        """Only decoding requests, all of which stay."""
        return not (self.chunks or self.leaving or self.skipped or self.preempted)


@dataclass(slots=True)
class ChunkLoad:
    """What chunks ask of the device, and what they are: `kinds` is parallel to them, `progress` says that one is new."""

    prefill_tokens: int = 0
    decode_requests: int = 0
    kv_tokens: int = 0
    progress: bool = False
    kinds: list[int] = field(default_factory=list)


def load_of(chunks: list[Chunk]) -> ChunkLoad:
    """The load of a batch's chunks; notes in the records what is computed again, and how far each has come."""
    load = ChunkLoad()
    for chunk in chunks:
        record = chunk.state.record
        reached, start, end = record.reached, chunk.start, chunk.end
        kind = chunk_kind(start, chunk.state.num_prompt_tokens, reached)
        load.kinds.append(kind)
        if kind == DECODE:
            load.decode_requests += 1
        else:
            load.prefill_tokens += end - start
        load.kv_tokens += end
        if start < reached:
            record.recomputed += min(end, reached) - start
        if end > reached:
            record.reached = end
            load.progress = True
    return load


def fast_path_covers(config: EngineConfig) -> bool:
    """Whether the fast path knows the engine: no drafts, not the cadence of prompts, the priority of
    0.9.2 - 0.11.0, or the first async tail.
    """
    profile = profile_of(config.version)
    if config.engine != "vllm-v1":
        return False
    if config.num_spec_tokens or (config.prefill_schedule_interval > 1 and profile.prefill_interval):
        return False
    if config.async_scheduling and profile.async_tail == "extra":
        return False
    priority = config.policy == "priority" and profile.priority_policy
    return not priority or profile.victim_rollback == "full"


def fast_pool(config: EngineConfig, sharing: bool) -> CountedPool | UnsharedPool | BlockPool:
    """A pool that only counts where it can: no caching, or caching without content in common (`sharing` False).

    Under `priority` a victim may have cached a block in the step that preempts it, which `UnsharedPool` cannot hold.
    """
    usable = config.num_blocks - 1  # the null block
    profile = profile_of(config.version)
    if not config.enable_prefix_caching:
        return CountedPool(usable)
    if sharing or (config.policy == "priority" and profile.priority_policy):
        return BlockPool(usable, Contents(config.block_size), profile.unhashed_first)
    return UnsharedPool(usable, profile.unhashed_first)
