"""`logscope whatif`: the inferred workload under a changed configuration, both sides shown."""

from __future__ import annotations

import click

from logscope.commands.options import (
    Display,
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

__all__ = ["command"]


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
    from logscope.analysis import analyze
    from logscope.execution.executors import Beside
    from logscope.inference.result import Effort
    from logscope.log.frames import read
    from logscope.output.json import whatif_document
    from logscope.output.terminal.answer import progress_bar
    from logscope.server.scenario import scenario_of
    from logscope.server.settings import SettingError

    changes = given_settings(settings, scenario=True)
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
    try:
        scenario = scenario_of(worst.log.facts, changes)
    except SettingError as error:
        raise click.UsageError(str(error)) from None
    document = whatif_document(
        worst.log.facts, changes, worst.answer.predict(None), worst.answer.predict(scenario), scenario.notes
    )
    if json_target is not None:
        write_document(document, json_target)
    if json_target != "-":
        from logscope.output.terminal.tables import print_both_sides

        print_both_sides(document, color=display.color)
