"""The man page of logscope, made from its own help: `make man` writes out/logscope.1."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import click

from logscope import __version__
from logscope.commands.cli import cli

SECTIONS = {
    "EXIT STATUS": (
        ("0", "Done."),
        ("1", "A finding is as severe as --fail-on asks."),
        ("2", "Wrong usage."),
        ("3", "Nothing to work on: no source could be read, or none holds a vLLM record."),
        ("4", "Done in part: a source could not be read to its end; the loss is counted."),
        ("70", "A fault of logscope's own."),
        ("73", "A result could not be written."),
    )
}


def escaped(text: str) -> str:
    """Text as roff prints it: hyphens stay hyphens, no line is a request."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").split("\n")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in lines)


def described(help_text: str | None) -> list[str]:
    """Paragraphs of a help text; those that click keeps as they are (after a \\b) are set as examples."""
    lines = []
    for paragraph in textwrap.dedent(help_text or "").strip().split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            example = textwrap.dedent(paragraph.split("\n", 1)[-1])
            lines += [".PP", ".EX", escaped(example), ".EE"]
        else:
            lines += [".PP", escaped(" ".join(paragraph.split()))]
    return lines


def options(command: click.Command, context: click.Context) -> list[str]:
    """A tagged paragraph for each option."""
    lines = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option):
            lines += [".TP", f".B {escaped(record[0])}", escaped(" ".join(record[1].split()))]
    return lines


def man_page() -> str:
    """The whole page, in roff's man macros."""
    top = click.Context(cli, info_name="logscope")
    lines = [f'.TH LOGSCOPE 1 "" "logscope {__version__}" "User Commands"', ".SH NAME"]
    lines += ["logscope \\- what is behind a vLLM server's slow requests", ".SH SYNOPSIS"]
    lines += [".B logscope", ".I COMMAND", "[\\fIOPTIONS\\fR] [\\fISOURCE\\fR]...", ".SH DESCRIPTION"]
    lines += described(cli.help)
    lines.append(".SH COMMANDS")
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        if command is None:
            continue
        context = click.Context(command, info_name=name, parent=top)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f".SS logscope {escaped(name)} {escaped(usage)}", *described(command.help)]
        lines += options(command, context)
    for title, rows in SECTIONS.items():
        lines.append(f".SH {title}")
        for tag, text in rows:
            lines += [".TP", f".B {tag}", escaped(text)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "out/logscope.1")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(man_page(), encoding="utf-8")
