"""A batch of the fast path: bulk members by number, all others as chunks."""

from __future__ import annotations

from dataclasses import dataclass, field

from reference_engine.model.ledger import DECODE, chunk_kind
from reference_engine.model.request import RequestState
from reference_engine.replay.fast_base import BulkBatch
from reference_engine.v1.fast_state import FastState

__all__ = ["Chunk", "FastBatch", "Load", "load_of"]


@dataclass(slots=True)
class Chunk:
    """A stretch of one request's tokens in a batch, outside the bulk: positions start..end; sampled: a token follows."""

    state: FastState
    start: int
    end: int
    sampled: bool


@dataclass(slots=True, kw_only=True)
class FastBatch(BulkBatch):
    """A batch of V1.

    `deliveries`: the members that still want their token; `leaving`: members that left the bulk while it was under
    way; `finishing`: members whose last token it brings; `skipped`: running requests without a token in it.
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
        """Only members, all of which stay."""
        return not (self.chunks or self.leaving or self.skipped or self.preempted)


@dataclass(slots=True)
class Load:
    """What chunks ask of the device, and what they are: `kinds` is parallel to them, `progress` says that one is new."""

    prefill_tokens: int = 0
    decode_requests: int = 0
    kv_tokens: int = 0
    progress: bool = False
    kinds: list[int] = field(default_factory=list)


def load_of(chunks: list[Chunk]) -> Load:
    """The load of a batch's chunks; notes in the records what is computed again, and how far each has come."""
    load = Load()
    for chunk in chunks:
        record = chunk.state.record
        reached, start, end = record.reached, chunk.start, chunk.end
        kind = chunk_kind(start, chunk.state.prompt, reached)
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
