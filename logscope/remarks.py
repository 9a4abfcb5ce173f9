"""What is said on standard error: one line, in which nothing is left that a terminal obeys (names of files may come from strangers)."""

from __future__ import annotations

import click

__all__ = ["remark"]

MAX_REMARK = 4_000


def remark(text: str) -> None:
    """Write `logscope: text` to standard error."""
    from logscope.sanitize import visible

    click.echo(f"logscope: {visible(text, MAX_REMARK)}", err=True)
