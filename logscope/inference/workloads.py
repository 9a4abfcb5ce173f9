"""Sampled workloads: what a particle believes was asked of the server, in a form that the reference engine replays.

`Workload` holds requests, step costs and the speeds of the windows; `replay_workload` runs it, under the present
configuration or another, and gives records with ledgers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reference_engine.cost.step_time import StepCost
from reference_engine.model.config import EngineConfig
from reference_engine.model.errors import NoProgressError, SchedulerFailedError
from reference_engine.model.ledger import RequestRecord
from reference_engine.model.request import Request
from reference_engine.model.step import StepLog
from reference_engine.replay.fast_v0 import V0FastReplay
from reference_engine.replay.fast_v1 import FastReplay
from reference_engine.replay.plain import PlainReplay
from reference_engine.replay.results import make_replay

__all__ = ["Replayed", "StepFactors", "Workload", "drive_workload", "replay_workload"]

Replay = FastReplay | PlainReplay | V0FastReplay


class StepFactors(Protocol):
    """Factors on the parts of a step's time, as a change of hardware brings them."""

    @property
    def base(self) -> float:
        """On the fixed part."""

    @property
    def prefill(self) -> float:
        """On a prefill token."""

    @property
    def decode(self) -> float:
        """On a decoding request."""

    @property
    def kv(self) -> float:
        """On a KV token that is read."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests (arrivals in seconds on the inference's clock), step costs, and speeds.

    `speeds[i]` multiplies the time of steps decided before `ends[i]`; `speeds` has one more, for what comes after.
    `stalls` are (start, end) of single steps that took that long. `window_costs`, where there are any, stand in for
    `cost`, one for each speed.
    """

    requests: tuple[Request, ...]
    cost: StepCost
    ends: tuple[float, ...] = ()
    speeds: tuple[float, ...] = (1.0,)
    stalls: tuple[tuple[float, float], ...] = ()
    window_costs: tuple[StepCost, ...] = ()

    def cost_from(self, mark: float) -> StepCost:
        """What steps cost that are decided at or after a moment, until the window ends."""
        window = bisect_right(self.ends, mark)
        cost = self.window_costs[window] if self.window_costs else self.cost
        return cost.scaled(self.speeds[window])

    def changed(self, factors: StepFactors) -> Workload:
        """The same on hardware that is faster or slower in parts."""
        return replace(
            self, cost=_changed(self.cost, factors), window_costs=tuple(_changed(c, factors) for c in self.window_costs)
        )

    def scaled_arrivals(self, factor: float) -> Workload:
        """The same requests in 1 / `factor` of the time."""
        if factor == 1.0:
            return self
        requests = tuple(
            replace(r, arrival_s=r.arrival_s / factor, abort_s=None if r.abort_s is None else r.abort_s / factor)
            for r in self.requests
        )
        ends = tuple(e / factor for e in self.ends)
        stalls = tuple((a / factor, a / factor + b - a) for a, b in self.stalls)
        return replace(self, requests=requests, ends=ends, stalls=stalls)

    def part(self, index: int, of: int) -> Workload:
        """What one of several replicas gets when requests go to them in turn."""
        if of == 1:
            return self
        return replace(self, requests=self.requests[index::of])


@dataclass(frozen=True, slots=True)
class Replayed:
    """A finished replay: records with ledgers, {gap in ns: how often}, the log of steps where it was asked for."""

    records: list[RequestRecord]
    gaps: dict[int, int]
    log: StepLog | None = None


def replay_workload(
    workload: Workload,
    config: EngineConfig,
    *,
    arrival_scale: float = 1.0,
    replicas: int = 1,
    factors: StepFactors | None = None,
    keep_steps: bool = False,
) -> Replayed:
    """Run a workload under a configuration.

    A run that the real engine would end early (a request that can never progress) gives what was reached by then.
    """
    scaled = workload.scaled_arrivals(arrival_scale)
    if factors is not None:
        scaled = scaled.changed(factors)
    records: list[RequestRecord] = []
    gaps: dict[int, int] = {}
    log = None
    for index in range(min(replicas, len(scaled.requests))):  # more have nothing to do
        share = scaled.part(index, replicas)
        engine = _engine(share, config, keep_steps and replicas == 1)
        drive_workload(engine, share)
        records += engine.all_records()
        for gap, count in engine.gaps.items():
            gaps[gap] = gaps.get(gap, 0) + count
        log = engine.log
    return Replayed(records, gaps, log)


def _changed(cost: StepCost, factors: StepFactors) -> StepCost:
    return StepCost(
        cost.base * factors.base,
        cost.per_prefill * factors.prefill,
        cost.per_decode * factors.decode,
        cost.per_kv * factors.kv,
        cost.per_prefill_squared * factors.prefill,
        cost.scale,
    )


def _engine(workload: Workload, config: EngineConfig, keep_steps: bool) -> Replay:
    cost = workload.cost_from(-math.inf)
    sharing = any(r.prompt is not None for r in workload.requests)
    return make_replay(config, cost, sharing=sharing, keep_steps=keep_steps)


def _fitted(requests: Sequence[Request], config: EngineConfig) -> list[Request]:
    """Prompts that a smaller `max_model_len` would refuse are left out."""
    return [r for r in requests if r.prompt_tokens < config.max_model_len]


def drive_workload(engine: Replay, workload: Workload) -> None:
    """Run a workload to its end on an engine, at the speeds of its windows."""
    for request in _fitted(workload.requests, engine.config):
        engine.add(request)
    marks = sorted({*workload.ends, *(t for stall in workload.stalls for t in stall[:1])})
    stalls = dict(workload.stalls)
    try:
        for mark in marks:
            if mark in stalls:
                engine.advance(mark - 1e-6)
                engine.step_time = StepCost(stalls[mark] - mark, 0.0, 0.0, 0.0)
                engine.advance(mark + 1e-6)
            else:
                engine.advance(mark)
            engine.step_time = workload.cost_from(mark)
        engine.advance(math.inf)
    except (NoProgressError, SchedulerFailedError):
        return
