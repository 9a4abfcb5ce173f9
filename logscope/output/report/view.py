"""From the analysis to what the page shows: plain values that the template only has to lay out.

`page` is the one entry. Every number carries its basis; what is unknown says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from logscope.inference.result import FAIR_FIT
from logscope.output.report.chart import engine_key
from logscope.output.report.view_advice import (
    Advised,
    Bar,
    Comparison,
    LedgerRow,
    advice,
    compared,
    ledger_bars,
    ledger_rows,
)
from logscope.output.report.view_facts import Fact, Witness, configuration, coverage, numbers, preemptions, witness
from logscope.sanitize import redacted, visible
from logscope.wording import (
    BASES,
    LEDGER_LABELS,
    LOST_TO,
    NOT_VISIBLE,
    PRESSURE,
    VERDICTS,
    Verdict,
    duration,
    number,
    percent,
    period,
    rate,
)

__all__ = ["Finding", "Page", "page", "worst_engine"]

OPEN = Verdict("An answer this report does not know", "", "", "open", "?")
MAX_SPIKES = 200
MAX_LINES = 40  # of one finding
# Where "no pressure" is part of the answer; a server that did not start has no pressure to speak of.
CALM = ("healthy", "seat-limit", "prefill-interference")


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
class Page:
    """Everything on the page but its charts."""

    verdict: Verdict
    story: str
    pressure: str
    doubt: str
    source: str
    server: str
    when: str
    numbers: Sequence[Fact]
    advice: Sequence[Advised]
    compared: Comparison
    coverage: Sequence[Fact]
    gaps: Sequence[str]
    warnings: Sequence[tuple[str, str, str]]
    findings: Sequence[Finding]
    ledger: Sequence[LedgerRow]
    bars: Sequence[Bar]
    ledger_basis: str
    spikes: Sequence[Sequence[str]]
    more_spikes: int
    latency: Sequence[Sequence[str]]
    witness: Witness | None
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
    spikes = sorted(analysis.get("spikes") or [], key=lambda s: -(s.get("p99_e2e_s") or 0.0))
    given = analysis.get("input") or {}
    advised = advice(analysis)
    return Page(
        verdict=verdict,
        story=_story(analysis, findings) or verdict.says,
        pressure=_pressure(analysis),
        doubt=_doubt(replay),
        source=_sources(given),
        server=_server(engine),
        when=period(given.get("start"), given.get("end")),
        numbers=numbers(analysis, engine, frames)[:3],
        advice=advised,
        compared=compared(advised),
        coverage=coverage(given),
        gaps=[_skipped(s) for s in given.get("skipped_sources") or []],
        warnings=_lines(given.get("warning_samples")),
        findings=[f for f in findings if f.id != "coverage"],
        ledger=ledger_rows(analysis.get("ledger") or {}),
        bars=ledger_bars(analysis.get("ledger") or {}),
        ledger_basis="replayed" if replay else "",
        spikes=[_spike(s) for s in sorted(spikes[:MAX_SPIKES], key=lambda s: str(s.get("start")))],
        more_spikes=max(0, len(spikes) - MAX_SPIKES),
        latency=_latency(analysis.get("latency") or {}),
        witness=witness(analysis),
        engines=[_engine_row(e) for e in analysis.get("engines") or []],
        config=configuration(engine),
        unseen=[f.title for f in findings if f.id == "coverage"],
        unsupported=[visible(str(u)) for u in replay.get("unsupported") or []],
        basis_words=BASES,
    )


def _doubt(replay: Mapping[str, Any]) -> str:
    """A poor fit, said aloud."""
    fit = [v for v in (replay.get("fit") or {}).values() if v is not None]
    if not fit or sum(fit) / len(fit) >= FAIR_FIT:
        return ""
    return (
        f"The replay fits this log poorly ({percent(sum(fit) / len(fit))} on average): what is inferred or replayed "
        "here is not to be relied on."
    )


def _pressure(analysis: Mapping[str, Any]) -> str:
    pressure = str(analysis.get("pressure"))
    if pressure == "none" and analysis.get("verdict") not in CALM:
        return ""
    return PRESSURE.get(pressure, "")


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
        said = ", ".join(f"{duration(v)} {name}" for v, name in parts if v >= 0.005 * whole)
        usual = sum(typical.get(k) or 0.0 for k in labels)
        return (
            f"The slow requests took {duration(whole)} on average, {duration(lost)} of it ({percent(lost / whole)}) "
            f"lost: {said}. A typical request loses {duration(usual)} this way."
        )
    own = sum(slow.get(k) or 0.0 for k in ("prefill", "decode"))
    if whole and analysis.get("verdict") == "healthy":
        return f"The slow requests took {duration(whole)} on average; {percent(own / whole)} of it is their own prefill and decode."
    grave = sorted(
        (f for f in findings if f.id != "coverage"), key=lambda f: ("critical", "warning", "info").index(f.severity)
    )
    return f"{grave[0].title}." if grave else ""


def _finding(found: Mapping[str, Any]) -> Finding:
    severity = str(found.get("severity"))
    return Finding(
        id=str(found.get("id")),
        severity=severity if severity in ("critical", "warning", "info") else "info",
        basis=found.get("basis") or "",
        title=redacted(str(found.get("title") or found.get("id"))),
        when=period(found.get("start"), found.get("end")) if found.get("start") else "",
        evidence=_lines(found.get("evidence")),
    )


def _lines(lines: Sequence[Mapping[str, Any]] | None) -> list[tuple[str, str, str]]:
    return [
        (visible(str(e.get("source") or "")), number(e.get("line")), redacted(str(e.get("text"))))
        for e in (lines or [])[:MAX_LINES]
    ]


def _spike(spike: Mapping[str, Any]) -> list[str]:
    ledger = spike.get("ledger_s") or {}
    whole = sum(v for v in ledger.values() if isinstance(v, (int, float)))
    parts = sorted(((v, k) for k, v in ledger.items() if k in LEDGER_LABELS and v), reverse=True)
    most = ", ".join(f"{percent(v / whole)} {LEDGER_LABELS[k]}" for v, k in parts[:3]) if whole else ""
    cause = VERDICTS.get(str(spike.get("cause")))
    return [
        period(spike.get("start"), spike.get("end")),
        cause.title if cause else visible(str(spike.get("cause"))),
        number(spike.get("requests")),
        duration(spike.get("p99_e2e_s")),
        duration(spike.get("baseline_p99_e2e_s")),
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
            cells = [duration(values[q]) if q in values else "" for q in ("p50", "p90", "p99")]
            rows.append([name, *cells, latency.get("basis") or ""])
    return rows


def _with_basis(value: str, basis: str | None) -> str:
    return f"{value} ({basis})" if basis and value != NOT_VISIBLE else value


def _engine_row(engine: Mapping[str, Any]) -> list[str]:
    server, run, index = engine_key(dict(engine))
    verdict = VERDICTS.get(str(engine.get("verdict")), OPEN)
    found = preemptions(engine.get("preemptions") or {})
    e2e = (engine.get("latency") or {}).get("e2e_s") or {}
    return [
        f"server {server}, start {run}, engine {index}",
        visible(f"{engine.get('vllm_version') or '?'} ({engine.get('engine') or '?'})"),
        period(engine.get("start"), engine.get("end")),
        verdict.title,
        _with_basis(found.value, found.basis),
        _with_basis(duration(e2e.get("p99")), (engine.get("latency") or {}).get("basis")),
        rate((engine.get("throughput") or {}).get("generation_tokens_per_s")),
    ]


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
