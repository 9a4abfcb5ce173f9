"""The engines of a fleet, each inferred and replayed as a task of its own.

Reading and analysing on an executor; in this process alone nothing is split.

Several servers side by side: which of them suffer, and one analysis for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from logscope.analysis import Analysis, EngineResult, analyze, engine_result, with_imbalance, worst_of
from logscope.diagnosis.verdict import RANK
from logscope.execution.executors import Executor, RayCluster
from logscope.execution.fleet_reading import read_fleet
from logscope.inference.result import Effort
from logscope.log.frames import LogFrames, read
from logscope.log.span import Reading
from logscope.server.engines import EngineLog, engine_logs

__all__ = ["analyze_fleet", "analyze_on", "read_on", "server_rows", "servers_of"]
_ALONE = Effort()
_MANY = 2  # engines a place, from which on the last ones leave few places idle
_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class _Task:
    """One engine, with the lines and exceptions of its sources."""

    data: LogFrames
    log: EngineLog


def analyze_fleet(
    data: LogFrames, executor: Executor, *, given: Mapping[str, Any] | None = None, effort: Effort = _ALONE
) -> Analysis:
    """`logscope.analysis.analyze` on the places of `executor`: the same answer, whoever gives it.

    Where there are many engines each is a task as a whole: candidates are replayed where the workload was inferred. Of a few engines the
    passes of the inference and the replays of the candidates are tasks, so that no place is idle.
    """
    logs = engine_logs(data.frames, given)
    if len(logs) >= _MANY * executor.width:
        results = _whole(data, logs, executor, Effort(effort.seed))
    else:
        results = _in_parts(data, logs, Effort(effort.seed, map=executor.map))
    found = []
    for done, result in enumerate(results, 1):
        effort.report(done / len(logs))
        found.append(result)
    found = with_imbalance(found)
    return Analysis(data, tuple(found), worst_of(found), effort.seed, dict(given or {}))


def _whole(data: LogFrames, logs: Sequence[EngineLog], executor: Executor, effort: Effort) -> Iterator[EngineResult]:
    tasks = (_Task(_portion(data, log), log) for log in logs)
    for log, result in zip(logs, executor.map(partial(_result, effort), tasks), strict=True):
        yield replace(result, log=log, context=replace(result.context, log=log))


def _in_parts(data: LogFrames, logs: Sequence[EngineLog], effort: Effort) -> Iterator[EngineResult]:
    """A thread for each engine hands its parts out and waits for them."""
    threads = ThreadPoolExecutor(max(1, min(len(logs), _MOST_THREADS)))
    try:
        yield from threads.map(partial(engine_result, data, effort=effort), logs)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _portion(data: LogFrames, log: EngineLog) -> LogFrames:
    """Of the lines that may serve as evidence, those of the engine's sources."""
    own = {name for frame in log.frames.values() for name in frame["source"].unique().to_list()}
    texts = data.texts.of_sources(own)
    stored = {family: rows.of_server(log.facts.server) for family, rows in data.stored.items()}
    place = log.facts.server, log.facts.run
    exceptions = {place: data.exceptions[place]} if place in data.exceptions else {}
    return LogFrames({}, data.coverage, texts, exceptions, stored)


def _result(effort: Effort, task: _Task) -> EngineResult:
    """One engine's result, without the frames and lines that the asker has."""
    found = engine_result(task.data, task.log, effort)
    bare = EngineLog(task.log.facts, {})
    return replace(found, log=bare, context=replace(found.context, log=bare, texts={}))


def read_on(executor: Executor, sources: Sequence[Any], reading: Reading, *, state: Path | None = None) -> LogFrames:
    """Read `sources`, the streams in parallel where `executor` has several places to run; with `state` only what is new, one by one."""
    if state is not None:
        from logscope.log.state.frames import read_with_state

        return read_with_state(state / "analyze", sources, reading)
    if executor.width == 1 and not isinstance(executor, RayCluster):
        return read(sources, reading)
    return read_fleet(sources, reading, executor)


def analyze_on(
    executor: Executor, data: LogFrames, *, given: Mapping[str, Any] | None, replay: bool, effort: Effort
) -> Analysis:
    """Analyse `data`: the engines in parallel where `executor` has several places to run, else the replays of each as it sees fit."""
    if executor.width > 1 and replay:
        return analyze_fleet(data, executor, given=given, effort=effort)
    return analyze(data, given=given, replay=replay, effort=replace(effort, map=executor.map))


def server_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """One row a server, the worst first: what its worst engine says, and preemptions summed over its engines and starts.

    Keys: server, names (its sources), verdict, pressure, engines, imbalance (the finding's title or None), preemptions (value),
    p99_e2e_s, p99_ttft_s, worst_engine (index into `engines[]` of the document).
    """
    rows = [_row(analysis, server, part) for server, part in _by_server(analysis).items()]
    return sorted(rows, key=_badness)


def servers_of(analysis: Analysis) -> dict[int, Analysis]:
    """The analysis of each server alone, by number; the counts of what was read stay those of all."""
    found = {}
    for server, part in _by_server(analysis).items():
        frames = {
            family: own
            for family, frame in analysis.data.frames.items()
            if (own := frame.filter(pl.col("server") == server)).height
        }
        results = tuple(result for _, result in part)
        found[server] = replace(
            analysis,
            data=replace(analysis.data, frames=frames),
            engines=results,
            worst=worst_of(results),
            total_preemptions=None,
            latency=None,
        )
    return found


def _by_server(analysis: Analysis) -> dict[int, list[tuple[int, EngineResult]]]:
    found: dict[int, list[tuple[int, EngineResult]]] = {}
    for index, result in enumerate(analysis.engines):
        found.setdefault(result.log.facts.server, []).append((index, result))
    return found


def _row(analysis: Analysis, server: int, part: Sequence[tuple[int, EngineResult]]) -> dict[str, Any]:
    worst = worst_of([result for _, result in part]) or 0
    index, result = part[worst]
    answer = result.answer
    latency = (result.latency or (answer.latency if answer is not None else None)) or {}
    counts = [r.preemptions.value for _, r in part if r.preemptions.value is not None]
    uneven = [f.title for _, r in part for f in r.findings if f.id == "engine-imbalance"]
    return {
        "server": server,
        "names": _names(analysis, server),
        "verdict": result.verdict,
        "pressure": result.pressure,
        "engines": len(part),
        "imbalance": uneven[0] if uneven else None,
        "preemptions": sum(counts) if counts else None,
        "p99_e2e_s": (latency.get("e2e_s") or {}).get("p99"),
        "p99_ttft_s": (latency.get("ttft_s") or {}).get("p99"),
        "worst_engine": index,
    }


def _names(analysis: Analysis, server: int) -> list[str]:
    """The sources in which the server speaks, in the order of the input; pod or unit where an envelope names it."""
    own: set[str] = set()
    places: set[str] = set()
    for frame in analysis.data.frames.values():
        part = frame.filter(pl.col("server") == server)
        own |= set(part["source"].unique().to_list())
        for name in ("pod", "unit", "container"):
            places |= set(part[name].drop_nulls().unique().to_list())
    return sorted(places) or [s for s in analysis.data.coverage.sources if s in own]


_NOT_SERVING = ("startup-kv-too-small", "startup-failed", "engine-crash", "runtime-oom", "engine-stall")
"""Of several servers those that serve nobody stand above those that are slow."""


def _badness(row: Mapping[str, Any]) -> tuple[int, float, float, int]:
    order = (*_NOT_SERVING, *(v for v in RANK if v not in _NOT_SERVING))
    rank = order.index(row["verdict"]) if row["verdict"] in order else len(order)
    return rank, -(row["p99_e2e_s"] or 0.0), -(row["preemptions"] or 0.0), row["server"]
