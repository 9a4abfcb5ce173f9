"""What the fast replays of V1 and V0 have in common: records and ledgers kept by differences of running totals.

A request of the decoding batch is not touched while it decodes: its time, and the part of it that others' prefill took,
follow from the totals at its joining and at its leaving. The same holds for the reasons of a wait in the queue.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Generic, Protocol, TypeVar

from reference_engine.cost.step_time import StepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.decoding import DecodingRequest, DecodingT, FastBatch
from reference_engine.model.errors import NoProgressError, WorkloadError
from reference_engine.model.ledger import BUDGET, DECODE, INTERFERENCE, PREFILL, RequestRecord
from reference_engine.model.request import Request, RequestState
from reference_engine.model.step import RequestId, Step, StepLog
from reference_engine.replay.clock import ReplayClock, batch_duration
from reference_engine.replay.plain import GUARD_STEPS, stuck_message

__all__ = ["BaseFastReplay"]


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
