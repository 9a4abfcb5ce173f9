"""A sampled workload, replayed once more to be drawn: each request's lane around a spike, and latencies under an advice.

`report_frames` gives all frames of a replay that the report draws, on the log's clock, and by server, run and engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import polars as pl

from logscope.diagnosis.spikes import Spike
from logscope.inference.prediction import Samples
from logscope.inference.result import InferredReplay
from logscope.inference.workloads import drive_workload, replay_workload
from logscope.server.engines import EngineFacts
from logscope.server.scenario import Scenario, scenario_of
from reference_engine.replay.recording import Phase, RecordedReplay
from reference_engine.replay.results import requests_frame

__all__ = ["lanes", "latencies_under", "replay_frames", "report_frames", "since_idle"]
Place = tuple[int, int, int]
"""(server, run, engine index)"""

# The phases of a request's life in the ledger's words; a queue's label depends on the request.
LABELS = {"prefill": "prefill", "decode": "decode", "preempted": "preempted_wait", "recompute": "recompute"}
QUEUES = ("queued_for_kv", "queued_for_seat", "queued_for_budget")


def replay_frames(
    requests: pl.DataFrame, steps: pl.DataFrame, phases: Iterable[Phase] = (), *, origin: datetime, engine: Place
) -> dict[str, pl.DataFrame]:
    """`replay_requests`, `replay_steps` and `replay_spans` as `write_html` reads them.

    `requests`, `steps`: the frames of a replay's result; `phases`: its lanes, where they
    were recorded (without them no lanes are drawn). `origin` is the log's time at the
    replay's second 0; `engine` is (server, run, engine index).
    """
    server, run, index = (pl.lit(number, pl.Int64) for number in engine)
    place = {"server": server, "run": run, "engine_index": index}
    reasons = _queue_reasons(requests)
    spans = pl.DataFrame(
        [(str(p.request_id), LABELS.get(p.name) or reasons[str(p.request_id)], p.start_s, p.end_s) for p in phases],
        schema={"id": pl.String, "label": pl.String, "start_s": pl.Float64, "end_s": pl.Float64},
        orient="row",
    )
    return {
        "replay_requests": requests.rename({"request_id": "id"}).with_columns(
            arrival=_clock("arrival_s", origin), **place
        ),
        "replay_steps": steps.with_columns(time=_clock("time_s", origin), kv_usage_pct=pl.col("usage") * 100, **place),
        "replay_spans": spans.with_columns(start=_clock("start_s", origin), end=_clock("end_s", origin), **place),
    }


def _queue_reasons(requests: pl.DataFrame) -> dict[str, str]:
    """What each request was queued for the longest."""
    rows = requests.select("request_id", *QUEUES).iter_rows()
    return {request: max(zip(parts, QUEUES, strict=True))[1] for request, *parts in rows}


def _clock(seconds: str, origin: datetime) -> pl.Expr:
    length = (pl.col(seconds) * 1e6).round().cast(pl.Duration("us"))
    return pl.lit(origin.replace(tzinfo=None)).cast(pl.Datetime("us")) + length


MAX_TOKENS = 200_000  # a recorded replay walks about 100,000 tokens a second
MAX_ADVICE = 3


def lanes(samples: Samples, ids: frozenset[str]) -> Sequence[Phase]:
    """The phases of some requests (by id) of the representative workload, which is replayed once more for them."""
    workload = samples.first
    part = replace(workload, requests=tuple(r for r in workload.requests if str(r.id) in ids))
    engine = RecordedReplay(samples.config, part.cost.scaled(part.speeds[0]))
    drive_workload(engine, part)
    engine.finish()
    return engine.phases.phases


def latencies_under(samples: Samples, scenario: Scenario) -> pl.DataFrame:
    """The requests of the representative workload under a scenario."""
    done = replay_workload(
        samples.first,
        scenario.config,
        arrival_scale=scenario.arrival_scale,
        replicas=scenario.replicas,
        factors=scenario.scale,
    )
    return requests_frame(done.records)


def since_idle(requests: pl.DataFrame, start_s: float, end_s: float) -> frozenset[str]:
    """Ids of the requests that arrived before `end_s`, from the last moment on at which none was left before `start_s`.

    A replay of just these goes as the whole one did, since the engine was empty when they began (prefix cache aside).
    Of too many the latest are kept, `MAX_TOKENS` of output in all. `requests`: `request_id`, `arrival_s`, `end_s`, `output_tokens`.
    """
    ordered = requests.filter(pl.col("arrival_s") < end_s).sort("arrival_s", maintain_order=True)
    before = pl.col("end_s").fill_null(float("inf")).cum_max().shift(1)
    empty = ((before <= pl.col("arrival_s")).fill_null(value=True)) & (pl.col("arrival_s") <= start_s)
    group = empty.cum_sum()
    latest = ordered.filter(group == group.max())
    tokens = pl.col("output_tokens").cum_sum(reverse=True)
    return frozenset(latest.filter(tokens <= MAX_TOKENS)["request_id"].to_list())


def report_frames(
    answer: InferredReplay, spikes: Sequence[Spike], changes: Sequence[Mapping[str, object]], facts: EngineFacts
) -> dict[str, pl.DataFrame]:
    """The frames of `write_html` that a replay gives; `changes`: the settings of each advice, in its order."""
    requests, origin = answer.requests_frame, answer.origin
    phases: Sequence[Phase] = ()
    if spikes:
        worst = max(spikes, key=lambda s: s.p99_e2e_s or 0.0)
        begin, end = ((t - origin).total_seconds() for t in (worst.start, worst.end))
        phases = lanes(answer.samples, since_idle(requests, begin, end))
    place = (facts.server, facts.run, facts.engine_index)
    frames = replay_frames(requests, answer.steps_frame, phases, origin=origin, engine=place)
    if changes:
        frames["whatif_requests"] = pl.concat(
            latencies_under(answer.samples, scenario_of(facts, change))
            .select("ttft_s", "e2e_s")
            .with_columns(advice=pl.lit(number, pl.Int64))
            for number, change in enumerate(changes[:MAX_ADVICE])
        )
    return frames
