"""`logscope parse`: the parsed events. `logscope formats`: the log formats that are known, from the same tables that parse.

`logscope completion`: what a shell needs to complete words.
"""

from __future__ import annotations

import csv
import json
import shutil
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
    json_option,
    open_sources,
    reading_options,
    source_argument,
    state_option,
    unit_option,
    write_json,
)
from logscope.log.span import Reading
from parsers.families import FAMILIES, FORMATS, Format
from parsers.reading.events import Coverage, Event

if TYPE_CHECKING:
    from parsers.reading.by_line import Keep

__all__ = ["command", "completion", "format_object", "formats"]


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
    from logscope.log.stored_rows import FrameFiles
    from parsers.reading.in_bulk import read_frames

    with closing(FrameFiles(folder)) as files:
        read_frames(sources, coverage, files, year=year, keep=keep)
        files.finish()


def format_object(format_: Format) -> dict[str, str]:
    """One format as in `formats --json`: family, variant, engine (V0, V1 or any), first and last version, level, example."""
    return {
        "family": format_.family,
        "variant": format_.variant,
        "engine": format_.engine,
        "first": format_.first,
        "last": format_.last,
        "level": format_.level,
        "example": format_.example,
    }


@click.command("formats", cls=Verb)
@click.option("--family", type=click.Choice(FAMILIES), help="List only this family.")
@json_option("Write the formats as JSON; - for standard output.")
def formats(family: str | None, json_target: str | None) -> None:
    """List all supported log formats: family, variant, engine, versions, an example.

    \b
    Example:
      logscope formats --family preemption
    """
    known = [format_ for format_ in FORMATS if family in (None, format_.family)]
    if json_target is not None:
        write_json(json.dumps([format_object(format_) for format_ in known], ensure_ascii=False, indent=1), json_target)
        return
    width = shutil.get_terminal_size((120, 24)).columns
    for line in _rows(known):
        click.echo(line if len(line) <= width else line[: width - 1] + "…")


def _rows(known: list[Format]) -> list[str]:
    variant_width = max(len(format_.variant) for format_ in known)
    lines: list[str] = []
    for family in FAMILIES:
        group = [format_ for format_ in known if format_.family == family]
        if not group:
            continue
        lines += ["", family] if lines else [family]
        lines += [
            f"  {format_.variant:{variant_width}}  {format_.engine:3}  {format_.first:>10} to {format_.last:11}  {' '.join(format_.example.split())}"
            for format_ in group
        ]
    return lines


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell, to be read when it starts.

    \b
    Examples:
      logscope completion bash >> ~/.bashrc
      logscope completion fish > ~/.config/fish/completions/logscope.fish
    """
    from click.shell_completion import get_completion_class

    from logscope.commands.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None  # click knows these three
    click.echo(kind(cli, {}, "logscope", "_LOGSCOPE_COMPLETE").source())
