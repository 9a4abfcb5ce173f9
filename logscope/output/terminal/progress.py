"""A progress bar on standard error, only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(*, quiet: bool, color: str) -> Iterator[Callable[[float], None] | None]:
    """Yield a function that takes the share done (0 to 1), or None where nobody would see the bar."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=color == "never")
    with Progress(
        TextColumn("replaying the workload"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("replay", total=1.0)
        yield lambda share: bar.update(task, completed=share)
