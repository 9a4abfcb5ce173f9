"""`logscope parse`: the parsed events."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logscope.commands.options import (
    Display,
    TargetType,
    Verb,
    display_options,
    open_sources,
    reading_options,
    source_argument,
    state_option,
    unit_option,
)
from logscope.log.span import Reading
from parsers.reading.events import Coverage, Event

if TYPE_CHECKING:
    from parsers.reading.by_line import Keep

__all__ = ["command"]


@click.command("parse", cls=Verb)
@source_argument
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True, help="Output format."
)
@click.option(
    "--output", type=TargetType(folder=True), metavar="DIR", help="Write one Parquet file per event family into DIR."
)
@click.option("--all", "keep_other", is_flag=True, help="Also output every other vLLM record, as family `other`.")
@click.option("--include-prompts", is_flag=True, help="Include prompts, token IDs and outputs (omitted by default).")
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
    reading: Reading,
    display: Display,
) -> None:
    """Extract the parsed events of vLLM logs as JSON lines, CSV or Parquet.

    SOURCE: files (also .gz .zst .xz .bz2), folders, globs, journal files, - for standard input.

    \b
    Examples:
      logscope parse server.log | jq 'select(.family == "stats")'
      logscope parse /var/log/vllm --state seen >> events.jsonl
    """
    from logscope.log.span import check_something_read, partly_read, problems
    from parsers.reading.by_line import Keep

    if output is not None and output.suffix and not output.is_dir():
        raise click.UsageError(
            f"--output takes a folder, for one Parquet file per event family: write --output {output.with_suffix('')}"
        )
    coverage, span = Coverage(), reading.span
    opened = open_sources(sources, timezone=span.zone, units=units, span=span, from_start=False)
    keep = Keep(keep_other, include_prompts)
    if output is not None and state is None and span.is_open:
        _write_frames(opened, coverage, output, year=reading.year, keep=keep)
    else:
        events = _events(opened, coverage, reading, state, keep)
        if output is not None:
            _write_parquet(events, output)
        elif form == "csv":
            _write_csv(events)
        else:
            _write_jsonl(events)
    for problem in problems(coverage):
        display.note(problem)
    if state is None or coverage.skipped_sources:
        check_something_read(coverage)
    if display.verbose:
        click.echo(
            f"{coverage.lines} lines, {coverage.events} events, {coverage.other_records} other records, {coverage.foreign_lines} foreign lines",
            err=True,
        )
    if partly_read(coverage):
        ctx.exit(4)


def _events(
    sources: Sequence[Any], coverage: Coverage, reading: Reading, state: Path | None, keep: Keep
) -> Iterable[Event]:
    """The events of the span; with a state those that no run before has given."""
    from logscope.log.span import cut, events_in

    if state is None:
        return events_in(sources, coverage, reading, keep)
    from logscope.log.state.read_new import new_events

    news = new_events(state / "parse", sources, coverage, year=reading.year, keep=keep)
    return cut(news, reading.span)


def _write_jsonl(events: Iterable[Event]) -> None:
    from logscope.output.events import event_object, to_json

    out = sys.stdout
    for event in events:
        out.write(to_json(event_object(event)) + "\n")
    out.flush()


def _write_csv(events: Iterable[Event]) -> None:
    from logscope.output.events import CSV_COLUMNS, csv_row

    writer = csv.writer(sys.stdout)
    writer.writerow(CSV_COLUMNS)
    for event in events:
        writer.writerow(csv_row(event))
    sys.stdout.flush()


def _write_parquet(events: Iterable[Event], folder: Path) -> None:
    from logscope.log.stored_rows import FrameFiles

    with closing(FrameFiles(folder)) as files:
        for event in events:
            files.add(event)
        files.finish()


def _write_frames(sources: Sequence[Any], coverage: Coverage, folder: Path, *, year: int | None, keep: Keep) -> None:
    """All events of the sources, the common lines of plain logs in bulk."""
    from logscope.execution.executors import Beside
    from logscope.log.stored_rows import FrameFiles
    from parsers.reading.in_bulk import read_frames

    with closing(FrameFiles(folder)) as files, Beside() as beside:
        read_frames(sources, coverage, files, year=year, keep=keep, beside=beside)
        files.finish()
