"""`logscope analyze`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from logscope.options import (
    display_options,
    open_sources,
    reading_options,
    source_argument,
    state_option,
    unit_option,
    write_json,
)
from logscope.remarks import remark
from logscope.times import Moment, Span

if TYPE_CHECKING:
    from logscope.analysis import Analysis

__all__ = ["command"]

SETUP_FAMILIES = {"startup", "kv_sizing"}
_SEVERITIES = {"warning": ("warning", "critical"), "critical": ("critical",)}


@click.command("analyze")
@source_argument
@click.option("--json", "json_target", metavar="FILE|-", help="Write the machine-readable result.")
@click.option(
    "--html",
    "html_target",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report; for several servers an index (in a folder DIR/: its index.html) with a report for each beside it.",
)
@click.option(
    "--plotlyjs",
    type=click.Choice(["inline", "cdn", "directory"]),
    default="inline",
    show_default=True,
    help="Where the report's chart script is.",
)
@click.option(
    "--frames",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the frames as Parquet.",
)
@click.option(
    "--workload-out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the inferred requests, which `logscope replay` reads.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the replay as a Chrome/Perfetto trace.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Tell a setting that the log does not.",
)
@click.option(
    "--no-replay", is_flag=True, help="Look at the log alone: no inference, no latencies."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Same input and seed, same output."
)
@click.option(
    "--fail-on",
    type=click.Choice(["warning", "critical"]),
    help="Exit with status 1 where a finding is as severe.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="FILE|URL",
    help="A second witness: Prometheus text, OpenMetrics, a query_range answer, or JSON scrapes.",
)
@click.option(
    "--latencies",
    metavar="FILE",
    help="A second witness: a result of vLLM bench serve or guidellm, or a CSV (sent,first_token,finished).",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Read and replay in so many processes; the answer is the same.",
)
@click.option(
    "--on",
    type=click.Choice(["ray"]),
    help="Read and replay on a Ray cluster that runs; its nodes must see the same files.",
)
@state_option
@unit_option
@reading_options
@display_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    json_target: str | None,
    html_target: Path | None,
    plotlyjs: str,
    frames: Path | None,
    workload_out: Path | None,
    trace: Path | None,
    settings: tuple[str, ...],
    no_replay: bool,
    seed: int,
    fail_on: str | None,
    metrics: tuple[str, ...],
    latencies: str | None,
    jobs: int,
    on: str | None,
    state: Path | None,
    units: tuple[str, ...],
    since: Moment | None,
    until: Moment | None,
    timezone: str | None,
    year: int | None,
    quiet: bool,
    verbose: bool,
    color: str,
) -> None:
    """Say what is behind a vLLM server's slow requests, and what to change.

    SOURCE: files (also .gz .zst .xz .bz2), folders, globs, journal files, - for standard input.

    \b
    Examples:
      logscope analyze server.log --html report.html
      journalctl -u vllm -o json | logscope analyze -
      logscope analyze --unit vllm --since today
      logscope analyze server.log --metrics http://localhost:8000/metrics
      logscope analyze 'logs/**/*.log.zst' --jobs 8
    """
    from logscope.analysis_files import (
        write_frames,
        write_replay_trace,
        write_workload,
    )
    from logscope.analysis_json import analysis_document
    from logscope.configuration import SettingError, parse_settings
    from logscope.events_json import to_json
    from logscope.fleets.executors import executor_for
    from logscope.fleets.running import analyze_on, read_on
    from logscope.fleets.summary import server_rows
    from logscope.reading import check_something_read, partly_read, problems
    from logscope.terminal.progress import progress_bar
    from logscope.witness.latencies import read_latencies
    from logscope.witness.metrics import read_metrics

    try:
        given = parse_settings(settings)
    except SettingError as error:
        raise click.UsageError(str(error)) from None
    clients = read_latencies(latencies) if latencies is not None else None
    counters = read_metrics(metrics) if metrics else None
    span = Span(since, until, timezone)
    opened = open_sources(sources, timezone=timezone, units=units, span=span)
    with executor_for(jobs, on) as executor:
        data = read_on(executor, opened, span, year=year, state=state)
        if not quiet:
            for problem in problems(data.coverage):
                remark(problem)
        check_something_read(data.coverage)
        if not quiet and not span.is_open and not data.frames.keys() - SETUP_FAMILIES:
            remark(
                "nothing in this log lies between --since and --until; what follows is from the server's start lines alone"
            )
        with progress_bar(quiet=quiet, color=color) as progress:
            found = analyze_on(
                executor, data, given=given, replay=not no_replay, seed=seed, progress=progress
            )
    if clients is not None or counters is not None:
        from logscope.witness.attach import witnessed

        found = witnessed(found, counters, clients)
    document = analysis_document(found)
    if frames is not None:
        write_frames(found, frames)
    rows = server_rows(found)
    document["servers"] = rows
    if html_target is not None:
        from logscope.fleets.reports import write_reports

        shared = ctx.get_parameter_source("plotlyjs") == ParameterSource.DEFAULT
        write_reports(found, document, rows, html_target, plotlyjs=None if shared else plotlyjs)
    if workload_out is not None:
        write_workload(found, workload_out)
    if trace is not None:
        write_replay_trace(found, trace)
    if json_target is not None:
        write_json(to_json(document, indent=None if json_target == "-" else 1), json_target)
    if json_target != "-":
        from logscope.terminal.answer import print_answer

        if len(rows) > 1:
            from logscope.terminal.fleet import print_fleet

            print_fleet(rows, verbose=verbose, color=color)
        print_answer(document, verbose=verbose, color=color, series=_series(found))
    if fail_on is not None and any(
        f["severity"] in _SEVERITIES[fail_on] for f in document["findings"]
    ):
        ctx.exit(1)
    if partly_read(data.coverage):
        ctx.exit(4)


def _series(found: Analysis) -> dict[str, list[float | None]]:
    """The worst engine's observed series, for the bars of the terminal answer."""
    worst = found.worst_result
    if worst is None or worst.windows is None:
        return {}
    names = {"Running": "running", "Waiting": "waiting", "KV usage": "kv_pct"}
    return {word: worst.windows[name].to_list() for word, name in names.items()}
