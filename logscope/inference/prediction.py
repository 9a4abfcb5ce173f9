"""What a change would do: sampled workloads, replayed under another configuration.

`Workload` is what a particle believes was asked of the server: requests, step costs, the speeds of the windows. `replay_workload` runs
it, under the present configuration or another, and gives records with ledgers, summed here by the contract's words.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from logscope.server.scenario import Scenario
from reference_engine.cost.step_time import StepCost
from reference_engine.model import NoProgressError, SchedulerFailedError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import LABELS, Request, RequestRecord
from reference_engine.model.step import StepLog
from reference_engine.replay.fast_v0 import V0FastReplay
from reference_engine.replay.fast_v1 import FastReplay
from reference_engine.replay.plain import PlainReplay
from reference_engine.replay.results import make_replay, summarise, weighted_percentiles

__all__ = [
    "LABELS",
    "Ledger",
    "Replayed",
    "Samples",
    "StepFactors",
    "Workload",
    "as_inferred",
    "delay",
    "drive_workload",
    "gap_percentiles",
    "ledger_of_replays",
    "means_of",
    "percentiles_of_many",
    "replay_workload",
    "seconds_to",
    "slow_and_typical",
    "slow_of_each",
    "slow_requests",
    "summarise_replays",
]
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

    def repeated(self, rounds: int) -> Workload:
        """The same requests several times over, each round in the first one's time."""
        if rounds == 1:
            return self
        again = [replace(r, id=f"{r.id}+{n}") for n in range(1, rounds) for r in self.requests]
        return replace(self, requests=(*self.requests, *again))

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


@dataclass(frozen=True, slots=True)
class Samples:
    """Equally likely workloads, and what they say of a scenario; a piece of work that another process may do.

    `config`: the one under which they were inferred; `pooled`: latencies are taken over all samples together (see
    `percentiles_of_many`); `simplified`: the inference left out what no log shows (see `as_inferred`), and so does a prediction;
    `baseline`: what they say under `config`, where that is known already.
    """

    workloads: tuple[Workload, ...]
    config: EngineConfig
    pooled: bool = False
    simplified: bool = False
    baseline: Mapping[str, Any] | None = None

    @property
    def first(self) -> Workload:
        """The representative one, whose replay is shown."""
        return self.workloads[0]

    def predict(self, scenario: Scenario | None) -> Mapping[str, Any]:
        """The keys of `whatif --json` under a scenario; None is the present configuration."""
        if scenario is None:
            if self.baseline is not None:
                return self.baseline
            scenario = Scenario(self.config, {})
        return summarise_replays(self.replays(scenario), self.pooled)

    def replays(self, scenario: Scenario, rounds: int = 1) -> list[Replayed]:
        """A replay of each workload under a scenario; with `rounds` of its requests, the same ones again with each round."""
        config = as_inferred(scenario.config, self.config) if self.simplified else scenario.config
        return [
            replay_workload(
                workload.repeated(rounds),
                config,
                arrival_scale=scenario.arrival_scale,
                replicas=scenario.replicas,
                factors=scenario.scale,
            )
            for workload in self.workloads
        ]


def as_inferred(config: EngineConfig, inferred: EngineConfig) -> EngineConfig:
    """A changed configuration with what the inference assumed of the scheduler.

    First come first served and one batch at a time, as no log shows priorities; prefix caching only where prompts share a head.
    """
    return replace(
        config,
        policy="fcfs",
        async_scheduling=False,
        enable_prefix_caching=config.enable_prefix_caching and inferred.enable_prefix_caching,
    )


def summarise_replays(replayed: Sequence[Replayed], pooled: bool = False) -> dict[str, Any]:
    """What several replays say together, in the keys of `whatif --json`: counts as means, latencies in seconds by percentile.

    Latencies are None where nothing finished; `pooled` as in `percentiles_of_many`.
    """
    found = [summarise(one.records, {}) for one in replayed]  # gaps are taken over all of them
    return {
        "preemptions": round(_mean([s.preemptions for s in found]) or 0.0),
        "recomputed_tokens": round(_mean([s.recomputed_tokens for s in found]) or 0.0),
        "ttft_s": percentiles_of_many([seconds_to(one, "first_token") for one in replayed], pooled),
        "e2e_s": percentiles_of_many([seconds_to(one, "end") for one in replayed], pooled),
        "itl_s": gap_percentiles(replayed),
        "generation_tokens_per_s": _mean([s.generation_tokens_per_s for s in found]),
        "duration_s": _mean([s.duration_s for s in found]),
    }


def percentiles_of_many(
    samples: Sequence[Sequence[float] | NDArray[np.float64]], pooled: bool, points: Sequence[float] = (50, 90, 99)
) -> dict[str, float | None]:
    """Percentiles (p50, p90, p99 unless told) over several samples of one thing, None without any.

    The median of the samples' own percentiles; or `pooled`, where each sample drew its lengths anew: a single one then
    holds too little of the tail.
    """
    names = [f"p{point:g}" for point in points]
    samples = [s for s in samples if len(s)]
    if not samples:
        return dict.fromkeys(names)
    if pooled:
        found = np.percentile(np.concatenate([np.asarray(s) for s in samples]), points)
    else:
        found = np.median([np.percentile(np.asarray(s), points) for s in samples], axis=0)
    return {name: float(v) for name, v in zip(names, found, strict=True)}


def gap_percentiles(replayed: Sequence[Replayed], points: Sequence[float] = (50, 99)) -> dict[str, float | None]:
    """ITL percentiles over all gaps of all replays, in seconds."""
    found = weighted_percentiles([one.gaps for one in replayed], points)
    return {f"p{p:g}": None if gap is None else gap / 1e9 for p, gap in zip(points, found, strict=True)}


def seconds_to(replayed: Replayed, what: str) -> list[float]:
    """Seconds from arrival to `first_token` or `end`, of the requests that finished."""
    done = [r for r in replayed.records if r.status == "finished"]
    return [(getattr(r, what) - r.arrival) / 1e9 for r in done if getattr(r, what) is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [float(v) for v in values if v is not None]
    return float(np.mean(known)) if known else None


Ledger = dict[str, dict[str, float]]
"""Seconds by label: `total_s` (sum), `slow_s` and `typical_s` (means); empty where nothing finished."""

OWN_WORK = ("prefill", "decode")


def delay() -> pl.Expr:
    """A request's delay: its E2E less its own prefill and decode, in seconds."""
    return pl.sum_horizontal([pl.col(name) for name in LABELS if name not in OWN_WORK])


def slow_requests(requests: pl.DataFrame) -> pl.DataFrame:
    """Finished requests whose delay is at or above the 95th percentile of all delays."""
    done = requests.filter(pl.col("status") == "finished").with_columns(delay_s=delay())
    if done.height == 0:
        return done
    return done.filter(pl.col("delay_s") >= done["delay_s"].quantile(0.95, "linear"))


def slow_and_typical(requests: pl.DataFrame) -> Ledger:
    """The ledger of one replay (typical: between the 40th and 60th percentile of delay).

    `requests` has the ledger's columns in seconds and `status`.
    """
    done = requests.filter(pl.col("status") == "finished").with_columns(delay_s=delay())
    if done.height == 0:
        return {}
    low, high = done["delay_s"].quantile(0.4, "linear"), done["delay_s"].quantile(0.6, "linear")
    typical = done.filter((pl.col("delay_s") >= low) & (pl.col("delay_s") <= high))
    return {
        "total_s": {name: float(requests[name].sum()) for name in LABELS},
        "slow_s": means_of(slow_requests(requests)),
        "typical_s": means_of(typical if typical.height else done),
    }


def means_of(requests: pl.DataFrame) -> dict[str, float]:
    """The mean of each label over some requests, in seconds."""
    if requests.height == 0:
        return dict.fromkeys(LABELS, 0.0)
    row = requests.select([pl.col(name).mean() for name in LABELS]).row(0)
    return {name: float(value or 0.0) for name, value in zip(LABELS, row, strict=True)}


def ledger_of_replays(replayed: Sequence[Replayed]) -> Ledger:
    """The ledger of several replays' finished requests, as means over the replays."""
    totals, slow, typical = [], [], []
    for one in replayed:
        done = [r for r in one.records if r.status == "finished"]
        if not done:
            continue
        table = np.array([r.ledger for r in done], dtype=np.float64) / 1e9
        delays = table.sum(axis=1) - table[:, LABELS.index("prefill")] - table[:, LABELS.index("decode")]
        p40, p50, p60, p95 = np.percentile(delays, (40, 50, 60, 95))
        totals.append(table.sum(axis=0))
        slow.append(table[delays >= min(p95, delays.max())].mean(axis=0))
        middle = (delays >= p40) & (delays <= p60)
        if not middle.any():  # two requests have nobody between the 40th and the 60th percentile
            middle = np.abs(delays - p50) <= np.abs(delays - p50).min()
        typical.append(table[middle].mean(axis=0))
    return {"total_s": _by_label(totals), "slow_s": _by_label(slow), "typical_s": _by_label(typical)}


def slow_of_each(replayed: Sequence[Replayed]) -> tuple[dict[str, float], ...]:
    """`slow_s` of each replay in which something finished: how far equally likely workloads agree on a cause."""
    each = (ledger_of_replays([one]) for one in replayed if any(r.status == "finished" for r in one.records))
    return tuple(ledger["slow_s"] for ledger in each)


def _by_label(rows: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    if not rows:
        return dict.fromkeys(LABELS, 0.0)
    return {name: float(v) for name, v in zip(LABELS, np.mean(rows, axis=0), strict=True)}
