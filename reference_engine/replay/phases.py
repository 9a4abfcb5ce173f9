"""What each request was doing when: from a replay's steps to a lane of phases without gaps from arrival to end.

`Phase` (one stretch of a request's life), `PhaseTracker` (told of each step, collects them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from reference_engine.model.step import RequestId, Step

__all__ = ["PHASES", "Phase", "PhaseTracker"]

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
            if start < lane.reached:
                name = "recompute"
            else:
                name = "prefill" if start < lane.prompt_tokens else "decode"
            lane.reached = max(lane.reached, end)
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
