"""The results of replays for people (tables), for programs (JSON) and for notebooks (Parquet)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from logscope.atomic_files import whole_file
from logscope.execution.workload_replay import JobResult, result_object

__all__ = ["print_results", "results_json", "write_frames"]


def results_json(results: Sequence[JobResult]) -> str:
    """The document of `replay --json`."""
    document = {"schema_version": 1, "results": [result_object(result) for result in results]}
    return json.dumps(document, allow_nan=False)


def write_frames(folder: Path, results: Sequence[JobResult]) -> None:
    """`steps.parquet` and `requests.parquet`, all workloads below each other with their name in column `workload`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("steps", "requests"):
        parts = [
            getattr(result.replay, name)().with_columns(workload=pl.lit(result.job.workload.source))
            for result in results
        ]
        with whole_file(folder / f"{name}.parquet") as part:
            pl.concat(parts).write_parquet(part)


def print_results(results: Sequence[JobResult], color: str = "auto") -> None:
    """A block of figures a workload on standard output."""
    console = Console(
        force_terminal={"always": True, "never": False}.get(color),
        no_color=color == "never" or None,
        highlight=False,
    )
    for result in results:
        figures = result_object(result)
        console.print(Text(figures["workload"], style="bold"), soft_wrap=True)
        console.print(Text(_headline(figures)), soft_wrap=True)
        console.print(_latencies(figures))
        console.print(_ledger(figures))


def _headline(figures: dict[str, Any]) -> str:
    parts = [
        f"{figures['finished']:,} of {figures['requests']:,} requests finished in {figures['steps']:,} steps",
        f"{_seconds(figures['duration_s'])} in all",
        f"{figures['preemptions']:,} preemptions ({figures['recomputed_tokens']:,} tokens recomputed)",
    ]
    rate = figures["generation_tokens_per_s"]
    if rate is not None:
        parts.append(f"{rate:,.1f} output tokens/s")
    return "; ".join(parts)


def _latencies(figures: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("latency")
    for percentile in ("p50", "p90", "p99"):
        table.add_column(percentile, justify="right")
    for key, title in (
        ("ttft_s", "first token"),
        ("e2e_s", "whole request"),
        ("itl_s", "between tokens"),
    ):
        values = figures[key]
        table.add_row(
            title, *(_seconds(values.get(p)) if p in values else "" for p in ("p50", "p90", "p99"))
        )
    return table


def _ledger(figures: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("where the time went")
    for title in ("all requests", "share", "slow (mean)", "typical (mean)"):
        table.add_column(title, justify="right")
    ledger = figures["ledger"]
    whole = sum(ledger["total_s"].values())
    for label, seconds in ledger["total_s"].items():
        table.add_row(
            label,
            _seconds(seconds),
            f"{seconds / whole:.1%}" if whole else "",
            _seconds(ledger["slow_s"][label]),
            _seconds(ledger["typical_s"][label]),
        )
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.1f} ms"
    return f"{value:,.2f} s"
