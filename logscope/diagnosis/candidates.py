"""Changes worth replaying: what is free first, then what costs GPUs. Nothing here decides; the replay does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from logscope.evidence.context import Context
from logscope.server.engines import EngineFacts
from logscope.server.flags import flag_for

__all__ = ["Candidate", "candidates"]

MAX_UTILIZATION = 0.95
UTILIZATION_STEP = 0.03
BUSY_KV_PCT = 90.0
MIN_BUDGET = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change. `cost` is "free" or "gpu"; `why` and `trade` are sentences for people."""

    changes: dict[str, Any]
    cost: str
    why: str
    trade: str


def candidates(context: Context, verdict: str, *, out_of_memory: bool) -> list[Candidate]:
    """The changes to try for a verdict, in the order free, then GPUs; each has a flag in the detected version or is a size that the log names.

    With `out_of_memory` nothing that gives the KV cache more of the GPU's memory is among them.
    """
    facts = context.log.facts
    found: list[Candidate] = []
    if verdict in ("kv-capacity", "not-enough-evidence", "overload"):
        found += _more_blocks(context, out_of_memory)
        found += _fewer_seats(context)
        found += _watermark(facts)
    if verdict == "seat-limit":
        found += _more_seats(facts)
    if verdict in ("prefill-interference", "kv-capacity"):
        found += _smaller_budget(facts, verdict)
    if verdict == "prefill-interference":
        found += _long_prefills(facts)
    found += _gpus(facts)
    return [c for c in found if _possible(facts, c)]


def _possible(facts: EngineFacts, candidate: Candidate) -> bool:
    return all(
        name in ("num_blocks", "replicas") or flag_for(name, facts.version, engine=facts.engine) is not None
        for name in candidate.changes
    )


def _more_blocks(context: Context, out_of_memory: bool) -> Iterator[Candidate]:
    facts = context.log.facts
    profiled = _profiled_blocks(context)
    if profiled and facts.kv.num_blocks and profiled > facts.kv.num_blocks:
        yield Candidate(
            {"num_blocks": profiled},
            "free",
            f"num_gpu_blocks_override keeps the cache at {facts.kv.num_blocks:,} of the {profiled:,} blocks that fit: raise it, or take it away.",
            "None, the memory is there and unused.",
        )
        return
    if out_of_memory:
        return
    share, on_gpu = facts.config.get("gpu_memory_utilization"), facts.device not in ("CPU",)
    if on_gpu and share and share < MAX_UTILIZATION and facts.more.get("total_gpu_gib"):
        for value in (round(share + UTILIZATION_STEP, 3), MAX_UTILIZATION):
            if share < value <= MAX_UTILIZATION:
                yield Candidate(
                    {"gpu_memory_utilization": value},
                    "free",
                    "More of the GPU's memory becomes KV cache.",
                    "Less headroom for activations: too much ends in an out-of-memory error.",
                )
    if on_gpu and facts.config.get("kv_cache_dtype") in (None, "auto"):
        yield Candidate(
            {"kv_cache_dtype": "fp8"},
            "free",
            "An 8-bit KV cache holds twice the tokens in the same memory.",
            "Accuracy may fall a little, and it needs a GPU and an attention backend with fp8.",
        )


def _profiled_blocks(context: Context) -> int | None:
    sizing = context.log.get("kv_sizing")
    if sizing is None or "num_gpu_blocks_override" not in sizing.columns:
        return None
    rows = sizing.filter(pl.col("num_gpu_blocks_override").is_not_null() & pl.col("num_gpu_blocks").is_not_null())
    return int(rows["num_gpu_blocks"][-1]) if rows.height else None


def _crowd(context: Context) -> int | None:
    """How many requests ran when the cache was full: the concurrency that the cache carries."""
    windows = context.windows
    if windows is None:
        return None
    busy = windows.filter(pl.col("kv_pct") >= BUSY_KV_PCT)
    running = (busy if busy.height >= 2 else windows)["running"].median()
    return round(running) if isinstance(running, (int, float)) and running >= 2 else None


def _fewer_seats(context: Context) -> Iterator[Candidate]:
    crowd, seats = _crowd(context), context.log.facts.config.get("max_num_seqs")
    if crowd is None or not seats:
        return
    values = sorted({max(1, round(crowd * share)) for share in (0.5, 0.65, 0.8, 1.0)})
    for value in values:
        if value < seats:
            yield Candidate(
                {"max_num_seqs": value},
                "free",
                f"About {crowd} requests run when the cache is full; with {value} seats they stay in it until they are done.",
                "Requests wait for a seat before their first token instead of being evicted after it.",
            )


def _more_seats(facts: EngineFacts) -> Iterator[Candidate]:
    seats = facts.config.get("max_num_seqs")
    for factor in (2, 4):
        if seats:
            yield Candidate(
                {"max_num_seqs": seats * factor},
                "free",
                "Requests wait for a seat while KV space is free.",
                "Steps become longer as more requests share them.",
            )


def _watermark(facts: EngineFacts) -> Iterator[Candidate]:
    for value in (0.05, 0.1):
        if (facts.config.get("watermark") or 0.0) < value:
            yield Candidate(
                {"watermark": value},
                "free",
                f"{value:.0%} of the blocks stay free for running requests to grow, so fewer are evicted.",
                "Requests wait a little longer before they are admitted.",
            )


def _smaller_budget(facts: EngineFacts, verdict: str) -> Iterator[Candidate]:
    budget, seats = (facts.config.get("max_num_batched_tokens"), facts.config.get("max_num_seqs") or 1)
    if not budget or facts.config.get("enable_chunked_prefill") is False:
        return
    for share in (2, 4) if verdict == "prefill-interference" else (2,):
        value = budget // share
        if value >= max(MIN_BUDGET, seats):
            yield Candidate(
                {"max_num_batched_tokens": value},
                "free",
                "Smaller steps: a long prompt holds the others up for less time at once.",
                "Prompts need more steps, so their first token comes later.",
            )


def _long_prefills(facts: EngineFacts) -> Iterator[Candidate]:
    budget = facts.config.get("max_num_batched_tokens")
    if not budget or facts.config.get("long_prefill_token_threshold"):
        return
    for share in (4, 8):
        if budget // share >= 64:
            yield Candidate(
                {"long_prefill_token_threshold": budget // share},
                "free",
                "One long prompt gets only a part of each step; short ones pass it.",
                "Long prompts take longer to their first token.",
            )


def _gpus(facts: EngineFacts) -> Iterator[Candidate]:
    if facts.device != "CPU":
        ranks = facts.config.get("tensor_parallel_size") or 1
        yield Candidate(
            {"tensor_parallel_size": ranks * 2},
            "gpu",
            f"Each layer is split over {ranks * 2} GPUs: more memory for KV cache, shorter steps.",
            f"{ranks} more GPU{'s' if ranks > 1 else ''}; the ranks wait for each other.",
        )
    yield Candidate(
        {"replicas": 2}, "gpu", "A second copy of the server takes half of the requests.", "Twice the hardware."
    )
