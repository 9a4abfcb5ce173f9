"""The table of several servers, the worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logscope.output.terminal.answer import make_console
from logscope.output.terminal.words import clean, duration, number

__all__ = ["print_fleet"]

MAX_ROWS = 20


def print_fleet(
    rows: Sequence[Mapping[str, Any]], *, verbose: bool = False, color: str = "auto"
) -> None:
    """Print the rows of `logscope.execution.summary`; without `verbose` the first ones."""
    from rich.table import Table
    from rich.text import Text

    console = make_console(color)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("server", "", "verdict", "pressure", "preemptions", "E2E p99", "TTFT p99"):
        table.add_column(name, overflow="fold")
    for row in rows if verbose else rows[:MAX_ROWS]:
        table.add_row(
            str(row["server"]),
            Text(clean(", ".join(row["names"]), 60)),
            row["verdict"] + (" (uneven engines)" if row["imbalance"] else ""),
            row["pressure"],
            "" if row["preemptions"] is None else number(row["preemptions"]),
            "" if row["p99_e2e_s"] is None else duration(row["p99_e2e_s"]),
            "" if row["p99_ttft_s"] is None else duration(row["p99_ttft_s"]),
        )
    console.print(table)
    if not verbose and len(rows) > MAX_ROWS:
        console.print(f"and {len(rows) - MAX_ROWS} more (-v)", style="dim")
    console.print()
