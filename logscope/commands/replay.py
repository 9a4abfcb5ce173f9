"""`logscope replay`: workloads and golden traces through the reference engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from logscope.commands.options import (
    Display,
    NameType,
    TargetType,
    Verb,
    check_targets,
    display_options,
    given_settings,
    json_option,
    settings_option,
    trace_option,
    write_json,
)
from logscope.errors import LogscopeError, remark

if TYPE_CHECKING:
    from logscope.execution.workload_replay import JobResult

__all__ = ["command"]

_FILE = NameType(path_type=Path)
_FOLDER = TargetType(folder=True)


@click.command("replay", cls=Verb)
@click.argument("workloads", nargs=-1, required=True, type=_FILE, metavar="WORKLOAD...")
@click.option(
    "--config",
    "config_file",
    type=_FILE,
    metavar="FILE",
    help="Engine and clock as JSON; overrides what a workload file says.",
)
@settings_option("Change a setting of the scheduler, or arrival_scale=2 for twice the load.")
@click.option(
    "--steps-dir", type=_FOLDER, metavar="DIR", help="Write each step's decisions to DIR/<folder>__<name>.jsonl."
)
@json_option("Write the results as JSON.")
@click.option("--frames", type=_FOLDER, metavar="DIR", help="Write steps.parquet and requests.parquet.")
@trace_option("Write a trace for Perfetto or chrome://tracing (one workload).")
@display_options
@click.pass_context
def command(
    ctx: click.Context,
    workloads: tuple[Path, ...],
    config_file: Path | None,
    settings: tuple[str, ...],
    steps_dir: Path | None,
    json_target: str | None,
    frames: Path | None,
    trace: Path | None,
    display: Display,
) -> None:
    """Replay workloads in the reference engine: vLLM's scheduler, step by step, on a virtual clock.

    WORKLOAD: golden traces, requests as JSON Lines beside --config, Mooncake JSON Lines, Azure, Vidur or BurstGPT
    CSV, vLLM benchmark datasets or detailed results; gzip or plain.

    \b
    Example:
      logscope replay requests.jsonl --config engine.json --trace replay.json
    """
    from logscope.execution.workload_replay import changed_job, open_job, read_config, run_job
    from reference_engine.model import EngineError

    if trace is not None and len(workloads) > 1:
        raise LogscopeError("--trace shows one workload: name a single file")
    check_targets((*workloads, config_file))
    changes = given_settings(settings, scenario=True)
    given = read_config(config_file) if config_file is not None else None
    results = []
    failed = False
    for path in workloads:
        try:
            result = run_job(changed_job(open_job(path, given), changes), steps_dir, trace)
        except EngineError as error:
            failed = True
            remark(_named(path, error))
            continue
        results.append(result)
        failed = failed or result.error is not None
        _tell(path, result, display)
    _write(results, json_target, frames, display.color)
    if failed:
        ctx.exit(4 if results else 3)


def _named(path: Path, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(str(path)) else f"{path}: {text}"


def _tell(path: Path, result: JobResult, display: Display) -> None:
    for note in result.job.notes:
        display.note(f"{path}: {note}")
    if result.error is not None:
        display.note(f"{path}: the replay ends early: {result.error}")


def _write(results: list[JobResult], json_target: str | None, frames: Path | None, color: str) -> None:
    from logscope.output.files import print_results, results_json, write_replay_frames

    if frames is not None and results:
        write_replay_frames(frames, results)
    if json_target is not None:
        write_json(results_json(results), json_target)
    if json_target != "-":
        print_results(results, color)
