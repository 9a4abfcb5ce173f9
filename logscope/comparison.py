"""Two logs, before and after a change: what changed in settings, load and answers, and whether the replay predicted it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from logscope.analysis import Analysis, EngineResult
from logscope.inference.prediction import Workload
from logscope.output.json import analysis_document, whatif_document
from logscope.server.scenario import scenario_of
from logscope.server.settings import SettingError
from logscope.wording import percent

__all__ = ["compare", "regressions"]

_POINTS = {"ttft_s": ("p50", "p90", "p99"), "e2e_s": ("p50", "p90", "p99"), "itl_s": ("p50", "p99")}
_JUDGED = ("e2e_s.p50", "e2e_s.p99", "ttft_s.p99", "preemptions", "generation_tokens_per_s")
TOLERANCE = 0.25
"""A figure was predicted when what came is within this of it. (Two runs of one workload on one machine differed by 2 % in their E2E p99
and by 11 % in their preemptions.)"""
FEW_PREEMPTIONS = 5.0
SMALL_S = 0.5
SAME_LOAD = 0.2
OTHER_LOAD, OTHER_ENGINE = 0.1, 0.05
"""From where on a load, or the time of a step, counts as another: two runs of one workload on one machine differ by less."""

INFERRED_STEPS = 0.08
"""Relative error of step times that no iteration line shows: one server's, inferred from two of its runs, differed by 6 %."""

LOAD = ("rate", "prompt_tokens", "output_tokens")
REGRESSING = ("e2e_s.p50", "e2e_s.p99", "ttft_s.p50", "ttft_s.p99", "itl_s.p99")


def compare(before: Analysis, after: Analysis) -> dict[str, Any]:
    """The contract's `compare --json`: both analyses, what changed, and the whatif from BEFORE under the change.

    The worst engine of each side is compared. `judged` puts prediction and outcome side by side, `notes` say what limits the comparison.
    """
    a, b = before.worst_result, after.worst_result
    document: dict[str, Any] = {
        "schema_version": 1,
        "before": analysis_document(before),
        "after": analysis_document(after),
        "config_changed": {},
        "version_changed": None,
        "changed": {},
        "predicted": None,
        "judged": [],
        "notes": [],
        "load": None,
        "engine": None,
        "closing": None,
        "regressions": [],
    }
    if a is None or b is None:
        document["notes"].append("one of the logs shows no engine: there is nothing to compare")
        return document
    document["config_changed"] = _config_changed(a, b)
    if a.log.facts.version != b.log.facts.version:
        document["version_changed"] = [a.log.facts.version, b.log.facts.version]
    first, second = _figures(document["before"], a), _figures(document["after"], b)
    document["changed"] = {name: [first[name], second[name]] for name in first}
    _predict(document, a)
    document["judged"] = _judged(document, second)
    _note_load(document, first, second)
    document["load"], document["engine"] = _load(a, b), _engine(a, b)
    document["closing"] = _closing(document, a)
    return document


def regressions(document: Mapping[str, Any], share: float) -> list[dict[str, Any]]:
    """The figures of a comparison that got worse by more than `share`: latencies (and by more than noise), and the time of a step."""
    found = []
    for name in REGRESSING:
        before, after = document["changed"].get(name) or (None, None)
        least = 0.0 if name.startswith("itl_s") else SMALL_S
        if before and after and after - before > max(share * before, least):
            found.append({"figure": name, "before": before, "after": after, "change": after / before - 1})
    engine = document["engine"]
    if engine is not None and engine["low"] > 1 and engine["value"] - 1 > share:
        found.append({"figure": "step_time", "before": 1.0, "after": engine["value"], "change": engine["value"] - 1})
    return found


def _load(a: EngineResult, b: EngineResult) -> dict[str, Any] | None:
    """AFTER's load over BEFORE's: request rate, mean prompt and output, each with bounds over the plausible workloads; None without replays."""
    if not _replayed(a) or not _replayed(b):
        return None
    sides = [[_load_of(w) for w in r.answer.samples.workloads] for r in (a, b) if r.answer is not None]
    found: dict[str, Any] = {}
    for place, name in enumerate(LOAD):
        before, after = ([one[place] for one in side if one[place] > 0] for side in sides)
        found[name] = _ratio(before, after) if before and after else None
    return found


def _replayed(result: EngineResult) -> bool:
    return result.answer is not None and result.answer.fair


def _load_of(workload: Workload) -> tuple[float, float, float]:
    """Requests a second, mean prompt tokens, mean output tokens."""
    requests = workload.requests
    span = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    many = max(1, len(requests))
    return (
        len(requests) / span if span > 0 else 0.0,
        sum(r.prompt_tokens for r in requests) / many,
        sum(r.output_tokens for r in requests) / many,
    )


def _ratio(before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """Median over median; the bounds leave out the outer tenths of both sides."""
    value = float(np.median(after) / np.median(before))
    low = float(np.quantile(after, 0.1) / np.quantile(before, 0.9))
    high = float(np.quantile(after, 0.9) / np.quantile(before, 0.1))
    return {"low": min(low, value), "value": value, "high": max(high, value)}


def _engine(a: EngineResult, b: EngineResult) -> dict[str, Any] | None:
    """AFTER's time of a step over BEFORE's, for the same steps: those of both sides; None without replays.

    The bounds hold what the plausible workloads and both kinds of steps say.
    """
    if not _replayed(a) or not _replayed(b) or a.answer is None or b.answer is None:
        return None
    ratios = []
    for own in (a.answer, b.answer):
        sums = _sums(own.steps_frame)
        before, after = ([_seconds(w, sums) for w in side.samples.workloads] for side in (a.answer, b.answer))
        ratios.append(_ratio(before, after))
    # without iteration lines both step times are inferred, each with an error that all its workloads share
    doubt = 1.0 if a.answer.steps is not None and b.answer.steps is not None else 1 + INFERRED_STEPS
    return {
        "low": min(r["low"] for r in ratios) / doubt,
        "value": float(np.sqrt(ratios[0]["value"] * ratios[1]["value"])),
        "high": max(r["high"] for r in ratios) * doubt,
    }


def _sums(steps: pl.DataFrame) -> tuple[float, float, float, float, float]:
    """Of some steps: how many, prefill tokens, their squares, decoding requests, KV tokens."""
    prefill = steps["prefill_tokens"].cast(pl.Float64)
    others = (float(steps[name].sum()) for name in ("decode_requests", "kv_tokens"))
    return (float(steps.height), float(prefill.sum()), float((prefill * prefill).sum()), *others)  # type: ignore[return-value]


def _seconds(workload: Workload, sums: tuple[float, float, float, float, float]) -> float:
    """What such steps take in a workload: the median of its windows."""
    many, prefill, squares, decode, kv = sums
    marks = (-math.inf, *workload.ends)
    costs = [workload.cost_from(mark) for mark in marks[: max(1, len(marks) - 1)]]
    return float(
        np.median(
            [
                c.scale
                * (
                    many * c.base
                    + prefill * c.per_prefill
                    + squares * c.per_prefill_squared
                    + decode * c.per_decode
                    + kv * c.per_kv
                )
                for c in costs
            ]
        )
    )


def _closing(document: Mapping[str, Any], a: EngineResult) -> str | None:
    """One sentence: what differs, the load or the engine."""
    load, engine = document["load"], document["engine"]
    if load is None or engine is None:
        missing = "BEFORE" if not _replayed(a) else "AFTER"
        return f"Whether the load or the engine changed is not visible: {missing} could not be replayed well enough."
    other = [
        _changed_by(name, load[name]) for name in LOAD if load[name] is not None and _differs(load[name], OTHER_LOAD)
    ]
    slower = _differs(engine, OTHER_ENGINE)
    steps = f"steps {_points(engine, 'slower', 'faster')}"
    if other and slower:
        return f"Load and engine both changed: {', '.join(other)}; {steps} for the same work."
    if other:
        return f"Same engine (a step takes as long for the same work), another load: {', '.join(other)}."
    if slower:
        return f"Same load, {steps} for the same work."
    settings = ", ".join(document["config_changed"])
    rest = f"what differs comes from {settings}" if settings else "what differs is chance, or not visible in these logs"
    return f"Same load, and steps that take as long for the same work: {rest}."


def _differs(ratio: Mapping[str, float], least: float) -> bool:
    """Whether a ratio is another than 1: by more than noise, and with both bounds on one side."""
    return abs(ratio["value"] - 1) > least and (ratio["low"] > 1 or ratio["high"] < 1)


def _changed_by(name: str, ratio: Mapping[str, float]) -> str:
    words = {"rate": "requests", "prompt_tokens": "prompts", "output_tokens": "outputs"}
    up, down = ("more often", "less often") if name == "rate" else ("longer", "shorter")
    return f"{words[name]} {_points(ratio, up, down)}"


def _points(ratio: Mapping[str, float], up: str, down: str) -> str:
    """ "21 % slower (15 to 27 %)"; more than twice as a factor."""
    value, ends = ratio["value"] - 1, sorted(abs(ratio[side] - 1) for side in ("low", "high"))
    word = up if value > 0 else down
    between = f"{percent(ends[0]).removesuffix(' %')} to {percent(ends[1])}"
    return f"{percent(abs(value))} {word}" + (f" ({between})" if percent(ends[0]) != percent(ends[1]) else "")


def _config_changed(a: EngineResult, b: EngineResult) -> dict[str, list[Any]]:
    """Settings that are known on both sides and differ; a default of a version that the log does not show is not known."""
    before, after = a.log.facts.config, b.log.facts.config
    return {
        name: [before[name], after[name]]
        for name in before
        if _is_known(a, name) and _is_known(b, name) and before[name] != after[name]
    }


def _is_known(result: EngineResult, name: str) -> bool:
    facts = result.log.facts
    if facts.config.get(name) is None:
        return False
    return facts.version is not None or facts.basis.get(name) != "default"


def _figures(document: Mapping[str, Any], result: EngineResult) -> dict[str, Any]:
    latency, count = document["latency"], document["preemptions"]
    found: dict[str, Any] = {
        f"{name}.{point}": latency[name][point] for name, points in _POINTS.items() for point in points
    }
    found["preemptions"] = count["value"]
    found["recomputed_tokens"] = count["recomputed_tokens"]
    found.update(document["throughput"])
    found["requests"] = result.answer.requests if result.answer is not None else None
    found["verdict"] = document["verdict"]
    found["pressure"] = document["pressure"]
    return found


def _predict(document: dict[str, Any], before: EngineResult) -> None:
    """What a replay of BEFORE says under the change; None where there is none, or no replay."""
    changes = {name: pair[1] for name, pair in document["config_changed"].items()}
    notes: list[str] = document["notes"]
    if not changes:
        notes.append("no known setting differs between the two logs, so there is nothing to predict")
        return
    if before.answer is None:
        notes.append("BEFORE was not replayed, so there is no prediction")
        return
    try:
        scenario = scenario_of(before.log.facts, changes)
    except SettingError as error:
        notes.append(f"no prediction: {error}")
        return
    document["predicted"] = whatif_document(
        before.log.facts, changes, before.answer.predict(None), before.answer.predict(scenario), scenario.notes
    )


def _judged(document: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each predicted figure beside the actual one; `right` where both agree within the tolerance."""
    predicted = document["predicted"]
    if predicted is None:
        return []
    judged = []
    for name in _JUDGED:
        was, foreseen = _figure(predicted["baseline"], name), _figure(predicted["scenario"], name)
        came = after[name]
        if foreseen is None or came is None:
            continue
        judged.append(
            {"figure": name, "before": was, "predicted": foreseen, "after": came, "right": _agree(name, foreseen, came)}
        )
    return judged


def _figure(side: Mapping[str, Any], name: str) -> float | None:
    key, _, point = name.partition(".")
    value = side[key].get(point) if point else side[key]
    return float(value) if value is not None else None


def _agree(name: str, foreseen: float, came: float) -> bool:
    least = FEW_PREEMPTIONS if name == "preemptions" else SMALL_S if name.endswith(("p50", "p99")) else 0.0
    return abs(foreseen - came) <= max(TOLERANCE * max(abs(came), abs(foreseen)), least)


def _note_load(document: Mapping[str, Any], first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """A prediction is for the same load: say so where it was another."""
    for name, words in (("requests", "requests"), ("prompt_tokens_per_s", "prompt tokens/s")):
        a, b = first[name], second[name]
        if a and b and abs(b - a) > SAME_LOAD * max(a, b):
            document["notes"].append(
                f"the load differs ({a:,.0f} and {b:,.0f} {words}), so the change cannot be attributed to the settings alone"
            )
            return
