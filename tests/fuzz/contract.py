"""What every answer of `analyze` keeps, whatever the log: a check of the document against docs/contract.md."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from logscope.diagnosis.verdict import RANK
from logscope.server.settings import SETTINGS

__all__ = ["violations"]

TOP = "schema_version input verdict verdict_confidence second pressure worst_engine preemptions latency throughput ledger replay spikes findings advice engines"
INPUT = "sources bytes lines events other_records foreign_lines unrecognized_warnings out_of_order truncated client_text unbelieved skipped_sources start end"
ENGINE = "server run engine_index engine vllm_version start end config config_basis kv_cache verdict verdict_confidence second pressure preemptions latency throughput ledger replay spikes"
LEDGER = "queued_for_kv queued_for_seat queued_for_budget prefill decode interference preempted_wait recompute"
FINDING = "id severity basis start end title evidence"
SIDE = "preemptions recomputed_tokens ttft_s e2e_s itl_s generation_tokens_per_s duration_s"
BASES = ("measured", "inferred", "replayed", "default", "given")
PRESSURES = ("thrash", "saturated", "none")
SLACK = 1e-6


def violations(document: Mapping[str, Any]) -> list[str]:
    """Each way in which a document breaks the contract, as a sentence; empty where it keeps it."""
    return list(_all(document))


def _all(document: Mapping[str, Any]) -> Iterator[str]:
    try:
        json.dumps(document, allow_nan=False)
    except ValueError:
        yield "not JSON: a number that is none, or no finite one"
    yield from _keys(document, TOP, "the document")
    yield from _keys(document["input"], INPUT, "input")
    for name in INPUT.split()[1:11]:
        if document["input"][name] < 0:
            yield f"input.{name} is negative"
    yield from _part(document, "top")
    engines = document["engines"]
    worst = document["worst_engine"]
    if (worst is None) != (not engines) or (worst is not None and not 0 <= worst < len(engines)):
        yield f"worst_engine is {worst} of {len(engines)} engines"
    for index, engine in enumerate(engines):
        where = f"engines[{index}]"
        yield from _keys(engine, ENGINE, where)
        yield from _keys(engine["config"], " ".join(SETTINGS), f"{where}.config")
        yield from _part(engine, where)
        for name, basis in engine["config_basis"].items():
            if basis not in BASES:
                yield f"{where}.config_basis.{name} is {basis}"
    for finding in document["findings"]:
        yield from _finding(finding)
    for advice in document["advice"]:
        yield from _advice(advice)


def _part(part: Mapping[str, Any], where: str) -> Iterator[str]:
    """What the top level and each engine have in common."""
    if part["verdict"] not in RANK:
        yield f"{where}: the verdict {part['verdict']} is none"
    if part["pressure"] not in PRESSURES:
        yield f"{where}: the pressure {part['pressure']} is none"
    yield from _certainty(part, where)
    yield from _preemptions(part["preemptions"], where)
    yield from _latency(part["latency"], where)
    yield from _bounds(part["latency"], where)
    yield from _span(part, where)
    for name, value in part["throughput"].items():
        yield from _at_least_zero(value, f"{where}.throughput.{name}")
    for kind in ("total_s", "slow_s", "typical_s"):
        yield from _keys(part["ledger"][kind], LEDGER, f"{where}.ledger.{kind}")
        for label, value in part["ledger"][kind].items():
            yield from _at_least_zero(value, f"{where}.ledger.{kind}.{label}")
    for spike in part["spikes"]:
        yield from _span(spike, f"{where}: a spike")
        yield from _at_least_zero(spike["requests"], f"{where}: a spike's requests")
    if part["replay"] is not None:
        for name, fit in part["replay"]["fit"].items():
            if fit is not None and not 0 <= fit <= 1:
                yield f"{where}: the fit of {name} is {fit}"


def _certainty(part: Mapping[str, Any], where: str) -> Iterator[str]:
    """How sure the verdict is, and the one that comes next: nothing without a replay."""
    second = part["second"]
    sure = [part["verdict_confidence"], *([second["confidence"]] if second is not None else [])]
    if any(share is not None and not 0 <= share <= 1 for share in sure):
        yield f"{where}: a verdict's confidence is none of 0..1: {sure}"
    if part["replay"] is None and sure != [None]:
        yield f"{where}: confidences without a replay: {sure}"
    if second is not None and (second["verdict"] not in RANK or second["verdict"] == part["verdict"]):
        yield f"{where}: the second verdict is {second['verdict']} beside {part['verdict']}"


def _preemptions(found: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from _ordered([found["logged"]["low"], found["logged"]["high"]], f"{where}: logged")
    yield from _ordered([found["low"], found["value"], found["high"]], f"{where}: preemptions")
    yield from _at_least_zero(found["low"], f"{where}: the lower bound of preemptions")
    yield from _at_least_zero(found["recomputed_tokens"], f"{where}: recomputed tokens")
    if found["low"] is None and (found["value"], found["high"]) != (None, None):
        yield f"{where}: preemptions {found['value']} to {found['high']} without a lower bound"
    if (found["low"] is None) != (found["basis"] is None):
        yield f"{where}: preemptions from {found['low']} on the basis {found['basis']}"
    for stretch in found["timeline"]:
        yield from _span(stretch, f"{where}: a stretch of the timeline")
        yield from _at_least_zero(stretch["value"], f"{where}: the timeline")


def _latency(found: Mapping[str, Any], where: str) -> Iterator[str]:
    for name in ("ttft_s", "e2e_s", "itl_s"):
        points = [found[name][p] for p in ("p50", "p90", "p99") if p in found[name]]
        yield from _ordered(points, f"{where}: {name}")
        for value in points:
            yield from _at_least_zero(value, f"{where}: {name}")


def _bounds(found: Mapping[str, Any], where: str) -> Iterator[str]:
    """A lower and an upper bound beside each percentile; a reason where the figures are withheld; requests that the log cut off."""
    for name in ("ttft_s", "e2e_s"):
        part = found[name]
        for point in ("p50", "p90", "p99"):
            low, value, high = part["low"][point], part[point], part["high"][point]
            yield from _ordered([low, value, high], f"{where}: {name}.{point} between its bounds")
            yield from _at_least_zero(low, f"{where}: {name}.low.{point}")
            yield from _at_least_zero(high, f"{where}: {name}.high.{point}")
    if found["withheld"] is not None and not found["withheld"]:
        yield f"{where}: figures are withheld for no reason"
    yield from _at_least_zero(found["censored"], f"{where}: requests that still ran at the end")


def _finding(finding: Mapping[str, Any]) -> Iterator[str]:
    yield from _keys(finding, FINDING, "a finding")
    if finding["severity"] not in ("info", "warning", "critical"):
        yield f"a finding's severity is {finding['severity']}"
    if finding["basis"] not in BASES:
        yield f"a finding's basis is {finding['basis']}"
    if not finding["title"] or "nan" in finding["title"].lower().split():
        yield f"a finding's title is {finding['title']!r}"
    yield from _span(finding, f"the finding {finding['id']}")


def _advice(advice: Mapping[str, Any]) -> Iterator[str]:
    """Two replayed sides; a rule of thumb has no second one, and figures of neither."""
    if advice["basis"] not in ("replayed", "rule"):
        yield f"advice on the basis {advice['basis']}"
    if (advice["basis"] == "rule") != (advice["scenario"] is None):
        yield f"advice on the basis {advice['basis']} with the scenario {advice['scenario']}"
    for side in ("baseline", "scenario"):
        if advice[side] is not None:
            yield from _side(advice[side], f"advice.{side}")


def _side(side: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from _keys(side, SIDE, where)
    yield from _latency(side, where)
    for name in ("preemptions", "generation_tokens_per_s", "duration_s"):
        yield from _at_least_zero(side[name], f"{where}.{name}")


def _keys(found: Mapping[str, Any], names: str, where: str) -> Iterator[str]:
    missing = set(names.split()) - set(found)
    if missing:
        yield f"{where} lacks {', '.join(sorted(missing))}"


def _at_least_zero(value: float | None, where: str) -> Iterator[str]:
    if value is not None and not (math.isfinite(value) and value >= -SLACK):
        yield f"{where} is {value}"


def _ordered(values: Sequence[float | None], where: str) -> Iterator[str]:
    known = [v for v in values if v is not None]
    if any(a > b + SLACK for a, b in pairwise(known)):
        yield f"{where} is out of order: {values}"


def _span(found: Mapping[str, Any], where: str) -> Iterator[str]:
    start, end = found.get("start"), found.get("end")
    if start is not None and end is not None and start > end:
        yield f"{where} ends before it starts: {start} to {end}"
