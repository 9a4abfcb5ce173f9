"""A sampled workload, replayed once more to be drawn: each request's lane around a spike, and latencies under an advice.

`of_sample` makes a `DrawnReplay` of a workload; `report_frames` gives all frames that the report draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from logscope.diagnosis.replay_frames import replay_frames
from logscope.diagnosis.spikes import Spike
from logscope.inference.workloads import Workload, drive_workload, replay_workload
from logscope.server.engines import EngineFacts
from logscope.server.scenario import Scenario, scenario_of
from reference_engine.model.config_part import EngineConfig
from reference_engine.replay.frames import requests_frame
from reference_engine.replay.phases import Phase
from reference_engine.replay.recording_part import RecordedReplay

__all__ = ["DrawnReplay", "of_sample", "report_frames", "since_idle"]

MAX_TOKENS = 200_000  # a recorded replay walks about 100,000 tokens a second
MAX_ADVICE = 3


@dataclass(frozen=True, slots=True)
class DrawnReplay:
    """`lanes` records the phases of some of the workload's requests (by id); `latencies` replays all under a scenario."""

    lanes: Callable[[frozenset[str]], Sequence[Phase]]
    latencies: Callable[[Scenario], pl.DataFrame]


def of_sample(workload: Workload, config: EngineConfig) -> DrawnReplay:
    """From one sampled workload of the inference and the configuration under which it was inferred."""

    def lanes(ids: frozenset[str]) -> Sequence[Phase]:
        part = replace(workload, requests=tuple(r for r in workload.requests if str(r.id) in ids))
        engine = RecordedReplay(config, part.cost.scaled(part.speeds[0]))
        drive_workload(engine, part)
        engine.finish()
        return engine.phases.phases

    def latencies(scenario: Scenario) -> pl.DataFrame:
        done = replay_workload(
            workload,
            scenario.config,
            arrival_scale=scenario.arrival_scale,
            replicas=scenario.replicas,
            factors=scenario.scale,
        )
        return requests_frame(done.records)

    return DrawnReplay(lanes, latencies)


def since_idle(requests: pl.DataFrame, start_s: float, end_s: float) -> frozenset[str]:
    """Ids of the requests that arrived before `end_s`, from the last moment on at which none was left before `start_s`.

    A replay of just these goes as the whole one did, since the engine was empty when they began (prefix cache aside).
    Of too many the latest are kept, `MAX_TOKENS` of output in all. `requests`: `request_id`, `arrival_s`, `end_s`, `output_tokens`.
    """
    ordered = requests.filter(pl.col("arrival_s") < end_s).sort("arrival_s", maintain_order=True)
    before = pl.col("end_s").fill_null(float("inf")).cum_max().shift(1)
    empty = ((before <= pl.col("arrival_s")).fill_null(value=True)) & (
        pl.col("arrival_s") <= start_s
    )
    group = empty.cum_sum()
    latest = ordered.filter(group == group.max())
    tokens = pl.col("output_tokens").cum_sum(reverse=True)
    return frozenset(latest.filter(tokens <= MAX_TOKENS)["request_id"].to_list())


def report_frames(
    drawn: DrawnReplay | None,
    requests: pl.DataFrame,
    steps: pl.DataFrame,
    spikes: Sequence[Spike],
    changes: Sequence[Mapping[str, object]],
    facts: EngineFacts,
    origin: datetime,
) -> dict[str, pl.DataFrame]:
    """The frames of `write_html` that a replay gives; `changes`: the settings of each advice, in its order."""
    phases: Sequence[Phase] = ()
    if drawn is not None and spikes:
        worst = max(spikes, key=lambda s: s.p99_e2e_s or 0.0)
        begin, end = ((t - origin).total_seconds() for t in (worst.start, worst.end))
        phases = drawn.lanes(since_idle(requests, begin, end))
    place = (facts.server, facts.run, facts.engine_index)
    frames = replay_frames(requests, steps, phases, origin=origin, engine=place)
    if drawn is not None and changes:
        frames["whatif_requests"] = pl.concat(
            drawn.latencies(scenario_of(facts, change))
            .select("ttft_s", "e2e_s")
            .with_columns(advice=pl.lit(number, pl.Int64))
            for number, change in enumerate(changes[:MAX_ADVICE])
        )
    return frames
