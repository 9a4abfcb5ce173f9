"""The answer of `analyze` on one screen: verdict, who, when, how much, why, what to do.

Lines are wrapped to the terminal's width and keep their indentation; where nobody's terminal is, each stays one line for `grep`.
A progress bar on standard error, only where that is a terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from logscope.output.report.captions import (
    binding_shares,
    certainty,
    engine_name,
    evidence_excerpt,
    evidence_text,
    gaps,
    is_overloaded,
    is_poor_fit,
    is_withheld,
    lines_read,
    mid_sentence,
    no_advice,
    of_engine,
    own_findings,
    ranked_by,
    scope,
    undecided,
    worst_engine,
)
from logscope.sanitize import clean
from logscope.wording import (
    COSTS,
    VERDICTS,
    bars,
    between,
    bounds,
    duration,
    estimate,
    moment,
    number,
    percent,
    period,
    plural,
    setting,
    shares,
)

__all__ = ["headline", "make_console", "print_answer", "progress_bar", "say"]
_COLOURS = {"healthy": "green", "not-enough-evidence": "yellow"}
_SEVERITY = {"critical": "red", "warning": "yellow", "info": "dim"}
MAX_FINDINGS = 4
MAX_ADVICE = 3
WIDEST = 120  # a longer line of prose is hard to read, however wide the screen is
LONG_NAME = 40  # of a source, more of which would push its line off the screen
UNWRAPPED = 200  # of a line of the log, where lines are not wrapped
# "5.9 s" and "--max-num-seqs 12" stay together; the sign is one that no text holds.
_TOGETHER = re.compile(
    r" (?=· )|(?:(?<=TTFT)|(?<=E2E)|(?<=ITL)) (?=p\d\d)|(?<=\d) (?=(?:[µm]?s|min|h|days|%|tok/s|GiB)(?:\W|$))|(?<=[a-z])(?<!\w\w \w) (?=\d[\d.]*(?: \(no |$))"
)
_GLUE = "\ue000"


class _Console(Console):
    """Leaves a reader that goes away to the command line, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(color: str) -> Console:
    """A console on standard output; without colour where that is no terminal, or NO_COLOR is set, unless told otherwise."""
    if color == "always":
        return _Console(force_terminal=True, highlight=False, soft_wrap=True)
    console = _Console(no_color=True if color == "never" else None, highlight=False, soft_wrap=True)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = WIDEST  # of tables; all other lines stay whole
    return console


def say(console: Console, text: Text | str, *, label: str = "  ", hang: int = 4, style: str = "") -> None:
    """Print one paragraph: `label` and the text, wrapped to the terminal with `hang` blanks before each further line."""
    body = text if isinstance(text, Text) else Text(text)
    if style:
        body.stylize(style)
    width = _width(console)
    if width is None:
        console.print(Text(label) + body)
        return
    body.plain = _TOGETHER.sub(_GLUE, body.plain)
    room = max(20, width - max(hang, len(label)))
    for place, line in enumerate(body.wrap(console, room)):
        line.rstrip()
        line.plain = line.plain.replace(_GLUE, " ")
        console.print(Text(label if place == 0 else " " * hang) + line)


def _width(console: Console) -> int | None:
    """The columns to wrap to; None where the text goes to a file or a pipe, unless COLUMNS says how wide it is read."""
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return min(console.width, WIDEST)
    return None


def headline(verdict: str, pressure: str, why: str = "") -> Text:
    """A verdict's id and what it says; `why` instead, where there is none and the reason is known."""
    colour = _COLOURS.get(verdict, "red")
    line = Text()
    line.append(verdict, style=f"bold {colour}")
    line.append(f": {why or VERDICTS[verdict].brief}" if verdict in VERDICTS else "")
    if pressure == "thrash":
        line.append(" (thrashing)", style=colour)
    return line


def print_answer(
    document: Mapping[str, Any],
    *,
    verbose: bool = False,
    color: str = "auto",
    series: Mapping[str, Sequence[float | None]] | None = None,
) -> None:
    """Print the document of `analyze --json` for people."""
    console = make_console(color)
    why = clean(undecided(document), 400) if document["verdict"] == "not-enough-evidence" else ""
    said = headline(document["verdict"], document["pressure"], why)
    if is_overloaded(document):
        said.append("; overloaded: requests arrive faster than this server can serve", style="bold")
    if sure := certainty(document):
        said.append(f"; {sure}")
    say(console, said, label="", hang=2)
    worst = worst_engine(document)
    if worst:
        _server(console, document, worst, verbose)
    if series:
        _series(console, series)
        if held := binding_shares(worst):
            say(console, held, label="  Limit     ", hang=12)
    _figures(console, document, worst)
    _why(console, document, worst, verbose)
    _advice(console, document, verbose)
    _not_shown(console, document, verbose)
    _input_lines(console, document["input"], verbose)


def _server(console: Console, document: Mapping[str, Any], worst: Mapping[str, Any], verbose: bool) -> None:
    kv, config = worst["kv_cache"], worst["config"]
    version = f"vLLM {clean(str(worst['vllm_version']), 40)}" if worst["vllm_version"] else "vLLM, version not visible"
    parts = [f"{version} ({worst['engine'] or 'engine not visible'})"]
    if kv["tokens"]:
        blocks = f" ({number(kv['num_blocks'])} blocks{_of_size(kv)})" if kv["num_blocks"] else ""
        parts.append(f"KV cache {number(kv['tokens'])} tokens{blocks}")
    for name in ("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_model_len"):
        if config.get(name) is not None:
            basis = worst["config_basis"].get(name)
            parts.append(f"{name} {number(config[name])}" + (f" ({basis})" if basis in ("default", "inferred") else ""))
    say(console, " · ".join(parts), style="dim", hang=2)
    if document["input"]["start"] and document["input"]["end"]:
        say(console, period(worst["start"], worst["end"]), style="dim", hang=2)
    if scoped := scope(document):
        say(console, scoped, style="dim", hang=2)
    if verbose:
        for name, value in config.items():
            if value is not None:
                known = worst["config_basis"].get(name, "?")
                say(console, f"{name} = {clean(setting(value), 300)} ({known})", label="    ", hang=6, style="dim")


def _of_size(kv: Mapping[str, Any]) -> str:
    """The size of a block where blocks times size are the tokens; several groups of layers share blocks otherwise."""
    size = kv["block_size"]
    if not size or abs(kv["num_blocks"] * size - kv["tokens"]) <= 2 * size:
        return f" of {size}" if size else ""
    return f" of {size}, shared by several KV-cache groups"


def _series(console: Console, series: Mapping[str, Sequence[float | None]]) -> None:
    console.print()
    width = min(48, max(12, (_width(console) or WIDEST) - 24))
    for name, values in series.items():
        known = [v for v in values if v is not None]
        if known:
            share = name.startswith("KV")
            peak = f"{max(known):.1f} %" if share else number(max(known))
            drawn = bars(values, width, top=100.0 if share else None)
            console.print(Text(f"  {name:<9} {drawn}  peak {peak}"))


def _figures(console: Console, document: Mapping[str, Any], worst: Mapping[str, Any]) -> None:
    found, latency = document["preemptions"], document["latency"]
    several = len(document["engines"]) > 1
    console.print()

    def line(name: str, text: str) -> None:
        say(console, text, label=f"  {name:<12} ", hang=15)

    own = worst.get("preemptions") or {}
    basis = f" [{found['basis']}]" if found["basis"] else ""
    known = found["low"] is not None or found["value"] is not None
    text = estimate(found["low"], found["value"], found["high"]) + (" in total" if several and known else "") + basis
    if found["recomputed_tokens"]:
        text += f", {number(found['recomputed_tokens'])} tokens recomputed"
    if several and own.get("value") is not None:
        text += f" · {engine_name(worst, document)}: {estimate(own['low'], own['value'], own['high'])}"
    logged = found["logged"]
    if found["basis"] == "inferred":
        proven = bounds(logged["low"], logged["high"])
        text += f" · logged by vLLM: {proven or _none_logged(worst)}"
    if beside := found.get("inferred"):
        text += f" · replay estimate: {estimate(beside['low'], beside['value'], beside['high'])}"
    line("Preemptions", text)
    scoped = f" · {engine_name(worst, document)}" if several and latency["basis"] != "measured" else ""
    if latency["basis"] is not None:
        for name, word in (("ttft_s", "TTFT"), ("e2e_s", "E2E")):
            p = latency[name]
            if any(v is not None for k, v in p.items() if k in ("p50", "p90", "p99")):
                points = " · ".join(f"{k} {_with_bounds(p, k)}" for k in ("p50", "p90", "p99") if k in p)
                line(word, f"{points} [{latency['basis']}]{scoped}")
        if latency.get("withheld"):
            line("Withheld", clean(str(latency["withheld"]), 300))
        if latency.get("censored"):
            line("Unfinished", f"{plural(latency['censored'], 'request')} still running when the log ends")
    elif worst and worst["verdict"] not in ("startup-failed", "startup-kv-too-small"):
        line("Latency", clean(str(latency.get("withheld") or "not inferred: nothing was replayed"), 300))
    flow = document["throughput"]
    if flow["generation_tokens_per_s"] is not None:
        totals = ", totals" if several else ""
        line(
            "Throughput",
            f"{_flow(flow['prompt_tokens_per_s'])} prompt and {_flow(flow['generation_tokens_per_s'])} generated tokens/s [measured{totals}]",
        )
    for finding in document["findings"]:
        if is_poor_fit(finding) and of_engine(finding, worst):
            say(console, Text(clean(finding["title"], 300), style="yellow"), hang=2)


def _flow(value: float | None) -> str:
    """Tokens a second with as many digits as say something: 0.4 is not 0."""
    return number(value, "?") if value is None or value >= 10 or value == 0 else f"{value:.1f}"


def _with_bounds(points: Mapping[str, Any], point: str) -> str:
    """A percentile, the p99 with its bounds."""
    low, high = ((points.get(side) or {}).get(point) for side in ("low", "high"))
    said = f" ({between(low, high)})" if point == "p99" and (low is not None or high is not None) else ""
    return f"{duration(points[point], 'withheld')}{said}"


def _none_logged(worst: Mapping[str, Any]) -> str:
    return "none (V1 never logs preemptions)" if worst.get("engine") == "V1" else "none"


def _why(console: Console, document: Mapping[str, Any], worst: Mapping[str, Any], verbose: bool) -> None:
    several = len(document["engines"]) > 1
    findings: Sequence[Mapping[str, Any]] = own_findings(document)
    if several and verbose:
        findings = [f for f in document["findings"] if f["id"] != "coverage"]
    slow = document["ledger"]["slow_s"]
    words = shares(slow)
    if not findings and not words:
        return
    console.print()
    named = f" ({engine_name(worst, document)})" if several and not verbose else ""
    console.print(Text(f"Why{named}", style="bold"))
    if words:
        total = sum(v for v in slow.values() if v)
        say(console, f"Where the slow requests' {duration(total)} went: {words} [replayed]")
    shown = findings if verbose else findings[:MAX_FINDINGS]
    cited: set[tuple[str, int]] = set()
    for finding in shown:
        line = Text()
        line.append(finding["id"], style=_SEVERITY.get(finding["severity"], ""))
        line.append(f" [{finding['basis']}] ")
        if several and verbose:
            line.append(f"{engine_name(finding, document)}: ")
        line.append(clean(finding["title"], 400))
        say(console, line)
        for evidence in finding["evidence"] if verbose else _not_cited(finding["evidence"], cited):
            _evidence(console, evidence, finding["id"], named=len(document["input"]["sources"]) > 1)
    if len(shown) < len(findings):
        say(console, f"and {len(findings) - len(shown)} more (-v)", style="dim")


def _not_cited(evidence: Sequence[Mapping[str, Any]], cited: set[tuple[str, int]]) -> list[Mapping[str, Any]]:
    """The first line that stands under no finding above."""
    for line in evidence:
        if (place := (line["source"], line["line"])) not in cited:
            cited.add(place)
            return [line]
    return []


def _evidence(console: Console, evidence: Mapping[str, Any], finding: str, *, named: bool) -> None:
    """Where it stands (a single source needs no name), when, and the part of the line that is the evidence, on one line of the screen where there is room."""
    time = moment(evidence.get("time"))
    source = clean(evidence["source"], 300)
    if len(source) > LONG_NAME and "/" in source:
        source = f"…/{'/'.join(source.split('/')[-2:])}"
    place = f"{'standard input' if source == '-' else source}:" if named else "line "
    where = f"{place}{evidence['line']}  " + (f"{time:%H:%M:%S}  " if time else "")
    width = _width(console)
    room = (
        UNWRAPPED if width is None else max(width - 6 - len(where), 2 * width - 14 - len(where) if width < 100 else 0)
    )
    said = evidence_excerpt(clean(evidence_text(evidence), 600), max(72, room), finding)
    say(console, Text(where + said, style="dim"), label="      ", hang=8)


def _advice(console: Console, document: Mapping[str, Any], verbose: bool) -> None:
    advice = document["advice"]
    console.print()
    if not advice:
        # the headline has said why
        said = "No recommendation." if document["verdict"] == "not-enough-evidence" else no_advice(document)
        say(console, Text(clean(said, 400), style="bold"), label="", hang=2)
        return
    ranked = ranked_by(document)
    console.print(Text("What to do" + (f" (best {ranked} first)" if ranked else ""), style="bold"))
    for item in advice if verbose else advice[:MAX_ADVICE]:
        name = item["flag"] or ", ".join(f"{k} = {setting(v)}" for k, v in item["set"].items())
        line = Text()
        line.append(clean(name, 120), style="bold")
        line.append(f" ({COSTS.get(item['cost'], item['cost'])})")
        if effect := _effect(item["baseline"], item["scenario"], item.get("ranked_by"), document["latency"] or {}):
            line.append(f"  {effect} [replayed]")
        elif item.get("basis") == "rule":
            line.append(" [rule of thumb, not replayed]")
        say(console, line)
        trade = f" Trade-off: {mid_sentence(item['trade'])}" if item["trade"] else ""
        say(console, Text(clean(f"{item['why']}{trade}", 500), style="dim"), label="      ", hang=6)
    if len(advice) > MAX_ADVICE and not verbose:
        say(console, f"and {len(advice) - MAX_ADVICE} more (-v)", style="dim")


def _effect(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, ranked_by: str | None, latency: Mapping[str, Any]
) -> str:
    """What a change does; of a figure that is withheld only by how much."""
    if not before or not after:
        return ""
    parts = []
    shown = [("e2e_s", "E2E", "p99"), ("ttft_s", "TTFT", "p99")]
    if ranked_by == "ttft_s.p50":
        shown = [("ttft_s", "TTFT", "p50"), ("e2e_s", "E2E", "p50"), ("e2e_s", "E2E", "p99")]
    for name, word, point in shown:
        a, b = before[name][point], after[name][point]
        if a is None or b is None:
            continue
        if a and is_withheld(latency, name, point):
            parts.append(f"{word} {point} {'falls' if b < a else 'rises'} by {percent(abs(b - a) / a)}")
        else:
            parts.append(f"{word} {point} {duration(a)} to {duration(b)}")
    for name, word, unit in (
        ("preemptions", "preemptions", ""),
        ("generation_tokens_per_s", "throughput", " tokens/s"),
    ):
        said, then = (number(side[name], "") for side in (before, after))
        if parts and said and then and (said, then) != ("0", "0"):
            parts.append(f"{word} {said} to {then}{unit}" if said != then else f"{word} unchanged")
    return ", ".join(parts)


def _not_shown(console: Console, document: Mapping[str, Any], verbose: bool) -> None:
    said = gaps(document, everything=verbose)
    if not said:
        return
    console.print()
    console.print(Text("What this log could not show", style="bold"))
    for text in said:
        say(console, clean(text, 400), style="dim")


def _input_lines(console: Console, found: Mapping[str, Any], verbose: bool) -> None:
    console.print()
    whole, *parts = (f"{value} {word}".strip() for value, word in lines_read(found))
    line = f"{whole}: {', '.join(parts)}"
    counted = (("out_of_order", "out of order"), ("truncated", "truncated"), ("unbelieved", "with impossible values"))
    for name, word in counted:
        if found.get(name):
            line += f"; {plural(found[name], 'line')} {word}"
    if unknown := found["unrecognized_warnings"]:
        line += f"; {plural(unknown, 'unrecognised warning')}" + ("" if verbose else " (list with -v)")
    say(console, line, label="", hang=2, style="dim")
    samples = found["warning_samples"] if verbose else []
    if len(samples) < found["unrecognized_warnings"] and samples:
        say(console, f"The first {len(samples)} of the unrecognised warnings:", label="  ", style="dim")
    for sample in samples:
        text = f"{clean(sample['source'], 80)}:{sample['line']}  {clean(sample['text'], 200)}"
        say(console, text, label="    ", hang=6, style="dim")


@contextmanager
def progress_bar(*, quiet: bool, color: str) -> Iterator[Callable[[float], None] | None]:
    """Yield a function that takes the share done (0 to 1), or None where nobody would see the bar."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=True if color == "never" else None)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("analysing the log", total=1.0)
        yield lambda share: bar.update(
            task, completed=share, description="replaying the workload" if share < 1 else "comparing settings"
        )
