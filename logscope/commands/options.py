"""What the commands share: their options, declared once and grouped in the help, and what is done with sources and results."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
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
    "TargetType",
    "Verb",
    "check_targets",
    "clock_options",
    "command_line",
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


class TargetType(click.ParamType[Any]):
    """Where a result is written: a file (`folder=False`), a folder (True), or either (None); `-` is standard output where `dash`.

    What cannot become a file is refused before any work: an empty name, a link to itself, a pipe that nobody reads. All targets of a
    command are kept for `check_targets`.
    """

    name = "path"

    def __init__(self, *, folder: bool | None = False, dash: bool = False, text: bool = False) -> None:
        self._folder, self._dash, self._text = folder, dash, text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path (or its text); a usage error for what cannot be written."""
        if value == "-" and self._dash:
            return value if self._text else Path(value)
        path, option = Path(value), param.opts[0] if param is not None else "target"
        if not str(value).strip() or "\0" in str(value):
            self.fail("an empty name; name a file", param, ctx)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            mode = 0
            if error.errno == errno.ELOOP:
                self.fail(f"{path}: a link that leads to itself", param, ctx)
        if self._folder is False and stat.S_ISDIR(mode):
            self.fail(f"{path}: a folder; name a file", param, ctx)
        if self._folder and mode and not stat.S_ISDIR(mode):
            self.fail(f"{path}: not a folder", param, ctx)
        if stat.S_ISFIFO(mode) and ctx is not None:
            try:  # held open to the end, or its reader would take it for written
                reader = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                self.fail(f"{path}: a pipe that nobody reads", param, ctx)
            ctx.call_on_close(lambda: os.close(reader))
        if ctx is not None:
            _targets(ctx).append((option, path))
        return str(path) if self._text else path


def _targets(ctx: click.Context) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = ctx.meta.setdefault("logscope.targets", [])
    return found


def check_targets(inputs: Iterable[str | Path | None]) -> None:
    """Refuse to write a result over what is read (also through links), or two results under one name.

    Raises:
        click.UsageError: names the option and the file.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return
    read = {_identity(Path(name)): name for name in inputs if name is not None}
    written: dict[tuple[Any, ...], str] = {}
    for option, path in _targets(ctx):
        identity = _identity(path)
        if identity in read:
            raise click.UsageError(f"{option} {path}: this is what is read; a log is never written to")
        if identity in written and not _is_device(path):
            raise click.UsageError(f"{option} {path}: {written[identity]} writes there already; give another name")
        written[identity] = option


def _identity(path: Path) -> tuple[Any, ...]:
    """The same for all names of a file: its device and number, or the place that it will have."""
    with suppress(OSError, ValueError):
        facts = path.stat()
        return facts.st_dev, facts.st_ino
    return (os.path.realpath(path),)


def _is_device(path: Path) -> bool:
    """/dev/null and /dev/stdout take as many results as one likes."""
    with suppress(OSError):
        return stat.S_ISCHR(path.stat().st_mode)
    return False


_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Options",
        (
            *("html_target", "md_target", "json_target", "targets", "gpu_hour", "save", "form", "output"),
            *("since", "until", "unit", "units", "settings", "config_file", "no_replay", "fail_on"),
            *("fail_on_regression", "new", "programs", "addresses", "exit_on", "prometheus", "family"),
        ),
    ),
    ("Cross-checks", ("metrics", "latencies")),
    ("Reading", ("timezone", "year", "state", "keep_other", "include_prompts")),
    ("Further output", ("workload_out", "trace", "frames", "steps_dir", "bundle", "plotlyjs")),
    ("Running", ("seed", "jobs", "on")),
    ("Display", ("quiet", "verbose", "color", "help")),
)
"""The help's headings with the options below each, the everyday ones first; an option of none stands under "More options"."""


GIVEN = "logscope.given"
"""Where a command's context keeps the arguments as they were typed."""


class Verb(click.Command):
    """A command whose help shows its options in groups."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they were typed, for `command_line`."""
        ctx.meta[GIVEN] = tuple(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        named = ((p, "help" if "--help" in p.opts else str(p.name)) for p in options)
        shown = {name: record for p, name in named if (record := p.get_help_record(ctx)) is not None}
        for heading, names in _GROUPS:
            rows = [shown.pop(name) for name in names if name in shown]
            if heading == "Display" and shown:
                with formatter.section("More options"):
                    formatter.write_dl(list(shown.values()))
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


source_argument = click.argument("sources", nargs=-1, metavar="[SOURCE]...")

seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Random seed for the inference.")


class NameType(click.Path):
    """What is read: a file, an address where it may be one, a folder. An empty name would be the folder that the command runs in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error for a name that is none."""
        if not str(value).strip() or "\0" in str(value):
            self.fail(f"an empty name; name a {'file' if self.file_okay else 'folder'}", param, ctx)
        return super().convert(value, param, ctx)


state_option = click.option(
    "--state",
    type=NameType(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep read positions in DIR, so that the next run reads only new lines.",
)

unit_option = click.option(
    "--unit", "units", multiple=True, metavar="NAME", help="Read a systemd unit's journal (runs journalctl)."
)

_year_option = click.option(
    "--year", type=click.IntRange(1970, 9999), metavar="YEAR", help="Year of the first record (vLLM prints no year)."
)


def json_option(help_text: str = "Write the result as JSON; - for standard output.") -> Decorator:
    """Where JSON is written, as `json_target`."""
    kind = TargetType(dash=True, text=True)
    return click.option("--json", "json_target", type=kind, metavar="FILE|-", help=help_text)


def trace_option(help_text: str) -> Decorator:
    """The file of a trace, as `trace`."""
    return click.option("--trace", type=TargetType(), metavar="FILE", help=help_text)


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
    return _zone_option("Time zone of outer timestamps that carry none.")(_year_option(function))


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
            help='Ignore everything before TIME: ISO time, 23:58, "today", "10 min ago", or -2h (two hours before the end of the log).',
        ),
        click.option("--until", type=MomentType(), metavar="TIME", help="Ignore everything from TIME on."),
        _zone_option("Time zone of --since and --until, which then use the outer timestamps (journald, Docker, …)."),
        _year_option,
    )


def display_options(function: Command) -> Command:
    """How much is said, and in which colours, as `display`."""

    @wraps(function)
    def gathered(*args: Any, quiet: bool, verbose: bool, color: str, **others: Any) -> Any:
        return function(*args, display=Display(quiet, verbose, color), **others)

    return in_order(
        gathered,
        click.option("-q", "--quiet", is_flag=True, help="Print results only: no notes, no progress bar."),
        click.option("-v", "--verbose", is_flag=True, help="Print more detail."),
        click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            show_default=True,
            help="When to use colour; the NO_COLOR variable is honoured.",
        ),
    )


def in_order(function: Command, *options: Decorator) -> Command:
    """Options as they shall stand in the help; click takes the innermost for the last."""
    for option in reversed(options):
        function = option(function)
    return function


def command_line() -> str:
    """The command as it was typed, without the secrets of addresses."""
    from parsers.sources.object_stores import without_secrets

    ctx = click.get_current_context()
    given = (without_secrets(arg) for arg in ctx.meta.get(GIVEN, ()))
    return shlex.join(["logscope", str(ctx.info_name), *given])


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
                "no log given: pass a file, a folder or a glob, or pipe a log in (journalctl -u vllm | logscope analyze -)"
            )
        names = ("-",)
    if "-" in names and sys.stdin is None:
        raise NothingToWorkOn("-: standard input is closed; pipe a log in, or name a file")
    sources: list[Any] = list(expand(names, timezone=timezone))
    check_targets(source.path for source in sources)
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
