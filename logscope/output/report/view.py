"""From the analysis to what the page shows: plain values that the template only has to lay out.

`page` is the one entry. Every number carries its basis; what is unknown says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from logscope.evidence.finding import SEVERITIES
from logscope.inference.result import FAIR_FIT
from logscope.output.report.captions import (
    certainty,
    engine_name,
    evidence_text,
    gaps,
    headline,
    is_overloaded,
    no_advice,
    of_engine,
    own_findings,
    ranked_by,
    reason,
    scope,
    worst_engine,
)
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
from logscope.output.report.view_facts import (
    Fact,
    Witness,
    clock,
    configuration,
    coverage,
    numbers,
    places,
    preemptions,
    server_name,
    witness,
)
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
    moment,
    number,
    percent,
    period,
    rate,
)

__all__ = ["Finding", "Page", "page"]

OPEN = Verdict("An answer this report does not know", "", "", "open", "?")
MAX_SPIKES = 200
MAX_LINES = 40  # of one finding
UNSET = frozenset(("max_num_active_seqs", "num_spec_tokens", "acceptance", "kv_groups"))
"""Settings that most servers do not have: that a log is silent about them tells nothing."""
POINTS = ("p50", "p90", "p99")
# Where "no pressure" is part of the answer; a server that did not start has no pressure to speak of.
CALM = ("healthy", "seat-limit", "prefill-interference")


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding with the lines that prove it: (source and line, time, text). `anchor` is its address in the page, `engine` whose it is."""

    anchor: str
    engine: str
    id: str
    severity: str
    basis: str
    title: str
    when: str
    evidence: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on the page but its charts. `own`: whose the sections are which show one engine of several; `made`: how this report came to be, as (what, value)."""

    name: str
    title: str
    scope: str
    own: str
    clock: str
    made: Sequence[tuple[str, str]]
    unknown: int
    index: str
    no_advice: str
    ranked_by: str
    verdict: Verdict
    story: str
    pressure: str
    sure: str
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
    latency_basis: str
    withheld: str
    witness: Witness | None
    engines: Sequence[Sequence[str]]
    config: Sequence[Fact]
    not_configured: Sequence[str]
    unseen: Sequence[str]
    unsupported: Sequence[str]
    basis_words: Mapping[str, str]


def page(
    analysis: Mapping[str, Any], frames: Mapping[str, pl.DataFrame], made: Mapping[str, Any] | None = None
) -> Page:
    """The page of an analysis (the JSON of `analyze --json`).

    `frames` lend peaks to logs without a replay, and the names of host and pod. `made` may say `time`, `command`, `index` (the
    page that leads here) and `name` (the server's).
    """
    engine = worst_engine(analysis)
    verdict = VERDICTS.get(str(analysis.get("verdict")), OPEN)
    found = sorted(
        (f for f in analysis.get("findings") or [] if f.get("id") != "coverage"), key=lambda f: not of_engine(f, engine)
    )
    findings = [_finding(f, number, analysis) for number, f in enumerate(found, 1)]
    replay = analysis.get("replay") or {}
    spikes = sorted(analysis.get("spikes") or [], key=lambda s: -(s.get("p99_e2e_s") or 0.0))
    given = analysis.get("input") or {}
    advised = advice(analysis)
    latency = analysis.get("latency") or {}
    settings = configuration(engine)
    alone = len(given.get("sources") or []) == 1
    return Page(
        name=visible(str((made or {}).get("name") or server_name(given, frames)), 120),
        title=visible(headline(analysis), 200),
        scope=scope(analysis),
        own=engine_name(engine, analysis) if len(analysis.get("engines") or []) > 1 else "",
        clock=clock(analysis, frames),
        unknown=given.get("unrecognized_warnings") or 0,
        made=_made(analysis, given, frames, made or {}),
        index=visible(str((made or {}).get("index") or ""), 200),
        no_advice=redacted(no_advice(analysis)),
        ranked_by=ranked_by(analysis),
        verdict=replace(verdict, tone="critical") if is_overloaded(analysis) else verdict,
        story=_story(analysis, findings) or verdict.says,
        pressure=_pressure(analysis),
        sure=_sure(analysis),
        doubt="" if analysis.get("verdict") == "not-enough-evidence" else _doubt(replay),  # the story says it
        source=_sources(given),
        server=_server(engine),
        when=period(given.get("start"), given.get("end")),
        numbers=numbers(analysis, engine, frames)[:3],
        advice=advised,
        compared=compared(advised),
        coverage=coverage(given),
        gaps=[_skipped(s) for s in given.get("skipped_sources") or []],
        warnings=_lines(given.get("warning_samples"), alone=alone),
        findings=findings,
        ledger=ledger_rows(analysis.get("ledger") or {}),
        bars=ledger_bars(analysis.get("ledger") or {}),
        ledger_basis="replayed" if replay else "",
        spikes=[_spike(s) for s in sorted(spikes[:MAX_SPIKES], key=lambda s: str(s.get("start")))],
        more_spikes=max(0, len(spikes) - MAX_SPIKES),
        latency=_latency(latency),
        latency_basis=latency.get("basis") or "",
        withheld=visible(str(latency.get("withheld") or "")),
        witness=witness(analysis),
        engines=[_engine_row(e, analysis) for e in analysis.get("engines") or []],
        config=[f for f in settings if f.value != NOT_VISIBLE],
        not_configured=[f.name for f in settings if f.value == NOT_VISIBLE and f.name not in UNSET],
        unseen=[redacted(title) for title in gaps(analysis, everything=True)],
        unsupported=[visible(str(u)) for u in replay.get("unsupported") or []],
        basis_words=BASES,
    )


def _sure(analysis: Mapping[str, Any]) -> str:
    """How sure the verdict is, where another cause is close."""
    said = certainty(analysis)
    return f"The cause is {said}." if said else ""


def _doubt(replay: Mapping[str, Any]) -> str:
    """A poor fit, said aloud."""
    fit = [v for v in (replay.get("fit") or {}).values() if v is not None]
    if not fit or sum(fit) / len(fit) >= FAIR_FIT:
        return ""
    return (
        f"The replay fits this log poorly ({percent(sum(fit) / len(fit))} on average): do not rely on the inferred and "
        "replayed figures."
    )


def _pressure(analysis: Mapping[str, Any]) -> str:
    pressure = str(analysis.get("pressure"))
    if pressure == "none" and analysis.get("verdict") not in CALM:
        return ""
    return PRESSURE.get(pressure, "")


def _story(analysis: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """The verdict's reason in a sentence or two, from the ledger or else from the gravest finding."""
    slow = (analysis.get("ledger") or {}).get("slow_s") or {}
    typical = (analysis.get("ledger") or {}).get("typical_s") or {}
    labels = LOST_TO.get(str(analysis.get("verdict")))
    whole = sum(v for k in LEDGER_LABELS if (v := slow.get(k)) is not None)
    if labels and whole:
        parts = [(slow.get(k) or 0.0, LEDGER_LABELS[k]) for k in labels]
        lost = sum(v for v, _ in parts)
        shown = [f"{duration(v)} {name}" for v, name in parts if v >= 0.005 * whole]
        said = f": {', '.join(shown)}" if len(labels) > 1 and shown else ""
        usual = sum(typical.get(k) or 0.0 for k in labels)
        cause = _CAUSES[str(analysis.get("verdict"))]
        return (
            f"Slow requests took {duration(whole)} on average; {duration(lost)} of that ({percent(lost / whole)}) was "
            f"lost to {cause}{said}. A typical request loses {duration(usual)} this way.{_evicted(analysis)}"
        )
    own = sum(slow.get(k) or 0.0 for k in ("prefill", "decode"))
    if whole and analysis.get("verdict") == "healthy":
        return f"Slow requests took {duration(whole)} on average; {percent(own / whole)} of that is their own prefill and decode."
    if analysis.get("verdict") == "not-enough-evidence":
        return redacted(reason(analysis))
    grave = sorted(findings, key=lambda f: SEVERITIES.index(f.severity))
    return f"{grave[0].title}." if grave else ""


def _evicted(analysis: Mapping[str, Any]) -> str:
    """What counts as KV-cache pressure beside the ledger's own labels: prefill of what the prefix cache had held before."""
    shares = [(f.get("facts") or {}).get("evicted") for f in own_findings(analysis) if f.get("id") == "cache-reuse"]
    known = [s for s in shares if s]
    if analysis.get("verdict") != "kv-capacity" or not known:
        return ""
    return (
        f" In addition about {percent(known[0])} of the prompt tokens had to be computed again because the prefix cache was too small for them:"
        " that prefill counts as KV-cache pressure, too."
    )


def _finding(found: Mapping[str, Any], place: int, analysis: Mapping[str, Any]) -> Finding:
    severity = str(found.get("severity"))
    return Finding(
        anchor=f"finding-{place}",
        engine=engine_name(found, analysis),
        id=str(found.get("id")),
        severity=severity if severity in SEVERITIES else "info",
        basis=found.get("basis") or "",
        title=redacted(str(found.get("title") or found.get("id"))),
        when=period(found.get("start"), found.get("end")) if found.get("start") else "",
        evidence=_lines(found.get("evidence"), alone=len((analysis.get("input") or {}).get("sources") or []) == 1),
    )


def _lines(lines: Sequence[Mapping[str, Any]] | None, *, alone: bool) -> list[tuple[str, str, str]]:
    """Where, when and what; a text that was logged again stands once."""
    once = list({str(e.get("text")): e for e in reversed(lines or [])}.values())[::-1]
    return [
        (
            f"line {e.get('line')}" if alone else _place(e),
            f"{time:%H:%M:%S}" if (time := moment(e.get("time"))) else "",
            redacted(evidence_text(e)),
        )
        for e in once[:MAX_LINES]
    ]


def _place(line: Mapping[str, Any]) -> str:
    source = str(line.get("source") or "")
    return f"{'standard input' if source == '-' else visible(source)}:{line.get('line')}"


def _spike(spike: Mapping[str, Any]) -> list[str]:
    ledger = spike.get("ledger_s") or {}
    whole = sum(v for v in ledger.values() if isinstance(v, (int, float)))
    parts = sorted(((v, k) for k, v in ledger.items() if k in LEDGER_LABELS and v), reverse=True)
    most = ", ".join(f"{percent(v / whole)} {LEDGER_LABELS[k]}" for v, k in parts[:3]) if whole else ""
    cause = VERDICTS.get(str(spike.get("cause")))
    return [
        period(spike.get("start"), spike.get("end")),
        _SPIKE_CAUSES.get(str(spike.get("cause")), cause.title if cause else visible(str(spike.get("cause")))),
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
        if any(values.get(q) is not None for q in POINTS):
            rows.append([name, *(duration(values[q], "withheld") if q in values else "–" for q in POINTS)])
    return rows


def _with_basis(value: str, basis: str | None) -> str:
    return f"{value} ({basis})" if basis and value != NOT_VISIBLE else value


def _engine_row(engine: Mapping[str, Any], analysis: Mapping[str, Any]) -> list[str]:
    _, _, index = engine_key(dict(engine))
    verdict = VERDICTS.get(str(engine.get("verdict")), OPEN)
    found = preemptions(engine.get("preemptions") or {})
    e2e = (engine.get("latency") or {}).get("e2e_s") or {}
    return [
        engine_name(engine, analysis) or f"engine {index}",
        visible(f"{engine.get('vllm_version') or '?'} ({engine.get('engine') or '?'})"),
        period(engine.get("start"), engine.get("end")),
        verdict.title,
        _with_basis(found.value, found.basis),
        _with_basis(duration(e2e.get("p99")), (engine.get("latency") or {}).get("basis")),
        rate((engine.get("throughput") or {}).get("generation_tokens_per_s")),
    ]


_SPIKE_CAUSES = {
    "kv-capacity": "KV-cache space",
    "seat-limit": "max_num_seqs",
    "prefill-interference": "Other requests' prefills",
    "healthy": "Long requests",
}
_CAUSES = {
    "kv-capacity": "KV-cache pressure",
    "seat-limit": "queuing behind max_num_seqs",
    "prefill-interference": "other requests' prefills",
}


def _made(
    analysis: Mapping[str, Any], given: Mapping[str, Any], frames: Mapping[str, pl.DataFrame], made: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Where the report comes from: what was read, with which command, when."""
    options = analysis.get("options") or {}
    names = [visible(str(s), 200) for s in ([made["name"]] if made.get("name") else given.get("sources") or [])]
    more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
    rows = [("Source", ", ".join("standard input" if n == "-" else n for n in names[:8]) + more)]
    rows += [(word, visible(text, 200)) for word, text in places(frames)]
    rows.append(("Clock", clock(analysis, frames)))
    if (seed := (analysis.get("replay") or {}).get("seed", options.get("seed"))) is not None:
        rows.append(("Seed", str(seed)))
    if made.get("command"):
        rows.append(("Command", visible(str(made["command"]), 600)))
    if made.get("time"):
        rows.append(("Created", str(made["time"]).replace("T", " ")))
    return [(word, text) for word, text in rows if text]


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
