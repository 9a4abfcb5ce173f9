"""The second witness on the page: what the server's metrics or the clients measured, beside what the replay infers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logscope.safe import visible
from logscope.wording import bounds, change, count, period, seconds

__all__ = ["Witness", "witness"]

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
    said = f"{count(found.get('samples'))} samples of vLLM's metrics from {sources}"
    if found.get("start") and found.get("end"):
        said += f", {period(found['start'], found['end'])} in UTC"
    return said


def _clients(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    return f"the latencies of {count(found.get('requests'))} requests from {visible(str(found.get('source')), 120)}, as their clients saw them"


def _preemptions(analysis: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    found = analysis.get("preemptions") or {}
    beside = found.get("inferred") or {}
    if found.get("basis") != "measured":
        return []
    infers, measured = beside.get("value"), found.get("value")
    told = f"{count(infers)} ({bounds(beside.get('low'), beside.get('high'))})" if beside else "–"
    return [("Preemptions", count(measured), told, change(measured, infers))]


def _queue(
    analysis: Mapping[str, Any], metrics: Mapping[str, Any]
) -> list[tuple[str, str, str, str]]:
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
    told = "–" if infers is None else seconds(infers)
    return [("Mean time in the queue", seconds(measured), told, change(measured, infers))]


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
                told = "–" if infers is None else seconds(infers)
                rows.append((f"{name} {point}", seconds(measured), told, change(measured, infers)))
    return rows
