"""The verdict: what the log proves first, then what the ledger of the slow requests says, then what the queues show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from logscope.evidence.finding import Finding
from logscope.evidence.pressure import NEARLY_FULL_PCT, bound_of
from logscope.wording import LOST_TO

__all__ = [
    "PROVEN",
    "RANK",
    "certainty",
    "lost_to",
    "seen_to_wait",
    "settled",
    "verdict_of",
    "verdict_of_ledger",
    "verdict_of_windows",
]

PROVEN = ("startup-kv-too-small", "startup-failed", "runtime-oom", "engine-crash", "engine-stall")
"""Verdicts that the log itself proves, in the order in which they decide."""

CLOSE_SHARE = 0.2
"""Share of the plausible workloads from which on a second cause is named."""

NEARLY_EQUAL = 0.8
MIN_PREFILL_WINDOWS = 2

UNWELL = frozenset(
    (
        "engine-stall",
        "slow-steps",
        "kv-filling",
        "compile-stall",
        "endless-request",
        "failed-requests",
        "kv-leak",
        "deferred",
        "kv-transfer",
    )
)
"""Findings with which, from a warning on, a server is not called healthy."""

RANK = (
    "engine-crash",
    "runtime-oom",
    "engine-stall",
    "kv-capacity",
    "seat-limit",
    "prefill-interference",
    "startup-kv-too-small",
    "startup-failed",
    "not-enough-evidence",
    "healthy",
)
"""Which of several engines is the worst: the first of these that one has."""


def verdict_of(
    findings: Sequence[Finding],
    slow_s: Mapping[str, float | None] | None,
    windows: pl.DataFrame | None,
    seats: int | None,
    evicted: float = 0.0,
) -> str:
    """Decide for one engine; `slow_s` is the mean ledger of its slow requests where a replay with a fair fit gave one, `evicted` as in `lost_to`."""
    proven = {f.proves for f in findings if f.proves}
    for verdict in PROVEN:
        if verdict in proven:
            return verdict
    found = verdict_of_ledger(slow_s, evicted) if slow_s is not None else None
    if found is None:
        found = "kv-capacity" if "kv-capacity" in proven else verdict_of_windows(windows, seats)
    # A server that crawls, fills up or fails is not seen to do well, whatever its queue.
    return "not-enough-evidence" if found == "healthy" and _unwell(findings) else found


def _unwell(findings: Sequence[Finding]) -> bool:
    return any(f.id in UNWELL and f.severity != "info" for f in findings)


def certainty(
    verdict: str, slow_ledgers: Sequence[Mapping[str, float]], evicted: float = 0.0
) -> tuple[float, tuple[str, float] | None] | None:
    """The share of the plausible workloads that agree with a verdict, and the second cause with its share where that is close.

    A workload whose two largest causes are nearly equal is for both in proportion. None where no workload was replayed, or where something
    else than the ledger decided.
    """
    votes: defaultdict[str, float] = defaultdict(float)
    for slow in slow_ledgers:
        for name, share in _votes(slow, evicted).items():
            votes[name] += share
    total = sum(votes.values())
    if not total or not votes[verdict]:
        return None
    others = [(n / total, name) for name, n in votes.items() if name != verdict]
    share, name = max(others, default=(0.0, ""))
    return votes[verdict] / total, (name, share) if share >= CLOSE_SHARE else None


def _votes(slow: Mapping[str, float], evicted: float) -> dict[str, float]:
    first = verdict_of_ledger(slow, evicted)
    if first is None or first == "healthy":
        return {} if first is None else {first: 1.0}
    seconds = lost_to(slow, evicted)
    close = {name: s for name, s in seconds.items() if s >= NEARLY_EQUAL * seconds[first]}
    return {name: s / sum(close.values()) for name, s in close.items()}


def settled(verdict: str, findings: Sequence[Finding]) -> list[Finding]:
    """The findings under a verdict: a healthy server's are worth knowing, and nothing to act on."""
    if verdict != "healthy":
        return list(findings)
    return [f if f.severity == "info" else replace(f, severity="info") for f in findings]


def lost_to(slow_s: Mapping[str, float | None], evicted: float = 0.0) -> dict[str, float]:
    """Seconds of delay by verdict. `evicted`: share of all prefill that would not have been, had the prefix cache had room for what it held once.

    So much of what others' prompts cost is for lack of KV space.
    """
    seconds = {name: sum(float(slow_s.get(label) or 0.0) for label in labels) for name, labels in LOST_TO.items()}
    moved = evicted * seconds["prefill-interference"]
    seconds["prefill-interference"] -= moved
    seconds["kv-capacity"] += moved
    return seconds


def seen_to_wait(slow_s: Mapping[str, float], windows: pl.DataFrame | None) -> dict[str, float]:
    """The ledger without queues that only a replay has: no statistics line shows anybody waiting, nor a cache that is nearly full.

    For logs in which no line tells of a request: when they came is made up there, and so is who waited between two lines.
    """
    if windows is None or windows.height < 2 or windows["waiting"].max() or windows["swapped"].fill_null(0).max():
        return dict(slow_s)
    full = (windows["kv_pct"].fill_null(0).max() or 0) >= NEARLY_FULL_PCT  # type: ignore[operator]
    unseen = ("queued_for_seat", "queued_for_budget") + (() if full else ("queued_for_kv",))
    return {label: 0.0 if label in unseen else seconds for label, seconds in slow_s.items()}


def verdict_of_ledger(slow_s: Mapping[str, float | None], evicted: float = 0.0) -> str | None:
    """The contract's rule over the slow requests' mean ledger (seconds by label); None where the ledger is empty. `evicted` as in `lost_to`."""
    parts = {k: float(v or 0.0) for k, v in slow_s.items()}
    total = sum(parts.values())
    if total <= 0:
        return None
    delay = total - parts.get("prefill", 0.0) - parts.get("decode", 0.0)
    if delay < total / 3:
        return "healthy"
    shares = lost_to(parts, evicted)
    return max(shares, key=lambda v: shares[v])


def verdict_of_windows(windows: pl.DataFrame | None, seats: int | None) -> str:
    """What the queues alone show: most of the waiting was for seats, for blocks, or for prompts; or nobody ever waited and tokens came."""
    if windows is None or windows.height < 2:
        return "not-enough-evidence"
    if windows["waiting"].max() == 0:
        tokens = windows["generation_tps"]
        well = not windows["full"].any() and bool(tokens.null_count() or tokens.max())
        return "healthy" if well else "not-enough-evidence"
    if windows["aggregated"].any():
        return "not-enough-evidence"  # a mean over engines hides which one is full
    waiting = windows.filter(pl.col("waiting") > 0)
    bound = bound_of(waiting, seats)
    for kind, verdict in (("seats", "seat-limit"), ("kv", "kv-capacity"), ("prefill", "prefill-interference")):
        held = int((bound == kind).sum())
        # one interval of prompts is a burst that was admitted, no queue
        if held * 2 > waiting.height and (kind != "prefill" or held >= MIN_PREFILL_WINDOWS):
            return verdict
    return "not-enough-evidence"
