"""The fast replay of V1: the same decisions, times and ledgers as `PlainReplay`, at the cost of the events alone.

Times stay exact: the step-time model is asked for every step.
"""

from __future__ import annotations

from collections.abc import Callable

from reference_engine.cost.step_time import StepTime
from reference_engine.model import ConfigError
from reference_engine.model.config import EngineConfig, check_config
from reference_engine.model.request import BUDGET, DECODE, PREEMPTED_WAIT, QUEUED, Request
from reference_engine.model.step import RequestId, Step
from reference_engine.replay.clock import batch_duration
from reference_engine.replay.fast_base import (
    BaseFastReplay,
    close_decode_stretch,
    open_decode_stretch,
    run_decode_stretch,
)
from reference_engine.v1.batch import Chunk, ChunkLoad, FastState, V1FastBatch, fast_path_covers, load_of
from reference_engine.v1.fast_scheduler import V1FastScheduler, full_step

__all__ = ["FastReplay"]

_NO_LOAD = ChunkLoad()


class FastReplay(BaseFastReplay[V1FastBatch, FastState]):
    """A workload on a virtual clock, from event to event; used as `BaseFastReplay` says.

    Args:
        config: an engine for which `fast_path_covers` holds.
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
        check_config(config)
        if not fast_path_covers(config):
            raise ConfigError(f"the fast replay does not cover {config.engine} {config.version} with this policy")
        self.scheduler: V1FastScheduler
        if config.kv_groups is None:
            self.scheduler = V1FastScheduler(config, sharing)
        else:
            from reference_engine.v1.hybrid import HybridFastScheduler  # loaded only where it is asked for

            sharing = True
            self.scheduler = HybridFastScheduler(config)
        super().__init__(config, step_time, self.scheduler, keep_steps, on_step)
        self.sharing = sharing or not config.enable_prefix_caching
        self._reason = BUDGET
        self._last_end = 0
        self._uneventful = False

    # ---- entering and leaving ----

    def _push(self, request: Request) -> None:
        if request.prompt is not None and not self.sharing:
            raise ConfigError(
                f"request {request.id!r} names the content of its prompt: the replay must be made with sharing"
            )
        super()._push(request)

    def _enter(self, request: Request, arrival: int) -> None:
        self._uneventful = False
        super()._enter(request, arrival)

    def _leave(self, request_id: RequestId) -> None:
        state = self.scheduler.fast_requests.get(request_id)
        if state is None:
            return
        self._uneventful = False
        if state.decoding:
            self._abort_decoding(state)
        elif state.status == "waiting":
            self._settle_queue(state)
        elif state.status == "preempted":
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from
        self.scheduler.remove(state)
        self._end(state, "aborted", self.now)

    def _abort_decoding(self, state: FastState) -> None:
        scheduler = self.scheduler
        scheduler.leave(state, scheduler.batch)
        if self.in_flight and state.first > self.in_flight[-1].number:
            return  # its last chunk is still under way
        self._settle(state, self.now)
        if self.in_flight:
            self.in_flight[-1].deliveries -= 1

    def _settle(self, state: FastState, until: int) -> None:
        super()._settle(state, until)
        state.record.last_token = until

    # ---- a batch begins ----

    def _schedule(self) -> V1FastBatch:
        scheduler = self.scheduler
        step, chunks, num_decoding = scheduler.decide()
        before = self.in_flight[-1] if self.in_flight else None
        start = self.now if before is None else max(self.now, before.end)
        if scheduler.left_batch:
            self._note_left(before)
        if before is not None and scheduler.retired:
            before.finishing.extend(scheduler.retired)
        if step.preempted:
            self._note_preempted(step)
        if chunks:
            self._note_admitted(step, start)
        self._reason = QUEUED[step.blocked]
        batch = self._batch(step, chunks, num_decoding, start)
        if self.on_step is not None:
            self.on_step(full_step(scheduler, step))
        return batch

    def _note_left(self, before: V1FastBatch | None) -> None:
        for state, first in self.scheduler.left_batch:
            if before is None:
                self._settle(state, self.now)
            elif first <= before.number:
                before.leaving.append(state)
        self.scheduler.left_batch = []

    def _note_preempted(self, step: Step) -> None:
        self.preemptions += len(step.preempted)
        for request_id in step.preempted:
            state = self.scheduler.fast_requests[request_id]
            state.record.preemptions += 1
            state.wait_from = self.now

    def _note_admitted(self, step: Step, start: int) -> None:
        """Close the waiting time of the admitted ones; they start with the batch, not before."""
        states = self.scheduler.fast_requests
        for request_id in step.new:
            state = states[request_id]
            self._settle_queue(state)
            state.record.ledger[BUDGET] += start - self.now
            state.record.cached = step.hits.get(request_id, 0)
        for request_id in step.resumed:
            state = states[request_id]
            state.record.ledger[PREEMPTED_WAIT] += start - state.wait_from

    def _batch(self, step: Step, chunks: list[Chunk], num_decoding: int, start: int) -> V1FastBatch:
        scheduler = self.scheduler
        load = load_of(chunks) if chunks else _NO_LOAD
        prefill = load.prefill_tokens
        decodes = num_decoding + load.decode_requests
        kv_tokens = load.kv_tokens + scheduler.decoding_tokens(num_decoding)
        requests = num_decoding + len(chunks)
        duration = disturbed = 0
        if requests or self._takes_time():
            duration = batch_duration(self.step_time, prefill, decodes, kv_tokens, requests)
            if prefill and (num_decoding or len(chunks) > 1 or scheduler.skipped):
                calm = batch_duration(self.step_time, 0, decodes, kv_tokens, requests)
                disturbed = max(0, duration - calm)
        return V1FastBatch(
            number=scheduler.batch,
            start=start,
            end=start + duration,
            num_decoding=num_decoding,
            deliveries=num_decoding,
            chunks=chunks,
            prefill_tokens=prefill,
            decode_requests=decodes,
            kv_tokens=kv_tokens,
            disturbed=disturbed,
            progress=num_decoding > 0 or load.progress,
            free_blocks=scheduler.pool.num_free_blocks,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            preempted=len(step.preempted),
            head=scheduler.head(),
            kinds=load.kinds,
            skipped=scheduler.skipped,
        )

    def _run_decode_stretch(self, until: float) -> None:
        scheduler = self.scheduler
        if not self._uneventful or self.on_step is not None or not scheduler.uneventful:
            return
        batch = self.in_flight[0] if self.in_flight else None
        if batch is not None and not batch.uneventful:
            return
        stretch = open_decode_stretch(scheduler, batch, self.now, self._last_end)
        stretch.stop, stretch.until = self._next_event(until), until
        run_decode_stretch(stretch, self.step_time, self.gaps, self.log)
        if not stretch.steps:
            return
        close_decode_stretch(stretch, scheduler, batch)
        self._queued[self._reason] += stretch.elapsed
        self._last_end = stretch.last_end
        self.now = stretch.now
        self.turns += stretch.steps
        self.steps += stretch.steps
        self.generated_tokens += stretch.tokens
        self.free_now = stretch.free_blocks

    # ---- a batch ends ----

    def _complete(self, batch: V1FastBatch) -> None:
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
        if not scheduler.output_lag:
            finishing = scheduler.retire(batch.number)
        for state in finishing:
            if state.status != "finished":
                self._settle(state, end)
                if scheduler.output_lag:
                    state.num_output_tokens += 1
        if batch.chunks or batch.skipped:
            last = self._complete_chunks(batch)
            tokens += last[0]
            finishing = finishing + last[1]
        self.generated_tokens += tokens
        done = self._finish(finishing, end) if finishing else 0
        self._last_end = end
        self._uneventful = not (done or batch.chunks or batch.preempted)
        self._note_completed(batch, tokens, done)

    def _culprit(self, batch: V1FastBatch) -> RequestId | None:
        return batch.head.id if batch.head else None

    def _deliver_left(self, state: FastState, end: int) -> None:
        """The last token of a request that left the decoding batch while a batch was under way (asynchronous)."""
        if state.status == "finished":
            return
        state.num_output_tokens += 1
        state.num_output_placeholders -= 1
        self._settle(state, end)
        state.wait_from = end

    def _complete_chunks(self, batch: V1FastBatch) -> tuple[int, list[FastState]]:
        """Ledgers and tokens of the requests outside the decoding batch; returns (tokens, those that got their last)."""
        tokens = 0
        finishing: list[FastState] = []
        self._write_held_up(batch.skipped, batch)
        for chunk, kind in zip(batch.chunks, batch.kinds, strict=True):
            state = chunk.state
            if state.status == "finished":
                continue
            own = 0 if kind == DECODE else chunk.end - chunk.start
            self._write_chunk(state, kind, own, batch)
            state.wait_from = batch.end
            if chunk.sampled:
                tokens += 1
                self._deliver(state, batch.end)
                if not state.decoding and state.num_output_tokens >= state.max_output_tokens:
                    finishing.append(state)
        return tokens, finishing

    def _deliver(self, state: FastState, end: int) -> None:
        record = state.record
        state.num_output_tokens += 1
        state.num_output_placeholders -= self.scheduler.output_lag
        if record.first_token is None:
            record.first_token = end
            self.prompt_tokens += state.num_prompt_tokens
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
