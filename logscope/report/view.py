"""From the analysis to what the page shows: plain values that the template only has to lay out.

`page` is the one entry. Every number carries its basis; what is unknown says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from .chart import engine_key
from .safe import redacted, visible
from .view_advice import Advised, advice
from .words import (
    LEDGER_LABELS,
    LOST_TO,
    NOT_VISIBLE,
    VERDICTS,
    Verdict,
    bounds,
    count,
    percent,
    period,
    rate,
    seconds,
    setting,
)

__all__ = ["Bar", "Fact", "Finding", "LedgerRow", "Page", "page", "rows_of_engine", "worst_engine"]

OPEN = Verdict("An answer this report does not know", "", "open", "?")
BASIS_WORDS = {
    "measured": "in the log or its metrics",
    "inferred": "concluded from the log, with its bounds",
    "replayed": "from the replay of the inferred load",
    "default": "the default of this version",
    "given": "given with --set",
}
PRESSURE = {
    "thrash": "Preemption repeats: requests take blocks from each other.",
    "saturated": "The KV cache is full and requests queue, with little or no preemption.",
    "none": "The KV cache is not under pressure.",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One number with its name, what else there is to say of it, and its basis."""

    name: str
    value: str
    detail: str = ""
    basis: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding with the lines that prove it: (source, line, text)."""

    id: str
    severity: str
    basis: str
    title: str
    when: str
    evidence: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One label of the ledger: means of the slow and the typical requests, and the sum over all."""

    label: str
    name: str
    lost: bool
    slow: str
    typical: str
    total: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A ledger as one bar: segments are (label, start, length, words) in thousandths of the longest bar."""

    name: str
    whole: str
    segments: Sequence[tuple[str, float, float, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page but its charts."""

    verdict: Verdict
    story: str
    pressure: str
    source: str
    server: str
    when: str
    numbers: Sequence[Fact]
    advice: Sequence[Advised]
    coverage: Sequence[Fact]
    gaps: Sequence[str]
    findings: Sequence[Finding]
    ledger: Sequence[LedgerRow]
    bars: Sequence[Bar]
    ledger_basis: str
    spikes: Sequence[Sequence[str]]
    latency: Sequence[Sequence[str]]
    engines: Sequence[Sequence[str]]
    config: Sequence[Fact]
    unseen: Sequence[str]
    unsupported: Sequence[str]
    basis_words: Mapping[str, str]


def page(analysis: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> Page:
    """The page of an analysis (the JSON of `analyze --json`); `frames` only lend peaks to logs without a replay."""
    engine = worst_engine(analysis)
    verdict = VERDICTS.get(str(analysis.get("verdict")), OPEN)
    findings = [_finding(f) for f in analysis.get("findings") or []]
    replay = analysis.get("replay") or {}
    spikes = analysis.get("spikes") or []
    given = analysis.get("input") or {}
    return Page(
        verdict=verdict,
        story=_story(analysis, findings) or verdict.says,
        pressure=PRESSURE.get(str(analysis.get("pressure")), ""),
        source=_sources(given),
        server=_server(engine),
        when=period(given.get("start"), given.get("end")),
        numbers=_numbers(analysis, engine, frames)[:3],
        advice=advice(analysis),
        coverage=_coverage(given),
        gaps=[_skipped(s) for s in given.get("skipped_sources") or []],
        findings=[f for f in findings if f.id != "coverage"],
        ledger=_ledger(analysis.get("ledger") or {}),
        bars=_bars(analysis.get("ledger") or {}),
        ledger_basis="replayed" if replay else "",
        spikes=[_spike(s) for s in spikes],
        latency=_latency(analysis.get("latency") or {}),
        engines=[_engine_row(e) for e in analysis.get("engines") or []],
        config=_config(engine),
        unseen=[f.title for f in findings if f.id == "coverage"],
        unsupported=[visible(str(u)) for u in replay.get("unsupported") or []],
        basis_words=BASIS_WORDS,
    )


def worst_engine(analysis: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of `engines` that the top level speaks of; empty when there is none."""
    engines = analysis.get("engines") or []
    worst = analysis.get("worst_engine") or 0
    return engines[worst] if 0 <= worst < len(engines) else {}


def _story(analysis: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """The verdict's reason in a sentence or two, from the ledger or else from the gravest finding."""
    slow = (analysis.get("ledger") or {}).get("slow_s") or {}
    typical = (analysis.get("ledger") or {}).get("typical_s") or {}
    labels = LOST_TO.get(str(analysis.get("verdict")))
    whole = sum(v for k in LEDGER_LABELS if (v := slow.get(k)) is not None)
    if labels and whole:
        parts = [(slow.get(k) or 0.0, LEDGER_LABELS[k]) for k in labels]
        lost = sum(v for v, _ in parts)
        said = ", ".join(f"{seconds(v)} {name}" for v, name in parts if v >= 0.005 * whole)
        usual = sum(typical.get(k) or 0.0 for k in labels)
        return (
            f"The slow requests took {seconds(whole)} on average, {seconds(lost)} of it ({percent(lost / whole)}) "
            f"lost: {said}. A typical request loses {seconds(usual)} this way."
        )
    grave = sorted(
        (f for f in findings if f.id != "coverage"),
        key=lambda f: ("critical", "warning", "info").index(f.severity),
    )
    return f"{grave[0].title}." if grave else ""


def _numbers(
    analysis: Mapping[str, Any], engine: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]
) -> list[Fact]:
    """What matters first, best known first; the page shows three."""
    latency = analysis.get("latency") or {}
    e2e, ttft = latency.get("e2e_s") or {}, latency.get("ttft_s") or {}
    basis = latency.get("basis") or ""
    facts = [_preemptions(analysis.get("preemptions") or {})]
    if e2e.get("p99") is not None:
        facts.append(
            Fact("E2E p99", seconds(e2e["p99"]), f"median {seconds(e2e.get('p50'))}", basis)
        )
    if ttft.get("p99") is not None:
        facts.append(
            Fact("TTFT p99", seconds(ttft["p99"]), f"median {seconds(ttft.get('p50'))}", basis)
        )
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
    # A preemption count that nothing speaks for comes last.
    return sorted(facts, key=lambda f: f.value == NOT_VISIBLE)


def _sizes(engine: Mapping[str, Any]) -> list[Fact]:
    kv, config = engine.get("kv_cache") or {}, engine.get("config") or {}
    basis = engine.get("config_basis") or {}
    facts = []
    if kv.get("tokens") is not None:
        facts.append(Fact("KV cache", f"{kv['tokens']:,}", "tokens", "measured"))
    for key, name in (("max_model_len", "max_model_len"), ("max_num_seqs", "max_num_seqs")):
        if config.get(key) is not None:
            facts.append(Fact(name, count(config[key]), "", basis.get(key) or ""))
    return facts


def _preemptions(found: Mapping[str, Any]) -> Fact:
    logged = found.get("logged") or {}
    low, high = found.get("low"), found.get("high")
    parts = [bounds(low, high)] if low != high else []
    if logged.get("low") is not None:
        parts.append(f"logged: {bounds(logged['low'], logged.get('high'))}")
    if (again := found.get("recomputed_tokens")) is not None:
        parts.append(f"{count(again)} tokens computed again")
    value = found.get("value")
    shown = count(value) if value is not None else bounds(low, high) or NOT_VISIBLE
    return Fact("Preemptions", shown, "; ".join(p for p in parts if p), found.get("basis") or "")


def _rows_of(frame: pl.DataFrame | None, engine: Mapping[str, Any]) -> pl.DataFrame | None:
    return None if frame is None else rows_of_engine(frame, engine)


def rows_of_engine(frame: pl.DataFrame, engine: Mapping[str, Any]) -> pl.DataFrame:
    """The frame's rows of one engine; columns that a frame does not have do not divide it."""
    names = ("server", "run", "engine_index")
    for name, number in zip(names, engine_key(dict(engine)), strict=True):
        if name in frame.columns:
            frame = frame.filter(pl.col(name).fill_null(0) == number)
    return frame


def _finding(found: Mapping[str, Any]) -> Finding:
    severity = str(found.get("severity"))
    return Finding(
        id=str(found.get("id")),
        severity=severity if severity in ("critical", "warning", "info") else "info",
        basis=found.get("basis") or "",
        title=redacted(str(found.get("title") or found.get("id"))),
        when=period(found.get("start"), found.get("end")) if found.get("start") else "",
        evidence=[
            (
                visible(str(e.get("source") or "")),
                count(e.get("line")),
                redacted(str(e.get("text"))),
            )
            for e in found.get("evidence") or []
        ],
    )


def _ledger(ledger: Mapping[str, Any]) -> list[LedgerRow]:
    slow, typical, total = (ledger.get(k) or {} for k in ("slow_s", "typical_s", "total_s"))
    if not any(slow.get(k) is not None for k in LEDGER_LABELS):
        return []
    return [
        LedgerRow(
            label=label,
            name=name,
            lost=label not in ("prefill", "decode"),
            slow=_in_seconds(slow.get(label), 2),
            typical=_in_seconds(typical.get(label), 2),
            total=_in_seconds(total.get(label), 0),
        )
        for label, name in LEDGER_LABELS.items()
    ]


def _in_seconds(value: float | None, places: int) -> str:
    """One unit for a whole column, so that its numbers can be compared."""
    return NOT_VISIBLE if value is None else f"{value:,.{places}f} s"


def _bars(ledger: Mapping[str, Any]) -> list[Bar]:
    sides = [
        ("Slow requests", ledger.get("slow_s") or {}),
        ("Typical requests", ledger.get("typical_s") or {}),
    ]
    wholes = [sum(side.get(k) or 0.0 for k in LEDGER_LABELS) for _, side in sides]
    longest = max(wholes)
    if not longest:
        return []
    bars = []
    for (name, side), whole in zip(sides, wholes, strict=True):
        segments, at = [], 0.0
        for label, words in LEDGER_LABELS.items():
            if value := side.get(label) or 0.0:
                length = round(value / longest * 1000, 2)
                segments.append((label, round(at, 2), length, f"{words}: {seconds(value)}"))
                at += length
        bars.append(Bar(name, seconds(whole), segments))
    return bars


def _spike(spike: Mapping[str, Any]) -> list[str]:
    ledger = spike.get("ledger_s") or {}
    whole = sum(v for v in ledger.values() if isinstance(v, (int, float)))
    parts = sorted(((v, k) for k, v in ledger.items() if k in LEDGER_LABELS and v), reverse=True)
    most = (
        ", ".join(f"{percent(v / whole)} {LEDGER_LABELS[k]}" for v, k in parts[:3]) if whole else ""
    )
    cause = VERDICTS.get(str(spike.get("cause")))
    return [
        period(spike.get("start"), spike.get("end")),
        cause.title if cause else visible(str(spike.get("cause"))),
        count(spike.get("requests")),
        seconds(spike.get("p99_e2e_s")),
        seconds(spike.get("baseline_p99_e2e_s")),
        most or NOT_VISIBLE,
    ]


def _latency(latency: Mapping[str, Any]) -> list[list[str]]:
    named = (
        ("ttft_s", "Time to first token (TTFT)"),
        ("e2e_s", "Whole request (E2E)"),
        ("itl_s", "Between tokens (ITL)"),
    )
    rows = []
    for key, name in named:
        values = latency.get(key) or {}
        if any(v is not None for v in values.values()):
            cells = [seconds(values[q]) if q in values else "" for q in ("p50", "p90", "p99")]
            rows.append([name, *cells, latency.get("basis") or ""])
    return rows


def _engine_row(engine: Mapping[str, Any]) -> list[str]:
    server, run, index = engine_key(dict(engine))
    verdict = VERDICTS.get(str(engine.get("verdict")), OPEN)
    found = _preemptions(engine.get("preemptions") or {})
    e2e = (engine.get("latency") or {}).get("e2e_s") or {}
    return [
        f"server {server}, start {run + 1}, engine {index}",
        visible(f"{engine.get('vllm_version') or '?'} ({engine.get('engine') or '?'})"),
        period(engine.get("start"), engine.get("end")),
        verdict.title,
        found.value,
        seconds(e2e.get("p99")),
        rate((engine.get("throughput") or {}).get("generation_tokens_per_s")),
    ]


def _config(engine: Mapping[str, Any]) -> list[Fact]:
    basis = engine.get("config_basis") or {}
    kv = engine.get("kv_cache") or {}
    facts = [
        Fact(visible(str(k)), visible(setting(v)), basis=visible(str(basis.get(k) or "")))
        for k, v in (engine.get("config") or {}).items()
    ]
    if kv.get("tokens") is not None:
        facts.insert(0, Fact("KV cache, tokens", count(kv["tokens"]), basis="measured"))
    if kv.get("bytes") is not None:
        facts.insert(1, Fact("KV cache, GiB", f"{kv['bytes'] / 2**30:.2f}", basis="measured"))
    return facts


def _coverage(given: Mapping[str, Any]) -> list[Fact]:
    named = (
        ("lines", "lines read"),
        ("events", "events understood"),
        ("other_records", "other vLLM records"),
        ("foreign_lines", "lines of others"),
        ("unrecognized_warnings", "unknown warnings"),
        ("out_of_order", "out of order"),
        ("truncated", "cut short"),
    )
    return [Fact(name, count(given[key])) for key, name in named if given.get(key) is not None]


def _skipped(source: object) -> str:
    if isinstance(source, Mapping):
        return visible(": ".join(str(v) for v in source.values() if v))
    return visible(str(source))


def _sources(given: Mapping[str, Any]) -> str:
    names = [visible(str(s), 120) for s in given.get("sources") or []]
    if len(names) > 3:
        return f"{names[0]}, {names[1]} and {len(names) - 2:,} more"
    return ", ".join(names) or "standard input"


def _server(engine: Mapping[str, Any]) -> str:
    version, generation = engine.get("vllm_version"), engine.get("engine")
    if not version and not generation:
        return "vLLM, version not visible in this log"
    named = f"vLLM {version}" if version else "vLLM"
    return visible(f"{named} ({generation} engine)" if generation else named)
