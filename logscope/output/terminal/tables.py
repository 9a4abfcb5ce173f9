"""Two logs side by side, and what was foretold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from logscope.output.terminal.answer import make_console
from logscope.output.terminal.words import VERDICTS, clean, duration, number

__all__ = ["print_comparison"]

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
        line.append(f": {VERDICTS.get(verdict, '')} (pressure: {document[word]['pressure']})")
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
