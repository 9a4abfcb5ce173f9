"""Changes worth replaying: what is free first, then what costs GPUs. Nothing here decides; the replay does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from logscope.evidence.context import Context
from logscope.server.engines import EngineFacts
from logscope.server.flags import flag_for
from logscope.wording import percent, plural, stretch

__all__ = ["Candidate", "Offered", "candidates", "queue_caps", "rules_of_thumb"]

MAX_UTILIZATION = 0.95
UTILIZATION_STEP = 0.03
BUSY_KV_PCT = 90.0
MIN_BUDGET = 256
ROOM_TO_GROW = 0.8
MOSTLY_REJECTED = 0.3
"""Share of the drafted tokens that are accepted, under which drafting may cost more than it brings."""
FEW_HITS_PCT = 2.0
TARGET_TTFT_S = 10.0
"""Time to the first token that a queue cap is made for."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change. `cost` is "free" or "gpu"; `why` and `trade` are sentences for people, `risk` is what a replay cannot show.

    `always`: what the verdict itself asks for, shown with both sides even where the tail does not gain.
    """

    changes: dict[str, Any]
    cost: str
    why: str
    trade: str
    risk: str = ""
    always: bool = False


def candidates(context: Context, verdict: str, *, out_of_memory: bool, replayed: bool = True) -> list[Candidate]:
    """The changes to try for a verdict, in the order free, then GPUs; each has a flag in the detected version or is a size that the log names.

    With `out_of_memory` nothing that gives the KV cache more of the GPU's memory is among them; without `replayed` also what no replay could try.
    """
    facts = context.log.facts
    found: list[Candidate] = []
    if verdict in ("kv-capacity", "not-enough-evidence", "overload"):
        found += _more_blocks(context, out_of_memory, replayed)
        found += _fewer_seats(context)
        found += _watermark(facts)
    if verdict == "seat-limit":
        found += _more_seats(facts)
    if verdict in ("prefill-interference", "kv-capacity"):
        found += _smaller_budget(facts, verdict)
    if verdict == "prefill-interference":
        found += _long_prefills(facts)
    found += _drafts(facts)
    if verdict == "kv-capacity":
        found += _states(context)
    found += _gpus(facts)
    return [c for c in found if _possible(facts, c)]


def rules_of_thumb(context: Context, verdict: str, *, out_of_memory: bool) -> list[Candidate]:
    """The changes to name where nothing could be replayed: one value of each setting, none that the log speaks against."""
    found: dict[tuple[str, ...], Candidate] = {}
    crowd = _crowd(context) or 0
    for candidate in candidates(context, verdict, out_of_memory=out_of_memory, replayed=False):
        key = tuple(candidate.changes)
        # Of several values the smallest step; of seats what the full cache carried, less some room to grow.
        if key not in found or candidate.changes.get("max_num_seqs") == max(1, round(crowd * ROOM_TO_GROW)):
            found[key] = candidate
    return list(found.values())


def _possible(facts: EngineFacts, candidate: Candidate) -> bool:
    return all(
        name in ("num_blocks", "num_spec_tokens", "replicas")
        or flag_for(name, facts.version, engine=facts.engine) is not None
        for name in candidate.changes
    )


def _more_blocks(context: Context, out_of_memory: bool, replayed: bool) -> Iterator[Candidate]:
    facts = context.log.facts
    profiled = _profiled_blocks(context)
    if profiled and facts.kv.num_blocks and profiled > facts.kv.num_blocks:
        yield Candidate(
            {"num_blocks": profiled},
            "free",
            f"--num-gpu-blocks-override limits the cache to {facts.kv.num_blocks:,} blocks although {profiled:,} fit. Raise or remove it.",
            "None; the memory is available but unused.",
        )
        return
    if out_of_memory:
        return
    share, on_gpu = facts.config.get("gpu_memory_utilization"), facts.device not in ("CPU",)
    if on_gpu and not share and not replayed:
        yield Candidate(
            {"gpu_memory_utilization": MAX_UTILIZATION},
            "free",
            "Gives more of the GPU's memory to the KV cache, if the value is lower now (the default is about 0.9).",
            "Less headroom for activations; too high a value ends in an out-of-memory error.",
        )
    if on_gpu and share and share < MAX_UTILIZATION and (facts.more.get("total_gpu_gib") or not replayed):
        for value in (round(share + UTILIZATION_STEP, 3), MAX_UTILIZATION):
            if share < value <= MAX_UTILIZATION:
                yield Candidate(
                    {"gpu_memory_utilization": value},
                    "free",
                    "Gives more of the GPU's memory to the KV cache.",
                    "Less headroom for activations; too high a value ends in an out-of-memory error.",
                    "Less headroom for activations; too high a value ends in an out-of-memory error.",
                )
    if on_gpu and facts.config.get("kv_cache_dtype") in (None, "auto"):
        yield Candidate(
            {"kv_cache_dtype": "fp8"},
            "free",
            "An 8-bit KV cache holds twice the tokens in the same memory.",
            "Accuracy may drop slightly, and the GPU and attention backend must support fp8.",
            "Accuracy may drop slightly, and the GPU and attention backend must support fp8.",
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
    facts, crowd = context.log.facts, _crowd(context)
    if crowd is None:
        return
    name, seats = facts.seat_setting, facts.seats
    gentler = name == "max_num_seqs" and facts.device != "CPU" and flag_for("max_num_active_seqs", facts.version)
    values = sorted({max(1, round(crowd * share)) for share in (0.5, 0.65, ROOM_TO_GROW, 1.0)})
    most = context.windows["running"].max() if context.windows is not None else None
    for value in values:
        # a cap that the server never reached changes nothing
        if (seats is None or value < seats) and (most is None or value < float(most)):  # type: ignore[arg-type]
            yield Candidate(
                {name: value},
                "free",
                f"About {crowd} requests fit in a full cache; capping {name} at {value} lets most of them finish without preemption."
                + (
                    f" --max-num-active-seqs {value} does the same and keeps the CUDA graphs as they are."
                    if gentler
                    else ""
                ),
                "Requests queue before their first token instead of being preempted after it.",
            )


def _more_seats(facts: EngineFacts) -> Iterator[Candidate]:
    name, seats = facts.seat_setting, facts.seats
    for factor in (2, 4):
        if seats:
            more = {name: seats * factor}
            if name == "max_num_active_seqs" and seats * factor > (facts.config.get("max_num_seqs") or math.inf):
                more["max_num_seqs"] = seats * factor  # the one may not be above the other
            yield Candidate(
                more,
                "free",
                f"{name} is the bottleneck: KV space is free while requests queue.",
                "Steps get longer as more requests share them.",
                always=True,
            )


def _watermark(facts: EngineFacts) -> Iterator[Candidate]:
    for value in (0.05, 0.1):
        if (facts.config.get("watermark") or 0.0) < value:
            yield Candidate(
                {"watermark": value},
                "free",
                f"Keeps {value * 100:g} % of the blocks free for running requests to grow into, so fewer are preempted.",
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
                "Smaller steps: a long prompt stalls the other requests for less time.",
                "Prompts need more steps, so their first token comes later.",
            )


def _drafts(facts: EngineFacts) -> Iterator[Candidate]:
    """Fewer drafts, or none where few are accepted: each costs time in every step, and a place in the cache."""
    drafts, seen = facts.config.get("num_spec_tokens"), facts.acceptance
    if not drafts or seen is None:
        return
    share = percent(seen.accepted / max(seen.drafted, 1e-9))
    if drafts > 1:
        fewer = max(1, drafts // 2)
        yield Candidate(
            {"num_spec_tokens": fewer},
            "free",
            f"num_speculative_tokens {fewer} instead of {drafts} in the speculative configuration: {share} of the drafted tokens are accepted,"
            " and the first ones of a step more often than the later ones.",
            "Where the later drafts are accepted, more steps are needed.",
        )
    if seen.accepted < MOSTLY_REJECTED * seen.drafted:
        yield Candidate(
            {"num_spec_tokens": 0},
            "free",
            f"No speculative configuration: only {share} of the drafted tokens are accepted, and verifying the others makes each step longer.",
            "A request that runs alone gets its tokens more slowly.",
        )


def _states(context: Context) -> Iterator[Candidate]:
    """No prefix caching for a model with state layers that finds nothing in it: each request keeps one state then, wherever it stands."""
    facts = context.log.facts
    groups = facts.config.get("kv_groups") or ()
    hits = context.windows["hit_pct"].max() if context.windows is not None else None
    if (
        not any(group.get("mode") == "align" for group in groups)
        or not isinstance(hits, (int, float))
        or hits >= FEW_HITS_PCT
    ):
        return
    yield Candidate(
        {"enable_prefix_caching": False},
        "free",
        "The prefix cache is hardly ever hit here; without it a request holds one block in each group of state layers, where it needs a second one now"
        " whenever its state moves on, and prompts are no longer cut at the ends of blocks.",
        "Prompts that share a beginning are computed whole, and so is a request that was preempted.",
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
                "A long prompt gets only part of each step, so short ones overtake it.",
                "Long prompts take longer to reach their first token.",
            )


def _gpus(facts: EngineFacts) -> Iterator[Candidate]:
    if facts.device != "CPU":
        ranks = facts.config.get("tensor_parallel_size") or 1
        yield Candidate(
            {"tensor_parallel_size": ranks * 2},
            "gpu",
            f"Splits each layer over {ranks * 2} GPUs: more memory for the KV cache, and shorter steps.",
            f"Needs {plural(ranks, 'more GPU')}, and adds tensor-parallel synchronisation overhead.",
            f"Needs {plural(ranks, 'more GPU')}.",
        )
    yield Candidate(
        {"replicas": 2},
        "gpu",
        "A second replica takes half the requests.",
        "Doubles the hardware.",
        "Doubles the hardware.",
    )


@dataclass(frozen=True, slots=True)
class Offered:
    """The load of a server to which more comes than it can serve: when requests come (seconds, sorted) and the tokens of their prompts, how many
    run at once, and how many requests and prompt tokens it serves in a second. `engines`: how many share one API server, whose caps hold for all.
    """

    arrivals: Sequence[float]
    prompts: Sequence[float]
    running: float
    served_per_s: float
    prompt_tps: float
    engines: int = 1


def queue_caps(facts: EngineFacts, load: Offered, target_ttft_s: float = TARGET_TTFT_S) -> list[Candidate]:
    """A queue that is no longer than a client would wait, by requests and by tokens, each with the share of the requests that it turns away."""
    found: list[Candidate] = []
    if load.served_per_s <= 0 or load.prompt_tps <= 0 or not load.arrivals:
        return found
    every, wait = load.engines, stretch(target_ttft_s)
    reqs = max(1, round(load.running + target_ttft_s * load.served_per_s))
    refused = _refused(load.arrivals, [1.0] * len(load.arrivals), load.served_per_s, reqs)
    found.append(
        Candidate(
            {"max_num_queued_reqs": reqs * every},
            "free",
            f"Rejects new requests at once (HTTP 503) while {reqs * every:,} are in flight: the {load.running:.0f} that run at once"
            f" and those that are served within {wait}{f', on each of {every} engines' if every > 1 else ''}.",
            f"About {percent(refused)} of this log's requests would be rejected.",
        )
    )
    # a prompt that is longer than the cap must still be served by an idle server
    tokens, longest = round(target_ttft_s * load.prompt_tps), math.ceil(max(load.prompts))
    raised = f", but no less than the longest prompt, {longest:,} tokens" if longest > tokens else ""
    tokens = max(tokens, longest)
    refused = _refused(load.arrivals, load.prompts, load.prompt_tps, tokens)
    found.append(
        Candidate(
            {"max_num_queued_tokens": tokens * every},
            "free",
            f"Rejects new requests at once (HTTP 503) while the prompts that wait for prefill hold more than {wait} of this server's prefill"
            f" ({load.prompt_tps:,.0f} prompt tokens/s{' an engine' if every > 1 else ''}{raised}).",
            f"About {percent(refused)} of this log's requests would be rejected.",
        )
    )
    return [c for c in found if _possible(facts, c)]


def _refused(arrivals: Sequence[float], sizes: Sequence[float], served_per_s: float, cap: float) -> float:
    """The share of the requests that find no room in a backlog of at most `cap`, which is worked off at a steady rate."""
    backlog = last = 0.0
    refused = 0
    for at, size in zip(arrivals, sizes, strict=True):
        backlog, last = max(0.0, backlog - (at - last) * served_per_s), at
        if backlog + size > cap:
            refused += 1
        else:
            backlog += size
    return refused / len(arrivals)
