"""A plain replay that also tells what it did: each turn as a record, each request's phases, the server's load.

`RecordedReplay` costs more than a replay; it is for traces and step files, not for searches.
"""

from __future__ import annotations

from collections.abc import Callable

from reference_engine.cost.step_time_part import StepTime
from reference_engine.model.config_part import EngineConfig
from reference_engine.model.step import Iteration, Outcome, RequestId, Scheduler, Step
from reference_engine.model.workload import Request
from reference_engine.replay.frames import steps_frame
from reference_engine.replay.phases import PhaseTracker
from reference_engine.replay.plain import PlainReplay, _PlainBatch
from reference_engine.replay.recording import CounterPoint

__all__ = ["RecordedReplay"]


class RecordedReplay(PlainReplay):
    """As `PlainReplay`; `on_turn` gets every turn of the loop, `phases` holds what each request did when.

    A run that is ended early by an error keeps everything up to there: see `finish`.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTime,
        on_turn: Callable[[Iteration], None] | None = None,
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

    def _schedule(self) -> _PlainBatch:
        batch = super()._schedule()
        self.phases.step(batch.step, batch.start / 1e9)
        return batch

    def _end(self, request_id: RequestId, status: str, time: int) -> None:
        super()._end(request_id, status, time)
        self.phases.end((request_id,), time / 1e9)


class _Watched:
    """A scheduler that puts its calls together to turns: what was added, the step, the outcome that came with it."""

    def __init__(
        self, scheduler: Scheduler, replay: PlainReplay, on_turn: Callable[[Iteration], None]
    ) -> None:
        self.config = scheduler.config
        self._scheduler = scheduler
        self._replay = replay
        self._on_turn = on_turn
        self._added: list[RequestId] = []
        self._open: Iteration | None = None

    @property
    def unfinished(self) -> int:
        return self._scheduler.unfinished

    def add(self, request: Request) -> None:
        self._added.append(request.id)
        self._scheduler.add(request)

    def abort(self, request_id: RequestId) -> None:
        self._scheduler.abort(request_id)

    def schedule(self, now: float) -> Step:
        if self._open is not None:  # asynchronous: the turn before only scheduled
            self._on_turn(self._open)
        step = self._scheduler.schedule(now)
        self._open = Iteration(self._replay.turns - 1, self._added, step, None)
        self._added = []
        return step

    def update(self, step: Step) -> Outcome:
        outcome = self._scheduler.update(step)
        turn = self._open or Iteration(self._replay.turns - 1, [], None, None)
        turn.outcome = outcome
        self._open = None
        self._on_turn(turn)
        return outcome
