"""The command line: `logscope`."""

from __future__ import annotations

import click

from logscope import __version__

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="logscope")
def main() -> None:
    """Read a vLLM server's log and say what is behind its slow requests."""
