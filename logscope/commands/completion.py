"""`logscope completion`: what a shell needs to complete logscope's words."""

from __future__ import annotations

import click

from logscope.commands.options import Verb

__all__ = ["command"]


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
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
