"""`logscope compare`: two logs, before and after a change."""

from __future__ import annotations

import click

from logscope.options import display_options, open_sources, write_json
from logscope.remarks import remark
from logscope.times import ZoneType

__all__ = ["command"]


@click.command("compare")
@click.argument("before")
@click.argument("after")
@click.option("--json", "json_target", metavar="FILE|-", help="Write the machine-readable result.")
@click.option(
    "--no-replay", is_flag=True, help="Look at the logs alone: no latencies, no prediction."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Same input and seed, same output."
)
@click.option(
    "--timezone",
    type=ZoneType(),
    metavar="ZONE",
    help="Zone of an envelope's clock that has none.",
)
@click.option(
    "--year",
    type=click.IntRange(1970, 9999),
    help="Year of the first record (vLLM prints none).",
)
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
    quiet: bool,
    verbose: bool,
    color: str,
) -> None:
    """Compare two logs: what changed in settings, load, latencies and preemptions, and whether the replay foretold it.

    BEFORE and AFTER: a file each (or a folder, a glob, - for standard input). The workload of BEFORE is replayed under the settings of
    AFTER, and the prediction stands beside what came.

    \b
    Example:
      logscope compare before.log after.log
    """
    from logscope.analysis import analyze
    from logscope.comparison import compare
    from logscope.events_json import to_json
    from logscope.log_frames import read_log
    from logscope.reading import check_something_read, partly_read, problems
    from logscope.terminal.progress import progress_bar
    from logscope.times import Span

    sides = []
    for name in (before, after):
        data = read_log(open_sources((name,), timezone=timezone), Span(), year=year)
        if not quiet:
            for problem in problems(data.coverage):
                remark(problem)
        check_something_read(data.coverage)
        sides.append(data)
    with progress_bar(quiet=quiet, color=color) as progress:
        found = [
            analyze(
                data,
                replay=not no_replay,
                with_advice=False,
                seed=seed,
                progress=None if progress is None else lambda s, p=progress, i=i: p((i + s) / 2),  # type: ignore[misc]
            )
            for i, data in enumerate(sides)
        ]
    document = compare(found[0], found[1])
    if json_target is not None:
        write_json(to_json(document, indent=None if json_target == "-" else 1), json_target)
    if json_target != "-":
        from logscope.terminal.before_after import print_comparison

        print_comparison(document, color=color)
    if any(partly_read(data.coverage) for data in sides):
        ctx.exit(4)
