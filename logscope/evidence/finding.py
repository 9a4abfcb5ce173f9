"""A finding: one thing worth saying, with its evidence. What findings and verdicts there are stands in `docs/contract.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl

__all__ = [
    "MEANINGS",
    "SEVERITIES",
    "Evidence",
    "Finding",
    "Meaning",
    "by_severity",
    "evidence_of",
    "proven",
    "seconds",
]

MAX_EVIDENCE = 5

SEVERITIES = ("critical", "warning", "info")
"""The contract's severities, worst first."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the log: `text` may be empty where the line holds what a client sent; `time` is the record's, on its own clock."""

    source: str
    line: int
    text: str
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`id` and `severity` are the contract's; `proves` names the verdict that this finding settles by itself, if any."""

    id: str
    severity: str
    basis: str
    title: str
    start: datetime | None = None
    end: datetime | None = None
    evidence: tuple[Evidence, ...] = ()
    proves: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a finding or verdict means, and what helps."""

    says: str
    helps: str


MEANINGS: dict[str, Meaning] = {
    name: Meaning(*texts)
    for name, texts in {
        "kv-capacity": (
            "Slow requests wait for KV-cache blocks, or are preempted and start over.",
            "A lower max_num_seqs (or max_num_active_seqs), a watermark, or more KV cache: gpu_memory_utilization, an fp8 cache, more GPUs.",
        ),
        "seat-limit": (
            "As many requests run as max_num_seqs allows, while the KV cache still has room.",
            "A higher max_num_seqs, if longer steps are acceptable.",
        ),
        "prefill-interference": (
            "Long prompts share their steps with every other request's tokens, which slows all of them.",
            "A smaller max_num_batched_tokens, or a long_prefill_token_threshold.",
        ),
        "healthy": ("The slow requests are simply long: nothing holds them up.", "Nothing needs to change."),
        "startup-kv-too-small": (
            "The server did not start: one request of the full max_model_len does not fit into its KV cache.",
            "The max_model_len that the log names, or more memory for the KV cache.",
        ),
        "startup-failed": ("The server gave up before it could serve a request.", "The error in the evidence lines."),
        "runtime-oom": (
            "The GPU ran out of memory outside the KV cache while serving.",
            "Less memory for the KV cache (gpu_memory_utilization), or smaller steps (max_num_batched_tokens).",
        ),
        "engine-crash": (
            "The engine died while serving; what ran is lost.",
            "The error in the evidence lines: a fault, not load.",
        ),
        "engine-stall": (
            "The engine computed nothing, or said nothing, while it had requests.",
            "The evidence lines: a rank that hangs, a compilation, a stuck device. It is a fault, not load.",
        ),
        "not-enough-evidence": (
            "The log does not show what holds requests up.",
            "What stands under 'What this log could not show': the flags that would show it.",
        ),
        "kv-preemption": (
            "Running requests lost their KV blocks when the cache was full, waited, and computed their tokens again.",
            "A lower max_num_seqs (or max_num_active_seqs), a watermark, or more KV cache.",
        ),
        "kv-admission-wait": (
            "Requests waited for KV blocks before their first step.",
            "More KV cache, or shorter requests; fewer seats only move the wait.",
        ),
        "kv-filling": (
            "KV usage rises from window to window and will be full soon at this pace.",
            "Look for requests that never end, or more load than before; more KV cache buys time.",
        ),
        "kv-leak": (
            "KV blocks stay taken with no request there.",
            "A restart frees them; a newer vLLM, or a report to vLLM.",
        ),
        "overload": (
            "Requests arrive faster than this server can serve under any free setting: the queue grows.",
            "Less load, more hardware, or a bound for the queue (max_num_queued_reqs, max_num_queued_tokens), so that clients are told at once.",
        ),
        "ordering": (
            "Another order of the queue changes who waits, at the same total work.",
            "--scheduling-policy priority, where short requests matter more than long ones.",
        ),
        "engine-imbalance": (
            "Engines of one server hold very different loads.",
            "The router or load balancer before them.",
        ),
        "slow-steps": (
            "Steps take longer than before, or than their tokens explain.",
            "Whatever else uses the GPU or the CPU; thermal limits; a new version or kernel.",
        ),
        "prefill-bound": (
            "Most of the engine's time goes into prompts, few requests decode.",
            "Prefix caching, a larger max_num_batched_tokens, or prefill on servers of its own.",
        ),
        "deferred": (
            "Requests wait outside the queue: for a grammar to be compiled, or for KV blocks from elsewhere.",
            "The back end for structured output, or the KV connector.",
        ),
        "compile-stall": (
            "The engine compiled or captured graphs while requests waited.",
            "A warm-up before traffic comes; a compile cache that is kept.",
        ),
        "rejected-requests": (
            "The server refused requests.",
            "What the evidence lines name: lengths over max_model_len, a full queue, wrong parameters.",
        ),
        "failed-requests": ("Requests ended in an error.", "The error in the evidence lines."),
        "endless-request": (
            "A request runs far longer than all others, as far as the log goes.",
            "A max_tokens for clients; a look at its stop conditions.",
        ),
        "cache-reuse": (
            "How much of the prompts the prefix cache answered, or where it answers nothing.",
            "The same head in prompts that share one; a router that sends a conversation to the same server.",
        ),
        "speculation": (
            "How many draft tokens are accepted, and whether drafting pays.",
            "Fewer draft tokens, or none, where few are accepted.",
        ),
        "kv-transfer": (
            "KV blocks come from, or go to, another store or server, and how long that takes.",
            "The connector's network and store; failures stand in the evidence lines.",
        ),
        "config-risk": ("A setting that is likely to hurt later.", "What the finding's title names."),
        "unsupported-feature": (
            "The server uses something that the replay does not model.",
            "Read the inferred figures with their wider bounds, or compare with --metrics.",
        ),
        "coverage": ("What was not read, not understood or not replayed.", "What the finding's title names."),
    }.items()
}
"""Every verdict and finding of the contract."""


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, else in their order; that a server is overloaded comes before what it is short of."""

    def key(finding: Finding) -> tuple[int, bool]:
        known = finding.severity in SEVERITIES
        return SEVERITIES.index(finding.severity) if known else len(SEVERITIES), finding.id != "overload"

    return sorted(findings, key=key)


def proven(
    verdict: str,
    title: str,
    span: tuple[datetime | None, datetime | None],
    evidence: tuple[Evidence, ...],
    facts: dict[str, Any] | None = None,
) -> Finding:
    """A critical finding that the log itself proves and that settles the verdict of the same name; `span` is its start and end."""
    start, end = span
    return Finding(verdict, "critical", "measured", title, start, end, evidence, verdict, facts or {})


def evidence_of(
    frame: pl.DataFrame, texts: Mapping[tuple[str, int], str], limit: int = MAX_EVIDENCE
) -> tuple[Evidence, ...]:
    """The first, the last and some rows in between, as evidence; `texts` holds the lines that were kept while reading."""
    clock = next((name for name in ("at", "time", "end") if name in frame.columns), None)
    rows = frame.select("source", "line", pl.col(clock) if clock else pl.lit(None)).rows()
    picked = (
        rows if len(rows) <= limit else [rows[round(i * (len(rows) - 1) / max(1, limit - 1))] for i in range(limit)]
    )
    return tuple(Evidence(s, n, texts.get((s, n), ""), t) for s, n, t in picked)


def seconds(times: Iterable[datetime | None]) -> tuple[datetime | None, datetime | None]:
    """The earliest and latest of some times."""
    known = [t for t in times if t is not None]
    return (min(known), max(known)) if known else (None, None)
