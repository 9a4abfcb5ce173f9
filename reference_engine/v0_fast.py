"""The fast replay of V0: the same decisions, times and ledgers as `PlainReplay`, at the cost of the events alone.

As `fast.FastReplay` does for V1: a decoding request's time, and the part of it that others' prefill took, are
differences of running totals at its events. In default mode a batch of prefills holds all decoding requests up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .clock import ReplayClock, batch_duration
from .config import EngineConfig
from .errors import ConfigError, NoProgressError, WorkloadError
from .ledger import (
    BUDGET,
    DECODE,
    INTERFERENCE,
    PREEMPTED_WAIT,
    PREFILL,
    QUEUED,
    RequestRecord,
    chunk_kind,
)
from .loop import GUARD_STEPS, stuck_message
from .step_log import StepLog
from .step_time import StepTime
from .steps import RequestId, Step
from .v0_bulk import BulkState, V0BulkScheduler, v0_bulk_possible
from .v0_turn import V0Step
from .workload import Request

__all__ = ["V0FastReplay"]


@dataclass(slots=True)
class _Batch:
    """A batch on the device. Times in ns.

    `members`: bulk requests that decode in it; `chunks`: (request, own prefill tokens, label) of the others in it;
    `held_up`: running requests outside the bulk that get nothing; `disturbed`: the part of its time that a decoding
    request owes to prefill tokens, all of it where the batch holds no decodes.
    """

    step: V0Step
    start: int
    end: int
    members: int
    chunks: list[tuple[BulkState, int, int]]
    held_up: list[BulkState]
    prefill_tokens: int
    decode_requests: int
    kv_tokens: int
    disturbed: int
    progress: bool
    free: int
    running: int
    waiting: int


class V0FastReplay(ReplayClock[_Batch]):
    """A workload on a virtual clock, from event to event; used as `fast.FastReplay`.

    Args:
        config: an engine for which `v0_bulk_possible` holds.
        step_time: how long a step takes.
        sharing: as for V1; it makes no difference here, where nothing is cached.
        keep_steps: write the log of steps.
        on_step: for tests: is called with every decided step, written out in full.

    Raises:
        ConfigError: the fast path does not know this engine or its settings.
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
        if not v0_bulk_possible(config):
            raise ConfigError(
                f"the fast replay does not cover {config.engine} {config.version} with these settings"
            )
        self.scheduler = V0BulkScheduler(config)
        self.records: list[RequestRecord] = []
        self.log = StepLog() if keep_steps else None
        self.on_step = on_step
        self._queued = [0, 0, 0]  # by reason: kv, seat, budget
        self._disturbed = 0
        self._last_beat = 0
        self._fresh: dict[
            int, int
        ] = {}  # last token's time of members that have not beaten yet: how many
        self._idle_turns = 0

    @property
    def unfinished(self) -> int:
        """Requests inside the scheduler."""
        return len(self.scheduler.states)

    def all_records(self) -> list[RequestRecord]:
        """The records of all requests that entered, in order of entry."""
        return self.records

    # ---- entering and leaving ----

    def _enter(self, request: Request, arrival: int) -> None:
        if request.id in self.scheduler.states:
            raise WorkloadError(f"request id {request.id!r} is there twice")
        record = RequestRecord(request, arrival)
        record.ledger[BUDGET] = self.now - arrival  # a step was under way
        self.records.append(record)
        state = self.scheduler.enter(record)
        state.queued = (self._queued[0], self._queued[1], self._queued[2])

    def _leave(self, request_id: RequestId) -> None:
        state = self.scheduler.live.get(request_id)
        if state is None:
            return
        if state.bulk:
            self.scheduler.leave(state)
            self._settle(state, self.now)
        elif not state.record.started:
            self._settle_queue(state)
        elif state.status != "running":
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from
        self.scheduler.abort(request_id)
        self._end(state, "aborted", self.now)

    def _end(self, state: BulkState, status: str, time: int) -> None:
        record = state.record
        record.status = status
        record.end = time
        record.output = state.output
        if status == "finished":
            self.finished.append(record)

    def _settle(self, state: BulkState, until: int) -> None:
        """Write the time since it joined of a request that has just left the bulk."""
        disturbed = self._disturbed - state.mark_disturbed
        state.record.ledger[DECODE] += until - state.mark_time - disturbed
        state.record.ledger[INTERFERENCE] += disturbed
        if state.beaten:
            state.record.last_token = self._last_beat
        else:
            self._fresh[state.record.last_token] -= 1

    def _settle_queue(self, state: BulkState) -> None:
        for reason in range(3):
            state.record.ledger[reason] += self._queued[reason] - state.queued[reason]

    # ---- a batch begins ----

    def _schedule(self) -> _Batch:
        scheduler = self.scheduler
        step = scheduler.decide(self.now / 1e9)
        for state in scheduler.left:
            self._settle(state, self.now)
        scheduler.left = []
        if step.preempted or step.swapped_out:
            self._note_preempted(step)
        if step.new or step.resumed or step.swapped_in:
            self._note_admitted(step)
        for state in scheduler.dropped:
            self._note_ignored(state)
        batch = self._batch(step)
        if self.on_step is not None:
            self.on_step(scheduler.written_out(step))
        return batch

    def _note_preempted(self, step: V0Step) -> None:
        states = self.scheduler.live
        for request_id in (*step.preempted, *step.swapped_out):
            state = states[request_id]
            self.preemptions += 1
            state.record.preemptions += 1
            state.wait_from = self.now

    def _note_admitted(self, step: V0Step) -> None:
        states = self.scheduler.live
        for request_id in step.new:
            state = states[request_id]
            self._settle_queue(state)
            state.record.started = True
        for request_id in (*step.resumed, *step.swapped_in):
            state = states[request_id]
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from

    def _note_ignored(self, state: BulkState) -> None:
        if state.record.started:
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from
        else:
            self._settle_queue(state)
        self._end(state, "ignored", self.now)

    def _batch(self, step: V0Step) -> _Batch:
        """What the step computes, and so how long it takes."""
        scheduler = self.scheduler
        members = scheduler.in_step
        prefill, decodes = 0, members
        kv_tokens = scheduler.member_tokens() if members else 0
        chunks: list[tuple[BulkState, int, int]] = []
        progress = members > 0 or bool(step.ignored)
        states = scheduler.live
        for request_id, (start, end) in step.spans.items():
            state = states[request_id]
            record = state.record
            kind = chunk_kind(start, state.prompt, record.reached)
            own = 0 if kind == DECODE else end - start
            chunks.append((state, own, kind))
            prefill += own
            decodes += kind == DECODE
            kv_tokens += end
            record.recomputed += max(0, min(end, record.reached) - start)
            if end > record.reached:
                record.reached = end
                progress = True
        requests = members + len(chunks)
        duration = batch_duration(self.step_time, prefill, decodes, kv_tokens, requests)
        disturbed = 0
        if prefill:
            disturbed = duration
            if decodes:
                calm = batch_duration(self.step_time, 0, decodes, kv_tokens, requests)
                disturbed = max(0, duration - calm)
        return _Batch(
            step,
            self.now,
            self.now + duration,
            members,
            chunks,
            self._held_up(len(chunks) + members, step),
            prefill,
            decodes,
            kv_tokens,
            disturbed,
            progress,
            scheduler.pool.free,
            len(scheduler.running),
            len(scheduler.waiting) + len(scheduler.swapped),
        )

    def _held_up(self, scheduled: int, step: V0Step) -> list[BulkState]:
        """Running requests outside the bulk that the step leaves out."""
        scheduler = self.scheduler
        bulk = scheduler.members - scheduler.in_step
        if len(scheduler.running) == scheduled + bulk:
            return []
        return [s for s in scheduler.running if not s.bulk and s.id not in step.spans]  # type: ignore[misc,attr-defined]

    # ---- a batch ends ----

    def _complete(self, batch: _Batch) -> None:
        scheduler = self.scheduler
        end = batch.end
        self._queued[QUEUED[batch.step.blocked]] += end - batch.start
        self._disturbed += batch.disturbed
        if batch.members:
            self._beat(batch)
        for state in batch.held_up:
            kind = PREFILL if state.record.first_token is None else DECODE
            label = INTERFERENCE if batch.prefill_tokens else kind
            state.record.ledger[label] += end - batch.start
        prefills = batch.step.prefill_groups
        done = self._complete_chunks(batch, batch.chunks[:prefills])
        if batch.members:
            for state in scheduler.retire():
                self._settle(state, end)
                done.append(state)
        done += self._complete_chunks(batch, batch.chunks[prefills:])
        if done:
            scheduler.finish(done)
            for state in done:
                self._end(state, "finished", end)
        tokens = batch.members + len(batch.step.sampled)
        self.generated_tokens += tokens
        # V0 credits every chunk, also of a recompute
        self.prompt_tokens += batch.step.prompt_tokens
        self._note_completed(batch, tokens, len(done))

    def _beat(self, batch: _Batch) -> None:
        """Each member has got a token: the gaps since their last ones."""
        end, members = batch.end, batch.members
        for last, count in self._fresh.items():
            if count:
                self.gaps[end - last] = self.gaps.get(end - last, 0) + count
                members -= count
        if members:
            gap = end - self._last_beat
            self.gaps[gap] = self.gaps.get(gap, 0) + members
        self._fresh.clear()
        self._last_beat = end

    def _complete_chunks(
        self, batch: _Batch, chunks: list[tuple[BulkState, int, int]]
    ) -> list[BulkState]:
        """Ledgers and tokens of requests outside the bulk; returns those that got their last one."""
        done = []
        for state, own, kind in chunks:
            disturbed = self._disturbance(batch, own)
            state.record.ledger[INTERFERENCE] += disturbed
            state.record.ledger[kind] += batch.end - batch.start - disturbed
            if not state.in_prefill and self._deliver(state, batch.end):
                done.append(state)
        return done

    def _disturbance(self, batch: _Batch, own: int) -> int:
        """The part of a batch's time that comes from the prefill and recompute tokens of others."""
        if own == batch.prefill_tokens:
            return 0
        requests = batch.members + len(batch.chunks)
        without = batch_duration(
            self.step_time, own, batch.decode_requests, batch.kv_tokens, requests
        )
        return max(0, batch.end - batch.start - without)

    def _deliver(self, state: BulkState, end: int) -> bool:
        """A token for a request outside the bulk; it joins, unless this was its last (True)."""
        record = state.record
        state.output += 1
        if record.first_token is None:
            record.first_token = end
            self.cached_tokens += record.cached
        else:
            gap = end - record.last_token
            self.gaps[gap] = self.gaps.get(gap, 0) + 1
        record.last_token = end
        if state.output >= state.limit:
            return True
        self.scheduler.join(state)
        state.mark_time, state.mark_disturbed = end, self._disturbed
        self._fresh[end] = self._fresh.get(end, 0) + 1
        return False

    def _note_completed(self, batch: _Batch, tokens: int, done: int) -> None:
        scheduler = self.scheduler
        self.steps += 1
        self.running_now = len(scheduler.running)
        self.waiting_now = len(scheduler.states) - self.running_now
        self.free_now = scheduler.pool.free
        if self.log is not None:
            step = batch.step
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
                len(step.preempted) + len(step.swapped_out),
                tokens,
                done,
            )
        if tokens or batch.progress:
            self._idle_turns = 0
            return
        self._idle_turns += 1
        if self._idle_turns >= GUARD_STEPS:
            raise NoProgressError(stuck_message(scheduler.head()))
