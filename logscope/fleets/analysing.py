"""The engines of a fleet, each inferred and replayed as a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NoReturn

from logscope.analysis import Analysis, EngineResult, engine_result, with_imbalance, worst_of
from logscope.fleets.executors import Executor
from logscope.log_frames import LogFrames
from logscope.servers import EngineLog, engine_logs

__all__ = ["analyze_fleet"]


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
    replay: bool = True,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Analysis:
    """`logscope.analysis.analyze`, with each engine as one task of `executor`: the same answer, whoever gives it.

    What comes back holds no functions (see `ReplayAnswer.predict`): candidates were replayed where the workload was inferred.
    """
    logs = engine_logs(data.frames, given)
    tasks = (_Task(_portion(data, log), log) for log in logs)
    work = partial(_result, replay=replay, seed=seed)
    results: list[EngineResult] = []
    for log, result in zip(
        logs, _counted(executor.map(work, tasks), len(logs), progress), strict=True
    ):
        results.append(_restored(result, log))
    results = with_imbalance(results)
    return Analysis(data, tuple(results), worst_of(results), seed, dict(given or {}))


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
    texts = {key: text for key, text in data.texts.items() if key[0] in own}
    place = log.facts.server, log.facts.run
    exceptions = {place: data.exceptions[place]} if place in data.exceptions else {}
    return LogFrames({}, data.coverage, texts, exceptions)


def _result(task: _Task, *, replay: bool, seed: int) -> EngineResult:
    """One engine's result, without what cannot travel: functions and frames that the asker has."""
    found = engine_result(
        task.data, task.log, replay=replay, with_advice=True, seed=seed, progress=None
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
        from logscope.drawn_replay import of_sample

        answer = replace(answer, drawn=of_sample(answer.sample, answer.config))
    return replace(result, log=log, context=replace(result.context, log=log), answer=answer)


def _not_here(*_: object) -> NoReturn:
    raise RuntimeError("this workload was inferred in another process")
