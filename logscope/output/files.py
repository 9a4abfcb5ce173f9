"""The files that `analyze` leaves beside its answer: frames, the inferred workload, a trace of its replay.

Each is written beside its place first and then renamed, so that no half file is ever found.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import polars as pl

from logscope.analysis import Analysis, EngineResult
from logscope.atomic_files import whole_file, whole_text
from logscope.diagnosis.lanes import report_frames
from logscope.diagnosis.replay_answer import ReplayAnswer
from logscope.errors import LogscopeError
from logscope.server.engines import engine_config
from reference_engine.model.workload import Request

__all__ = [
    "NothingReplayedError",
    "frames_of_report",
    "write_frames",
    "write_replay_trace",
    "write_workload",
]

MAX_POINTS = 20_000


class NothingReplayedError(LogscopeError):
    """A file of the replay was asked for and there is no replay."""

    status = 3


def frames_of_report(found: Analysis) -> dict[str, pl.DataFrame]:
    """The log's frames by family, and those of the worst engine's replay."""
    frames = dict(found.data.frames)
    worst = found.worst_result
    if worst is not None and worst.answer is not None:
        answer = worst.answer
        frames |= report_frames(
            answer.drawn,
            answer.requests_frame,
            answer.steps_frame,
            answer.spikes,
            [a.candidate.changes for a in worst.advice if a.scenario["duration_s"] is not None],
            worst.log.facts,
            answer.origin,
        )
    return frames


def write_frames(found: Analysis, folder: Path) -> None:
    """Write `<name>.parquet` for each frame of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames_of_report(found).items():
        stored = found.data.stored.get(name)
        with whole_file(folder / f"{name}.parquet") as part:
            if stored is not None and stored.whole:
                stored.write(part)
            else:
                frame.write_parquet(part)


def write_workload(found: Analysis, path: Path) -> None:
    """Write the worst engine's inferred requests as JSON lines, and beside them `<name>.config.json`: `logscope replay` reads both.

    Raises NothingReplayedError where nothing was inferred.
    """
    from reference_engine.traces.json_lines import write_requests

    result, answer = _replayed(found)
    config = engine_config(result.log.facts)
    document: dict[str, object] = {}
    if config is not None:
        document = {
            name: getattr(config, name)
            for name in type(config).__slots__
            if name != "async_scheduling"
        }
        document["async"] = config.async_scheduling
    steps = ("base_s", "per_prefill_token_s", "per_decode_s", "per_kv_token_s")
    document["step_time"] = {name: answer.step_time[name] for name in steps}
    requests = [_named_prefix(r) for r in answer.workload]
    _whole(path, lambda out: write_requests(out, requests))
    _whole(
        path.with_name(path.name + ".config.json"), lambda out: json.dump(document, out, indent=1)
    )


def write_replay_trace(found: Analysis, path: Path) -> None:
    """Write the worst engine's replay as a trace for Perfetto: a lane a request, counters of KV usage, running and waiting.

    Raises NothingReplayedError where nothing was inferred.
    """
    from reference_engine.replay.recording import CounterPoint, write_trace

    _, answer = _replayed(found)
    ids = frozenset(answer.requests_frame["request_id"].to_list())
    phases = answer.drawn.lanes(ids) if answer.drawn is not None else ()
    columns = answer.steps_frame.select("time_s", "usage", "running", "waiting")
    points = [CounterPoint(*row) for row in columns.rows()]
    _whole(path, lambda out: write_trace(out, list(phases), points, max_points=MAX_POINTS))


def _replayed(found: Analysis) -> tuple[EngineResult, ReplayAnswer]:
    worst = found.worst_result
    if worst is None or worst.answer is None:
        raise NothingReplayedError(
            "no workload could be inferred from this log, so there is nothing of a replay to write"
        )
    return worst, worst.answer


def _named_prefix(request: Request) -> Request:
    """A shared head in the words of a workload file."""
    if not request.prompt or len(request.prompt) < 2:
        return request
    (name, length), *rest = request.prompt
    return replace(request, prompt=((f"prefix:{name}", length), *rest))


def _whole(path: Path, write: Callable[[TextIO], None]) -> None:
    with whole_text(path) as out:
        write(out)
