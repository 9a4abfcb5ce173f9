"""Findings that only a replay gives: hidden preemptions, what the slow requests wait for, overload, and what an order of service changes.

Ordering or capacity: the workload is replayed once as it is and once with the short requests first (`--scheduling-policy priority`,
which vLLM V1 obeys without faults from 0.11.1). Where the same work takes the same time and the short ones gain what the long ones lose,
it is capacity that lacks; the policy only chooses who pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl

from logscope.diagnosis.advice import overloaded
from logscope.diagnosis.spikes import Spike
from logscope.evidence.context import Context
from logscope.evidence.finding import Evidence, Finding, evidence_of, seconds
from logscope.inference.prediction import Replayed, Samples, Workload, replay_workload
from logscope.inference.result import InferredReplay
from logscope.server.engines import EngineFacts
from logscope.server.flags import flag_for
from logscope.wording import LOST_TO, duration, percent, plural
from reference_engine.model.config import EngineConfig
from reference_engine.v1.profile import profile_of

__all__ = ["Order", "compare_orders", "ordering_finding", "replay_findings"]

MIN_PREEMPTIONS = 2.5
MIN_SHARE = 0.10
MIN_MORE = 0.05
NEARLY_AS_FULL = 0.9  # a line that shows the cache much less full than another is no evidence of a full one


def replay_findings(
    context: Context,
    answer: InferredReplay,
    spikes: Sequence[Spike],
    baseline: Mapping[str, Any] | None,
    free: Sequence[Mapping[str, Any]],
) -> list[Finding]:
    """All findings of one engine's replay. `free` are the figures of the free candidates that were replayed."""
    found = [*_preemption(context, answer), *_waits(context, answer, spikes)]
    if baseline is not None and overloaded(baseline, free, answer.arriving_s):
        title = (
            "Overloaded: requests arrive faster than this server can finish them. The replay tried"
            f" {plural(len(free), 'change')} that {'needs' if len(free) == 1 else 'need'} no hardware, and with each the backlog took at least"
            " 25 % longer than the arrival period to drain: add capacity, or bound the queue"
        )
        found.append(Finding("overload", "critical", "replayed", title, *_whole(context)))
    if baseline is not None:
        ordering = ordering_finding(context.log.facts, answer.samples)
        start, end = _whole(context)
        found += [replace(f, start=start, end=end) for f in ordering]
    return found


def _whole(context: Context) -> tuple[datetime | None, datetime | None]:
    """The whole time that the statistics cover, for what holds over all of it."""
    return (None, None) if context.windows is None else context.span_of(context.windows)


def _preemption(context: Context, answer: InferredReplay) -> list[Finding]:
    low, value, high = answer.preemptions.bounds
    if value < MIN_PREEMPTIONS:
        return []
    start, end = seconds(t for s in answer.preemptions.timeline for t in (s.start, s.end))
    again = answer.preemptions.recomputed_tokens
    tokens = f", {again:,.0f} tokens recomputed" if again else ""
    title = (
        f"About {value:.0f} preemptions ({low:.0f} to {high:.0f}){tokens}: running requests were preempted when KV blocks ran out"
        f"{_pause(answer)}"
    )
    severity = "critical" if value >= max(3.0, 0.02 * answer.requests) else "warning"
    return [Finding("kv-preemption", severity, "inferred", title, start, end, _full_windows(context))]


def _pause(answer: InferredReplay) -> str:
    """What a victim's client sees: its longest gap between tokens."""
    victims = answer.requests_frame.filter(pl.col("preemptions") > 0)
    if victims.height == 0:
        return ""
    pause = victims["preempted_wait"] + victims["recompute"]
    middle, most = pause.median(), pause.max()
    if not isinstance(middle, float) or not isinstance(most, float):
        return ""
    return f"; each preempted request lost {duration(middle)} (median), at most {duration(most)}"


def _full_windows(context: Context) -> tuple[Evidence, ...]:
    if context.windows is None:
        return ()
    fullest = context.windows.sort("kv_pct", descending=True, nulls_last=True).head(3)
    near = pl.col("kv_pct") >= NEARLY_AS_FULL * pl.col("kv_pct").max()
    return evidence_of(fullest.filter(near).sort("order"), context.texts)


def _waits(context: Context, answer: InferredReplay, spikes: Sequence[Spike]) -> list[Finding]:
    """What the slow requests' delay is made of, where a cause has a tenth of their time."""
    slow = answer.ledger.get("slow_s") or {}
    total = sum(slow.values())
    if total <= 0:
        return []
    typical = answer.ledger.get("typical_s") or {}
    usual = sum(typical.values())
    causes = {
        "kv-admission-wait": (("queued_for_kv",), "waiting for KV blocks before admission"),
        "seat-limit": (LOST_TO["seat-limit"], "queued behind max_num_seqs"),
        "prefill-interference": (LOST_TO["prefill-interference"], "held up by other requests' prefills"),
    }
    found = []
    for name, (labels, how) in causes.items():
        share = sum(slow.get(label, 0.0) for label in labels) / total
        common = sum(typical.get(label, 0.0) for label in labels) / usual if usual else 0.0
        if share < MIN_SHARE or (share < common + MIN_MORE and share < 1 / 3):
            continue  # as everybody else, and not much
        title = (
            f"Slow requests spent {percent(share)} of their {duration(total)} {how}"
            f" (typical requests: {f'{percent(common)} of {duration(usual)}' if common >= 0.0005 else 'none'})"
        )
        evidence = _evidence(context, name)
        start, end = seconds(t for s in spikes for t in (s.start, s.end)) if spikes else _busy(context, name)
        severity = "warning" if share < 1 / 3 else "critical"
        found.append(Finding(name, severity, "replayed", title, start, end, evidence))
    return found


def _evidence(context: Context, name: str) -> tuple[Evidence, ...]:
    if context.windows is None:
        return ()
    column = _SHOWN_BY.get(name, "waiting")
    best = context.windows.filter(pl.col(column) > 0).sort(column, descending=True).head(3).sort("order")
    return evidence_of(best, context.texts)


def _busy(context: Context, name: str) -> tuple[datetime | None, datetime | None]:
    """Without a spike: all the time in which the log shows what the requests waited for."""
    if context.windows is None:
        return None, None
    return context.span_of(context.windows.filter(pl.col(_SHOWN_BY.get(name, "waiting")) > 0))


_SHOWN_BY = {"prefill-interference": "prompt_tps"}
"""The column of the windows which shows that a cause was at work; of all others the queue."""


# --- ordering or capacity

MAX_REQUESTS = 5_000
SAME_WORK = 0.03
MIN_CHANGE = 0.15


@dataclass(frozen=True, slots=True)
class Order:
    """E2E p99 of the shorter and the longer half (by output), and the time until all is done; seconds."""

    short_p99_s: float
    long_p99_s: float
    duration_s: float


def compare_orders(workload: Workload, config: EngineConfig) -> tuple[Order, Order] | None:
    """First come first served, and short requests first; None where this engine has no sound priority policy or the log is too long."""
    if config.engine != "vllm-v1" or profile_of(config.version).victim_rollback != "full":
        return None
    if config.policy != "fcfs" or not 10 <= len(workload.requests) <= MAX_REQUESTS:
        return None
    middle = float(np.median([r.output_tokens for r in workload.requests]))
    ranked = replace(
        workload, requests=tuple(replace(r, priority=int(r.output_tokens > middle)) for r in workload.requests)
    )
    now = _order(replay_workload(ranked, config), middle)
    then = _order(replay_workload(ranked, replace(config, policy="priority")), middle)
    return None if now is None or then is None else (now, then)


def _order(replayed: Replayed, middle: float) -> Order | None:
    done = [r for r in replayed.records if r.status == "finished" and r.end is not None]
    lives: dict[bool, list[float]] = {False: [], True: []}
    for r in done:
        assert r.end is not None
        lives[r.request.output_tokens > middle].append((r.end - r.arrival) / 1e9)
    if not lives[False] or not lives[True]:
        return None
    span = (max(r.end or 0 for r in done) - min(r.arrival for r in done)) / 1e9
    short, long = (float(np.percentile(lives[k], 99)) for k in (False, True))
    return Order(short, long, span)


def ordering_finding(facts: EngineFacts, samples: Samples) -> list[Finding]:
    """Say what a policy would change; nothing where it changes little, or not at equal work."""
    if flag_for("policy", facts.version, engine=facts.engine) is None:
        return []
    if facts.config.get("policy") == "priority":  # it has that order already, and we do not
        return []
    orders = compare_orders(samples.first, samples.config)
    if orders is None:
        return []
    now, then = orders
    if abs(then.duration_s - now.duration_s) > SAME_WORK * now.duration_s:
        return []
    gain = (now.short_p99_s - then.short_p99_s) / now.short_p99_s if now.short_p99_s else 0.0
    if gain < MIN_CHANGE:
        return []
    does = "only redistribute the waiting" if then.long_p99_s >= now.long_p99_s else "shorten the waits of both halves"
    title = (
        f"Priority scheduling would {does}: shortest-first takes E2E p99 of short requests from {duration(now.short_p99_s)} to"
        f" {duration(then.short_p99_s)} and of long ones from {duration(now.long_p99_s)} to {duration(then.long_p99_s)}"
    )
    return [Finding("ordering", "info", "replayed", title)]
