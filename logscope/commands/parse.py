"""`logscope parse`: the events alone."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from logscope.options import (
    display_options,
    open_sources,
    reading_options,
    source_argument,
    state_option,
    unit_option,
)
from logscope.times import Moment, Span
from parsers.events import Coverage, Event

__all__ = ["command"]


@click.command("parse")
@source_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="Form on standard output.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write one Parquet file a family instead.",
)
@click.option(
    "--all", "keep_other", is_flag=True, help="Also every other vLLM record, as family `other`."
)
@click.option(
    "--include-prompts",
    is_flag=True,
    help="Keep prompts, token ids and outputs (left out otherwise).",
)
@state_option
@unit_option
@reading_options
@display_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    form: str,
    output: Path | None,
    keep_other: bool,
    include_prompts: bool,
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
    """Give the events of vLLM logs as JSON lines, CSV or Parquet.

    SOURCE: files (also .gz .zst .xz .bz2), folders, globs, journal files, - for standard input.

    \b
    Example:
      logscope parse server.log | jq 'select(.family == "stats")'
      logscope parse /var/log/vllm --state seen >> events.jsonl
    """
    from logscope.reading import check_something_read, cut, events_in, partly_read, problems
    from parsers.reader import Keep

    coverage = Coverage()
    span = Span(since, until, timezone)
    opened = open_sources(sources, timezone=timezone, units=units, span=span, from_start=False)
    keep = Keep(keep_other, include_prompts)
    if state is not None:
        from logscope.incremental.events import new_events

        news = new_events(state / "parse", opened, coverage, year=year, keep=keep)
        events = cut(news, span)
    else:
        events = events_in(opened, coverage, span, year=year, keep=keep)
    if output is not None:
        _write_parquet(events, output)
    elif form == "csv":
        _write_csv(events)
    else:
        _write_jsonl(events)
    if not quiet:
        for problem in problems(coverage):
            click.echo(f"logscope: {problem}", err=True)
    if state is None or coverage.skipped_sources:
        check_something_read(coverage)
    if verbose:
        click.echo(
            f"{coverage.lines} lines, {coverage.events} events, {coverage.other_records} other records, {coverage.foreign_lines} foreign lines",
            err=True,
        )
    if partly_read(coverage):
        ctx.exit(4)


def _write_jsonl(events: Iterable[Event]) -> None:
    from logscope.events_json import event_object, to_json

    out = sys.stdout
    for event in events:
        out.write(to_json(event_object(event)) + "\n")
    out.flush()


def _write_csv(events: Iterable[Event]) -> None:
    from logscope.events_json import CSV_COLUMNS, csv_row

    writer = csv.writer(sys.stdout)
    writer.writerow(CSV_COLUMNS)
    for event in events:
        writer.writerow(csv_row(event))
    sys.stdout.flush()


def _write_parquet(events: Iterable[Event], folder: Path) -> None:
    from logscope.whole_files import whole_file
    from parsers.frames import frames_of

    folder.mkdir(parents=True, exist_ok=True)
    for family, frame in frames_of(events).items():
        with whole_file(folder / f"{family}.parquet") as part:
            frame.write_parquet(part)
