"""The files that `analyze` leaves beside its answer: frames, the inferred workload, a trace of its replay.

Each is written beside its place first and then renamed, so that no half file is ever found.

The results of replays for people (tables), for programs (JSON) and for notebooks (Parquet).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from logscope.analysis import Analysis, EngineResult
from logscope.atomic_files import whole_file, whole_text
from logscope.diagnosis.spikes import lanes
from logscope.errors import LogscopeError
from logscope.execution.workload_replay import JobResult, result_object
from logscope.inference.result import InferredReplay
from logscope.output.answer import frames_of_report
from logscope.server.engines import engine_config
from logscope.wording import LEDGER_LABELS, duration, percent
from reference_engine.model.request import Request

__all__ = [
    "NothingReplayedError",
    "print_results",
    "results_json",
    "write_frames",
    "write_replay_frames",
    "write_replay_trace",
    "write_workload",
]
MAX_POINTS = 20_000


class NothingReplayedError(LogscopeError):
    """A file of the replay was asked for and there is no replay."""

    status = 3


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
    from reference_engine.traces.workload_file import write_requests

    result, answer = _replayed(found)
    config = engine_config(result.log.facts)
    document: dict[str, object] = {}
    if config is not None:
        document = {name: getattr(config, name) for name in type(config).__slots__ if name != "async_scheduling"}
        document["async"] = config.async_scheduling
    steps = ("base_s", "per_prefill_token_s", "per_decode_s", "per_kv_token_s")
    document["step_time"] = {name: getattr(answer.step_time, name) for name in steps}
    requests = [_named_prefix(r) for r in answer.samples.first.requests]
    _whole(path, lambda out: write_requests(out, requests))
    _whole(path.with_name(path.name + ".config.json"), lambda out: json.dump(document, out, indent=1))


def write_replay_trace(found: Analysis, path: Path) -> None:
    """Write the worst engine's replay as a trace for Perfetto: a lane a request, counters of KV usage, running and waiting.

    Raises NothingReplayedError where nothing was inferred.
    """
    from reference_engine.replay.recording import CounterPoint, write_trace

    _, answer = _replayed(found)
    ids = frozenset(answer.requests_frame["request_id"].to_list())
    phases = lanes(answer.samples, ids)
    columns = answer.steps_frame.select("time_s", "usage", "running", "waiting")
    points = [CounterPoint(*row) for row in columns.rows()]
    _whole(path, lambda out: write_trace(out, list(phases), points, max_points=MAX_POINTS))


def _replayed(found: Analysis) -> tuple[EngineResult, InferredReplay]:
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


def results_json(results: Sequence[JobResult]) -> str:
    """The document of `replay --json`."""
    document = {"schema_version": 1, "results": [result_object(result) for result in results]}
    return json.dumps(document, allow_nan=False)


def write_replay_frames(folder: Path, results: Sequence[JobResult]) -> None:
    """`steps.parquet` and `requests.parquet`, all workloads below each other with their name in column `workload`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("steps", "requests"):
        parts = [
            getattr(result.replay, name)().with_columns(workload=pl.lit(result.job.workload.source))
            for result in results
        ]
        with whole_file(folder / f"{name}.parquet") as part:
            pl.concat(parts).write_parquet(part)


def print_results(results: Sequence[JobResult], color: str = "auto") -> None:
    """A block of figures a workload on standard output."""
    console = Console(
        force_terminal={"always": True, "never": False}.get(color), no_color=color == "never" or None, highlight=False
    )
    for result in results:
        figures = result_object(result)
        console.print(Text(figures["workload"], style="bold"), soft_wrap=True)
        console.print(Text(_headline(figures)), soft_wrap=True)
        console.print(_latencies(figures))
        console.print(_ledger(figures))


def _headline(figures: dict[str, Any]) -> str:
    parts = [
        f"{figures['finished']:,} of {figures['requests']:,} requests finished in {figures['steps']:,} steps",
        f"{duration(figures['duration_s'])} in all",
        f"{figures['preemptions']:,} preemptions ({figures['recomputed_tokens']:,} tokens recomputed)",
    ]
    rate = figures["generation_tokens_per_s"]
    if rate is not None:
        parts.append(f"{rate:,.1f} output tokens/s")
    return "; ".join(parts)


def _latencies(figures: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("latency")
    for percentile in ("p50", "p90", "p99"):
        table.add_column(percentile, justify="right")
    for key, title in (("ttft_s", "first token"), ("e2e_s", "whole request"), ("itl_s", "between tokens")):
        values = figures[key]
        table.add_row(title, *(duration(values.get(p)) if p in values else "" for p in ("p50", "p90", "p99")))
    return table


def _ledger(figures: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("where the time went")
    for title in ("all requests", "share", "slow (mean)", "typical (mean)"):
        table.add_column(title, justify="right")
    ledger = figures["ledger"]
    whole = sum(ledger["total_s"].values())
    for label, spent in ledger["total_s"].items():
        table.add_row(
            LEDGER_LABELS.get(label, label),
            duration(spent),
            percent(spent / whole) if whole else "",
            duration(ledger["slow_s"][label]),
            duration(ledger["typical_s"][label]),
        )
    return table
