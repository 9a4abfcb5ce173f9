"""What if: `logscope whatif` (a changed configuration), `logscope capacity` (other rates), `logscope compare` (what a change really did)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from logscope.commands.options import (
    Display,
    TargetType,
    Verb,
    clock_options,
    display_options,
    given_settings,
    json_option,
    no_replay_option,
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

__all__ = ["capacity", "command", "compare"]


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

    The load inferred from the log is replayed at higher and lower rates: as the server is now, with each free change, and with double the
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


@click.command("compare", cls=Verb)
@click.argument("before")
@click.argument("after")
@json_option()
@click.option("--html", "html_target", type=TargetType(), metavar="FILE", help="Write the comparison as a page.")
@click.option(
    "--fail-on-regression",
    metavar="SHARE",
    callback=lambda _ctx, _param, text: _share(text),
    help="Exit with status 1 where latency or the time of a step got worse by more than this, as in 10%.",
)
@no_replay_option("Skip inference and replay: fast, but no latencies and no prediction.")
@seed_option
@clock_options
@display_options
@click.pass_context
def compare(
    ctx: click.Context,
    before: str,
    after: str,
    json_target: str | None,
    html_target: Path | None,
    fail_on_regression: float | None,
    no_replay: bool,
    seed: int,
    timezone: str | None,
    year: int | None,
    display: Display,
) -> None:
    """Compare two logs: what changed in settings, load, latencies and preemptions, and whether the replay predicted it.

    BEFORE and AFTER: one file each (or a folder, a glob, or - for standard input). The workload of BEFORE is replayed under the settings of
    AFTER, and predicted and actual values are shown side by side.

    \b
    Example:
      logscope compare before.log after.log
    """
    from logscope.analysis import analyze
    from logscope.comparison import compare as compared
    from logscope.comparison import regressions
    from logscope.execution.executors import Beside
    from logscope.inference.result import Effort
    from logscope.log.frames import read_log
    from logscope.log.span import partly_read
    from logscope.output.terminal.answer import progress_bar

    sides = []
    for name in (before, after):
        data = read_log(open_sources((name,), timezone=timezone), year=year)
        tell_and_check(data.coverage, display)
        sides.append(data)
    with Beside() as others, progress_bar(quiet=display.quiet, color=display.color) as progress:
        effort = Effort(seed, progress, others.map)
        found = [
            analyze(data, replay=not no_replay, with_advice=False, effort=effort.part(index, len(sides)))
            for index, data in enumerate(sides)
        ]
    document = compared(found[0], found[1])
    if fail_on_regression is not None:
        document["regressions"] = regressions(document, fail_on_regression)
    if html_target is not None:
        from logscope.output.report.page import write_tables
        from logscope.output.terminal.tables import comparison_view

        sentences, table = comparison_view(document)
        title = sentences.pop() if document["closing"] else "Before and after"
        write_tables(title, sentences, [table], html_target)
    if json_target is not None:
        write_document(document, json_target)
    if json_target != "-":
        from logscope.output.terminal.tables import print_comparison

        print_comparison(document, color=display.color)
    if document["regressions"]:
        ctx.exit(1)
    if any(partly_read(data.coverage) for data in sides):
        ctx.exit(4)


_SHARE = re.compile(r"(\d{1,4}(?:\.\d{1,4})?)\s?(%?)", re.ASCII)


def _share(text: str | None) -> float | None:
    """`10%` or `0.1`."""
    if text is None:
        return None
    found = _SHARE.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"'{text}' is no share; write 10% or 0.1")
    return float(found[1]) / (100 if found[2] else 1)
