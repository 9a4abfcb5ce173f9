"""The engines of a fleet, each inferred and replayed as a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NoReturn

from logscope.analysis import Analysis, EngineResult, engine_result, with_imbalance, worst_of
from logscope.execution.executors import Executor
from logscope.inference.effort import Spread
from logscope.log.frames import LogFrames
from logscope.server.engines import EngineLog, engine_logs

__all__ = ["analyze_fleet"]

_MANY = 2  # engines a place, from which on the last ones leave few places idle
_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class _Task:
    """One engine, with the lines and exceptions of its sources."""

    data: LogFrames
    log: EngineLog


def analyze_fleet(
    data: LogFrames,
    executor: Executor,
    *,
    given: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Analysis:
    """`logscope.analysis.analyze` on the places of `executor`: the same answer, whoever gives it.

    Where there are many engines each is a task as a whole, and what comes back holds no functions (see `ReplayAnswer.predict`):
    candidates were replayed where the workload was inferred. Of a few engines the passes of the inference and the replays of the
    candidates are tasks, so that no place is idle.
    """
    logs = engine_logs(data.frames, given)
    if len(logs) >= _MANY * executor.width:
        results = _whole(data, logs, executor, seed)
    else:
        results = _in_parts(data, logs, executor, seed)
    found = with_imbalance(list(_counted(results, len(logs), progress)))
    return Analysis(data, tuple(found), worst_of(found), seed, dict(given or {}))


def _whole(
    data: LogFrames, logs: Sequence[EngineLog], executor: Executor, seed: int
) -> Iterator[EngineResult]:
    tasks = (_Task(_portion(data, log), log) for log in logs)
    for log, result in zip(logs, executor.map(partial(_result, seed=seed), tasks), strict=True):
        yield _restored(result, log)


def _in_parts(
    data: LogFrames, logs: Sequence[EngineLog], executor: Executor, seed: int
) -> Iterator[EngineResult]:
    """A thread for each engine hands its parts out and waits for them."""
    threads = ThreadPoolExecutor(max(1, min(len(logs), _MOST_THREADS)))
    try:
        work = partial(_engine, data, spread=executor.map, seed=seed)
        yield from threads.map(work, logs)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _engine(data: LogFrames, log: EngineLog, *, spread: Spread, seed: int) -> EngineResult:
    return engine_result(
        data, log, replay=True, with_advice=True, seed=seed, progress=None, spread=spread
    )


def _counted(
    results: Iterator[EngineResult], total: int, progress: Callable[[float], None] | None
) -> Iterator[EngineResult]:
    for done, result in enumerate(results, 1):
        if progress is not None:
            progress(done / total)
        yield result


def _portion(data: LogFrames, log: EngineLog) -> LogFrames:
    """Of the lines that may serve as evidence, those of the engine's sources."""
    own = {name for frame in log.frames.values() for name in frame["source"].unique().to_list()}
    texts = data.texts.of_sources(own)
    stored = {family: rows.of_server(log.facts.server) for family, rows in data.stored.items()}
    place = log.facts.server, log.facts.run
    exceptions = {place: data.exceptions[place]} if place in data.exceptions else {}
    return LogFrames({}, data.coverage, texts, exceptions, stored)


def _result(task: _Task, *, seed: int) -> EngineResult:
    """One engine's result, without what need not travel: functions, and frames that the asker has."""
    found = engine_result(
        task.data, task.log, replay=True, with_advice=True, seed=seed, progress=None
    )
    bare = EngineLog(task.log.facts, {})
    answer = found.answer
    if answer is not None:
        names = [f.name for f in fields(answer) if callable(getattr(answer, f.name))]
        functions: dict[str, Any] = dict.fromkeys(names, _not_here)
        answer = replace(answer, drawn=None, **functions)
    return replace(
        found, log=bare, context=replace(found.context, log=bare, texts={}), answer=answer
    )


def _restored(result: EngineResult, log: EngineLog) -> EngineResult:
    answer = result.answer
    if answer is not None and answer.sample is not None and answer.config is not None:
        from logscope.diagnosis.lanes import of_sample

        answer = replace(answer, drawn=of_sample(answer.sample, answer.config))
    return replace(result, log=log, context=replace(result.context, log=log), answer=answer)


def _not_here(*_: object) -> NoReturn:
    raise RuntimeError("this workload was inferred in another process")
