"""The plain replay: one scheduler call a step, every request looked at in every step, and a ledger for each.

`PlainReplay` is the reference that the fast replay must equal; it drives V1 and V0.

The engine's loop without a clock: requests are added before the step that they name, then step follows step.

The scheduler of a configuration: V1's or V0's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reference_engine.cost.step_time import StepTime
from reference_engine.model import ConfigError, NoProgressError, WorkloadError
from reference_engine.model.config import EngineConfig, check_config
from reference_engine.model.request import (
    BUDGET,
    DECODE,
    INTERFERENCE,
    PREEMPTED_WAIT,
    PREFILL,
    QUEUED,
    Request,
    RequestRecord,
    chunk_kind,
)
from reference_engine.model.step import Iteration, Outcome, RequestId, Scheduler, Step, StepLog
from reference_engine.replay.clock import ReplayClock, batch_duration
from reference_engine.v0.step import V0Step
from reference_engine.v1.scheduler import V1Scheduler

__all__ = ["GUARD_STEPS", "EngineLoop", "PlainReplay", "ProgressGuard", "drive", "make_scheduler", "stuck_message"]
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
            outcome = self.scheduler.update_from_output(self.in_flight.popleft())
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
    pending = deque(sorted(requests, key=lambda r: (r.arrival_step or 0, isinstance(r.id, str), r.id)))
    loop = EngineLoop(scheduler)
    number = 0
    while pending or not loop.idle:
        if loop.idle:
            number = max(number, pending[0].arrival_step or 0)
        added: list[RequestId] = []
        while pending and (pending[0].arrival_step or 0) <= number:
            request = pending.popleft()
            scheduler.add_request(request)
            added.append(request.id)
        yield loop.turn(number, added, float(number))
        number += 1


def make_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler class that `config.engine` names, for `config.version`.

    Raises:
        ConfigError: the engine is neither "vllm-v1" nor "vllm-v0", or no engine could run with the configuration.
    """
    check_config(config)
    if config.engine == "vllm-v1":
        if config.kv_groups is not None:
            from reference_engine.v1.hybrid import HybridScheduler  # loaded only where it is asked for

            return HybridScheduler(config)
        return V1Scheduler(config)
    if config.engine == "vllm-v0":
        from reference_engine.v0.scheduler import V0Scheduler  # loaded only where it is asked for

        return V0Scheduler(config)
    raise ConfigError(f"engine {config.engine!r} is not known: vllm-v1 or vllm-v0")


@dataclass(slots=True)
class PlainBatch:
    """A step on the device. `own`: prefill and recompute tokens of each scheduled request; `kinds`: their labels.

    `drafts`: tokens that are verified; each costs what a prefill token costs, but is part of decoding.
    """

    step: Step
    start: int
    end: int
    own: dict[RequestId, int]
    kinds: dict[RequestId, int]
    prefill_tokens: int
    decode_requests: int
    kv_tokens: int
    drafts: int


def tokens_of(outcome: Outcome) -> int:
    """Tokens that a step delivered, with those of accepted drafts."""
    return len(outcome.tokens) + sum(outcome.delivered.values()) - len(outcome.delivered)


class PlainReplay(ReplayClock[PlainBatch]):
    """A workload on a virtual clock, step by step.

    Args:
        config: the engine; `engine` and `version` choose the scheduler.
        step_time: how long a step takes.
        keep_steps: write the log of steps.
    """

    def __init__(self, config: EngineConfig, step_time: StepTime, keep_steps: bool = True) -> None:
        super().__init__(config, step_time)
        self.scheduler = make_scheduler(config)
        self.records: dict[RequestId, RequestRecord] = {}
        self.log = StepLog() if keep_steps else None
        self.decided = Step()
        self._alive: dict[RequestId, RequestRecord] = {}
        self._guard = ProgressGuard()

    @property
    def unfinished(self) -> int:
        """Requests inside the scheduler."""
        return self.scheduler.unfinished

    def all_records(self) -> list[RequestRecord]:
        """The records of all requests that entered, in order of entry."""
        return list(self.records.values())

    def _enter(self, request: Request, arrival: int) -> None:
        if request.id in self._alive:
            raise WorkloadError(f"request id {request.id!r} is there twice")
        record = RequestRecord(request, arrival)
        record.ledger[BUDGET] = self.now - arrival  # a step was under way
        self.records[request.id] = self._alive[request.id] = record
        self.scheduler.add_request(request)

    def _leave(self, request_id: RequestId) -> None:
        if request_id in self._alive:
            self.scheduler.abort(request_id)
            self._end(request_id, "aborted", self.now)

    def _end(self, request_id: RequestId, status: str, time: int) -> None:
        record = self._alive.pop(request_id)
        record.status = status
        record.end = time
        if status == "finished":
            self.finished.append(record)

    def _schedule(self) -> PlainBatch:
        step = self.scheduler.schedule(self.now / 1e9)
        self.decided = step
        for request_id in (*step.preempted, *step.swapped_out):
            self.records[request_id].preemptions += 1
            self.preemptions += 1
        for request_id in step.new:
            self.records[request_id].cached = step.hits.get(request_id, 0)
        for request_id in step.ignored:
            self._end(request_id, "ignored", self.now)
        return self._batch(step)

    def _batch(self, step: Step) -> PlainBatch:
        """What the step computes, and so how long it takes."""
        own: dict[RequestId, int] = {}
        kinds: dict[RequestId, int] = {}
        decodes = kv_tokens = drafts = 0
        for request_id, (start, end) in step.spans.items():
            record = self.records[request_id]
            kind = chunk_kind(start, record.request.prompt_tokens, record.reached)
            kinds[request_id] = kind
            unverified = step.drafts.get(request_id, 0) if step.drafts else 0
            own[request_id] = 0 if kind == DECODE else end - start - unverified
            drafts += unverified
            decodes += kind == DECODE
            kv_tokens += end
            record.recomputed += max(0, min(end, record.reached) - start)
            record.reached = max(record.reached, end - unverified)
        prefill = sum(own.values())
        duration = 0
        if kinds or self._takes_time():
            duration = batch_duration(self.step_time, prefill + drafts, decodes, kv_tokens, len(kinds))
        start = max(self.now, self.in_flight[-1].end) if self.in_flight else self.now
        return PlainBatch(step, start, start + duration, own, kinds, prefill, decodes, kv_tokens, drafts)

    def _complete(self, batch: PlainBatch) -> None:
        self._write_ledgers(batch)
        outcome = self.scheduler.update_from_output(batch.step)
        for request_id in outcome.tokens:
            self._deliver(self.records[request_id], batch.end, outcome.delivered.get(request_id, 1))
        if outcome.accepted:
            self._note_accepted(outcome)
        for request_id in outcome.finished:
            self._end(request_id, "finished", batch.end)
        if isinstance(batch.step, V0Step):  # V0 credits every chunk, also of a recompute
            self.prompt_tokens += batch.step.prompt_tokens
        last = self.in_flight[-1].step if self.in_flight else batch.step
        gone = {r for r in last.running if r not in self._alive}
        self.running_now = len(last.running) - len(gone)
        self.waiting_now = self.unfinished - self.running_now
        self.free_now = outcome.free_blocks
        if self.log is not None:
            self.log.append(
                batch.start,
                batch.end,
                batch.prefill_tokens,
                batch.decode_requests,
                batch.kv_tokens,
                batch.step.free_blocks,
                outcome.free_blocks,
                len(batch.step.running),
                len(batch.step.waiting) + len(batch.step.swapped),
                len(batch.step.preempted) + len(batch.step.swapped_out),
                tokens_of(outcome),
                len(outcome.finished),
            )
        self.steps += 1
        self._guard.watch(Iteration(self.turns, [], batch.step, outcome))

    def _note_accepted(self, outcome: Outcome) -> None:
        """Accepted drafts are computed tokens; those of a request that was preempted meanwhile are lost again."""
        running = set(self.decided.running)
        for request_id, accepted in outcome.accepted.items():
            if request_id in running:
                self.records[request_id].reached += accepted

    def _deliver(self, record: RequestRecord, time: int, tokens: int) -> None:
        """Tokens that come together: one gap since the last ones."""
        record.output += tokens
        self.generated_tokens += tokens
        if record.first_token is None:
            record.first_token = time
            if self.config.engine == "vllm-v1":
                self.prompt_tokens += record.request.prompt_tokens
            self.cached_tokens += record.cached
        else:
            gap = time - record.last_token
            self.gaps[gap] = self.gaps.get(gap, 0) + 1
        record.last_token = time

    def _write_ledgers(self, batch: PlainBatch) -> None:
        """Give the time of this batch to exactly one label (and interference) of each request that lives."""
        duration = batch.end - batch.start
        decided = self.decided
        admitted = set(decided.running)
        present = set(batch.step.running)
        disturbances: dict[int, int] = {}
        for request_id, record in self._alive.items():
            if request_id in batch.kinds:
                record.started = True
                own = batch.own[request_id]
                if own not in disturbances:
                    disturbances[own] = self._disturbance(batch, own)
                disturbed = disturbances[own]
                record.ledger[INTERFERENCE] += disturbed
                record.ledger[batch.kinds[request_id]] += duration - disturbed
            elif request_id in present:  # running, but without a token in this step
                kind = PREFILL if record.first_token is None else DECODE
                record.ledger[INTERFERENCE if batch.prefill_tokens else kind] += duration
            elif record.started:
                record.ledger[PREEMPTED_WAIT] += duration
            elif request_id in admitted:  # its first batch comes next
                record.ledger[BUDGET] += duration
            else:
                record.ledger[QUEUED[decided.blocked]] += duration

    def _disturbance(self, batch: PlainBatch, own: int) -> int:
        """The part of a batch's time that comes from the prefill and recompute tokens of others."""
        if own == batch.prefill_tokens:
            return 0
        tokens = own + batch.drafts
        without = batch_duration(self.step_time, tokens, batch.decode_requests, batch.kv_tokens, len(batch.kinds))
        duration = batch.end - batch.start
        return max(0, duration - without)
