"""What an inference says of one engine, whichever evidence it had: `InferredReplay`.

`logscope.inference.windows` makes one from statistics, request and access lines, `logscope.inference.steps` one from iteration lines.

How an analysis is worked out, as one value that is handed on: `Effort`.

A `Mapper` maps a function over items and gives the results in their order, as `logscope.execution.executors` do; who does what does not
change a result. Function and items can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol, TypeVar

import polars as pl

from logscope.evidence.preemptions import Stretch
from logscope.inference.prediction import Ledger, Samples
from logscope.server.scenario import Scenario
from reference_engine.cost.step_time import LinearStepTime
from reference_engine.replay.results import ReplayResult

__all__ = [
    "FAIR_FIT",
    "CoveredSpan",
    "Effort",
    "InferredReplay",
    "Mapper",
    "PreemptionCount",
    "StepAccount",
    "serially",
]
FAIR_FIT = 0.5
"""Mean fit of the observed series from which a replay may decide the verdict."""

FAIR_FIT_IN_PART = 0.7
"""The same where the replay models the server in part."""

MOSTLY_EXPLAINED, MOSTLY_COVERED = 0.5, 0.85
"""From where on iteration lines decide alone."""


@dataclass(frozen=True, slots=True)
class PreemptionCount:
    """Preemptions in the whole log: bounds, value, tokens computed again, and when."""

    low: float
    value: float
    high: float
    recomputed_tokens: float
    timeline: tuple[Stretch, ...] = ()

    @property
    def bounds(self) -> tuple[float, float, float]:
        """Low, value, high."""
        return self.low, self.value, self.high


@dataclass(frozen=True, slots=True)
class StepAccount:
    """How well iteration lines account for themselves.

    `explained`: how well the scheduler's rules explain the steps, 0..1; `coverage`: share of the tokens of the statistics lines that the
    steps hold (None: no such lines); `known_arrivals`: whether the log shows when requests came, else they are placed by the numbers of
    waiting ones; `step_time_error`: the median relative error of the step time; `evictions`: when each happened;
    `by_stamps`: step times come from the lines' times, as the printed ones cannot be true (asynchronous scheduling on a GPU).
    """

    explained: float
    coverage: float | None
    known_arrivals: bool
    step_time_error: float
    evictions: tuple[datetime, ...]
    by_stamps: bool = False

    @property
    def trusted(self) -> bool:
        """Whether it should stand instead of an inference from statistics."""
        return self.explained >= MOSTLY_EXPLAINED and (self.coverage is None or self.coverage >= MOSTLY_COVERED)


@dataclass(frozen=True, slots=True)
class CoveredSpan:
    """The part of a long log that was looked at, on the record's clock, and its `intervals` (statistics lines)."""

    start: datetime
    end: datetime
    intervals: int


@dataclass(frozen=True)
class InferredReplay:
    """A workload that explains one engine's log, replayed; latencies and ledger in seconds.

    `origin` is the log's time at the replay's second 0. `replay` is the run of a representative workload, the first of `samples`;
    `screening` are a few of the samples, for changes that are tried by the dozen. `fit`: of running, waiting, kv_usage and generation to
    what the log shows, 0..1 (None: nothing to compare). `level`: the evidence that there was (`steps`, `requests`, `statistics`, `bare`);
    `slow_each`: the ledger's `slow_s` in each of several equally likely workloads (one with iteration lines, which leave no choice);
    `steps` what more iteration lines tell, `span` what part of a log of statistics was looked at. `unsupported`: what the server uses
    and the replay does not model.
    """

    origin: datetime
    level: str
    requests: int
    preemptions: PreemptionCount
    pressure: str
    fit: Mapping[str, float | None]
    latency: Mapping[str, Any]
    ledger: Ledger
    step_time: LinearStepTime
    replay: ReplayResult
    samples: Samples
    screening: Samples
    seed: int = 0
    steps: StepAccount | None = None
    span: CoveredSpan | None = None
    unsupported: tuple[str, ...] = ()
    slow_each: tuple[Mapping[str, float], ...] = ()

    def predict(self, scenario: Scenario | None) -> Mapping[str, Any]:
        """The keys of `whatif --json` under a scenario; None is the present configuration."""
        return self.samples.predict(scenario)

    @cached_property
    def requests_frame(self) -> pl.DataFrame:
        """Requests of the representative replay with their ledgers (`reference_engine.replay.results.REQUEST_SCHEMA`)."""
        return self.replay.requests()

    @cached_property
    def steps_frame(self) -> pl.DataFrame:
        """Steps of that replay (`reference_engine.replay.results.STEP_SCHEMA`)."""
        return self.replay.steps()

    @property
    def arriving_s(self) -> float:
        """Seconds from the first arrival to the last."""
        times = self.requests_frame["arrival_s"]
        last, first = (times.max(), times.min()) if len(times) else (0.0, 0.0)
        return float(last or 0.0) - float(first or 0.0)  # type: ignore[arg-type]

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


T = TypeVar("T")
R = TypeVar("R")


class Mapper(Protocol):
    """Maps a function over items."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results, in the order of `items`."""


def serially(function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
    """Each when it is asked for, here."""
    return map(function, items)


@dataclass(frozen=True, slots=True)
class Effort:
    """How one analysis is worked out: its chance, who is told of its progress, and who does what is independent of each other.

    `seed`: same input and seed, same answer; `progress` is called with the share that is done, 0 to 1; `map` does independent parts.
    """

    seed: int = 0
    progress: Callable[[float], None] | None = None
    map: Mapper = serially

    def report(self, share: float) -> None:
        """Tell the share that is done, where somebody listens."""
        if self.progress is not None:
            self.progress(share)

    def part(self, index: int, of: int) -> Effort:
        """The effort of one of several equal parts, whose progress is its share of the whole."""
        if self.progress is None:
            return self
        return replace(self, progress=lambda share: self.report((index + share) / of))
