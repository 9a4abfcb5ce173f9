"""A replay as a trace for Perfetto or chrome://tracing: a lane a request, and counters of the server's load.

`write_trace` streams JSON (the Trace Event Format) and keeps the file under a bound: counters are thinned to their
extremes, and when there are more requests than lanes allowed, those that suffered most are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from reference_engine.model.step import RequestId
from reference_engine.replay.phases import Phase

__all__ = ["CounterPoint", "write_trace"]

_REQUESTS, _SERVER = 1, 2
# Names from the format's fixed palette, so that both viewers paint alike.
_COLOURS = {
    "queued": "grey",
    "prefill": "rail_animation",
    "decode": "good",
    "preempted": "terrible",
    "recompute": "bad",
}


@dataclass(frozen=True, slots=True)
class CounterPoint:
    """The server's state from `time_s` on: share of KV blocks in use (0..1), running and waiting requests."""

    time_s: float
    kv_usage: float
    running: int
    waiting: int


def write_trace(
    out: TextIO,
    phases: Sequence[Phase],
    points: Sequence[CounterPoint],
    max_lanes: int = 20_000,
    max_points: int = 20_000,
) -> None:
    """Write one JSON document. A phase takes about 120 bytes, a point about 300."""
    lanes = _lanes(phases, max_lanes)
    out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
    separator = ""
    for event in _events(phases, lanes, thinned(points, max_points)):
        out.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False))
        separator = ",\n"
    left_out = len({phase.request_id for phase in phases}) - len(lanes)
    notes = json.dumps({"requests_left_out": left_out})
    out.write(f'\n],"otherData":{notes}}}\n')


def _lanes(phases: Sequence[Phase], max_lanes: int) -> dict[RequestId, int]:
    """Request to lane number, in order of arrival."""
    arrival: dict[RequestId, float] = {}
    suffered: dict[RequestId, float] = {}
    for phase in phases:
        known = arrival.get(phase.request_id, phase.start_s)
        arrival[phase.request_id] = min(known, phase.start_s)
        lost = 0.0 if phase.name in ("prefill", "decode") else phase.end_s - phase.start_s
        suffered[phase.request_id] = suffered.get(phase.request_id, 0.0) + lost
    kept = list(arrival)
    if len(kept) > max_lanes:
        kept = sorted(kept, key=lambda request: -suffered[request])[:max_lanes]
    kept.sort(key=lambda request: arrival[request])
    return {request: number for number, request in enumerate(kept, start=1)}


def _events(
    phases: Iterable[Phase], lanes: dict[RequestId, int], points: Iterable[CounterPoint]
) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _REQUESTS, 0, "requests")
    yield _name("process_name", _SERVER, 0, "server")
    for request, lane in lanes.items():
        yield _name("thread_name", _REQUESTS, lane, f"request {request}")
    for phase in phases:
        lane = lanes.get(phase.request_id, 0)
        if lane:
            yield _phase_event(phase, lane)
    for point in points:
        at = _micros(point.time_s)
        for name, key, value in (
            ("KV usage", "percent", round(100 * point.kv_usage, 2)),
            ("running", "requests", point.running),
            ("waiting", "requests", point.waiting),
        ):
            yield {"ph": "C", "pid": _SERVER, "name": name, "ts": at, "args": {key: value}}


def _phase_event(phase: Phase, lane: int) -> dict[str, Any]:
    start = _micros(phase.start_s)
    return {
        "ph": "X",
        "pid": _REQUESTS,
        "tid": lane,
        "name": phase.name,
        "cname": _COLOURS[phase.name],
        "ts": start,
        # From rounded ends, so that the phases of a lane touch and add up.
        "dur": round(_micros(phase.end_s) - start, 3),
    }


def _name(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": lane, "name": kind, "args": {"name": name}}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def thinned(points: Sequence[CounterPoint], limit: int) -> Iterator[CounterPoint]:
    """At most about `limit` points: unchanged ones go first, then of each run of neighbours the extremes of KV usage,
    running and waiting are kept.
    """
    changed = [
        point
        for position, point in enumerate(points)
        if position == 0 or _state(point) != _state(points[position - 1])
    ]
    if len(changed) <= limit:
        yield from changed
        return
    width = -(-len(changed) * 6 // max(6, limit))
    for start in range(0, len(changed), width):
        group = changed[start : start + width]
        kept = {
            id(pick(group, key=key)): None
            for key in (_usage, _running, _waiting)
            for pick in (min, max)
        }
        yield from (point for point in group if id(point) in kept)


def _state(point: CounterPoint) -> tuple[float, int, int]:
    return point.kv_usage, point.running, point.waiting


def _usage(point: CounterPoint) -> float:
    return point.kv_usage


def _running(point: CounterPoint) -> int:
    return point.running


def _waiting(point: CounterPoint) -> int:
    return point.waiting
