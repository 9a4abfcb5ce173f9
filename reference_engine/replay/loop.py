"""The engine's loop without a clock: requests are added before the step that they name, then step follows step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from reference_engine.model.errors import NoProgressError
from reference_engine.model.step import Iteration, RequestId, Scheduler, Step
from reference_engine.model.workload import Request

__all__ = ["GUARD_STEPS", "EngineLoop", "ProgressGuard", "drive", "stuck_message"]

GUARD_STEPS = 1000


class EngineLoop:
    """One scheduler and its batches in flight: one, or two under asynchronous scheduling (vLLM: v1/engine/core.py).

    An asynchronous turn schedules a batch and then waits for the one before it; the last turn only waits.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.depth = 2 if scheduler.config.async_scheduling else 1
        self.in_flight: deque[Step] = deque()
        self._guard = ProgressGuard()

    @property
    def idle(self) -> bool:
        """Nothing to schedule and nothing in flight."""
        return not self.in_flight and self.scheduler.unfinished == 0

    def turn(self, number: int, added: list[RequestId], now: float) -> Iteration:
        """One turn of the loop.

        Raises:
            NoProgressError: nothing has progressed for `GUARD_STEPS` turns.
            SchedulerFailedError: the real scheduler raises here.
        """
        step = None
        if self.scheduler.unfinished:
            step = self.scheduler.schedule(now)
            self.in_flight.append(step)
        outcome = None
        if step is None or len(self.in_flight) == self.depth:
            outcome = self.scheduler.update(self.in_flight.popleft())
        iteration = Iteration(number, added, step, outcome)
        self._guard.watch(iteration)
        return iteration


class ProgressGuard:
    """Ends a run in which no request finishes and no new token is computed or delivered for `GUARD_STEPS` turns."""

    def __init__(self) -> None:
        self._idle_turns = 0
        self._reached: dict[RequestId, int] = {}

    def watch(self, iteration: Iteration) -> None:
        """Count a turn without progress.

        Raises:
            NoProgressError: names the request that blocks the others.
        """
        step, outcome = iteration.step, iteration.outcome
        progress = bool(outcome and (outcome.tokens or outcome.finished))
        if step is not None:
            progress = progress or bool(step.ignored)
            for request_id, (_start, end) in step.spans.items():
                if end > self._reached.get(request_id, 0):
                    self._reached[request_id] = end
                    progress = True
        for request_id in outcome.finished if outcome else ():
            self._reached.pop(request_id, None)
        self._idle_turns = 0 if progress else self._idle_turns + 1
        if self._idle_turns >= GUARD_STEPS:
            raise NoProgressError(_stuck(step))


def _stuck(step: Step | None) -> str:
    culprit: RequestId | None = None
    if step is not None:
        for queue in (step.running, step.waiting, step.swapped):
            if queue:
                culprit = queue[0]
                break
    return stuck_message(culprit)


def stuck_message(culprit: RequestId | None) -> str:
    """The sentence of a run that the guard ends."""
    return (
        f"request {culprit!r} cannot progress: no request finished and no new token appeared in "
        f"{GUARD_STEPS} steps (it needs more KV blocks or token budget than this configuration ever has free)"
    )


def drive(scheduler: Scheduler, requests: Iterable[Request]) -> Iterator[Iteration]:
    """Run a workload whose requests name their `arrival_step` (None: 0), turn by turn, until all have finished.

    Requests of one step are added in order of id. Turns with nothing alive are skipped, so numbers may jump.

    Raises:
        NoProgressError, SchedulerFailedError: as `EngineLoop.turn`; all turns before were yielded.
    """
    # numbers before texts, so that mixed ids have an order
    pending = deque(
        sorted(requests, key=lambda r: (r.arrival_step or 0, isinstance(r.id, str), r.id))
    )
    loop = EngineLoop(scheduler)
    number = 0
    while pending or not loop.idle:
        if loop.idle:
            number = max(number, pending[0].arrival_step or 0)
        added: list[RequestId] = []
        while pending and (pending[0].arrival_step or 0) <= number:
            request = pending.popleft()
            scheduler.add(request)
            added.append(request.id)
        yield loop.turn(number, added, float(number))
        number += 1
