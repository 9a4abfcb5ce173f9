"""`logscope whatif` and `logscope capacity`: the inferred workload under a changed configuration, or at other rates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from logscope.commands.options import (
    Display,
    TargetType,
    Verb,
    display_options,
    given_settings,
    json_option,
    open_sources,
    reading_options,
    seed_option,
    settings_option,
    source_argument,
    tell_and_check,
    unit_option,
    write_document,
)
from logscope.errors import LogscopeError
from logscope.log.span import Reading

if TYPE_CHECKING:
    from logscope.analysis import EngineResult
    from logscope.diagnosis.capacity import Target
    from logscope.inference.result import InferredReplay

__all__ = ["capacity", "command"]


class CannotReplayError(LogscopeError):
    """The log does not hold what a replay needs."""

    status = 3


@click.command("whatif", cls=Verb)
@source_argument
@settings_option("The change to replay, as in --set max_num_seqs=12.", required=True)
@json_option()
@seed_option
@unit_option
@reading_options
@display_options
def command(
    sources: tuple[str, ...],
    settings: tuple[str, ...],
    json_target: str | None,
    seed: int,
    units: tuple[str, ...],
    reading: Reading,
    display: Display,
) -> None:
    """Replay a log's workload under a changed configuration and show both sides.

    Besides vLLM's own settings, replicas=2 gives the work to two servers and arrival_scale=2 doubles the load.

    \b
    Example:
      logscope whatif server.log --set max_num_seqs=12
    """
    from logscope.output.json import whatif_document
    from logscope.server.scenario import scenario_of
    from logscope.server.settings import SettingError

    changes = given_settings(settings, scenario=True)
    worst, answer = _replayed(sources, units, reading, seed, display)
    try:
        scenario = scenario_of(worst.log.facts, changes)
    except SettingError as error:
        raise click.UsageError(str(error)) from None
    document = whatif_document(worst.log.facts, changes, answer.predict(None), answer.predict(scenario), scenario.notes)
    if json_target is not None:
        write_document(document, json_target)
    if json_target != "-":
        from logscope.output.terminal.tables import print_both_sides

        print_both_sides(document, color=display.color)


def _replayed(
    sources: tuple[str, ...], units: tuple[str, ...], reading: Reading, seed: int, display: Display
) -> tuple[EngineResult, InferredReplay]:
    """The worst engine and its replay. Raises CannotReplayError where there is none."""
    from logscope.analysis import analyze
    from logscope.execution.executors import Beside
    from logscope.inference.result import Effort
    from logscope.log.frames import read
    from logscope.output.terminal.answer import progress_bar

    span = reading.span
    opened = open_sources(sources, timezone=span.zone, units=units, span=span)
    data = read(opened, reading)
    tell_and_check(data.coverage, display)
    with Beside() as others, progress_bar(quiet=display.quiet, color=display.color) as progress:
        found = analyze(data, with_advice=False, effort=Effort(seed, progress, others.map))
    worst = found.worst_result
    if worst is not None and worst.declined:
        raise CannotReplayError(
            f"this server uses {', '.join(worst.declined)}, which the replay does not model: nothing is predicted for it"
        )
    if worst is None or worst.answer is None:
        raise CannotReplayError(
            "this log does not hold what a replay needs: periodic statistics, requests or access lines, and the size of the KV cache"
        )
    return worst, worst.answer


@click.command("capacity", cls=Verb)
@source_argument
@click.option(
    "--slo",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME=VALUE",
    callback=lambda _ctx, _param, texts: _targets(texts),
    help="A target to keep, as in ttft_p95=2s, e2e_p99=30s or itl_p99=200ms; several are kept together.",
)
@click.option(
    "--gpu-hour", type=click.FloatRange(min=0, min_open=True), metavar="PRICE", help="What a GPU costs an hour."
)
@json_option()
@click.option("--html", "html_target", type=TargetType(), metavar="FILE", help="Write a page with a chart.")
@seed_option
@unit_option
@reading_options
@display_options
def capacity(
    sources: tuple[str, ...],
    targets: tuple[Target, ...],
    gpu_hour: float | None,
    json_target: str | None,
    html_target: Path | None,
    seed: int,
    units: tuple[str, ...],
    reading: Reading,
    display: Display,
) -> None:
    """Find the highest request rate at which a server keeps its latency targets.

    The load inferred from the log is replayed at higher and lower rates: as the server is now, with each free change, and with twice the
    hardware.

    \b
    Example:
      logscope capacity server.log --slo ttft_p95=2s --slo e2e_p99=30s
    """
    from logscope.diagnosis.capacity import CapacityError
    from logscope.diagnosis.capacity import capacity as find
    from logscope.execution.executors import Beside
    from logscope.inference.result import Effort
    from logscope.output.terminal.answer import progress_bar

    worst, answer = _replayed(sources, units, reading, seed, display)
    if not answer.fair:
        raise CannotReplayError(
            f"the replay fits this log poorly ({answer.mean_fit:.0%} on average): a rate from it would be a guess"
        )
    oom = any(f.id == "runtime-oom" for f in worst.findings)
    try:
        with Beside() as others, progress_bar(quiet=display.quiet, color=display.color) as progress:
            effort = Effort(seed, progress, others.map)
            document = find(worst.context, answer, targets, effort, out_of_memory=oom, gpu_hour=gpu_hour)
    except CapacityError as error:
        raise CannotReplayError(str(error)) from None
    document["unsupported"] = list(answer.unsupported)
    if json_target is not None:
        write_document(document, json_target)
    if html_target is not None:
        from logscope.output.report.page import write_capacity

        write_capacity(document, html_target)
    if json_target != "-":
        from logscope.output.terminal.tables import print_capacity

        print_capacity(document, color=display.color)


def _targets(texts: tuple[str, ...]) -> tuple[Target, ...]:
    from logscope.diagnosis.capacity import CapacityError, parse_target

    try:
        found = [parse_target(text) for text in texts]
    except CapacityError as error:
        raise click.BadParameter(str(error)) from None
    return tuple({t.name: t for t in found}.values())
