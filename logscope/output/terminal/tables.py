"""Two logs side by side, and what was foretold.

Both sides of a change, as a table.

The table of several servers, the worst first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from logscope.output.terminal.answer import make_console
from logscope.sanitize import clean
from logscope.wording import VERDICTS, duration, number

__all__ = ["print_both_sides", "print_comparison", "print_fleet"]
_ROWS = (
    ("E2E p50", "e2e_s.p50"),
    ("E2E p90", "e2e_s.p90"),
    ("E2E p99", "e2e_s.p99"),
    ("TTFT p50", "ttft_s.p50"),
    ("TTFT p99", "ttft_s.p99"),
    ("ITL p99", "itl_s.p99"),
    ("Preemptions", "preemptions"),
    ("Recomputed tokens", "recomputed_tokens"),
    ("Generated tokens/s", "generation_tokens_per_s"),
    ("Prompt tokens/s", "prompt_tokens_per_s"),
    ("Requests", "requests"),
)
_WORDS = {name: word for word, name in _ROWS}


def print_comparison(document: Mapping[str, Any], *, color: str = "auto") -> None:
    """Print the document of `compare --json` for people."""
    console = make_console(color)
    for word in ("before", "after"):
        verdict = document[word]["verdict"]
        line = Text(f"{word:<7}")
        line.append(verdict, style="bold")
        line.append(
            f": {VERDICTS[verdict].brief if verdict in VERDICTS else ''} (pressure: {document[word]['pressure']})"
        )
        console.print(line)
    console.print()
    for name, (a, b) in document["config_changed"].items():
        console.print(Text(f"  {name}: {clean(str(a), 60)} to {clean(str(b), 60)}"))
    if document["version_changed"] is not None:
        a, b = document["version_changed"]
        console.print(Text(f"  vLLM {clean(str(a), 40)} to {clean(str(b), 40)}"))
    console.print(_table(document))
    _verdict_of_prediction(console, document)
    for note in document["notes"]:
        console.print(Text(f"Note: {clean(note, 300)}", style="yellow"))


def _table(document: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    predicted = document["predicted"]
    names = ["", "before", "after", "change", *(["foretold"] if predicted else [])]
    for name in names:
        table.add_column(name, justify="right" if name else "left")
    for word, name in _ROWS:
        a, b = document["changed"].get(name, [None, None])
        if a is None and b is None:
            continue
        row = [word, _shown(name, a), _shown(name, b), _change(a, b)]
        if predicted:
            key, _, point = name.partition(".")
            side = predicted["scenario"].get(key)
            row.append(_shown(name, side.get(point) if isinstance(side, dict) else side))
        table.add_row(*row)
    return table


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return duration(value) if "_s." in name else number(value)


def _change(a: float | None, b: float | None) -> str:
    return f"{100 * (b - a) / a:+.0f} %" if a and b is not None else ""


def _verdict_of_prediction(console: Any, document: Mapping[str, Any]) -> None:
    judged = document["judged"]
    if not judged:
        return
    wrong = [_WORDS[j["figure"]] for j in judged if not j["right"]]
    right = len(judged) - len(wrong)
    text = f"The replay of BEFORE foretold {right} of {len(judged)} figures within a quarter"
    console.print(Text(text + (f"; not {', '.join(wrong)}." if wrong else "."), style="bold"))


_BOTH_SIDES_ROWS = (
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
    for word, name, point in _BOTH_SIDES_ROWS:
        a, b = before[name][point], after[name][point]
        table.add_row(word, duration(a), duration(b), _percent_change(a, b))
    for word, name, unit in (
        ("Throughput", "generation_tokens_per_s", " tokens/s"),
        ("Preemptions", "preemptions", ""),
        ("Recomputed tokens", "recomputed_tokens", ""),
        ("Until the last is done", "duration_s", " s"),
    ):
        a, b = before[name], after[name]
        table.add_row(word, number(a) + unit, number(b) + unit, _percent_change(a, b))
    console.print(table)
    console.print("Both sides are replayed from the workload that was inferred from this log.", style="dim")
    for note in document["notes"]:
        console.print(Text(f"Assumed: {clean(note, 300)}.", style="dim"))
    for name in document["unsupported"]:
        console.print(Text(f"The replay does not model {name}.", style="yellow"))


def _percent_change(a: float | None, b: float | None) -> str:
    if a is None or b is None or a == 0:
        return ""
    return f"{100 * (b - a) / a:+.0f} %"


MAX_ROWS = 20


def print_fleet(rows: Sequence[Mapping[str, Any]], *, verbose: bool = False, color: str = "auto") -> None:
    """Print the rows of `logscope.execution.fleet_analysis`; without `verbose` the first ones."""
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
