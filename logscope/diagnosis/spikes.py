"""Spikes: the stretches of time in which the tail leaves its baseline, why, and the log lines that show it.

A sampled workload, replayed once more to be drawn: each request's lane around a spike, and latencies under an advice.

`report_frames` gives all frames of a replay that the report draws, on the log's clock, and by server, run and engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from logscope.diagnosis.verdict import verdict_of_ledger
from logscope.evidence.finding import Evidence, evidence_of
from logscope.inference.prediction import Samples, delay, drive_workload, means_of, replay_workload, slow_requests
from logscope.inference.result import InferredReplay
from logscope.server.engines import EngineFacts
from logscope.server.scenario import Scenario, scenario_of
from reference_engine.replay.recording import Phase, RecordedReplay
from reference_engine.replay.results import requests_frame

__all__ = ["Spike", "find_spikes", "lanes", "latencies_under", "replay_frames", "report_frames", "since_idle"]
MIN_WINDOW_S = 10.0
WINDOWS_OF_A_LOG = 120
RISE = 2.0
MIN_DELAY_S = 1.0
MAX_SPIKES = 10


@dataclass(frozen=True, slots=True)
class Spike:
    """One stretch, on the log's clock. `ledger_s` is the mean of its slow requests; latencies in seconds."""

    start: datetime
    end: datetime
    cause: str
    requests: int
    p99_e2e_s: float
    baseline_p99_e2e_s: float
    ledger_s: Mapping[str, float]
    evidence: tuple[Evidence, ...]


def find_spikes(
    requests: pl.DataFrame,
    origin: datetime,
    windows: pl.DataFrame | None,
    texts: Mapping[tuple[str, int], str],
    evicted: float = 0.0,
) -> tuple[Spike, ...]:
    """Find the spikes of a replayed run.

    `requests` are the replay's (arrival_s and end_s in seconds from `origin`, e2e_s, the ledger). A window of arrivals belongs to a spike
    where its 95th percentile of delay is twice the calm half's and above one second; neighbouring windows join. Worst first.
    `evicted`: share of all prefill that is for lack of KV space (`logscope.diagnosis.verdict.lost_to`).
    """
    done = requests.filter(pl.col("status") == "finished").with_columns(delay_s=delay())
    if done.height < 5:
        return ()
    span = float(done["arrival_s"].max() or 0.0)  # type: ignore[arg-type]
    width = max(MIN_WINDOW_S, span / WINDOWS_OF_A_LOG)
    by_window = (
        done.with_columns(window=(pl.col("arrival_s") / width).floor().cast(pl.Int64))
        .group_by("window")
        .agg(delay_s=pl.col("delay_s").quantile(0.95, "linear"), e2e_s=pl.col("e2e_s").quantile(0.99, "linear"))
        .sort("window")
    )
    calm = by_window.sort("delay_s").head(max(1, by_window.height // 2))
    limit = max(RISE * float(calm["delay_s"].median() or 0.0), MIN_DELAY_S)  # type: ignore[arg-type]
    baseline = float(calm["e2e_s"].median() or 0.0)  # type: ignore[arg-type]
    hot = by_window.filter(pl.col("delay_s") > limit)["window"].to_list()
    spikes = [_spike(done, a, b, width, origin, baseline, windows, texts, evicted) for a, b in _stretches(hot)]
    found = [s for s in spikes if s is not None]
    return tuple(sorted(found, key=lambda s: -s.p99_e2e_s)[:MAX_SPIKES])


def _stretches(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring window numbers; one quiet window between two hot ones does not part them."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number - found[-1][1] <= 2:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _spike(
    done: pl.DataFrame,
    first: int,
    last: int,
    width: float,
    origin: datetime,
    baseline: float,
    windows: pl.DataFrame | None,
    texts: Mapping[tuple[str, int], str],
    evicted: float,
) -> Spike | None:
    inside = done.filter((pl.col("arrival_s") >= first * width) & (pl.col("arrival_s") < (last + 1) * width))
    slow = slow_requests(inside)
    ledger = means_of(slow)
    cause = verdict_of_ledger(ledger, evicted)
    if slow.height == 0 or cause is None:
        return None
    start = origin + timedelta(seconds=float(inside["arrival_s"].min()))  # type: ignore[arg-type]
    end = origin + timedelta(seconds=float(inside["end_s"].max()))  # type: ignore[arg-type]
    p99 = float(inside["e2e_s"].quantile(0.99, "linear") or 0.0)
    return Spike(start, end, cause, inside.height, p99, baseline, ledger, _evidence(windows, start, end, cause, texts))


def _evidence(
    windows: pl.DataFrame | None, start: datetime, end: datetime, cause: str, texts: Mapping[tuple[str, int], str]
) -> tuple[Evidence, ...]:
    """The statistics lines within the spike that show its cause most: the fullest cache, the longest queue."""
    if windows is None:
        return ()
    inside = windows.filter((pl.col("end") >= start) & (pl.col("start") <= end))
    order: dict[str, Any] = {
        "kv-capacity": ["kv_pct", "waiting"],
        "seat-limit": ["waiting", "running"],
        "prefill-interference": ["prompt_tps", "waiting"],
    }
    names = order.get(cause, ["waiting", "kv_pct"])
    best = inside.sort(names, descending=True, nulls_last=True).head(3).sort("order")
    return evidence_of(best, texts)


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
