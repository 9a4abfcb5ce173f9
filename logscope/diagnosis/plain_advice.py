"""Advice that needs no replay: what a failed start or a memory error asks for by its own numbers."""

from __future__ import annotations

from typing import Any

from logscope.diagnosis.advice import Advice
from logscope.diagnosis.candidates import Candidate
from logscope.evidence.finding import Finding
from logscope.server.engines import EngineFacts
from logscope.server.scenario import flag_text

__all__ = ["NOT_REPLAYED", "plain_advice"]

NOT_REPLAYED: dict[str, Any] = {
    "preemptions": None,
    "recomputed_tokens": None,
    "ttft_s": {"p50": None, "p90": None, "p99": None},
    "e2e_s": {"p50": None, "p90": None, "p99": None},
    "itl_s": {"p50": None, "p99": None},
    "generation_tokens_per_s": None,
    "duration_s": None,
}
"""The keys of a prediction where there is none."""

LESS_MEMORY = 0.05


def plain_advice(facts: EngineFacts, findings: list[Finding]) -> list[Advice]:
    """The changes that a finding names by itself, in the flags of the detected version."""
    tried: list[Candidate] = []
    by_id = {f.id: f for f in findings}
    if "startup-kv-too-small" in by_id:
        tried += _start(facts, by_id["startup-kv-too-small"])
    if "runtime-oom" in by_id:
        tried += _memory(facts)
    found = []
    for candidate in tried:
        flag = flag_text(facts, candidate.changes)
        if flag is not None:
            found.append(Advice(candidate, flag, NOT_REPLAYED, NOT_REPLAYED, 0.0))
    return found


def _start(facts: EngineFacts, finding: Finding) -> list[Candidate]:
    fits, wanted = finding.facts.get("largest_max_model_len"), finding.facts.get("max_model_len")
    if not fits or (wanted and fits >= wanted):
        return []
    return [
        Candidate(
            {"max_model_len": int(fits)},
            "free",
            f"The KV cache holds one request of {int(fits):,} tokens: the server starts with this.",
            "Longer requests are refused; several full ones do not run at once.",
        )
    ]


def _memory(facts: EngineFacts) -> list[Candidate]:
    found = []
    share, budget = (
        facts.config.get("gpu_memory_utilization"),
        facts.config.get("max_num_batched_tokens"),
    )
    if share and share - LESS_MEMORY > 0:
        found.append(
            Candidate(
                {"gpu_memory_utilization": round(share - LESS_MEMORY, 3)},
                "free",
                "Leaves more of the GPU's memory to activations, which is what ran out.",
                "The KV cache becomes smaller.",
            )
        )
    if budget and budget // 2 >= max(256, facts.config.get("max_num_seqs") or 1):
        found.append(
            Candidate(
                {"max_num_batched_tokens": budget // 2},
                "free",
                "Smaller steps need less memory for activations.",
                "Prompts need more steps, so their first token comes later.",
            )
        )
    return found
