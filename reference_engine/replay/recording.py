"""A replay as a trace for Perfetto or chrome://tracing: a lane a request, and counters of the server's load.

`write_trace` streams JSON (the Trace Event Format) and keeps the file under a bound: counters are thinned to their
extremes, and when there are more requests than lanes allowed, those that suffered most are kept.

What each request was doing when: from a replay's steps to a lane of phases without gaps from arrival to end.

`Phase` (one stretch of a request's life), `PhaseTracker` (told of each step, collects them).

A plain replay that also tells what it did: each turn as a record, each request's phases, the server's load.

`RecordedReplay` costs more than a replay; it is for traces and step files, not for searches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from reference_engine.cost.step_time import StepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Iteration, Outcome, RequestId, Scheduler, Step
from reference_engine.replay.plain import PlainBatch, PlainReplay
from reference_engine.replay.results import steps_frame

__all__ = ["PHASES", "CounterPoint", "Phase", "PhaseTracker", "RecordedReplay", "write_trace"]
# In the order of a request's life; the last two exist only after a preemption.
PHASES = ("queued", "prefill", "decode", "preempted", "recompute")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a request's life, in seconds on the replay's clock."""

    request_id: RequestId
    name: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class _Lane:
    prompt_tokens: int
    name: str
    since: float
    reached: int = 0
    past: list[Phase] = field(default_factory=list)


class PhaseTracker:
    """Collects phases. A phase lasts until the next begins, so those of a request add up to its life.

    `recompute` are steps that begin below a position which the request had computed before; a step that goes past it
    counts as recompute as a whole. Requests stand in `phases` in the order in which they ended.
    """

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self._lanes: dict[RequestId, _Lane] = {}

    def arrive(self, request_id: RequestId, prompt_tokens: int, at: float) -> None:
        """The server received a request."""
        self._lanes[request_id] = _Lane(prompt_tokens, "queued", at)

    def step(self, step: Step, at: float) -> None:
        """A step begins at time `at`, which may lie ahead while another batch is in flight."""
        for request_id in (*step.preempted, *step.swapped_out):
            self._enter(request_id, "preempted", at)
        for request_id, (start, end) in step.spans.items():
            lane = self._lanes.get(request_id)
            if lane is None:
                continue
            name = "recompute" if start < lane.reached else "prefill" if start < lane.prompt_tokens else "decode"
            lane.reached = max(lane.reached, end - step.drafts.get(request_id, 0))
            self._enter(request_id, name, at)
        self.end(step.ignored, at)

    def end(self, request_ids: Iterable[RequestId], at: float) -> None:
        """Requests finished, were aborted or refused at time `at`; what was to begin later did not."""
        for request_id in request_ids:
            lane = self._lanes.pop(request_id, None)
            if lane is None:
                continue
            lane.past.append(Phase(request_id, lane.name, lane.since, at))
            for phase in lane.past:
                end = min(phase.end_s, at)
                if end > phase.start_s:
                    self.phases.append(replace(phase, end_s=end))

    def close(self, at: float) -> None:
        """The replay ended; lanes that are still open end here."""
        self.end(tuple(self._lanes), at)

    def _enter(self, request_id: RequestId, name: str, at: float) -> None:
        lane = self._lanes.get(request_id)
        if lane is None or lane.name == name:
            return
        lane.past.append(Phase(request_id, lane.name, lane.since, at))
        lane.name, lane.since = name, at


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
        point for position, point in enumerate(points) if position == 0 or _state(point) != _state(points[position - 1])
    ]
    if len(changed) <= limit:
        yield from changed
        return
    width = -(-len(changed) * 6 // max(6, limit))
    for start in range(0, len(changed), width):
        group = changed[start : start + width]
        kept = {id(pick(group, key=key)): None for key in (_usage, _running, _waiting) for pick in (min, max)}
        yield from (point for point in group if id(point) in kept)


def _state(point: CounterPoint) -> tuple[float, int, int]:
    return point.kv_usage, point.running, point.waiting


def _usage(point: CounterPoint) -> float:
    return point.kv_usage


def _running(point: CounterPoint) -> int:
    return point.running


def _waiting(point: CounterPoint) -> int:
    return point.waiting


class RecordedReplay(PlainReplay):
    """As `PlainReplay`; `on_turn` gets every turn of the loop, `phases` holds what each request did when.

    A run that is ended early by an error keeps everything up to there: see `finish`.
    """

    def __init__(
        self, config: EngineConfig, step_time: StepTime, on_turn: Callable[[Iteration], None] | None = None
    ) -> None:
        super().__init__(config, step_time)
        self.phases = PhaseTracker()
        self.scheduler = _Watched(self.scheduler, self, on_turn or (lambda _turn: None))

    def finish(self) -> None:
        """Close the lanes of requests that never ended (after an error)."""
        self.phases.close(self.now / 1e9)

    def points(self) -> list[CounterPoint]:
        """The load after each step."""
        if self.log is None:
            return []
        steps = steps_frame(self.log, self.config)
        ends = (steps["time_s"] + steps["duration_s"]).to_list()
        columns = (steps[name].to_list() for name in ("usage", "running", "waiting"))
        return [CounterPoint(*row) for row in zip(ends, *columns, strict=True)]

    def _enter(self, request: Request, arrival: int) -> None:
        super()._enter(request, arrival)
        self.phases.arrive(request.id, request.prompt_tokens, arrival / 1e9)

    def _schedule(self) -> PlainBatch:
        batch = super()._schedule()
        self.phases.step(batch.step, batch.start / 1e9)
        return batch

    def _end(self, request_id: RequestId, status: str, time: int) -> None:
        super()._end(request_id, status, time)
        self.phases.end((request_id,), time / 1e9)


class _Watched:
    """A scheduler that puts its calls together to turns: what was added, the step, the outcome that came with it."""

    def __init__(self, scheduler: Scheduler, replay: PlainReplay, on_turn: Callable[[Iteration], None]) -> None:
        self.config = scheduler.config
        self._scheduler = scheduler
        self._replay = replay
        self._on_turn = on_turn
        self._added: list[RequestId] = []
        self._open: Iteration | None = None

    @property
    def unfinished(self) -> int:
        return self._scheduler.unfinished

    def add_request(self, request: Request) -> None:
        self._added.append(request.id)
        self._scheduler.add_request(request)

    def abort(self, request_id: RequestId) -> None:
        self._scheduler.abort(request_id)

    def schedule(self, now: float) -> Step:
        if self._open is not None:  # asynchronous: the turn before only scheduled
            self._on_turn(self._open)
        step = self._scheduler.schedule(now)
        self._open = Iteration(self._replay.turns - 1, self._added, step, None)
        self._added = []
        return step

    def update_from_output(self, step: Step) -> Outcome:
        outcome = self._scheduler.update_from_output(step)
        turn = self._open or Iteration(self._replay.turns - 1, [], None, None)
        turn.outcome = outcome
        self._open = None
        self._on_turn(turn)
        return outcome
