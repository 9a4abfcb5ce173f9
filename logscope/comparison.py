"""Two logs, before and after a change: what changed in settings, load and answers, and whether the replay predicted it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logscope.analysis import Analysis, EngineResult
from logscope.output.json import analysis_document, whatif_document
from logscope.server.scenario import scenario_of
from logscope.server.settings import SettingError

__all__ = ["compare"]

_POINTS = {"ttft_s": ("p50", "p90", "p99"), "e2e_s": ("p50", "p90", "p99"), "itl_s": ("p50", "p99")}
_JUDGED = ("e2e_s.p50", "e2e_s.p99", "ttft_s.p99", "preemptions", "generation_tokens_per_s")
TOLERANCE = 0.25
"""A figure was predicted when what came is within this of it. (Two runs of one workload on one machine differed by 2 % in their E2E p99
and by 11 % in their preemptions.)"""
FEW_PREEMPTIONS = 5.0
SMALL_S = 0.5
SAME_LOAD = 0.2


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
    return document


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
