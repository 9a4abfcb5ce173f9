"""The options that several commands share, declared once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from logscope.errors import NothingToWorkOn
from logscope.times import MomentType, Span, ZoneType
from logscope.whole_files import write_whole

__all__ = [
    "display_options",
    "open_sources",
    "reading_options",
    "source_argument",
    "state_option",
    "unit_option",
    "write_json",
]

F = TypeVar("F", bound=Callable[..., Any])

source_argument = click.argument("sources", nargs=-1, metavar="[SOURCE]...")

state_option = click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Remember there what was read: the next run reads only what is new.",
)

unit_option = click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="NAME",
    help="Read a systemd unit's journal (runs journalctl).",
)


def reading_options(function: F) -> F:
    """Which records are read, and on which clock."""
    for option in reversed(
        (
            click.option(
                "--since",
                type=MomentType(),
                metavar="TIME",
                help="Leave out what is before: ISO, today, or -2h (before the end of the log).",
            ),
            click.option(
                "--until",
                type=MomentType(),
                metavar="TIME",
                help="Leave out what is at or after this time.",
            ),
            click.option(
                "--timezone",
                type=ZoneType(),
                metavar="ZONE",
                help="Zone of --since/--until, which then look at the envelope's clock.",
            ),
            click.option(
                "--year",
                type=click.IntRange(1970, 9999),
                help="Year of the first record (vLLM prints none).",
            ),
        )
    ):
        function = option(function)
    return function


def display_options(function: F) -> F:
    """How much is said, and in which colours."""
    for option in reversed(
        (
            click.option(
                "-q", "--quiet", is_flag=True, help="Results only: no notes, no progress."
            ),
            click.option("-v", "--verbose", is_flag=True, help="More detail."),
            click.option(
                "--color",
                type=click.Choice(["auto", "always", "never"]),
                default="auto",
                show_default=True,
            ),
        )
    ):
        function = option(function)
    return function


def open_sources(
    names: tuple[str, ...],
    *,
    timezone: str | None = None,
    units: tuple[str, ...] = (),
    span: Span | None = None,
    from_start: bool = True,
) -> list[Any]:
    """The sources that the user named; standard input when none is named and it is a pipe or a file.

    Of `units` only what `span` needs is read: from the unit's last start before it with `from_start`.
    Raises NothingToWorkOn where nothing is named and standard input is a terminal.
    """
    from parsers.sources import expand

    if not names and not units:
        if sys.stdin is None or sys.stdin.isatty():
            raise NothingToWorkOn(
                "no log named: give a file, a folder or a glob, or pipe a log in (journalctl -u vllm | logscope analyze -)"
            )
        names = ("-",)
    stdin: BinaryIO | None = sys.stdin.buffer if sys.stdin is not None else None
    sources: list[Any] = list(expand(names, stdin=stdin, timezone=timezone))
    if units:
        from logscope.journal_units import unit_source

        sources += [unit_source(unit, span or Span(), from_start=from_start) for unit in units]
    return sources


def write_json(document: str, target: str) -> None:
    """Write a JSON document to a file (beside it first, then renamed) or, for `-`, to standard output."""
    if target == "-":
        click.echo(document)
        return
    write_whole(Path(target), (document + "\n").encode())
