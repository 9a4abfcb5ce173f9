"""Puts a second witness beside an analysis: counts and latencies become measured, what was inferred stays beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import polars as pl

from logscope.analysis import Analysis, EngineResult
from logscope.evidence.finding import Finding, by_severity, seconds
from logscope.evidence.preemptions import Logged, Preemptions, Stretch
from logscope.evidence.pressure import REPEATS, pressure_of_windows
from logscope.witness.latencies import LatencyWitness
from logscope.witness.metrics import Growth, MetricsWitness

__all__ = ["witnessed"]

CRITICAL_SHARE = 0.02


@dataclass(slots=True)
class _Found:
    """What is settled: results by engine, the total where no engine's own is known, sentences for the user."""

    results: list[EngineResult]
    total: Preemptions | None = None
    notes: list[str] = field(default_factory=list)


def witnessed(analysis: Analysis, metrics: MetricsWitness | None, latencies: LatencyWitness | None) -> Analysis:
    """The analysis with what the witnesses measured.

    Metrics belong to the servers of the log as far as labels and restarts tell them apart; else only the sum over all is measured.
    """
    found = _Found(list(analysis.engines))
    served = [i for i, r in enumerate(found.results) if r.context.served]
    if metrics is not None and served:
        _count(found, served, metrics)
    if served and found.notes:
        first = found.results[served[0]]
        said = tuple(Finding("coverage", "info", "measured", note) for note in found.notes)
        found.results[served[0]] = replace(first, findings=(*first.findings, *said))
    latency = _latency(found.results, served, metrics, latencies)
    if latency is not None and len(served) == 1:
        found.results[served[0]] = replace(found.results[served[0]], latency=latency)
    block: dict[str, Any] = {
        "metrics": metrics.document() if metrics is not None else None,
        "latencies": latencies.document() if latencies is not None else None,
        "notes": found.notes,
    }
    return replace(
        analysis, engines=tuple(found.results), witness=block, total_preemptions=found.total, latency=latency
    )


def _count(found: _Found, served: Sequence[int], metrics: MetricsWitness) -> None:
    growth = metrics.preemptions()
    if growth is None:
        found.notes.append("the metrics hold no preemption counter (vllm:num_preemptions_total)")
        return
    runs: dict[tuple[int, int], list[int]] = {}
    for i in served:
        facts = found.results[i].log.facts
        runs.setdefault((facts.server, facts.run), []).append(i)
    from_start = found.results[served[0]].log.facts.started_in_log
    alone = all(len(indices) == 1 for indices in runs.values())
    if len(served) == 1:
        _settle(found, served[0], growth, from_start=from_start)
    elif len(runs) == 1 and metrics.engines == {str(found.results[i].log.facts.engine_index) for i in served}:
        for i in served:
            own = metrics.preemptions(found.results[i].log.facts.engine_index)
            if own is not None:
                _settle(found, i, own, from_start=from_start)
    elif alone and len(growth.lives) == len(runs):
        for k, (i,) in enumerate(runs.values()):
            life = Growth(growth.first if k == 0 else 0.0, (growth.lives[k],), growth.scrapes)
            _settle(found, i, life, from_start=from_start or k > 0)
    else:
        _settle_total(found, growth, from_start=from_start)


def _settle(found: _Found, index: int, growth: Growth, *, from_start: bool) -> None:
    """One engine's count. Without its start in the log a single scrape is only an upper bound: it counts since the process began."""
    result = found.results[index]
    before = result.preemptions
    if growth.scrapes == 1 and not from_start:
        found.notes.append(
            "a single scrape of a server that started before this log: its preemption counter is an upper bound"
        )
        found.results[index] = replace(result, preemptions=_bounded(before, growth.from_zero))
        return
    count = growth.from_zero if from_start else growth.seen
    if before.logged.low is not None and count < before.logged.low:
        found.notes.append(
            f"the metrics count {count:.0f} preemptions, fewer than the log proves ({before.logged.low}): they do not cover this log, and are left out"
        )
        return
    stretches = _stretches(growth, result)
    found.results[index] = _with_count(result, _measured(before, count, stretches))


def _settle_total(found: _Found, growth: Growth, *, from_start: bool) -> None:
    count = growth.from_zero if from_start else growth.seen
    parts = [r.preemptions for r in found.results if r.preemptions.value is not None]
    known = [p for p in parts if p.low is not None and p.high is not None]
    low, value, high = (sum(getattr(p, name) for p in known) if known else None for name in ("low", "value", "high"))
    tokens = sum(p.recomputed_tokens or 0.0 for p in known) if known else None
    stretches = tuple(s for p in parts for s in p.timeline)
    basis = "inferred" if known else None
    inferred = Preemptions(Logged(), low, value, high, basis, tokens, stretches)
    found.total = _measured(inferred, count, ())
    found.notes.append("the metrics have no per-engine labels, so counts and latencies are for all engines together")


def _bounded(before: Preemptions, most: float) -> Preemptions:
    high = most if before.logged.high is None else min(most, before.logged.high)
    logged = Logged(before.logged.low or 0, int(high), before.logged.timeline, before.logged.lines)
    if before.value is None:
        return Preemptions(logged, float(logged.low or 0), None, high, None)
    return replace(
        before,
        logged=logged,
        low=min(before.low or 0.0, high),
        value=min(before.value, high),
        high=min(before.high if before.high is not None else high, high),
    )


def _measured(before: Preemptions, count: float, stretches: tuple[Stretch, ...]) -> Preemptions:
    """The counter's number; the tokens that were computed twice are the replay's, in proportion."""
    whole = round(count)
    inferred = None
    if before.basis == "inferred" and before.low is not None and before.value is not None and before.high is not None:
        inferred = (before.low, before.value, before.high)
    tokens = 0.0 if whole == 0 else None
    if whole and before.value and before.recomputed_tokens is not None:
        tokens = round(before.recomputed_tokens * count / before.value)
    return Preemptions(
        Logged(whole, whole, stretches, before.logged.lines),
        count,
        count,
        count,
        "measured",
        tokens,
        stretches or (before.timeline if whole else ()),
        inferred=inferred,
        inferred_tokens=before.recomputed_tokens if inferred else None,
    )


def _with_count(result: EngineResult, preemptions: Preemptions) -> EngineResult:
    """Findings, pressure and (where nothing else decided) the verdict follow the count."""
    count, verdict = preemptions.value or 0.0, result.verdict
    many = _are_many(result, count)
    if many and verdict in ("not-enough-evidence", "healthy"):
        verdict = "kv-capacity"  # a headline that says healthy beside a counter that says otherwise helps nobody
    old = [f for f in result.findings if f.id == "kv-preemption"]
    findings = [f for f in result.findings if f.id != "kv-preemption" and not _asks_for_it(f)]
    if count:
        severity = "critical" if many else "info" if verdict == "healthy" else "warning"
        findings.insert(0, _finding(preemptions, severity, old))
    pressure = result.pressure
    if many or (count >= REPEATS and verdict != "healthy"):
        pressure = "thrash"
    elif pressure == "thrash":
        pressure = pressure_of_windows(findings, result.windows) if not count else "saturated"
    said = tuple(by_severity(findings))
    sure = (result.confidence, result.second) if verdict == result.verdict else (None, None)
    return replace(
        result,
        preemptions=preemptions,
        findings=said,
        pressure=pressure,
        verdict=verdict,
        confidence=sure[0],
        second=sure[1],
    )


def _asks_for_it(finding: Finding) -> bool:
    """The advice to give metrics, which were given."""
    return finding.id == "coverage" and "num_preemptions" in finding.title


def _are_many(result: EngineResult, count: float) -> bool:
    requests = result.answer.requests if result.answer is not None else 0
    return count >= max(REPEATS, CRITICAL_SHARE * requests)


def _finding(preemptions: Preemptions, severity: str, old: Sequence[Finding]) -> Finding:
    count = preemptions.value or 0.0
    start, end = seconds(t for s in preemptions.timeline for t in (s.start, s.end))
    beside = ""
    if preemptions.inferred is not None:
        low, value, high = preemptions.inferred
        beside = f"; the replay alone infers {value:.0f} ({low:.0f} to {high:.0f})"
    title = f"{count:.0f} preemptions by the server's own counter: running requests were evicted and their work thrown away{beside}"
    evidence = old[0].evidence if old else ()
    proves = next((f.proves for f in old if f.proves), None)
    return Finding("kv-preemption", severity, "measured", title, start, end, evidence, proves)


def _stretches(growth: Growth, result: EngineResult) -> tuple[Stretch, ...]:
    """The growth on the record's clock; empty where that clock's zone cannot be told."""
    if not growth.steps:
        return ()
    offset = _offset(growth, result)
    if offset is None:
        return ()

    def local(time: float) -> datetime:
        return datetime.fromtimestamp(time, timezone.utc).replace(tzinfo=None) + offset

    return tuple(Stretch(local(a), local(b), more) for a, b, more in growth.steps)


def _offset(growth: Growth, result: EngineResult) -> timedelta | None:
    """What the record's clock is ahead of UTC: by the envelope, else the nearest to none under which the metrics lie within the log."""
    facts = result.log.facts
    for frame in result.log.frames.values():
        if "outer_time" in frame.columns and "time" in frame.columns:
            both = frame.filter(pl.col("outer_time").is_not_null() & pl.col("time").is_not_null())
            if both.height:
                ahead = (both["time"] - both["outer_time"].dt.replace_time_zone(None)).dt.total_seconds()
                middle = ahead.median()
                if isinstance(middle, (int, float)):
                    return timedelta(minutes=15 * round(middle / 900))
    if facts.start is None or facts.end is None:
        return None
    first, last = growth.steps[0][0], growth.steps[-1][1]
    zero = datetime(1970, 1, 1)
    start, end = ((t - zero).total_seconds() for t in (facts.start, facts.end))
    for quarter in sorted(range(-4 * 14, 4 * 14 + 1), key=abs):
        shift = 900.0 * quarter
        if start - 60 <= first + shift and last + shift <= end + 60:
            return timedelta(seconds=shift)
    return None


def _latency(
    results: Sequence[EngineResult],
    served: Sequence[int],
    metrics: MetricsWitness | None,
    latencies: LatencyWitness | None,
) -> Mapping[str, Any] | None:
    """Clients' own latencies before the server's histograms, whose percentiles are only as fine as their buckets."""
    if latencies is not None:
        return {**latencies.latency, "basis": "measured"}
    if metrics is None or not served:
        return None
    found = metrics.latency(from_zero=results[served[0]].log.facts.started_in_log)
    return {**found, "basis": "measured"} if found is not None else None
