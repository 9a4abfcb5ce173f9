"""Both sides of a change, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from logscope.output.terminal.answer import make_console
from logscope.output.terminal.words import clean, duration, number

__all__ = ["print_both_sides"]

_ROWS = (
    ("E2E p50", "e2e_s", "p50"),
    ("E2E p90", "e2e_s", "p90"),
    ("E2E p99", "e2e_s", "p99"),
    ("TTFT p50", "ttft_s", "p50"),
    ("TTFT p90", "ttft_s", "p90"),
    ("TTFT p99", "ttft_s", "p99"),
    ("ITL p50", "itl_s", "p50"),
    ("ITL p99", "itl_s", "p99"),
)


def print_both_sides(document: Mapping[str, Any], *, color: str = "auto") -> None:
    """Print the document of `whatif --json` for people."""
    console = make_console(color)
    changes = ", ".join(f"{k}={v}" for k, v in document["set"].items())
    console.print(Text(f"{clean(changes, 200)}", style="bold"), end="")
    console.print(Text(f"  ({document['flag']})" if document["flag"] else "", style="dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name, justify in (("", "left"), ("now", "right"), ("then", "right"), ("change", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    before, after = document["baseline"], document["scenario"]
    for word, name, point in _ROWS:
        a, b = before[name][point], after[name][point]
        table.add_row(word, duration(a), duration(b), _change(a, b))
    for word, name, unit in (
        ("Throughput", "generation_tokens_per_s", " tokens/s"),
        ("Preemptions", "preemptions", ""),
        ("Recomputed tokens", "recomputed_tokens", ""),
        ("Until the last is done", "duration_s", " s"),
    ):
        a, b = before[name], after[name]
        table.add_row(word, number(a) + unit, number(b) + unit, _change(a, b))
    console.print(table)
    console.print(
        "Both sides are replayed from the workload that was inferred from this log.", style="dim"
    )
    for note in document["notes"]:
        console.print(Text(f"Assumed: {clean(note, 300)}.", style="dim"))
    for name in document["unsupported"]:
        console.print(Text(f"The replay does not model {name}.", style="yellow"))


def _change(a: float | None, b: float | None) -> str:
    if a is None or b is None or a == 0:
        return ""
    return f"{100 * (b - a) / a:+.0f} %"
