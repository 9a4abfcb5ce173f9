"""Reading and analysing on an executor; in this process alone nothing is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from logscope.analysis import Analysis, analyze
from logscope.execution.executors import Executor, RayCluster
from logscope.execution.fleet_analysis import analyze_fleet
from logscope.execution.fleet_reading import read_fleet
from logscope.log.analysis_rows import Wanted
from logscope.log.frames import LogFrames, read_log
from logscope.log.span import Span

__all__ = ["analyze_on", "read_on"]


def read_on(
    executor: Executor,
    sources: Sequence[Any],
    span: Span,
    *,
    year: int | None = None,
    state: Path | None = None,
    wanted: Wanted = "replay",
) -> LogFrames:
    """Read `sources`, the streams in parallel where `executor` has several places to run; with `state` only what is new, one by one.

    `wanted`: see `logscope.log.analysis_rows`.
    """
    if state is not None:
        from logscope.log.state.frames import read_with_state

        return read_with_state(state / "analyze", sources, span, year=year, wanted=wanted)
    if executor.width == 1 and not isinstance(executor, RayCluster):
        return read_log(sources, span, year=year, wanted=wanted)
    return read_fleet(sources, span, executor, year=year, wanted=wanted)


def analyze_on(
    executor: Executor,
    data: LogFrames,
    *,
    given: Mapping[str, Any] | None,
    replay: bool,
    seed: int,
    progress: Callable[[float], None] | None,
) -> Analysis:
    """Analyse `data`: the engines in parallel where `executor` has several places to run, else the replays of each as it sees fit."""
    if executor.width > 1 and replay:
        return analyze_fleet(data, executor, given=given, seed=seed, progress=progress)
    return analyze(
        data, given=given, replay=replay, seed=seed, progress=progress, spread=executor.map
    )
