"""`logscope compare`: two logs, before and after a change."""

from __future__ import annotations

import click

from logscope.commands.options import (
    Display,
    Verb,
    clock_options,
    display_options,
    json_option,
    no_replay_option,
    open_sources,
    seed_option,
    tell_and_check,
    write_document,
)

__all__ = ["command"]


@click.command("compare", cls=Verb)
@click.argument("before")
@click.argument("after")
@json_option()
@no_replay_option("Skip inference and replay: fast, but no latencies and no prediction.")
@seed_option
@clock_options
@display_options
@click.pass_context
def command(
    ctx: click.Context,
    before: str,
    after: str,
    json_target: str | None,
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
    from logscope.comparison import compare
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
    document = compare(found[0], found[1])
    if json_target is not None:
        write_document(document, json_target)
    if json_target != "-":
        from logscope.output.terminal.tables import print_comparison

        print_comparison(document, color=display.color)
    if any(partly_read(data.coverage) for data in sides):
        ctx.exit(4)
