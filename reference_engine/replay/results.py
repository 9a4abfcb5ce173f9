"""Replay a workload and keep what came of it: `replay` and its `ReplayResult`.

The figures of a replay: latencies, throughput, preemptions, and the ledger summed over requests.

The results of a replay as Polars frames. Times are seconds, lengths tokens, ratios 0..1; null is what did not happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from reference_engine.cost.step_time import StepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import LABELS, Request, RequestRecord
from reference_engine.model.step import STEP_COLUMNS, StepLog
from reference_engine.replay.clock import usage_blocks
from reference_engine.replay.fast_v0 import V0FastReplay
from reference_engine.replay.fast_v1 import FastReplay
from reference_engine.replay.plain import PlainReplay
from reference_engine.v0.fast_scheduler import v0_fast_path_covers
from reference_engine.v1.batch import fast_path_covers

__all__ = [
    "REQUEST_SCHEMA",
    "STEP_SCHEMA",
    "ReplayResult",
    "Summary",
    "make_replay",
    "replay",
    "requests_frame",
    "steps_frame",
    "summarise",
    "weighted_percentiles",
]


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies in seconds by percentile ("p50", …; None when nothing finished), tokens, and ledger totals in seconds.

    TTFT and E2E cover finished requests and count from arrival; ITL is over all gaps between tokens of all requests.
    `duration_s`: first arrival to last finish. `generation_tokens_per_s`: output tokens over that time.
    """

    requests: int
    finished: int
    preemptions: int
    recomputed_tokens: int
    ttft_s: dict[str, float | None]
    e2e_s: dict[str, float | None]
    itl_s: dict[str, float | None]
    generation_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    duration_s: float | None
    ledger_s: dict[str, float]


def weighted_percentiles(weights: Sequence[Mapping[int, int]], percents: Sequence[float]) -> list[float | None]:
    """Percentiles of values that occur `weights[i][value]` times in all, with linear interpolation; None for no values."""
    found = [w for w in weights if w]
    if not found:
        return [None for _ in percents]
    values = np.concatenate([np.fromiter(w.keys(), np.int64, len(w)) for w in found])
    order = np.argsort(values, kind="stable")
    values = values[order]
    ends = np.cumsum(np.concatenate([np.fromiter(w.values(), np.int64, len(w)) for w in found])[order])
    last = int(ends[-1]) - 1
    points: list[float | None] = []
    for percent in percents:
        position = last * percent / 100.0
        below = int(position)
        low = int(values[int(np.searchsorted(ends, below, side="right"))])
        high = int(values[int(np.searchsorted(ends, min(below + 1, last), side="right"))])
        points.append(low + (high - low) * (position - below))
    return points


def _percentiles(values: Sequence[int], percents: tuple[int, ...]) -> dict[str, float | None]:
    if not values:
        return {f"p{p}": None for p in percents}
    found = np.percentile(np.asarray(values, dtype=np.float64), percents)
    return {f"p{p}": float(value) / 1e9 for p, value in zip(percents, found, strict=True)}


def summarise(records: Sequence[RequestRecord], gaps: Mapping[int, int]) -> Summary:
    """Sum up a replay. `gaps`: {nanoseconds between two tokens of a request: how often}."""
    done = [r for r in records if r.status == "finished"]
    ends = [r.end - r.arrival for r in done if r.end is not None]
    firsts = [r.first_token - r.arrival for r in done if r.first_token is not None]
    duration = None
    if done:
        first = min(r.arrival for r in records)
        duration = (max(r.end for r in done if r.end is not None) - first) / 1e9
    itl = dict(zip(("p50", "p99"), weighted_percentiles([gaps], (50, 99)), strict=True))
    totals = [sum(parts) / 1e9 for parts in zip(*(r.ledger for r in records), strict=True)]
    return Summary(
        requests=len(records),
        finished=len(done),
        preemptions=sum(r.preemptions for r in records),
        recomputed_tokens=sum(r.recomputed for r in records),
        ttft_s=_percentiles(firsts, (50, 90, 99)),
        e2e_s=_percentiles(ends, (50, 90, 99)),
        itl_s={key: None if gap is None else gap / 1e9 for key, gap in itl.items()},
        generation_tokens_per_s=sum(r.output for r in done) / duration if duration else None,
        prompt_tokens_per_s=(sum(r.request.prompt_tokens for r in done) / duration if duration else None),
        duration_s=duration,
        ledger_s=dict(zip(LABELS, totals or [0.0] * len(LABELS), strict=True)),
    )


REQUEST_SCHEMA: dict[str, type[pl.DataType]] = {
    "request_id": pl.String,
    "status": pl.String,
    "arrival_s": pl.Float64,
    "first_token_s": pl.Float64,
    "finish_s": pl.Float64,
    "end_s": pl.Float64,
    "ttft_s": pl.Float64,
    "e2e_s": pl.Float64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "preemptions": pl.Int64,
    "recomputed_tokens": pl.Int64,
    **dict.fromkeys(LABELS, pl.Float64),
}

STEP_SCHEMA: dict[str, type[pl.DataType]] = {
    "step": pl.Int64,
    "time_s": pl.Float64,
    "duration_s": pl.Float64,
    "prefill_tokens": pl.Int64,
    "decode_requests": pl.Int64,
    "kv_tokens": pl.Int64,
    "free_blocks": pl.Int64,
    "free_end": pl.Int64,
    "usage": pl.Float64,
    "running": pl.Int64,
    "waiting": pl.Int64,
    "preempted": pl.Int64,
    "tokens": pl.Int64,
    "finished": pl.Int64,
}


def _seconds(time: int | None) -> float | None:
    return None if time is None else time / 1e9


def _row(record: RequestRecord) -> tuple[object, ...]:
    finish = record.end if record.status == "finished" else None
    first = record.first_token
    return (
        str(record.request.id),
        record.status,
        record.arrival / 1e9,
        _seconds(first),
        _seconds(finish),
        _seconds(record.end),
        None if first is None else (first - record.arrival) / 1e9,
        None if finish is None else (finish - record.arrival) / 1e9,
        record.request.prompt_tokens,
        record.output,
        record.cached,
        record.preemptions,
        record.recomputed,
        *(part / 1e9 for part in record.ledger),
    )


def requests_frame(records: Sequence[RequestRecord]) -> pl.DataFrame:
    """One row a request, `REQUEST_SCHEMA`; the ledger's columns sum to `end_s - arrival_s`."""
    rows = [_row(record) for record in records]
    return pl.DataFrame(rows, schema=REQUEST_SCHEMA, orient="row")


def steps_frame(log: StepLog, config: EngineConfig) -> pl.DataFrame:
    """One row a step, `STEP_SCHEMA`. `free_blocks` after scheduling; `free_end` and `usage` after the update."""
    raw = pl.DataFrame(log.rows, schema=dict.fromkeys(STEP_COLUMNS, pl.Int64), orient="row")
    return raw.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("step"),
        (pl.col("start") / 1e9).alias("time_s"),
        ((pl.col("end") - pl.col("start")) / 1e9).alias("duration_s"),
        *STEP_COLUMNS[2:7],
        (1.0 - pl.col("free_end") / usage_blocks(config)).alias("usage"),
        *STEP_COLUMNS[7:],
    ).cast(STEP_SCHEMA)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ReplayResult:
    """One finished replay: its requests in order of entry, its steps, and the gaps between tokens."""

    config: EngineConfig
    records: list[RequestRecord]
    gaps: dict[int, int]
    log: StepLog

    def requests(self) -> pl.DataFrame:
        """One row a request (`frames.REQUEST_SCHEMA`)."""
        return requests_frame(self.records)

    def steps(self) -> pl.DataFrame:
        """One row a step (`frames.STEP_SCHEMA`)."""
        return steps_frame(self.log, self.config)

    def summary(self) -> Summary:
        """Latencies, throughput, preemptions, ledger totals."""
        return summarise(self.records, self.gaps)


def make_replay(
    config: EngineConfig, step_time: StepTime, sharing: bool = False, keep_steps: bool = False, plain: bool = False
) -> FastReplay | V0FastReplay | PlainReplay:
    """A replay to be fed and advanced: the fast one where it knows the engine, else the plain one.

    The fast ones do not know V0 with prefix caching, priorities, delays or partial prefills, nor a few versions.

    Both have `add`, `advance(until_s)`, `observe()`, `run(requests)`, `all_records()`, `finished` and `gaps`.

    Args:
        config: the engine.
        step_time: how long a step takes.
        sharing: requests may name the content of their prompts.
        keep_steps: write the log of steps.
        plain: the plain one in any case.
    """
    if not plain and fast_path_covers(config):
        return FastReplay(config, step_time, sharing, keep_steps)
    if not plain and v0_fast_path_covers(config):
        return V0FastReplay(config, step_time, keep_steps)
    return PlainReplay(config, step_time, keep_steps)


def replay(config: EngineConfig, requests: Iterable[Request], step_time: StepTime, plain: bool = False) -> ReplayResult:
    """Replay a workload on a virtual clock.

    Args:
        config: the engine.
        requests: the workload; arrivals in seconds, or in steps where a request names its `arrival_step`.
        step_time: how long a step takes.
        plain: walk every request in every step, even where the fast path would give the same.

    Raises:
        WorkloadError, ConfigError: the input breaks a rule.
        NoProgressError, SchedulerFailedError: the run ended early.
    """
    requests = list(requests)
    sharing = any(request.prompt is not None for request in requests)
    engine = make_replay(config, step_time, sharing, keep_steps=True, plain=plain)
    engine.run(requests)
    return ReplayResult(config, engine.all_records(), engine.gaps, engine.log or StepLog())
