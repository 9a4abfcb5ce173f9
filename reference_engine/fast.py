"""The fast replay: the same decisions, times and ledgers as `PlainReplay`, at the cost of the events alone.

Decoding requests are not touched between events: a request's decode time and the part of it that others' prefill
took are differences of running totals at its events. Times stay exact: the step-time model is asked for every step.
"""

from __future__ import annotations

from collections.abc import Callable

from .bulk import BulkScheduler
from .clock import ReplayClock, batch_duration
from .coast import close_stretch, coast, open_stretch
from .config import EngineConfig
from .errors import ConfigError, NoProgressError, WorkloadError
from .fast_batch import Chunk, FastBatch, Load, disturbance, load_of
from .fast_cover import bulk_possible
from .fast_state import FastState
from .ledger import (
    BUDGET,
    DECODE,
    INTERFERENCE,
    PREEMPTED_WAIT,
    PREFILL,
    QUEUED,
    RequestRecord,
)
from .loop import GUARD_STEPS, stuck_message
from .step_log import StepLog
from .step_time import StepTime
from .steps import RequestId, Step
from .workload import Request
from .written_out import written_out

__all__ = ["FastReplay"]


class FastReplay(ReplayClock[FastBatch]):
    """A workload on a virtual clock, from event to event.

    `add` requests, let time pass with `advance(until_s)`, read `observe()`; or `run` a whole
    workload. `step_time` may be replaced between two calls: it holds for the batches decided from then on.

    Args:
        config: an engine for which `bulk_possible` holds.
        step_time: how long a step takes.
        sharing: prompts may share content (requests with a `prompt`); without, such requests are refused.
        keep_steps: write the log of steps.
        on_step: for tests: is called with every decided step, written out in full.

    Raises:
        ConfigError: the fast path does not know this engine or version.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTime,
        sharing: bool = False,
        keep_steps: bool = False,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        super().__init__(config, step_time)
        if not bulk_possible(config):
            raise ConfigError(
                f"the fast replay does not cover {config.engine} {config.version} with this policy"
            )
        self.scheduler = BulkScheduler(config, sharing)
        self.sharing = sharing or not config.enable_prefix_caching
        self.records: list[RequestRecord] = []
        self.log = StepLog() if keep_steps else None
        self.on_step = on_step
        self._queued = [0, 0, 0]  # by reason: kv, seat, budget
        self._reason = BUDGET
        self._disturbed = 0
        self._last_end = 0
        self._idle_turns = 0
        self._uneventful = False

    @property
    def unfinished(self) -> int:
        """Requests inside the scheduler."""
        return len(self.scheduler.states)

    def all_records(self) -> list[RequestRecord]:
        """The records of all requests that entered, in order of entry."""
        return self.records

    # ---- entering and leaving ----

    def _push(self, request: Request) -> None:
        if request.prompt is not None and not self.sharing:
            raise ConfigError(
                f"request {request.id!r} names the content of its prompt: the replay must be made with sharing"
            )
        super()._push(request)

    def _enter(self, request: Request, arrival: int) -> None:
        if request.id in self.scheduler.states:
            raise WorkloadError(f"request id {request.id!r} is there twice")
        self._uneventful = False
        record = RequestRecord(request, arrival)
        record.ledger[BUDGET] = self.now - arrival  # a step was under way
        self.records.append(record)
        state = self.scheduler.enter(record)
        state.queued = (self._queued[0], self._queued[1], self._queued[2])

    def _leave(self, request_id: RequestId) -> None:
        state = self.scheduler.known.get(request_id)
        if state is None:
            return
        self._uneventful = False
        if state.bulk:
            self._abort_member(state)
        elif state.status == "waiting":
            self._settle_queue(state)
        elif state.status == "preempted":
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from
        self.scheduler.remove(state)
        self._end(state, "aborted", self.now)

    def _abort_member(self, state: FastState) -> None:
        scheduler = self.scheduler
        scheduler.leave(state, scheduler.batch)
        if self.in_flight and state.first > self.in_flight[-1].number:
            return  # its last chunk is still under way
        self._settle(state, self.now)
        if self.in_flight:
            self.in_flight[-1].deliveries -= 1

    def _end(self, state: FastState, status: str, time: int) -> None:
        record = state.record
        record.status = status
        record.end = time
        record.output = state.output
        if status == "finished":
            self.finished.append(record)

    # ---- ledgers ----

    def _settle(self, state: FastState, until: int) -> None:
        """Write the decode time of a bulk member up to a moment."""
        ledger = state.record.ledger
        disturbed = self._disturbed - state.mark_disturbed
        ledger[DECODE] += until - state.mark_time - disturbed
        ledger[INTERFERENCE] += disturbed
        state.mark_time = until
        state.mark_disturbed = self._disturbed
        state.record.last_token = until

    def _settle_queue(self, state: FastState) -> None:
        ledger = state.record.ledger
        for reason in range(3):
            ledger[reason] += self._queued[reason] - state.queued[reason]

    # ---- a batch begins ----

    def _schedule(self) -> FastBatch:
        scheduler = self.scheduler
        step, chunks, members = scheduler.decide()
        before = self.in_flight[-1] if self.in_flight else None
        start = self.now if before is None else max(self.now, before.end)
        if scheduler.left:
            self._note_left(before)
        if before is not None and scheduler.retired:
            before.finishing.extend(scheduler.retired)
        if step.preempted:
            self._note_preempted(step)
        if chunks:
            self._note_admitted(step, start)
        self._reason = QUEUED[step.blocked]
        batch = self._batch(step, chunks, members, start)
        if self.on_step is not None:
            self.on_step(written_out(scheduler, step))
        return batch

    def _note_left(self, before: FastBatch | None) -> None:
        for state, first in self.scheduler.left:
            if before is None:
                self._settle(state, self.now)
            elif first <= before.number:
                before.leaving.append(state)
        self.scheduler.left = []

    def _note_preempted(self, step: Step) -> None:
        self.preemptions += len(step.preempted)
        for request_id in step.preempted:
            state = self.scheduler.known[request_id]
            state.record.preemptions += 1
            state.wait_from = self.now

    def _note_admitted(self, step: Step, start: int) -> None:
        """Close the waiting time of the admitted ones; they start with the batch, not before."""
        states = self.scheduler.known
        for request_id in step.new:
            state = states[request_id]
            self._settle_queue(state)
            state.record.ledger[BUDGET] += start - self.now
            state.record.cached = step.hits.get(request_id, 0)
        for request_id in step.resumed:
            state = states[request_id]
            state.record.ledger[PREEMPTED_WAIT] += start - state.wait_from

    def _batch(self, step: Step, chunks: list[Chunk], members: int, start: int) -> FastBatch:
        scheduler = self.scheduler
        load = load_of(chunks) if chunks else Load()
        prefill = load.prefill_tokens
        decodes = members + load.decode_requests
        kv_tokens = load.kv_tokens + scheduler.member_tokens(members)
        requests = members + len(chunks)
        duration = disturbed = 0
        if requests or self._takes_time():
            duration = batch_duration(self.step_time, prefill, decodes, kv_tokens, requests)
            if prefill and (members or len(chunks) > 1 or scheduler.skipped):
                calm = batch_duration(self.step_time, 0, decodes, kv_tokens, requests)
                disturbed = max(0, duration - calm)
        return FastBatch(
            number=scheduler.batch,
            start=start,
            end=start + duration,
            members=members,
            deliveries=members,
            chunks=chunks,
            prefill_tokens=prefill,
            decode_requests=decodes,
            kv_tokens=kv_tokens,
            disturbed=disturbed,
            progress=members > 0 or load.progress,
            free=scheduler.pool.free,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            preempted=len(step.preempted),
            head=scheduler.head(),
            kinds=load.kinds,
            skipped=scheduler.skipped,
        )

    def _coast(self, until: float) -> None:
        scheduler = self.scheduler
        if not self._uneventful or self.on_step is not None or not scheduler.uneventful:
            return
        batch = self.in_flight[0] if self.in_flight else None
        if batch is not None and not batch.uneventful:
            return
        stretch = open_stretch(scheduler, batch, self.now, self._last_end)
        stretch.stop, stretch.until = self._next_event(until), until
        coast(stretch, self.step_time, self.gaps, self.log)
        if not stretch.steps:
            return
        close_stretch(stretch, scheduler, batch)
        self._queued[self._reason] += stretch.elapsed
        self._last_end = stretch.last_end
        self.now = stretch.now
        self.turns += stretch.steps
        self.steps += stretch.steps
        self.generated_tokens += stretch.tokens
        self.free_now = stretch.free

    # ---- a batch ends ----

    def _complete(self, batch: FastBatch) -> None:
        end = batch.end
        scheduler = self.scheduler
        self._queued[self._reason] += end - batch.start
        self._disturbed += batch.disturbed
        tokens = batch.deliveries
        if tokens:
            gap = end - self._last_end
            self.gaps[gap] = self.gaps.get(gap, 0) + tokens
        for state in batch.leaving:
            self._deliver_left(state, end)
        finishing = batch.finishing
        if not scheduler.lag:
            finishing = scheduler.retire(batch.number)
        for state in finishing:
            if state.status != "finished":
                self._settle(state, end)
                if scheduler.lag:
                    state.output += 1
        if batch.chunks or batch.skipped:
            last = self._complete_chunks(batch)
            tokens += last[0]
            finishing = finishing + last[1]
        self.generated_tokens += tokens
        done = self._finish(finishing, end) if finishing else 0
        self._last_end = end
        self._note_completed(batch, tokens, done)

    def _deliver_left(self, state: FastState, end: int) -> None:
        """The last token of a member that left the bulk while its batch was under way (asynchronous)."""
        if state.status == "finished":
            return
        state.output += 1
        state.placeholders -= 1
        self._settle(state, end)
        state.wait_from = end

    def _complete_chunks(self, batch: FastBatch) -> tuple[int, list[FastState]]:
        """Ledgers and tokens of the requests outside the bulk; returns (tokens, those that got their last)."""
        tokens = 0
        finishing: list[FastState] = []
        duration = batch.end - batch.start
        for state in batch.skipped:
            if state.status != "finished":
                kind = PREFILL if state.record.first_token is None else DECODE
                state.record.ledger[INTERFERENCE if batch.prefill_tokens else kind] += duration
                state.wait_from = batch.end
        for chunk, kind in zip(batch.chunks, batch.kinds, strict=True):
            state = chunk.state
            if state.status == "finished":
                continue
            own = 0 if kind == DECODE else chunk.end - chunk.start
            disturbed = disturbance(self.step_time, batch, own)
            ledger = state.record.ledger
            ledger[INTERFERENCE] += disturbed
            ledger[kind] += duration - disturbed
            state.wait_from = batch.end
            if chunk.sampled:
                tokens += 1
                self._deliver(state, batch.end)
                if not state.bulk and state.output >= state.limit:
                    finishing.append(state)
        return tokens, finishing

    def _deliver(self, state: FastState, end: int) -> None:
        record = state.record
        state.output += 1
        state.placeholders -= self.scheduler.lag
        if record.first_token is None:
            record.first_token = end
            self.prompt_tokens += state.prompt
            self.cached_tokens += record.cached
        else:
            gap = end - record.last_token
            self.gaps[gap] = self.gaps.get(gap, 0) + 1
        record.last_token = end
        state.mark_time = end
        state.mark_disturbed = self._disturbed

    def _finish(self, finishing: list[FastState], end: int) -> int:
        if len(finishing) > 1:
            finishing = sorted(finishing, key=lambda s: s.stamp)
        done = 0
        for state in finishing:
            if state.status == "finished":
                continue
            done += 1
            self.scheduler.finish(state)
            self._end(state, "finished", end)
        return done

    def _note_completed(self, batch: FastBatch, tokens: int, done: int) -> None:
        scheduler = self.scheduler
        self.steps += 1
        self.running_now = len(scheduler.running)
        self.waiting_now = len(scheduler.states) - self.running_now
        self.free_now = scheduler.pool.free
        self._uneventful = not (done or batch.chunks or batch.preempted)
        if self.log is not None:
            self.log.append(
                batch.start,
                batch.end,
                batch.prefill_tokens,
                batch.decode_requests,
                batch.kv_tokens,
                batch.free,
                self.free_now,
                batch.running,
                batch.waiting,
                batch.preempted,
                tokens,
                done,
            )
        if tokens or batch.progress:
            self._idle_turns = 0
        else:
            self._idle_turns += 1
            if self._idle_turns >= GUARD_STEPS:
                raise NoProgressError(stuck_message(batch.head.id if batch.head else None))
