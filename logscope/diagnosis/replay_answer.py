"""The bridge from one engine's log to the inference: what the replay answers, in the shape that analysis and reports use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import polars as pl

from logscope.diagnosis.advice import Predict
from logscope.diagnosis.lanes import DrawnReplay, of_sample
from logscope.diagnosis.predictor import Predictor
from logscope.diagnosis.spikes import Spike, find_spikes, slow_and_typical
from logscope.errors import LogscopeError, fault_of
from logscope.evidence.context import Context
from logscope.evidence.finding import Finding
from logscope.evidence.preemptions import Stretch
from logscope.inference.effort import Spread, in_turn
from logscope.inference.windows.observations import Observations
from logscope.inference.workloads import Workload
from logscope.server.engines import EngineLog
from logscope.server.unsupported import widened
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request

__all__ = ["FAIR_FIT", "ReplayAnswer", "replay_engine", "try_replay"]

FAIR_FIT = 0.5
"""Mean fit of the observed series from which a replay may decide the verdict."""

FAIR_FIT_IN_PART = 0.7
"""The same where the replay models the server in part."""

REPEATS = 3
SPAN_SHARE = 0.9
SCREENED = 3  # advice is tried on every third of the sampled workloads before it is on all


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """What the replay of the inferred workload says. Latencies in seconds, ledger in seconds by label.

    `origin` is the log's time at the replay's second 0; `requests_frame` and `steps_frame` are those of a representative replay.
    """

    requests: int
    fit: Mapping[str, float | None]
    pressure: str
    preemptions: tuple[float, float, float]
    recomputed_tokens: float | None
    timeline: tuple[Stretch, ...]
    latency: Mapping[str, Any]
    ledger: Mapping[str, Mapping[str, float]]
    step_time: Mapping[str, Any]
    predict: Predict
    origin: datetime
    requests_frame: pl.DataFrame
    steps_frame: pl.DataFrame
    workload: Sequence[Request] = ()
    seed: int = 0
    unsupported: tuple[str, ...] = ()
    spikes: tuple[Spike, ...] = ()
    findings: tuple[Finding, ...] = ()
    last_arrival_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    drawn: DrawnReplay | None = None
    screen: Predict | None = None
    sample: Workload | None = None
    config: EngineConfig | None = None

    @property
    def fair(self) -> bool:
        """Whether the replay meets what was observed well enough to decide."""
        return self.mean_fit >= (FAIR_FIT_IN_PART if self.unsupported else FAIR_FIT)

    @property
    def mean_fit(self) -> float:
        """The mean of the fit's known series; 0 without any."""
        known = [v for v in self.fit.values() if v is not None]
        return sum(known) / len(known) if known else 0.0

    @property
    def p99_e2e(self) -> float | None:
        """The 99th percentile of E2E latency, in seconds."""
        value = (self.latency.get("e2e_s") or {}).get("p99")
        return float(value) if value is not None else None


def replay_engine(
    log: EngineLog, context: Context, *, seed: int, progress: Callable[[float], None] | None, spread: Spread = in_turn
) -> ReplayAnswer | None:
    """Infer and replay one engine's workload; None where there is nothing to replay.

    Iteration lines tell nearly everything, so they decide where they explain the run; else requests and statistics are fitted.
    `spread` does what is independent of each other.
    """
    return _from_iterations(log, context, seed) or _from_particles(log, context, seed, progress, spread)


def try_replay(
    log: EngineLog, context: Context, *, seed: int, progress: Callable[[float], None] | None, spread: Spread = in_turn
) -> tuple[ReplayAnswer | None, str | None]:
    """`replay_engine`, and the reason where it failed: whatever lies in a log, what it proves by itself is still said."""
    try:
        return replay_engine(log, context, seed=seed, progress=progress, spread=spread), None
    except LogscopeError:  # the processes or the cluster that should do it, not the log
        raise
    except Exception as error:
        if os.environ.get("LOGSCOPE_DEBUG"):
            raise
        return None, fault_of(error)


def _from_iterations(log: EngineLog, context: Context, seed: int) -> ReplayAnswer | None:
    if log.get("iteration") is None:
        return None
    from logscope.inference.steps.reconstruct import reconstruct

    found = reconstruct(log.frames, log.facts, seed=seed)
    if found is None or not found.trusted:
        return None
    predict = Predictor((found.sample,), found.config)
    requests, summary = found.result.requests(), found.result.summary()
    step = found.step_time
    return _answer(
        log,
        context,
        requests=len(found.workload),
        fit=dict(found.fit),
        pressure=_pressure(found.preemptions[1], context),
        preemptions=found.preemptions,
        recomputed_tokens=found.recomputed_tokens,
        timeline=found.timeline,
        latency={"ttft_s": summary.ttft_s, "e2e_s": summary.e2e_s, "itl_s": summary.itl_s},
        ledger=slow_and_typical(requests),
        step_time=_step_time(
            step.base_s, step.per_prefill_token_s, step.per_decode_s, step.per_kv_token_s, found.step_time_error
        ),
        predict=predict,
        origin=found.epoch,
        requests_frame=requests,
        steps_frame=found.result.steps(),
        drawn=of_sample(found.sample, found.config),
        workload=found.workload,
        sample=found.sample,
        config=found.config,
        seed=seed,
    )


def _from_particles(
    log: EngineLog, context: Context, seed: int, progress: Callable[[float], None] | None, spread: Spread
) -> ReplayAnswer | None:
    from logscope.inference.windows.estimate import infer

    engines = log.engines_in_run
    found = infer(log.frames, log.facts, seed=seed, progress=progress, engines=engines, spread=spread)
    if found is None:
        return None
    few = replace(found, workloads=found.workloads[::SCREENED], replays=found.replays[::SCREENED])
    step, counts = found.step_time, found.preemptions
    return _answer(
        log,
        context,
        requests=found.requests,
        fit=dict(found.fit),
        pressure=found.pressure,
        preemptions=(counts.low, counts.value, counts.high),
        recomputed_tokens=round(counts.recomputed_tokens),
        timeline=counts.timeline,
        latency=found.latency,
        ledger={"total_s": found.ledger.total_s, "slow_s": found.ledger.slow_s, "typical_s": found.ledger.typical_s},
        step_time=_step_time(step.base_s, step.per_prefill_token_s, step.per_decode_s, step.per_kv_token_s, None),
        predict=Predictor.of(found),
        screen=Predictor.of(few),
        origin=found.observations.epoch,
        requests_frame=found.requests_frame,
        steps_frame=found.steps_frame,
        drawn=of_sample(found.workloads[0], found.config),
        workload=found.workloads[0].requests,
        sample=found.workloads[0],
        config=found.config,
        seed=seed,
        findings=_of_a_span(found.observations, context),
    )


def _of_a_span(seen: Observations, context: Context) -> tuple[Finding, ...]:
    """A long log is inferred in its worst span: say which."""
    if context.windows is None or len(seen.windows) >= SPAN_SHARE * context.windows.height:
        return ()
    start, end = seen.time(seen.windows[0].start), seen.time(seen.windows[-1].end)
    title = (
        f"The log is long: latencies, ledger, spikes and advice are those of its worst span, {start:%Y-%m-%d %H:%M} to {end:%H:%M}"
        f" ({len(seen.windows)} of {context.windows.height} intervals); preemptions are counted there and extrapolated"
        " (give --since and --until to look at another)"
    )
    return (Finding("coverage", "info", "inferred", title, start, end),)


def _answer(log: EngineLog, context: Context, **parts: Any) -> ReplayAnswer:
    if log.facts.unsupported:
        parts["preemptions"] = widened(*parts["preemptions"])
    requests: pl.DataFrame = parts["requests_frame"]
    origin: datetime = parts["origin"]
    latency = {**parts.pop("latency"), "basis": "inferred"}
    spikes = find_spikes(requests, origin, context.windows, context.texts)
    last = requests["arrival_s"].max() if requests.height else 0.0
    first = requests["arrival_s"].min() if requests.height else 0.0
    return ReplayAnswer(
        latency=latency,
        spikes=spikes,
        unsupported=log.facts.unsupported,
        last_arrival_s=float(last or 0.0) - float(first or 0.0),  # type: ignore[arg-type]
        **parts,
    )


def _pressure(value: float, context: Context) -> str:
    if value >= REPEATS:
        return "thrash"
    windows = context.windows
    waiting = windows is not None and windows.filter((pl.col("waiting") > 0) & (pl.col("kv_pct") >= 90)).height
    return "saturated" if waiting else "none"


def _step_time(base: float, prefill: float, decode: float, kv: float, error: float | None) -> dict[str, Any]:
    return {
        "base_s": base,
        "per_prefill_token_s": prefill,
        "per_decode_s": decode,
        "per_kv_token_s": kv,
        "basis": "inferred",
        "error": error,
    }
