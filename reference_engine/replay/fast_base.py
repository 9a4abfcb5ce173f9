"""What the fast replays of V1 and V0 have in common: records and ledgers kept by differences of running totals.

A request of the decoding batch is not touched while it decodes: its time, and the part of it that others' prefill took,
follow from the totals at its joining and at its leaving. The same holds for the reasons of a wait in the queue.

`run_decode_stretch` runs through steps in which all requests decode and nobody arrives, finishes, is admitted or lacks a block,
without looking at the scheduler; the step-time model is asked for each, so that times are the same to the nanosecond.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reference_engine.cost.step_time import LinearStepTime, StepTime
from reference_engine.model import NoProgressError, WorkloadError
from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import DecodingRequest, DecodingT, FastBatch
from reference_engine.model.request import BUDGET, DECODE, INTERFERENCE, PREFILL, Request, RequestRecord, RequestState
from reference_engine.model.step import RequestId, Step, StepLog
from reference_engine.replay.clock import ReplayClock, batch_duration
from reference_engine.replay.plain import GUARD_STEPS, stuck_message
from reference_engine.v1.batch import V1FastBatch
from reference_engine.v1.fast_scheduler import Demand, V1FastScheduler

__all__ = [
    "BaseFastReplay",
    "DecodeStretch",
    "Pending",
    "close_decode_stretch",
    "open_decode_stretch",
    "run_decode_stretch",
]


class _Blocks(Protocol):
    @property
    def num_free_blocks(self) -> int: ...


DecodingT_co = TypeVar("DecodingT_co", bound=DecodingRequest, covariant=True)


class FastDecider(Protocol[DecodingT_co]):
    """A scheduler whose decoding requests move together."""

    @property
    def states(self) -> Mapping[RequestId, RequestState]:
        """The requests inside by id."""

    @property
    def running(self) -> Sized:
        """Those that run."""

    @property
    def pool(self) -> _Blocks:
        """The GPU's blocks."""

    def enter(self, record: RequestRecord) -> DecodingT_co:
        """Queue a new request."""


FastBatchT = TypeVar("FastBatchT", bound=FastBatch)


class BaseFastReplay(ReplayClock[FastBatchT], Generic[FastBatchT, DecodingT]):
    """A workload on a virtual clock, from event to event.

    `add` requests, let time pass with `advance(until_s)`, read `observe()`; or `run` a whole workload. `step_time` may
    be replaced between two calls: it holds for the batches decided from then on.

    Args:
        config: the engine.
        step_time: how long a step takes.
        scheduler: decides the batches.
        keep_steps: write the log of steps.
        on_step: for tests: is called with every decided step, written out in full.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTime,
        scheduler: FastDecider[DecodingT],
        keep_steps: bool,
        on_step: Callable[[Step], None] | None,
    ) -> None:
        super().__init__(config, step_time)
        self._decider = scheduler
        self.records: list[RequestRecord] = []
        self.log = StepLog() if keep_steps else None
        self.on_step = on_step
        self._queued = [0, 0, 0]  # by reason: kv, seat, budget
        self._disturbed = 0
        self._idle_turns = 0

    @property
    def unfinished(self) -> int:
        """Requests inside the scheduler."""
        return len(self._decider.states)

    def all_records(self) -> list[RequestRecord]:
        """The records of all requests that entered, in order of entry."""
        return self.records

    def _enter(self, request: Request, arrival: int) -> None:
        if request.id in self._decider.states:
            raise WorkloadError(f"request id {request.id!r} is there twice")
        record = RequestRecord(request, arrival)
        record.ledger[BUDGET] = self.now - arrival  # a step was under way
        self.records.append(record)
        state = self._decider.enter(record)
        state.queued = (self._queued[0], self._queued[1], self._queued[2])

    def _end(self, state: DecodingT, status: str, time: int) -> None:
        record = state.record
        record.status = status
        record.end = time
        record.output = state.num_output_tokens
        if status == "finished":
            self.finished.append(record)

    # ---- ledgers ----

    def _settle(self, state: DecodingT, until: int) -> None:
        """Write the time of a request of the decoding batch since it joined, or since the last call."""
        ledger = state.record.ledger
        disturbed = self._disturbed - state.mark_disturbed
        ledger[DECODE] += until - state.mark_time - disturbed
        ledger[INTERFERENCE] += disturbed
        state.mark_time = until
        state.mark_disturbed = self._disturbed

    def _settle_queue(self, state: DecodingT) -> None:
        """Write why a request that leaves the queue has waited in it."""
        ledger = state.record.ledger
        for reason in range(3):
            ledger[reason] += self._queued[reason] - state.queued[reason]

    def _write_chunk(self, state: DecodingT, kind: int, own: int, batch: FastBatchT) -> None:
        """The time of a batch for a request outside the decoding batch that has `own` prefill tokens in it."""
        duration = batch.end - batch.start
        disturbed = self._disturbance(batch, own)
        ledger = state.record.ledger
        ledger[INTERFERENCE] += disturbed
        ledger[kind] += duration - disturbed

    def _disturbance(self, batch: FastBatchT, own: int) -> int:
        """The part (ns) of a batch's time that comes from the prefill and recompute tokens of others."""
        if own == batch.prefill_tokens:
            return 0
        if own == 0:
            return batch.disturbed
        requests = batch.num_decoding + len(batch.chunks)
        without = batch_duration(self.step_time, own, batch.decode_requests, batch.kv_tokens, requests)
        return max(0, batch.end - batch.start - without)

    def _write_held_up(self, states: Iterable[DecodingT], batch: FastBatchT) -> None:
        """The time of a batch for running requests outside the decoding batch that get nothing in it."""
        for state in states:
            if state.status != "finished":
                kind = PREFILL if state.record.first_token is None else DECODE
                label = INTERFERENCE if batch.prefill_tokens else kind
                state.record.ledger[label] += batch.end - batch.start
                state.wait_from = batch.end

    # ---- the end of a batch ----

    @abstractmethod
    def _culprit(self, batch: FastBatchT) -> RequestId | None:
        """The request that blocks all others when a run stands still."""

    def _note_completed(self, batch: FastBatchT, tokens: int, done: int) -> None:
        """A batch is over: the statistics, the log of steps, and the guard against a run without progress.

        Raises:
            NoProgressError: nothing has moved for `GUARD_STEPS` batches.
        """
        decider = self._decider
        self.steps += 1
        self.running_now = len(decider.running)
        self.waiting_now = len(decider.states) - self.running_now
        self.free_now = decider.pool.num_free_blocks
        if self.log is not None:
            self.log.append(
                batch.start,
                batch.end,
                batch.prefill_tokens,
                batch.decode_requests,
                batch.kv_tokens,
                batch.free_blocks,
                self.free_now,
                batch.running,
                batch.waiting,
                batch.preempted,
                tokens,
                done,
            )
        if tokens or batch.progress:
            self._idle_turns = 0
            return
        self._idle_turns += 1
        if self._idle_turns >= GUARD_STEPS:
            raise NoProgressError(stuck_message(self._culprit(batch)))


@dataclass(slots=True)
class Pending:
    """The batch under way while the next one is decided (asynchronous scheduling). Times in ns."""

    start: int
    end: int
    deliveries: int
    kv_tokens: int
    free_blocks: int


@dataclass(slots=True)
class DecodeStretch:
    """Where a stretch of uneventful steps stands; `run_decode_stretch` moves it on.

    `now`: start of the next turn; `last_end`: when the newest tokens came; `batch`: number of the newest batch;
    `last_batch`: the newest batch that may be decided; `stop`: no turn starts at or after it (an arrival, an abort, the
    end of the time allowed); `until`: no batch may end after it. `kv_tokens`: computed tokens of all decoding requests
    after the newest batch; `demand`: see `V1FastScheduler.demand`; `free_blocks`:
    blocks. `allocate`: hands out the blocks of a batch where they have names, and says how many are left. `pending`: None when a batch ends before
    the next is decided. `elapsed` and `tokens` add up what has passed.
    """

    now: int
    last_end: int
    batch: int
    last_batch: int
    stop: float
    until: float
    num_decoding: int
    kv_tokens: int
    demand: Demand
    free_blocks: int
    running: int
    waiting: int
    pending: Pending | None
    allocate: Callable[[int], int] | None
    elapsed: int = 0
    tokens: int = 0
    steps: int = 0


def open_decode_stretch(
    scheduler: V1FastScheduler, under_way: V1FastBatch | None, now: int, last_end: int
) -> DecodeStretch:
    """A stretch that begins after the newest batch; `under_way` is the one in flight, None when it has ended."""
    pending = None
    if under_way is not None:
        pending = Pending(
            under_way.start, under_way.end, under_way.deliveries, under_way.kv_tokens, under_way.free_blocks
        )
    decoding_batch = scheduler.decoding_batch
    return DecodeStretch(
        now=now,
        last_end=last_end,
        batch=scheduler.batch,
        last_batch=decoding_batch.next_finish() - 1 + scheduler.output_lag,
        stop=math.inf,
        until=math.inf,
        num_decoding=decoding_batch.count,
        kv_tokens=decoding_batch.num_computed_tokens(scheduler.batch),
        demand=scheduler.demand,
        free_blocks=scheduler.pool.num_free_blocks,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pending=pending,
        allocate=None if scheduler.count_pool is not None else scheduler.allocate_decoding,
    )


def close_decode_stretch(stretch: DecodeStretch, scheduler: V1FastScheduler, under_way: V1FastBatch | None) -> None:
    """Bring the scheduler and the batch in flight to the stretch's end."""
    scheduler.end_decode_stretch(stretch.batch, stretch.free_blocks)
    pending = stretch.pending
    if under_way is not None and pending is not None:
        under_way.number = stretch.batch
        under_way.start, under_way.end = pending.start, pending.end
        under_way.deliveries, under_way.kv_tokens = pending.deliveries, pending.kv_tokens
        under_way.num_decoding = stretch.num_decoding
        under_way.free_blocks = pending.free_blocks


def run_decode_stretch(stretch: DecodeStretch, model: StepTime, gaps: dict[int, int], log: StepLog | None) -> None:
    """Run through uneventful steps until something may happen; writes gaps between tokens and the step log."""
    if stretch.pending is None:
        _run_single(stretch, model, gaps, log)
    else:
        _run_double(stretch, stretch.pending, model, gaps, log)


def _run_single(stretch: DecodeStretch, model: StepTime, gaps: dict[int, int], log: StepLog | None) -> None:
    """One batch in flight: a turn is a step."""
    num_decoding, demand, size = stretch.num_decoding, stretch.demand, len(stretch.demand)
    now, batch, free_blocks, kv = stretch.now, stretch.batch, stretch.free_blocks, stretch.kv_tokens
    last_batch, stop, until, allocate = stretch.last_batch, stretch.stop, stretch.until, stretch.allocate
    begun, first = now, batch
    duration_of = _timer(model, num_decoding)
    while batch < last_batch and now < stop:
        need = len(demand[(batch + 1) % size])
        if need > free_blocks:
            break
        duration = duration_of(kv + num_decoding)
        if now + duration > until:
            break
        batch += 1
        free_blocks = free_blocks - need if allocate is None else allocate(batch)
        kv += num_decoding
        gaps[duration] = gaps.get(duration, 0) + num_decoding
        if log is not None:
            row = (0, num_decoding, kv, free_blocks, free_blocks, stretch.running, stretch.waiting, 0, num_decoding, 0)
            log.append(now, now + duration, *row)
        now += duration
    steps = batch - first
    if steps:
        stretch.now = stretch.last_end = now
    stretch.batch, stretch.free_blocks, stretch.kv_tokens = batch, free_blocks, kv
    stretch.steps = steps
    stretch.elapsed = now - begun
    stretch.tokens = steps * num_decoding


def _run_double(
    stretch: DecodeStretch, under_way: Pending, model: StepTime, gaps: dict[int, int], log: StepLog | None
) -> None:
    """Two batches in flight: a turn decides a batch and then waits for the one before it."""
    num_decoding, demand, size = stretch.num_decoding, stretch.demand, len(stretch.demand)
    batch, last_batch, free_blocks, kv = stretch.batch, stretch.last_batch, stretch.free_blocks, stretch.kv_tokens
    start, end, tokens = under_way.start, under_way.end, under_way.deliveries
    kv_before, free_before = under_way.kv_tokens, under_way.free_blocks
    now, last_end, first = stretch.now, stretch.last_end, batch
    stop, until, allocate = stretch.stop, stretch.until, stretch.allocate
    duration_of = _timer(model, num_decoding)
    while batch < last_batch and now < stop and end <= until:
        need = len(demand[(batch + 1) % size])
        if need > free_blocks:
            break
        batch += 1
        free_blocks = free_blocks - need if allocate is None else allocate(batch)
        kv += num_decoding
        gap = end - last_end
        gaps[gap] = gaps.get(gap, 0) + tokens
        if log is not None:
            row = (0, num_decoding, kv_before, free_before, free_blocks, stretch.running, stretch.waiting, 0)
            log.append(start, end, *row, tokens, 0)
        stretch.elapsed += end - start
        stretch.tokens += tokens
        now = last_end = start = end
        end += duration_of(kv)
        tokens, kv_before, free_before = num_decoding, kv, free_blocks
    stretch.now, stretch.last_end, stretch.steps = now, last_end, batch - first
    stretch.batch, stretch.free_blocks, stretch.kv_tokens = batch, free_blocks, kv
    stretch.pending = Pending(start, end, tokens, kv_before, free_before)


def _timer(model: StepTime, num_decoding: int) -> Callable[[int], int]:
    """The duration (ns) of a step with so many decoding requests, by its KV tokens."""
    if not isinstance(model, LinearStepTime):
        return lambda kv: batch_duration(model, 0, num_decoding, kv, num_decoding)
    # the sum of LinearStepTime.seconds, in its order, so that it gives the same number
    fixed = model.base_s + model.per_prefill_token_s * 0 + model.per_decode_s * num_decoding
    slope = model.per_kv_token_s

    def duration(kv: int) -> int:
        seconds = fixed + slope * kv
        if not 0.0 <= seconds < math.inf:
            return batch_duration(model, 0, num_decoding, kv, num_decoding)  # says what is wrong
        return round(seconds * 1e9)

    return duration
