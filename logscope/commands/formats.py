"""`logscope formats`: the log formats that are known, from the same tables that parse. `logscope completion`: what a shell needs to complete words."""

from __future__ import annotations

import json
import shutil

import click

from logscope.commands.options import Verb, json_option, write_json
from parsers.families import FAMILIES, FORMATS, Format

__all__ = ["command", "completion", "format_object"]


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
def command(family: str | None, json_target: str | None) -> None:
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
    for line in _lines(known):
        click.echo(line if len(line) <= width else line[: width - 1] + "…")


def _lines(known: list[Format]) -> list[str]:
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
