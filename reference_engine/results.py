"""Replay a workload and keep what came of it: `replay` and its `ReplayResult`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from .config import EngineConfig
from .frames import requests_frame, steps_frame
from .ledger import RequestRecord
from .replay import PlainReplay
from .step_log import StepLog
from .step_time import StepTime
from .summary import Summary, summarise
from .workload import Request

__all__ = ["ReplayResult", "replay"]


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
    engine = PlainReplay(config, step_time)
    engine.run(requests)
    return ReplayResult(config, engine.all_records(), engine.gaps, engine.log or StepLog())
