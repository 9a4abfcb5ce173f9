"""Replay a workload and keep what came of it: `replay` and its `ReplayResult`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from reference_engine.cost.step_time_part import StepTime
from reference_engine.model.config_part import EngineConfig
from reference_engine.model.ledger import RequestRecord
from reference_engine.model.step_log import StepLog
from reference_engine.model.workload import Request
from reference_engine.replay.fast_v0 import V0FastReplay
from reference_engine.replay.fast_v1 import FastReplay
from reference_engine.replay.frames import requests_frame, steps_frame
from reference_engine.replay.plain import PlainReplay
from reference_engine.replay.summary import Summary, summarise
from reference_engine.v0.bulk import v0_bulk_possible
from reference_engine.v1.fast_cover import bulk_possible

__all__ = ["ReplayResult", "make_replay", "replay"]


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
    config: EngineConfig,
    step_time: StepTime,
    sharing: bool = False,
    keep_steps: bool = False,
    plain: bool = False,
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
    if not plain and bulk_possible(config):
        return FastReplay(config, step_time, sharing, keep_steps)
    if not plain and v0_bulk_possible(config):
        return V0FastReplay(config, step_time, sharing, keep_steps)
    return PlainReplay(config, step_time, keep_steps)


def replay(
    config: EngineConfig, requests: Iterable[Request], step_time: StepTime, plain: bool = False
) -> ReplayResult:
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
