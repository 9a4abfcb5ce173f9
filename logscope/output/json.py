"""The contract's `analyze --json` document.

The contract's `whatif --json` document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from logscope.analysis import Analysis, EngineResult
from logscope.diagnosis.spikes import Spike
from logscope.evidence.finding import Evidence, Finding
from logscope.evidence.preemptions import Preemptions
from logscope.evidence.pressure import limits_over_time
from logscope.inference.prediction import LABELS
from logscope.output.events import iso
from logscope.sanitize import message_head, redacted
from logscope.server.engines import EngineFacts
from logscope.server.scenario import flag_text
from logscope.server.settings import SETTINGS
from parsers.reading.events import Coverage
from reference_engine.model.kv_group import KvGroup, group_record

__all__ = ["analysis_document", "binding", "evidence_object", "whatif_document"]
_LATENCY = {"ttft_s": ("p50", "p90", "p99"), "e2e_s": ("p50", "p90", "p99"), "itl_s": ("p50", "p99")}


def analysis_document(analysis: Analysis) -> dict[str, Any]:
    """Build the whole document: `engines[]`, and at the top the sums and the worst engine's answer."""
    engines = [_engine(r) for r in analysis.engines]
    worst = analysis.worst_result
    top = engines[analysis.worst] if analysis.worst is not None else None
    return {
        "schema_version": 1,
        "input": _input(analysis.data.coverage, analysis.engines),
        "verdict": worst.verdict if worst else "not-enough-evidence",
        **_certainty(worst),
        "pressure": worst.pressure if worst else "none",
        "worst_engine": analysis.worst,
        "preemptions": _sum_preemptions([r.preemptions for r in analysis.engines])
        if analysis.total_preemptions is None
        else _preemptions(analysis.total_preemptions),
        "latency": _top_latency(analysis, top),
        "throughput": _sum_throughput(analysis.engines),
        "ledger": _sum_ledger(analysis.engines, top),
        "replay": top["replay"] if top else None,
        "spikes": top["spikes"] if top else [],
        "findings": [_finding(f, r) for r in analysis.engines for f in r.findings],
        "advice": top["advice"] if top else [],
        "engines": engines,
        "witness": dict(analysis.witness) if analysis.witness is not None else None,
    }


def _certainty(result: EngineResult | None) -> dict[str, Any]:
    sure = None if result is None or result.confidence is None else round(result.confidence, 3)
    second = result.second if result is not None else None
    named = {"verdict": second[0], "confidence": round(second[1], 3)} if second is not None else None
    return {"verdict_confidence": sure, "second": named}


def _top_latency(analysis: Analysis, top: dict[str, Any] | None) -> dict[str, Any]:
    """The worst engine's, unless clients or metrics measured all engines together."""
    own: dict[str, Any] = top["latency"] if top else _latency(None)
    if analysis.latency is None or own["basis"] == "measured":
        return own
    inferred = own if len(analysis.engines) < 2 else _inferred_of_all(analysis.engines)
    return {**_latency(analysis.latency), "inferred": inferred if inferred and inferred["basis"] else None}


def _inferred_of_all(results: Sequence[EngineResult]) -> dict[str, Any] | None:
    """Latencies of all engines' replayed requests together, as clients see them; None where an engine that served was not replayed."""
    if any(r.answer is None and r.windows is not None for r in results):
        return None
    frames = [r.answer.requests_frame.select("ttft_s", "e2e_s") for r in results if r.answer is not None]
    if not frames:
        return None
    together = pl.concat(frames)
    points = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {
        name: {point: together[name].drop_nulls().quantile(q, "linear") for point, q in points.items()}
        for name in ("ttft_s", "e2e_s")
    }
    return _latency({"basis": "inferred", **found})


def _input(coverage: Coverage, results: Iterable[EngineResult]) -> dict[str, Any]:
    times = [t for r in results for t in (r.log.facts.start, r.log.facts.end) if t is not None]
    return {
        "sources": coverage.sources,
        "bytes": coverage.bytes,
        "lines": coverage.lines,
        "events": coverage.events,
        "other_records": coverage.other_records,
        "foreign_lines": coverage.foreign_lines,
        "unrecognized_warnings": coverage.unrecognized_warnings,
        "out_of_order": coverage.out_of_order,
        "truncated": coverage.truncated,
        "client_text": coverage.client_text,
        "unbelieved": coverage.unbelieved,
        "skipped_sources": coverage.skipped_sources,
        "warning_samples": [{**sample, "text": message_head(sample["text"])} for sample in coverage.warning_samples],
        "start": iso(min(times)) if times else None,
        "end": iso(max(times)) if times else None,
    }


def _engine(result: EngineResult) -> dict[str, Any]:
    facts, answer = result.log.facts, result.answer
    return {
        "server": facts.server,
        "run": facts.run,
        "engine_index": facts.engine_index,
        "engine": facts.engine,
        "vllm_version": facts.version,
        "start": iso(facts.start),
        "end": iso(facts.end),
        "config": {name: facts.config.get(name) for name in SETTINGS},
        "config_basis": dict(facts.basis),
        "kv_cache": {
            "tokens": facts.kv.tokens,
            "num_blocks": facts.kv.num_blocks,
            "block_size": facts.kv.block_size,
            "bytes": facts.kv.bytes,
        },
        "verdict": result.verdict,
        **_certainty(result),
        "pressure": result.pressure,
        "preemptions": _preemptions(result.preemptions),
        "latency": _engine_latency(result),
        "throughput": {"prompt_tokens_per_s": result.prompt_tps, "generation_tokens_per_s": result.generation_tps},
        "ledger": _ledger(answer.ledger if answer else None),
        "replay": _replay(result),
        "spikes": [_spike(s) for s in result.spikes],
        "advice": [a.document() for a in result.advice],
        "binding": binding(result),
    }


def binding(result: EngineResult) -> list[dict[str, Any]]:
    """What held the engine back, stretch by stretch: `kv`, `seats`, `budget`, `arrivals` (nothing queued) or null (not visible)."""
    stretches = limits_over_time(result.windows, result.log.facts.seats)
    return [{"start": iso(start), "end": iso(end), "limit": limit} for start, end, limit in stretches]


def _engine_latency(result: EngineResult) -> dict[str, Any]:
    inferred = _latency(result.answer.latency if result.answer else None)
    if result.latency is None:
        return inferred
    return {**_latency(result.latency), "inferred": inferred if inferred["basis"] else None}


def _preemptions(found: Preemptions) -> dict[str, Any]:
    return {
        "logged": {"low": found.logged.low, "high": found.logged.high if found.logged.low is not None else None},
        "low": found.low,
        "value": found.value,
        "high": found.high,
        "basis": found.basis,
        "recomputed_tokens": found.recomputed_tokens,
        "timeline": [{"start": iso(s.start), "end": iso(s.end), "value": s.value} for s in found.timeline],
        "inferred": _inferred(found.inferred, found.inferred_tokens),
    }


def _inferred(counts: tuple[float, float, float] | None, tokens: float | None) -> dict[str, Any] | None:
    """What the replay says where another witness counted."""
    if counts is None:
        return None
    low, value, high = counts
    return {"low": low, "value": value, "high": high, "recomputed_tokens": tokens}


def _sum_inferred(parts: list[Preemptions]) -> dict[str, Any] | None:
    found = [p.inferred for p in parts if p.inferred is not None]
    if not found:
        return None
    low, value, high = (sum(c[i] for c in found) for i in range(3))
    tokens = [p.inferred_tokens for p in parts if p.inferred_tokens is not None]
    return _inferred((low, value, high), sum(tokens) if tokens else None)


def _sum_preemptions(parts: list[Preemptions]) -> dict[str, Any]:
    """Sums over the engines; a bound that one engine lacks, the sum lacks."""
    known = [p for p in parts if p.low is not None]
    logged = [p.logged for p in parts if p.logged.low is not None]
    highs = [p.high for p in known]
    timeline = sorted((s for p in parts for s in p.timeline), key=lambda s: s.start)
    bases = {p.basis for p in known}
    tokens = [p.recomputed_tokens for p in known if p.recomputed_tokens is not None]
    return {
        "logged": {
            "low": sum(g.low or 0 for g in logged) if logged else None,
            "high": sum(g.high or 0 for g in logged) if logged and all(g.high is not None for g in logged) else None,
        },
        "low": sum(p.low or 0 for p in known) if known else None,
        "value": sum(p.value or 0 for p in known) if known and all(p.value is not None for p in known) else None,
        "high": sum(h or 0 for h in highs) if known and None not in highs else None,
        "basis": ("inferred" if "inferred" in bases else bases.pop()) if bases else None,
        "recomputed_tokens": sum(tokens) if tokens else None,
        "timeline": [{"start": iso(s.start), "end": iso(s.end), "value": s.value} for s in timeline],
        "inferred": _sum_inferred(parts),
    }


def _latency(found: Mapping[str, Any] | None) -> dict[str, Any]:
    document: dict[str, Any] = {"basis": (found or {}).get("basis")}
    for name, points in _LATENCY.items():
        part = (found or {}).get(name) or {}
        document[name] = {p: part.get(p) for p in points}
        if name != "itl_s":
            bounds = {end: part.get(end) or {} for end in ("low", "high")}
            document[name] |= {end: {p: values.get(p) for p in points} for end, values in bounds.items()}
    document |= {key: (found or {}).get(key) for key in ("withheld", "censored")}
    return document


def _ledger(found: Mapping[str, Mapping[str, float]] | None) -> dict[str, Any]:
    return {
        name: {label: ((found or {}).get(name) or {}).get(label) for label in LABELS}
        for name in ("total_s", "slow_s", "typical_s")
    }


def _sum_ledger(results: Iterable[EngineResult], top: dict[str, Any] | None) -> dict[str, Any]:
    document = dict(top["ledger"]) if top else _ledger(None)
    ledgers = [r.answer.ledger["total_s"] for r in results if r.answer is not None and r.answer.ledger]
    if ledgers:
        document["total_s"] = {label: sum(g.get(label, 0.0) for g in ledgers) for label in LABELS}
    return document


def _sum_throughput(results: Iterable[EngineResult]) -> dict[str, Any]:
    """Over all engines and servers; starts of one server follow each other, so of theirs it is the mean over the time of all."""
    servers: defaultdict[int, defaultdict[int, list[EngineResult]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        servers[result.log.facts.server][result.log.facts.run].append(result)

    def total(rate: Callable[[EngineResult], float | None]) -> float | None:
        means = [_mean_of_starts(starts.values(), rate) for starts in servers.values()]
        known = [mean for mean in means if mean is not None]
        return sum(known) if known else None

    return {
        "prompt_tokens_per_s": total(lambda r: r.prompt_tps),
        "generation_tokens_per_s": total(lambda r: r.generation_tps),
    }


def _mean_of_starts(
    starts: Iterable[Sequence[EngineResult]], rate: Callable[[EngineResult], float | None]
) -> float | None:
    found = []
    for engines in starts:
        known = [(value, result) for result in engines if (value := rate(result)) is not None]
        if known:
            found.append((sum(value for value, _ in known), max(_span_s(result) for _, result in known)))
    if len(found) < 2:
        return found[0][0] if found else None
    return sum(value * span for value, span in found) / sum(span for _, span in found)


def _span_s(result: EngineResult) -> float:
    """Seconds from the first to the last statistics line of an engine that has a throughput."""
    assert result.windows is not None
    start, end = result.windows["start"].min(), result.windows["end"].max()
    assert isinstance(start, datetime)
    assert isinstance(end, datetime)
    return (end - start).total_seconds()


_STEP_TIME = ("base_s", "per_prefill_token_s", "per_decode_s", "per_kv_token_s")


def _replay(result: EngineResult) -> dict[str, Any] | None:
    answer = result.answer
    if answer is None:
        return _declined(result) if result.declined else None
    return {
        "requests": answer.requests,
        "fit": dict(answer.fit),
        "seed": answer.seed,
        "step_time": {
            **{name: getattr(answer.step_time, name) for name in _STEP_TIME},
            "basis": "inferred",
            "error": answer.steps.step_time_error if answer.steps else None,
            "times": ("stamps" if answer.steps.by_stamps else "elapsed") if answer.steps else None,
        },
        "unsupported": list(answer.unsupported),
        "groups": _groups(result),
    }


def _groups(result: EngineResult) -> list[dict[str, Any]]:
    """The KV-cache groups that were assumed: one of full attention where the log speaks of no others."""
    facts = result.log.facts
    named = facts.config.get("kv_groups")
    return list(named) if named else [group_record(KvGroup(block_size=facts.config.get("block_size") or 16))]


def _declined(result: EngineResult) -> dict[str, Any]:
    """A replay that was not made: nothing is known but why."""
    return {
        "requests": None,
        "fit": dict.fromkeys(("running", "waiting", "kv_usage", "generation")),
        "seed": None,
        "step_time": None,
        "unsupported": list(result.log.facts.unsupported),
        "groups": _groups(result),
        "declined": list(result.declined),
    }


def _spike(spike: Spike) -> dict[str, Any]:
    return {
        "start": iso(spike.start),
        "end": iso(spike.end),
        "cause": spike.cause,
        "requests": spike.requests,
        "p99_e2e_s": spike.p99_e2e_s,
        "baseline_p99_e2e_s": spike.baseline_p99_e2e_s,
        "ledger_s": dict(spike.ledger_s),
        "evidence": [evidence_object(e) for e in spike.evidence],
    }


def _finding(finding: Finding, result: EngineResult) -> dict[str, Any]:
    facts = result.log.facts
    document: dict[str, Any] = {
        "id": finding.id,
        "severity": finding.severity,
        "basis": finding.basis,
        "start": iso(finding.start),
        "end": iso(finding.end),
        "title": finding.title,
        "evidence": [evidence_object(e) for e in finding.evidence],
        "server": facts.server,
        "run": facts.run,
        "engine_index": facts.engine_index,
    }
    if finding.facts:
        document["facts"] = finding.facts
    return document


def evidence_object(evidence: Evidence) -> dict[str, Any]:
    """A line as evidence, without what clients sent and where from."""
    return {
        "source": evidence.source,
        "line": evidence.line,
        "text": redacted(evidence.text),
        "time": iso(evidence.time),
    }


def whatif_document(
    facts: EngineFacts,
    changes: Mapping[str, Any],
    baseline: Mapping[str, Any],
    scenario: Mapping[str, Any],
    notes: tuple[str, ...],
) -> dict[str, Any]:
    """Both sides of a change of one engine; `notes` say what was assumed."""
    return {
        "schema_version": 1,
        "set": dict(changes),
        "flag": flag_text(facts, changes),
        "baseline": dict(baseline),
        "scenario": dict(scenario),
        "notes": list(notes),
        "unsupported": list(facts.unsupported),
    }
