"""Tables for people: two logs side by side with the prediction, both sides of a change, rates and what they do, and several servers, the worst first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from logscope.output.answer import Answer
from logscope.output.report.captions import capacity_sentences, capacity_tables
from logscope.output.terminal.answer import headline, make_console, print_answer, say
from logscope.sanitize import clean
from logscope.wording import NOT_VISIBLE, change, duration, estimate, number, percent, rate

__all__ = ["comparison_view", "print_both_sides", "print_capacity", "print_comparison", "print_fleet", "show"]
NOISE = 0.05  # two runs of one load on one server differ by as much
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
        say(console, headline(document[word]["verdict"], document[word]["pressure"]), label=f"{word:<7}", hang=9)
    console.print()
    sentences, (header, rows) = comparison_view(document)
    if document["closing"]:
        sentences.pop()
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in header:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*row)
    changed = [s for s in sentences if s.startswith("Changed: ")]
    for sentence in changed:
        say(console, sentence, label="  ", hang=4)
    console.print(table)
    for sentence in sentences:
        if sentence not in changed:
            say(console, Text(sentence, style="yellow" if sentence.startswith("Note: ") else ""), label="", hang=2)
    if document["closing"]:
        say(console, Text(clean(document["closing"], 400), style="bold"), label="", hang=2)


def comparison_view(document: Mapping[str, Any]) -> tuple[list[str], tuple[list[str], list[list[str]]]]:
    """The sentences of a comparison (the closing one last, where there is one), and the header and rows of its table."""
    sentences = [
        f"Changed: {name}: {clean(str(a), 60)} to {clean(str(b), 60)}"
        for name, (a, b) in document["config_changed"].items()
    ]
    if document["version_changed"] is not None:
        a, b = document["version_changed"]
        sentences.append(f"Changed: vLLM {clean(str(a), 40)} to {clean(str(b), 40)}")
    sentences += _of_prediction(document)
    sentences += [
        f"Regression: {_WORDS.get(r['figure'], 'time of a step')} got worse by {percent(r['change'])}."
        for r in document["regressions"]
    ]
    sentences += [f"Note: {clean(note, 400)}" for note in document["notes"]]
    if document["closing"]:
        sentences.append(document["closing"])
    predicted = document["predicted"]
    rows = []
    for word, name in _ROWS:
        a, b = document["changed"].get(name, [None, None])
        if a is None and b is None:
            continue
        row = [word, _shown(name, a), _shown(name, b), change(a, b)]
        if predicted:
            key, _, point = name.partition(".")
            side = predicted["scenario"].get(key)
            row.append(_shown(name, side.get(point) if isinstance(side, dict) else side))
        rows.append(row)
    return sentences, (["", "before", "after", "change", *(["predicted"] if predicted else [])], rows)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return duration(value) if "_s." in name else number(value)


def _of_prediction(document: Mapping[str, Any]) -> list[str]:
    judged, said = document["judged"], []
    if judged:
        wrong = [_WORDS[j["figure"]] for j in judged if not j["right"]]
        text = f"The replay of BEFORE predicted {len(judged) - len(wrong)} of {len(judged)} metrics to within 25 %"
        said.append(text + (f"; not {', '.join(wrong)}." if wrong else "."))
    tail = document["changed"].get("e2e_s.p99")
    if tail and tail[0] and tail[1]:
        same = abs(tail[1] - tail[0]) < NOISE * tail[0]
        verb = "is about the same" if same else "improved" if tail[1] < tail[0] else "got worse"
        said.append(f"E2E p99 {verb}: {duration(tail[0])} to {duration(tail[1])} ({change(*tail)}).")
    return said


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
    for name, justify in (("", "left"), ("current", "right"), ("with change", "right"), ("change", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    before, after = document["baseline"], document["scenario"]
    for word, name, point in _BOTH_SIDES_ROWS:
        a, b = before[name][point], after[name][point]
        table.add_row(word, duration(a), duration(b), change(a, b))
    for word, name, form in (
        ("Throughput", "generation_tokens_per_s", rate),
        ("Preemptions", "preemptions", number),
        ("Recomputed tokens", "recomputed_tokens", number),
        ("Time until all requests finish", "duration_s", duration),
    ):
        a, b = before[name], after[name]
        table.add_row(word, form(a), form(b), change(a, b))
    console.print(table)
    say(console, "Both columns are replays of the workload inferred from this log.", label="", hang=2, style="dim")
    for note in document["notes"]:
        say(console, f"Assumption: {clean(note, 300)}.", label="", hang=2, style="dim")
    for name in document["unsupported"]:
        say(console, f"The replay does not model {clean(name, 120)}.", label="", hang=2, style="yellow")


def print_capacity(document: Mapping[str, Any], *, color: str = "auto") -> None:
    """Print the document of `capacity --json` for people."""
    console = make_console(color)
    lead, *more = capacity_sentences(document)
    say(console, Text(lead, style="bold"), label="", hang=2)
    for sentence in more:
        say(console, sentence, label="", hang=2)
    for header, rows in capacity_tables(document):
        console.print()
        _table(console, header, [[clean(cell, 120) for cell in row] for row in rows])
    console.print()
    say(
        console,
        "All rows are replays of the load inferred from this log, faster or slower.",
        label="",
        hang=2,
        style="dim",
    )
    for name in document["unsupported"]:
        say(console, f"The replay does not model {clean(name, 120)}.", label="", hang=2, style="yellow")


def _table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; of the last columns those for which a narrow screen has no room stand below a row, where they differ from the row above."""
    wide = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    ends = list(itertools.accumulate(size + GAP for size in wide))
    fit = max(2, sum(end - GAP <= console.width for end in ends))
    below = ""

    def line(cells: Sequence[str], style: str = "") -> None:
        first, *others = (
            f"{c:<{w}}" if not p else f"{c:>{w}}" for p, (c, w) in enumerate(zip(cells, wide, strict=False))
        )
        console.print(Text((" " * GAP).join([first, *others]), style=style))

    line(header[:fit], "bold")
    for row in rows:
        line(row[:fit])
        more = " · ".join(f"{name} {value}" for name, value in zip(header[fit:], row[fit:], strict=True))
        if more and more != below:
            say(console, Text(more, style="dim"), label="  ", hang=2)
        below = more


GAP = 2  # between columns
MAX_ROWS = 20


def print_fleet(rows: Sequence[Mapping[str, Any]], *, verbose: bool = False, color: str = "auto") -> None:
    """Print the rows of `logscope.execution.fleet`; without `verbose` the first ones."""
    console = make_console(color)
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("server", "verdict", "preemptions", "E2E p99", "TTFT p99")
    for place, name in enumerate(columns):
        table.add_column(name, overflow="fold", no_wrap=place > 0, justify="right" if place > 1 else "left")
    folder = _common_folder([name for row in rows for name in row["names"]])
    for row in rows if verbose else rows[:MAX_ROWS]:
        table.add_row(
            Text(clean(", ".join(name.removeprefix(folder) for name in row["names"]), 60)),
            row["verdict"] + (" (uneven engines)" if row["imbalance"] else ""),
            estimate(row["preemptions_low"], row["preemptions"], row["preemptions_high"]).replace(NOT_VISIBLE, "–"),
            duration(row["p99_e2e_s"], "–"),
            duration(row["p99_ttft_s"], "–"),
        )
    console.print(table)
    if not verbose and len(rows) > MAX_ROWS:
        console.print(f"and {len(rows) - MAX_ROWS} more (-v)", style="dim")
    console.print()
    worst = clean(", ".join(rows[0]["names"]), 200)
    say(console, Text(f"The worst: {worst}", style="bold"), label="", hang=2)


def _common_folder(names: Sequence[str]) -> str:
    """The folders that all names begin with: they tell none from another."""
    levels = zip(*(name.split("/")[:-1] for name in names), strict=False)
    return "".join(f"{level[0]}/" for level in itertools.takewhile(lambda level: len(set(level)) == 1, levels))


def show(answer: Answer, *, verbose: bool = False, color: str = "auto") -> None:
    """Print an answer: of several servers a table, then the worst."""
    document, worst = answer.document, answer.parts[0]
    if len(answer.rows) > 1:
        print_fleet(answer.rows, verbose=verbose, color=color)
        document = {**document, **worst.document, "input": document["input"]}
    print_answer(document, verbose=verbose, color=color, series=worst.series)
