"""What the commands share: their options, declared once, and what is done with the sources and results they name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logscope.atomic_files import write_whole
from logscope.errors import NothingToWorkOn, remark
from logscope.log.span import Moment, MomentType, Reading, Span, ZoneType

if TYPE_CHECKING:
    from parsers.reading.events import Coverage

__all__ = [
    "Display",
    "clock_options",
    "display_options",
    "given_settings",
    "in_order",
    "json_option",
    "no_replay_option",
    "open_sources",
    "reading_options",
    "seed_option",
    "settings_option",
    "source_argument",
    "state_option",
    "tell_and_check",
    "trace_option",
    "unit_option",
    "write_document",
    "write_json",
]

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


@dataclass(frozen=True, slots=True)
class Display:
    """How much is said, and in which colours (`auto`, `always`, `never`)."""

    quiet: bool
    verbose: bool
    color: str

    def note(self, sentence: str) -> None:
        """A remark on standard error, unless only results are wanted."""
        if not self.quiet:
            remark(sentence)


source_argument = click.argument("sources", nargs=-1, metavar="[SOURCE]...")

seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Same input and seed, same output.")

state_option = click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Remember there what was read: the next run reads only what is new.",
)

unit_option = click.option(
    "--unit", "units", multiple=True, metavar="NAME", help="Read a systemd unit's journal (runs journalctl)."
)

_year_option = click.option(
    "--year", type=click.IntRange(1970, 9999), help="Year of the first record (vLLM prints none)."
)


def json_option(help_text: str = "Write the machine-readable result.") -> Decorator:
    """Where JSON is written, as `json_target`."""
    return click.option("--json", "json_target", metavar="FILE|-", help=help_text)


def trace_option(help_text: str) -> Decorator:
    """The file of a trace, as `trace`."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("--trace", type=kind, metavar="FILE", help=help_text)


def settings_option(help_text: str, *, required: bool = False) -> Decorator:
    """`--set`, as `settings`: see `given_settings`."""
    return click.option("--set", "settings", multiple=True, required=required, metavar="KEY=VALUE", help=help_text)


def no_replay_option(help_text: str) -> Decorator:
    """Do without inference, as `no_replay`."""
    return click.option("--no-replay", is_flag=True, help=help_text)


def _zone_option(help_text: str) -> Decorator:
    return click.option("--timezone", type=ZoneType(), metavar="ZONE", help=help_text)


def clock_options(function: Command) -> Command:
    """On which clock records are read, as `timezone` and `year`."""
    return _zone_option("Zone of an envelope's clock that has none.")(_year_option(function))


def reading_options(function: Command) -> Command:
    """Which records are read, and on which clock, as `reading`."""

    @wraps(function)
    def gathered(
        *args: Any, since: Moment | None, until: Moment | None, timezone: str | None, year: int | None, **others: Any
    ) -> Any:
        return function(*args, reading=Reading(Span(since, until, timezone), year), **others)

    return in_order(
        gathered,
        click.option(
            "--since",
            type=MomentType(),
            metavar="TIME",
            help="Leave out what is before: ISO, today, or -2h (before the end of the log).",
        ),
        click.option("--until", type=MomentType(), metavar="TIME", help="Leave out what is at or after this time."),
        _zone_option("Zone of --since/--until, which then look at the envelope's clock."),
        _year_option,
    )


def display_options(function: Command) -> Command:
    """How much is said, and in which colours, as `display`."""

    @wraps(function)
    def gathered(*args: Any, quiet: bool, verbose: bool, color: str, **others: Any) -> Any:
        return function(*args, display=Display(quiet, verbose, color), **others)

    return in_order(
        gathered,
        click.option("-q", "--quiet", is_flag=True, help="Results only: no notes, no progress."),
        click.option("-v", "--verbose", is_flag=True, help="More detail."),
        click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True),
    )


def in_order(function: Command, *options: Decorator) -> Command:
    """Options as they shall stand in the help; click takes the innermost for the last."""
    for option in reversed(options):
        function = option(function)
    return function


def given_settings(settings: tuple[str, ...], *, scenario: bool = False) -> dict[str, Any]:
    """What `--set` says, as `logscope.server.settings.parse_settings` reads it.

    Raises:
        click.UsageError: a key or a value that is not known.
    """
    from logscope.server.settings import SettingError, parse_settings

    try:
        return parse_settings(settings, scenario=scenario)
    except SettingError as error:
        from logscope.sanitize import visible

        raise click.UsageError(visible(str(error))) from None


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
    Raises NothingToWorkOn where nothing is named and standard input is a terminal, and for standard input that is closed.
    """
    from parsers.sources.source import expand

    if not names and not units:
        if sys.stdin is None or sys.stdin.isatty():
            raise NothingToWorkOn(
                "no log named: give a file, a folder or a glob, or pipe a log in (journalctl -u vllm | logscope analyze -)"
            )
        names = ("-",)
    if "-" in names and sys.stdin is None:
        raise NothingToWorkOn("-: standard input is closed; pipe a log in, or name a file")
    sources: list[Any] = list(expand(names, timezone=timezone))
    if units:
        from logscope.log.span import unit_source

        sources += [unit_source(unit, span or Span(), from_start=from_start) for unit in units]
    return sources


def tell_and_check(coverage: Coverage, display: Display) -> None:
    """Name the sources that could not be read; raises NothingToWorkOn where no vLLM record was."""
    from logscope.log.span import check_something_read, problems

    for problem in problems(coverage):
        display.note(problem)
    check_something_read(coverage)


def write_document(document: Any, target: str) -> None:
    """Write a result as JSON: for people to read in a file, on one line on standard output (`-`)."""
    from logscope.output.events import to_json

    write_json(to_json(document, indent=None if target == "-" else 1), target)


def write_json(document: str, target: str) -> None:
    """Write a JSON document to a file (beside it first, then renamed) or, for `-`, to standard output."""
    if target == "-":
        click.echo(document)
        return
    write_whole(Path(target), (document + "\n").encode())
