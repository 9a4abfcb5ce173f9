"""`logscope report`: a kept answer in any of its forms. `logscope explain`: what its words mean."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from logscope.commands.analyze import STDOUT, chosen_script, view_options, write_views
from logscope.commands.options import Display, NameType, Verb, check_targets, display_options

__all__ = ["command", "explain"]

DOCS = "https://github.com/logscope/logscope/tree/main/docs/findings.md"


@click.command("report", cls=Verb)
@click.argument("file", type=NameType(exists=True, dir_okay=False, path_type=Path))
@view_options
@click.option(
    "--terminal", is_flag=True, help="Print the answer, as `logscope analyze` does. The default, without other forms."
)
@display_options
def command(
    file: Path,
    json_target: str | None,
    html_target: Path | None,
    md_target: str | None,
    plotlyjs: str,
    terminal: bool,
    display: Display,
) -> None:
    """Show an answer that `logscope analyze --save` kept, in any of its forms, without reading the log or replaying anything.

    \b
    Examples:
      logscope report answer.logscope
      logscope report answer.logscope --html report.html --md summary.md
    """
    from logscope.output.answer import AnswerError, read_answer
    from logscope.output.terminal.tables import show

    on_stdout = [t for t in (json_target, html_target, md_target, "-" if terminal else None) if t in ("-", STDOUT)]
    if len(on_stdout) > 1:
        raise click.UsageError("only one form can go to standard output")
    check_targets((file,))
    answer = read_answer(file)
    try:
        write_views(answer, html=html_target, plotlyjs=chosen_script(plotlyjs), md=md_target, json=json_target)
        if terminal or not (html_target or md_target or json_target):
            show(answer, verbose=display.verbose, color=display.color)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise AnswerError(f"{file}: this answer is damaged; analyse the log again") from None


@click.command("explain", cls=Verb)
@click.argument("name", metavar="[FINDING|VERDICT]", required=False)
def explain(name: str | None) -> None:
    """Say what a finding or a verdict means, and what helps; without a name, list them all.

    \b
    Example:
      logscope explain kv-preemption
    """
    from logscope.evidence.finding import MEANINGS

    if name is None:
        for known, meaning in MEANINGS.items():
            click.echo(f"{known:<22} {meaning.says}")
        return
    found = MEANINGS.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name, MEANINGS, 1)
        hint = f"; did you mean {near[0]}?" if near else f" (all: {', '.join(MEANINGS)})"
        raise click.UsageError(f"no finding or verdict has this name{hint}")
    click.echo(f"{name}: {found.says}\nWhat helps: {found.helps}\nMore: {DOCS}#{name}")
