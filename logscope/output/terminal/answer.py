"""The answer of `analyze` on one screen: verdict, who, when, how much, why, what to do.

A progress bar on standard error, only where that is a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from logscope.sanitize import clean
from logscope.wording import VERDICTS, bars, bounds, duration, estimate, number, shares

__all__ = ["make_console", "print_answer", "progress_bar"]
_COLOURS = {"healthy": "green", "not-enough-evidence": "yellow"}
_SEVERITY = {"critical": "red", "warning": "yellow", "info": "dim"}
MAX_FINDINGS = 4
MAX_ADVICE = 3


class _Console(Console):
    """Leaves a reader that goes away to the command line, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(color: str) -> Console:
    """A console on standard output; without colour where that is no terminal, unless told otherwise."""
    if color == "always":
        return _Console(force_terminal=True, highlight=False, soft_wrap=True)
    return _Console(no_color=True if color == "never" else None, highlight=False, soft_wrap=True)


def print_answer(
    document: Mapping[str, Any],
    *,
    verbose: bool = False,
    color: str = "auto",
    series: Mapping[str, Sequence[float | None]] | None = None,
) -> None:
    """Print the document of `analyze --json` for people."""
    console = make_console(color)
    _headline(console, document)
    worst = document["engines"][document["worst_engine"]] if document["worst_engine"] is not None else None
    if worst is not None:
        _server(console, document, worst, verbose)
    if series:
        _series(console, series)
    _figures(console, document, worst)
    _why(console, document, verbose)
    _advice(console, document, verbose)
    _not_visible(console, document, verbose)
    _input_line(console, document["input"], verbose)


def _headline(console: Console, document: Mapping[str, Any]) -> None:
    verdict = document["verdict"]
    colour = _COLOURS.get(verdict, "red")
    line = Text()
    line.append(verdict, style=f"bold {colour}")
    line.append(f": {VERDICTS[verdict].brief if verdict in VERDICTS else ''}")
    if document["pressure"] == "thrash":
        line.append(" (preemption repeats)", style=colour)
    console.print(line)


def _server(console: Console, document: Mapping[str, Any], worst: Mapping[str, Any], verbose: bool) -> None:
    engines = document["engines"]
    kv, config = worst["kv_cache"], worst["config"]
    version = f"vLLM {clean(str(worst['vllm_version']), 40)}" if worst["vllm_version"] else "vLLM, version not visible"
    parts = [f"{version} ({worst['engine'] or 'engine not visible'})"]
    if kv["tokens"]:
        parts.append(
            f"KV cache {number(kv['tokens'])} tokens ({number(kv['num_blocks'])} blocks of {kv['block_size']})"
        )
    for name, word in (
        ("max_num_seqs", "seats"),
        ("max_num_batched_tokens", "token budget"),
        ("max_model_len", "max_model_len"),
    ):
        if config.get(name) is not None:
            basis = worst["config_basis"].get(name)
            parts.append(f"{word} {number(config[name])}" + (" (default)" if basis == "default" else ""))
    console.print("  " + " · ".join(parts), style="dim")
    if worst["start"] and worst["end"]:
        span = f"  {worst['start'].replace('T', ' ')} to {worst['end'].replace('T', ' ')}"
        if len(engines) > 1:
            span += f" · the worst of {len(engines)} engines and starts: server {worst['server']}, start {worst['run']}, engine {worst['engine_index']}"
        console.print(span, style="dim")
    if verbose:
        for name, value in config.items():
            if value is not None:
                console.print(
                    f"    {name} = {clean(str(value), 60)} ({worst['config_basis'].get(name, '?')})", style="dim"
                )


def _series(console: Console, series: Mapping[str, Sequence[float | None]]) -> None:
    console.print()
    for name, values in series.items():
        known = [v for v in values if v is not None]
        if known:
            top = 100.0 if name.startswith("KV") else None
            console.print(Text(f"  {name:<9} {bars(values, top=top)}  up to {number(max(known))}{' %' if top else ''}"))


def _figures(console: Console, document: Mapping[str, Any], worst: Mapping[str, Any] | None) -> None:
    found, latency = document["preemptions"], document["latency"]
    console.print()
    basis = f" [{found['basis']}]" if found["basis"] else ""
    line = f"  Preemptions  {estimate(found['low'], found['value'], found['high'])}{basis}"
    logged = found["logged"]
    if found["basis"] == "inferred":
        line += " · in the log itself: " + (
            bounds(logged["low"], logged["high"]) if logged["low"] is not None else "none visible"
        )
    if beside := found.get("inferred"):
        line += f" · the replay infers {estimate(beside['low'], beside['value'], beside['high'])}"
    if found["recomputed_tokens"]:
        line += f" · {number(found['recomputed_tokens'])} tokens computed twice"
    console.print(Text(line))
    if latency["basis"] is not None:
        for name, word in (("ttft_s", "TTFT"), ("e2e_s", "E2E")):
            p = latency[name]
            console.print(
                Text(
                    f"  {word:<11}  p50 {duration(p['p50'])} · p90 {duration(p['p90'])} · p99 {duration(p['p99'])} [{latency['basis']}]"
                )
            )
    elif worst is not None and worst["verdict"] not in ("startup-failed", "startup-kv-too-small"):
        console.print(Text("  Latency      not visible in this log"))
    flow = document["throughput"]
    if flow["generation_tokens_per_s"] is not None:
        console.print(
            Text(
                f"  Throughput   {number(flow['prompt_tokens_per_s'])} prompt and {number(flow['generation_tokens_per_s'])} generated tokens/s [measured]"
            )
        )
    for finding in document["findings"]:
        if _poor_fit(finding) and _of_worst(finding, document):
            console.print(Text(f"  {clean(finding['title'], 300)}", style="yellow"))


def _poor_fit(finding: Mapping[str, Any]) -> bool:
    return finding["id"] == "coverage" and "mean_fit" in finding.get("facts", {})


def _why(console: Console, document: Mapping[str, Any], verbose: bool) -> None:
    findings = [f for f in document["findings"] if f["id"] != "coverage"]
    several = len(document["engines"]) > 1
    if several and not verbose:
        findings = [f for f in findings if _of_worst(f, document)]
    slow = document["ledger"]["slow_s"]
    words = shares(slow)
    if not findings and not words:
        return
    console.print()
    console.print("Why", style="bold")
    if words:
        total = sum(v for v in slow.values() if v)
        console.print(Text(f"  Of the slow requests' {duration(total)}: {words} [replayed]"))
    shown = findings if verbose else findings[:MAX_FINDINGS]
    for finding in shown:
        line = Text("  ")
        line.append(finding["id"], style=_SEVERITY.get(finding["severity"], ""))
        line.append(f" [{finding['basis']}] ")
        if several and verbose:
            line.append(f"server {finding['server']}, start {finding['run']}, engine {finding['engine_index']}: ")
        line.append(clean(finding["title"], 320))
        console.print(line)
        for evidence in finding["evidence"] if verbose else finding["evidence"][:1]:
            text = clean(evidence["text"], 150)
            console.print(Text(f"      {clean(evidence['source'], 80)}:{evidence['line']}  {text}", style="dim"))
    if len(shown) < len(findings):
        console.print(f"  and {len(findings) - len(shown)} more (-v)", style="dim")


def _of_worst(finding: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    worst = document["engines"][document["worst_engine"]]
    return all(finding[name] == worst[name] for name in ("server", "run", "engine_index"))


def _advice(console: Console, document: Mapping[str, Any], verbose: bool) -> None:
    advice = document["advice"]
    if not advice:
        if document["verdict"] == "healthy":
            console.print()
            console.print("Nothing to change.", style="bold")
        return
    console.print()
    console.print("What to do", style="bold")
    for item in advice if verbose else advice[:MAX_ADVICE]:
        name = item["flag"] or ", ".join(f"{k}={v}" for k, v in item["set"].items())
        line = Text("  ")
        line.append(clean(name, 120), style="bold")
        line.append(" (free)" if item["cost"] == "free" else " (more GPUs)")
        if item["scenario"]["e2e_s"]["p99"] is not None:
            line.append(f"  {_effect(item['baseline'], item['scenario'])} [replayed]")
        console.print(line)
        price = f" The price: {item['trade']}" if item["trade"] else ""
        console.print(Text(f"      {item['why']}{price}", style="dim"))


def _effect(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    parts = []
    for name, word in (("e2e_s", "E2E p99"), ("ttft_s", "TTFT p99")):
        parts.append(f"{word} {duration(before[name]['p99'])} to {duration(after[name]['p99'])}")
    parts.append(f"preemptions {number(before['preemptions'])} to {number(after['preemptions'])}")
    parts.append(f"tokens/s {number(before['generation_tokens_per_s'])} to {number(after['generation_tokens_per_s'])}")
    return ", ".join(parts)


def _not_visible(console: Console, document: Mapping[str, Any], verbose: bool) -> None:
    said: list[str] = []
    for finding in document["findings"]:
        if finding["id"] != "coverage" or _poor_fit(finding) or finding["title"] in said:
            continue
        if verbose or len(document["engines"]) == 1 or _of_worst(finding, document):
            said.append(finding["title"])
    if not said:
        return
    console.print()
    console.print("Not visible in this log", style="bold")
    for text in said:
        console.print(Text(f"  {clean(text, 300)}", style="dim"))


def _input_line(console: Console, found: Mapping[str, Any], verbose: bool) -> None:
    console.print()
    line = f"{number(found['lines'])} lines, {number(found['events'])} events, {number(found['other_records'])} other records, {number(found['foreign_lines'])} lines of others"
    for name, word in (
        ("out_of_order", "times out of order"),
        ("truncated", "lines cut"),
        ("unrecognized_warnings", "warnings not known"),
    ):
        if found[name]:
            line += f", {number(found[name])} {word}"
    console.print(Text(line, style="dim"))
    if verbose:
        for sample in found["warning_samples"]:
            console.print(
                Text(f"    {clean(sample['source'], 80)}:{sample['line']}  {clean(sample['text'], 150)}", style="dim")
            )


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
        TextColumn("replaying the workload"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("replay", total=1.0)
        yield lambda share: bar.update(task, completed=share)
