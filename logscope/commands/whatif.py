"""`logscope whatif`: the inferred workload under a changed configuration, both sides shown."""

from __future__ import annotations

import click

from logscope.errors import LogscopeError
from logscope.options import (
    display_options,
    open_sources,
    reading_options,
    source_argument,
    unit_option,
    write_json,
)
from logscope.remarks import remark
from logscope.times import Moment, Span

__all__ = ["command"]


class CannotReplayError(LogscopeError):
    """The log does not hold what a replay needs."""

    status = 3


@click.command("whatif")
@source_argument
@click.option(
    "--set", "settings", multiple=True, required=True, metavar="KEY=VALUE", help="The change."
)
@click.option("--json", "json_target", metavar="FILE|-", help="Write the machine-readable result.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Same input and seed, same output."
)
@unit_option
@reading_options
@display_options
def command(
    sources: tuple[str, ...],
    settings: tuple[str, ...],
    json_target: str | None,
    seed: int,
    units: tuple[str, ...],
    since: Moment | None,
    until: Moment | None,
    timezone: str | None,
    year: int | None,
    quiet: bool,
    verbose: bool,
    color: str,
) -> None:
    """Replay a log's workload under a changed configuration and show both sides.

    Besides vLLM's own settings, replicas=2 gives the work to two servers and arrival_scale=2 doubles the load.

    \b
    Example:
      logscope whatif server.log --set max_num_seqs=12
    """
    from logscope.configuration import SettingError, parse_settings
    from logscope.events_json import to_json
    from logscope.log_frames import read_log
    from logscope.reading import check_something_read, problems
    from logscope.scenario import scenario_of
    from logscope.terminal.progress import progress_bar
    from logscope.whatif_json import whatif_document

    try:
        changes = parse_settings(settings, scenario=True)
    except SettingError as error:
        raise click.UsageError(str(error)) from None
    span = Span(since, until, timezone)
    opened = open_sources(sources, timezone=timezone, units=units, span=span)
    data = read_log(opened, span, year=year)
    if not quiet:
        for problem in problems(data.coverage):
            remark(problem)
    check_something_read(data.coverage)
    from logscope.analysis import analyze

    with progress_bar(quiet=quiet, color=color) as progress:
        found = analyze(data, seed=seed, progress=progress, with_advice=False)
    worst = found.worst_result
    if worst is not None and worst.declined:
        raise CannotReplayError(
            f"this server uses {', '.join(worst.declined)}, which the replay does not model: nothing is predicted for it"
        )
    if worst is None or worst.answer is None:
        raise CannotReplayError(
            "this log does not hold what a replay needs: periodic statistics, requests or access lines, and the size of the KV cache"
        )
    try:
        scenario = scenario_of(worst.log.facts, changes)
    except SettingError as error:
        raise click.UsageError(str(error)) from None
    document = whatif_document(
        worst.log.facts,
        changes,
        worst.answer.predict(None),
        worst.answer.predict(scenario),
        scenario.notes,
    )
    if json_target is not None:
        write_json(to_json(document), json_target)
    if json_target != "-":
        from logscope.terminal.both_sides import print_both_sides

        print_both_sides(document, color=color)
