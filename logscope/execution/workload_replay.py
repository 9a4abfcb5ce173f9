"""What `logscope replay` does, as a library: workload files in, replays and their figures out.

`open_job` joins a workload with its engine and clock, `run_job` replays it, `result_object` gives the JSON shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TextIO

import polars as pl

from logscope.atomic_files import whole_text
from logscope.errors import LogscopeError
from logscope.inference.prediction import LABELS, slow_and_typical
from logscope.sanitize import json_document
from reference_engine.cost.step_time import LinearStepTime, StepTime
from reference_engine.model import ConfigError, NoProgressError, SchedulerFailedError, WorkloadError
from reference_engine.model.request import Request
from reference_engine.replay.plain import PlainReplay, drive, make_scheduler
from reference_engine.replay.recording import RecordedReplay, write_trace
from reference_engine.replay.results import ReplayResult, replay
from reference_engine.traces import Workload, read_workload
from reference_engine.traces.config_file import Setup, nominal_clock, nominal_setup, setup_from_document
from reference_engine.traces.golden import step_file_name, write_steps
from reference_engine.traces.workload_file import open_text

__all__ = ["Job", "JobResult", "changed_job", "open_job", "read_config", "result_object", "run_job"]

_NOMINAL = "an 8-billion-parameter model in bf16 on one H100"
# One second a step: times of a workload that arrives by steps are then step numbers.
_STEP_CLOCK = LinearStepTime(1.0, 0.0, 0.0, 0.0)
_LARGEST_CONFIG = 1 << 24
_ENDED_EARLY = (NoProgressError, SchedulerFailedError)


@dataclass(frozen=True, slots=True)
class Job:
    """One workload with the engine and the clock that it runs on. `notes` say what was taken as given."""

    workload: Workload
    setup: Setup
    clock: StepTime
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobResult:
    """What came of a job. `error`: why the run ended early, as the real engine would have (None: it finished)."""

    job: Job
    replay: ReplayResult
    error: str | None


def read_config(path: Path) -> Setup:
    """The configuration file of `--config`. Raises `LogscopeError` with a sentence that names it."""
    try:
        with open_text(path) as text:
            document = json_document(text.read(_LARGEST_CONFIG))
    except WorkloadError as error:
        raise LogscopeError(str(error)) from None
    except ValueError as error:
        raise LogscopeError(f"{path}: not a JSON configuration ({error})") from None
    if not isinstance(document, dict):
        raise LogscopeError(f"{path}: the configuration must be a JSON object")
    try:
        return setup_from_document(document)
    except ConfigError as error:
        raise LogscopeError(f"{path}: {error}") from None


def open_job(path: Path, given: Setup | None) -> Job:
    """Read a workload and find its engine: the given one, the file's own, or the stand-in that a note names.

    Raises `WorkloadError` for a file that is no workload.
    """
    workload = read_workload(path)
    notes = list(workload.notes)
    setup = given or workload.setup
    if setup is None:
        setup = nominal_setup()
        notes.append(f"no configuration: replayed as {_NOMINAL} under vLLM's defaults")
    clock = setup.clock
    if clock is None and workload.by_step:
        clock = _STEP_CLOCK
        notes.append("no clock: every step counts as one second")
    elif clock is None:
        clock = nominal_clock(setup.config.async_scheduling)
        notes.append(f"no clock (step_time, or hardware and model): step times of {_NOMINAL}")
    return Job(workload, setup, clock, tuple(notes))


def changed_job(job: Job, changes: Mapping[str, Any]) -> Job:
    """The job under settings of `--set`: those of the scheduler, and `arrival_scale` (2 = twice the load).

    Raises `LogscopeError` for a setting whose effect a workload file alone does not tell.
    """
    engine_fields = {field.name for field in fields(job.setup.config)}
    workload = job.workload
    settings = {}
    for key, value in changes.items():
        if key in engine_fields:
            settings[key] = value
        elif key == "arrival_scale":
            requests = tuple(_sooner(request, float(value)) for request in workload.requests)
            workload = replace(workload, requests=requests)
        else:
            raise LogscopeError(
                f"--set {key}: what it changes depends on hardware and model; give them in --config instead"
            )
    setup = replace(job.setup, config=replace(job.setup.config, **settings))
    return replace(job, setup=setup, workload=workload)


def _sooner(request: Request, scale: float) -> Request:
    abort = request.abort_s
    return replace(
        request,
        arrival_s=request.arrival_s / scale,
        abort_s=None if abort is None else request.arrival_s / scale + (abort - request.arrival_s),
    )


def run_job(job: Job, steps_dir: Path | None = None, trace: Path | None = None) -> JobResult:
    """Replay a job; write each step's decisions and the trace where they are asked for.

    Raises `ConfigError` or `WorkloadError` where the replay refuses its input.
    """
    config, requests = job.setup.config, job.workload.requests
    if steps_dir is not None and job.workload.by_step:
        _write_driven_steps(job, steps_dir)
        steps_dir = None
    if steps_dir is not None or trace is not None:
        return _run_recorded(job, steps_dir, trace)
    try:
        return JobResult(job, replay(config, requests, job.clock), None)
    except _ENDED_EARLY as error:
        # Once more, to keep what there is up to the end.
        plain = PlainReplay(config, job.clock)
        _run_to_end(plain, job)
        return JobResult(job, _result(plain), str(error))


def _write_driven_steps(job: Job, folder: Path) -> None:
    """Workloads that name their steps need no clock: the bare loop, and only its decisions."""
    with _written_beside(folder / step_file_name(Path(job.workload.source))) as out:
        turns = drive(make_scheduler(job.setup.config), job.workload.requests)
        try:
            for _turn in write_steps(out, turns):
                pass
        except _ENDED_EARLY:
            pass  # the file ends there, as the real engine did; the replay names the reason


def _run_recorded(job: Job, steps_dir: Path | None, trace: Path | None) -> JobResult:
    error = None
    if steps_dir is None:
        engine = RecordedReplay(job.setup.config, job.clock)
        error = _run_to_end(engine, job)
    else:
        with _written_beside(steps_dir / step_file_name(Path(job.workload.source))) as out:
            engine = RecordedReplay(job.setup.config, job.clock, _StepWriter(out))
            error = _run_to_end(engine, job)
    engine.finish()
    if trace is not None:
        with _written_beside(trace) as out:
            write_trace(out, engine.phases.phases, engine.points())
    return JobResult(job, _result(engine), error)


class _StepWriter:
    """Takes turns one by one and writes them as they come."""

    def __init__(self, out: TextIO) -> None:
        self._turn: Any = None
        self._writing = write_steps(out, iter(lambda: self._turn, None))

    def __call__(self, turn: Any) -> None:
        self._turn = turn
        next(self._writing)


def _run_to_end(engine: PlainReplay, job: Job) -> str | None:
    try:
        engine.run(job.workload.requests)
    except _ENDED_EARLY as error:
        return str(error)
    return None


def _result(engine: PlainReplay) -> ReplayResult:
    assert engine.log is not None
    return ReplayResult(engine.config, engine.all_records(), engine.gaps, engine.log)


@contextmanager
def _written_beside(path: Path) -> Iterator[TextIO]:
    """A file that appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(path) as out:
        yield out


def result_object(result: JobResult) -> dict[str, Any]:
    """The object of `replay --json` for one workload: the figures of a what-if's side, steps, and the ledger."""
    summary = result.replay.summary()
    requests = result.replay.requests()
    return {
        "workload": result.job.workload.source,
        "format": result.job.workload.format,
        "engine": result.job.setup.config.engine,
        "vllm_version": result.job.setup.config.version,
        "requests": len(result.job.workload.requests),
        "finished": summary.finished,
        "steps": result.replay.steps().height,
        "preemptions": summary.preemptions,
        "recomputed_tokens": summary.recomputed_tokens,
        "ttft_s": summary.ttft_s,
        "e2e_s": summary.e2e_s,
        "itl_s": summary.itl_s,
        "generation_tokens_per_s": summary.generation_tokens_per_s,
        "prompt_tokens_per_s": summary.prompt_tokens_per_s,
        "duration_s": summary.duration_s,
        "ledger": _ledger(requests),
        "error": result.error,
        "notes": list(result.job.notes),
    }


def _ledger(requests: pl.DataFrame) -> dict[str, Any]:
    """Totals over all requests, and the means of the slow and of the typical ones (null where nothing finished)."""
    found: dict[str, Any] = dict(slow_and_typical(requests))
    if not found:
        nothing = dict.fromkeys(LABELS)
        totals = {label: float(requests[label].sum()) for label in LABELS}
        found = {"total_s": totals, "slow_s": nothing, "typical_s": nothing}
    return found
