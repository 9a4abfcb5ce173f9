"""Single numbers of the page, each with its basis: those that matter first, the configuration, what was read.

The second witness on the page: what the server's metrics or the clients measured, beside what the replay infers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from logscope.output.report.chart import engine_key
from logscope.sanitize import visible
from logscope.wording import NOT_VISIBLE, bounds, change, duration, number, period, setting

__all__ = ["Fact", "Witness", "configuration", "coverage", "numbers", "preemptions", "rows_of_engine", "witness"]
# The numbers of a finding which the first screen shows where there are no latencies.
FACTS = {
    "needed_gib": ("KV cache needed", "{:g} GiB"),
    "available_gib": ("KV cache there", "{:g} GiB"),
    "largest_max_model_len": ("Largest max_model_len that fits", "{:,.0f}"),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One number with its name, what else there is to say of it, and its basis."""

    name: str
    value: str
    detail: str = ""
    basis: str = ""


def numbers(analysis: Mapping[str, Any], engine: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> list[Fact]:
    """What matters first, best known first; the page shows three."""
    latency = analysis.get("latency") or {}
    e2e, ttft = latency.get("e2e_s") or {}, latency.get("ttft_s") or {}
    basis = latency.get("basis") or ""
    facts = [preemptions(analysis.get("preemptions") or {})]
    if e2e.get("p99") is not None:
        facts.append(Fact("E2E p99", duration(e2e["p99"]), f"median {duration(e2e.get('p50'))}", basis))
    if ttft.get("p99") is not None:
        facts.append(Fact("TTFT p99", duration(ttft["p99"]), f"median {duration(ttft.get('p50'))}", basis))
    stats = _rows_of(frames.get("stats"), engine)
    peaks = (
        ("gpu_kv_cache_usage_pct", "Highest KV usage", "{:g} %", "of the statistics lines"),
        ("waiting", "Most requests waiting", "{:g}", "at one statistics line"),
        ("running", "Most requests running", "{:g}", "at one statistics line"),
    )
    for column, name, form, detail in peaks:
        peak: Any = stats[column].max() if stats is not None and column in stats.columns else None
        if peak is not None:
            facts.append(Fact(name, form.format(float(peak)), detail, "measured"))
    facts += _sizes(engine)
    proven = [f for f in analysis.get("findings") or [] if f.get("id") == analysis.get("verdict")]
    facts = _facts_of(proven[0]) + facts if proven else facts
    known = [f for f in facts if f.value != NOT_VISIBLE]
    return known if len(known) >= 3 else facts


def _facts_of(finding: Mapping[str, Any]) -> list[Fact]:
    given = finding.get("facts") or {}
    return [
        Fact(name, form.format(given[key]), basis=finding.get("basis") or "")
        for key, (name, form) in FACTS.items()
        if isinstance(given.get(key), (int, float))
    ]


def _sizes(engine: Mapping[str, Any]) -> list[Fact]:
    kv, config = engine.get("kv_cache") or {}, engine.get("config") or {}
    basis = engine.get("config_basis") or {}
    facts = []
    if kv.get("tokens") is not None:
        facts.append(Fact("KV cache", f"{kv['tokens']:,}", "tokens", "measured"))
    for key, name in (("max_model_len", "max_model_len"), ("max_num_seqs", "max_num_seqs")):
        if config.get(key) is not None:
            facts.append(Fact(name, number(config[key]), "", basis.get(key) or ""))
    return facts


def preemptions(found: Mapping[str, Any]) -> Fact:
    """The count of preemptions with its bounds; where the log only bounds it, the bounds are the number."""
    logged = found.get("logged") or {}
    low, value, high = found.get("low"), found.get("value"), found.get("high")
    said, proven = bounds(low, high), bounds(logged.get("low"), logged.get("high"))
    # what the log itself proves are bounds, not a count
    counted = value is not None and found.get("basis") != "measured"
    shown = number(value) if counted or low == high else said
    parts = [said if shown != said and low != high else ""]
    if proven and proven != said:
        parts.append(f"logged: {proven}")
    elif proven:
        parts.append("counted by the server itself")
    if beside := found.get("inferred"):
        parts.append(f"the replay infers {bounds(beside.get('low'), beside.get('high'))}")
    if again := found.get("recomputed_tokens"):
        parts.append(f"{number(again)} tokens recomputed")
    detail = "; ".join(p for p in parts if p)
    return Fact("Preemptions", shown or NOT_VISIBLE, detail, found.get("basis") or "")


def _rows_of(frame: pl.DataFrame | None, engine: Mapping[str, Any]) -> pl.DataFrame | None:
    return None if frame is None else rows_of_engine(frame, engine)


def rows_of_engine(frame: pl.DataFrame, engine: Mapping[str, Any]) -> pl.DataFrame:
    """The frame's rows of one engine; columns that a frame does not have do not divide it."""
    names = ("server", "run", "engine_index")
    for name, place in zip(names, engine_key(dict(engine)), strict=True):
        if name in frame.columns:
            frame = frame.filter(pl.col(name).fill_null(0) == place)
    return frame


def configuration(engine: Mapping[str, Any]) -> list[Fact]:
    """The engine's settings, its KV cache first."""
    basis = engine.get("config_basis") or {}
    kv = engine.get("kv_cache") or {}
    facts = [
        Fact(visible(str(k)), visible(setting(v)), basis=visible(str(basis.get(k) or "")))
        for k, v in (engine.get("config") or {}).items()
    ]
    if kv.get("tokens") is not None:
        facts.insert(0, Fact("KV cache, tokens", number(kv["tokens"]), basis="measured"))
    if kv.get("bytes") is not None:
        facts.insert(1, Fact("KV cache, GiB", f"{kv['bytes'] / 2**30:.2f}", basis="measured"))
    return facts


def coverage(given: Mapping[str, Any]) -> list[Fact]:
    """What became of the lines that were read."""
    named = (
        ("lines", "lines read"),
        ("events", "events understood"),
        ("other_records", "other vLLM records"),
        ("foreign_lines", "lines of others"),
        ("unrecognized_warnings", "unknown warnings"),
        ("out_of_order", "out of order"),
        ("truncated", "cut short"),
    )
    return [Fact(name, number(given[key])) for key, name in named if given.get(key) is not None]


_QUEUES = ("queued_for_kv", "queued_for_seat", "queued_for_budget")
_LATENCIES = (("ttft_s", "TTFT"), ("e2e_s", "E2E"), ("itl_s", "ITL"))


@dataclass(frozen=True, slots=True)
class Witness:
    """`said`: what was read of each witness. `rows`: what, measured, inferred, and by how much the inferred is off."""

    said: tuple[str, ...]
    rows: tuple[tuple[str, str, str, str], ...]
    notes: tuple[str, ...]


def witness(analysis: Mapping[str, Any]) -> Witness | None:
    """The section of an analysis with `--metrics` or `--latencies`; None without."""
    block = analysis.get("witness")
    if not isinstance(block, Mapping):
        return None
    metrics, clients = block.get("metrics") or {}, block.get("latencies") or {}
    rows = [*_preemptions(analysis), *_queue(analysis, metrics), *_latencies(analysis)]
    return Witness(
        said=tuple(s for s in (_metrics(metrics), _clients(clients)) if s),
        rows=tuple(rows),
        notes=tuple(visible(str(note)) for note in block.get("notes") or []),
    )


def _metrics(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    sources = ", ".join(visible(str(s), 120) for s in found.get("sources") or [])
    said = f"{number(found.get('samples'))} samples of vLLM's metrics from {sources}"
    if found.get("start") and found.get("end"):
        said += f", {period(found['start'], found['end'])} in UTC"
    return said


def _clients(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    return f"the latencies of {number(found.get('requests'))} requests from {visible(str(found.get('source')), 120)}, as their clients saw them"


def _preemptions(analysis: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    found = analysis.get("preemptions") or {}
    beside = found.get("inferred") or {}
    if found.get("basis") != "measured":
        return []
    infers, measured = beside.get("value"), found.get("value")
    told = f"{number(infers)} ({bounds(beside.get('low'), beside.get('high'))})" if beside else "–"
    return [("Preemptions", number(measured), told, change(measured, infers))]


def _queue(analysis: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    measured = metrics.get("queue_time_mean_s")
    if measured is None:
        return []
    engines = analysis.get("engines") or []
    totals = [((e.get("ledger") or {}).get("total_s") or {}) for e in engines]
    requests = [int((e.get("replay") or {}).get("requests") or 0) for e in engines]
    infers = None
    if requests and min(requests) > 0:  # each engine was replayed
        waited = sum(total.get(label) or 0.0 for total in totals for label in _QUEUES)
        infers = waited / sum(requests)
    told = "–" if infers is None else duration(infers)
    return [("Mean time in the queue", duration(measured), told, change(measured, infers))]


def _latencies(analysis: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    found = analysis.get("latency") or {}
    if found.get("basis") != "measured":
        return []
    rows = []
    for key, name in _LATENCIES:
        inferred = (found.get("inferred") or {}).get(key) or {}
        for point, measured in (found.get(key) or {}).items():
            if measured is not None:
                infers = inferred.get(point)
                told = "–" if infers is None else duration(infers)
                rows.append((f"{name} {point}", duration(measured), told, change(measured, infers)))
    return rows
