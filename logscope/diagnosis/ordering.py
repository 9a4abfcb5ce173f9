"""Ordering or capacity: would another order of service change the tail, or only who suffers?

The workload is replayed once as it is and once with the short requests first (`--scheduling-policy priority`, which vLLM V1
obeys without faults from 0.11.1). Where the same work takes the same time and the short ones gain what the long ones lose,
it is capacity that lacks; the policy only chooses who pays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from logscope.evidence.finding import Finding
from logscope.inference.prediction import Samples
from logscope.inference.workloads import Replayed, Workload, replay_workload
from logscope.server.engines import EngineFacts
from logscope.server.flags import flag_for
from logscope.wording import duration
from reference_engine.model.config import EngineConfig
from reference_engine.v1.profile import profile_of

__all__ = ["Order", "compare_orders", "ordering_finding"]

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
    title = (
        "A priority policy would change who waits, not how much work there is: with short requests first their E2E p99"
        f" goes from {duration(now.short_p99_s)} to {duration(then.short_p99_s)}, that of the long ones from"
        f" {duration(now.long_p99_s)} to {duration(then.long_p99_s)}"
    )
    return [Finding("ordering", "info", "replayed", title)]
