"""The fast replay of V0: the same decisions, times and ledgers as `PlainReplay`, at the cost of the events alone.

In default mode a batch of prefills holds all decoding requests up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reference_engine.cost.step_time import StepTime
from reference_engine.model import ConfigError
from reference_engine.model.config import EngineConfig, check_config
from reference_engine.model.decoding import FastBatch
from reference_engine.model.request import DECODE, PREEMPTED_WAIT, QUEUED, chunk_kind
from reference_engine.model.step import RequestId, Step
from reference_engine.replay.clock import batch_duration
from reference_engine.replay.fast_base import BaseFastReplay
from reference_engine.v0.fast_scheduler import V0FastScheduler, V0FastState, v0_fast_path_covers
from reference_engine.v0.step import V0Step

__all__ = ["V0FastReplay"]


@dataclass(slots=True, kw_only=True)
class V0FastBatch(FastBatch):
    """A batch of V0. One without decodes owes all of its time to prefill tokens (`disturbed`).

    `chunks`: (request, own prefill tokens, label) of those outside the decoding batch; `held_up`: running ones that get
    nothing.
    """

    step: V0Step
    chunks: list[tuple[V0FastState, int, int]]
    held_up: list[V0FastState]


class V0FastReplay(BaseFastReplay[V0FastBatch, V0FastState]):
    """A workload on a virtual clock, from event to event; used as `BaseFastReplay` says.

    Args:
        config: an engine for which `v0_fast_path_covers` holds.
        step_time: how long a step takes.
        keep_steps: write the log of steps.
        on_step: for tests: is called with every decided step, written out in full.

    Raises:
        ConfigError: the fast path does not know this engine or its settings.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTime,
        keep_steps: bool = False,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        check_config(config)
        if not v0_fast_path_covers(config):
            raise ConfigError(f"the fast replay does not cover {config.engine} {config.version} with these settings")
        self.scheduler = V0FastScheduler(config)
        super().__init__(config, step_time, self.scheduler, keep_steps, on_step)
        self._last_decode_step = 0
        # by the time of their last token: how many decoding requests have had no decode step yet
        self._fresh: dict[int, int] = {}

    # ---- entering and leaving ----

    def _leave(self, request_id: RequestId) -> None:
        state = self.scheduler.fast_requests.get(request_id)
        if state is None:
            return
        if state.decoding:
            self.scheduler.leave(state)
            self._settle(state, self.now)
        elif not state.record.started:
            self._settle_queue(state)
        elif state.status != "running":
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from
        self.scheduler.abort(request_id)
        self._end(state, "aborted", self.now)

    def _settle(self, state: V0FastState, until: int) -> None:
        """Write the time and the last token of a request that has just left the decoding batch."""
        super()._settle(state, until)
        if state.had_decode_step:
            state.record.last_token = self._last_decode_step
        else:
            self._fresh[state.record.last_token] -= 1

    # ---- a batch begins ----

    def _schedule(self) -> V0FastBatch:
        scheduler = self.scheduler
        step = scheduler.decide(self.now / 1e9)
        for state in scheduler.left_batch:
            self._settle(state, self.now)
        scheduler.left_batch = []
        if step.preempted or step.swapped_out:
            self._note_preempted(step)
        if step.new or step.resumed or step.swapped_in:
            self._note_admitted(step)
        for state in scheduler.dropped:
            self._note_ignored(state)
        batch = self._batch(step)
        if self.on_step is not None:
            self.on_step(scheduler.full_step(step))
        return batch

    def _note_preempted(self, step: V0Step) -> None:
        states = self.scheduler.fast_requests
        for request_id in (*step.preempted, *step.swapped_out):
            state = states[request_id]
            self.preemptions += 1
            state.record.preemptions += 1
            state.wait_from = self.now

    def _note_admitted(self, step: V0Step) -> None:
        states = self.scheduler.fast_requests
        for request_id in step.new:
            state = states[request_id]
            self._settle_queue(state)
            state.record.started = True
        for request_id in (*step.resumed, *step.swapped_in):
            state = states[request_id]
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from

    def _note_ignored(self, state: V0FastState) -> None:
        if state.record.started:
            state.record.ledger[PREEMPTED_WAIT] += self.now - state.wait_from
        else:
            self._settle_queue(state)
        self._end(state, "ignored", self.now)

    def _batch(self, step: V0Step) -> V0FastBatch:
        """What the step computes, and so how long it takes."""
        scheduler = self.scheduler
        num_decoding = scheduler.in_step
        prefill, decodes = 0, num_decoding
        kv_tokens = scheduler.decoding_tokens() if num_decoding else 0
        chunks: list[tuple[V0FastState, int, int]] = []
        progress = num_decoding > 0 or bool(step.ignored)
        states = scheduler.fast_requests
        for request_id, (start, end) in step.spans.items():
            state = states[request_id]
            record = state.record
            kind = chunk_kind(start, state.num_prompt_tokens, record.reached)
            own = 0 if kind == DECODE else end - start
            chunks.append((state, own, kind))
            prefill += own
            decodes += kind == DECODE
            kv_tokens += end
            record.recomputed += max(0, min(end, record.reached) - start)
            if end > record.reached:
                record.reached = end
                progress = True
        requests = num_decoding + len(chunks)
        duration = batch_duration(self.step_time, prefill, decodes, kv_tokens, requests)
        disturbed = 0
        if prefill:
            disturbed = duration
            if decodes:
                calm = batch_duration(self.step_time, 0, decodes, kv_tokens, requests)
                disturbed = max(0, duration - calm)
        return V0FastBatch(
            step=step,
            start=self.now,
            end=self.now + duration,
            num_decoding=num_decoding,
            chunks=chunks,
            held_up=self._held_up(requests, step),
            prefill_tokens=prefill,
            decode_requests=decodes,
            kv_tokens=kv_tokens,
            disturbed=disturbed,
            progress=progress,
            free_blocks=scheduler.pool.num_free_blocks,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.swapped),
            preempted=len(step.preempted) + len(step.swapped_out),
        )

    def _held_up(self, scheduled: int, step: V0Step) -> list[V0FastState]:
        """Running requests outside the decoding batch that the step leaves out."""
        scheduler = self.scheduler
        decoding_batch = scheduler.decoding_batch.count - scheduler.in_step
        if len(scheduler.running) == scheduled + decoding_batch:
            return []
        return [s for s in scheduler.fast_running if not s.decoding and s.id not in step.spans]

    # ---- a batch ends ----

    def _complete(self, batch: V0FastBatch) -> None:
        scheduler = self.scheduler
        end = batch.end
        self._queued[QUEUED[batch.step.blocked]] += end - batch.start
        self._disturbed += batch.disturbed
        if batch.num_decoding:
            self._decode_step(batch)
        if batch.held_up:
            self._write_held_up(batch.held_up, batch)
        prefills = batch.step.prefill_groups
        done = self._complete_chunks(batch, batch.chunks[:prefills])
        if batch.num_decoding:
            for state in scheduler.retire():
                self._settle(state, end)
                done.append(state)
        done += self._complete_chunks(batch, batch.chunks[prefills:])
        if done:
            scheduler.finish(done)
            for state in done:
                self._end(state, "finished", end)
        tokens = batch.num_decoding + len(batch.step.sampled)
        self.generated_tokens += tokens
        # V0 credits every chunk, also of a recompute
        self.prompt_tokens += batch.step.prompt_tokens
        self._note_completed(batch, tokens, len(done))

    def _culprit(self, _batch: V0FastBatch) -> RequestId | None:
        return self.scheduler.head()

    def _decode_step(self, batch: V0FastBatch) -> None:
        """Each decoding request has got a token: the gaps since their last ones."""
        end, num_decoding = batch.end, batch.num_decoding
        for last, count in self._fresh.items():
            if count:
                self.gaps[end - last] = self.gaps.get(end - last, 0) + count
                num_decoding -= count
        if num_decoding:
            gap = end - self._last_decode_step
            self.gaps[gap] = self.gaps.get(gap, 0) + num_decoding
        self._fresh.clear()
        self._last_decode_step = end

    def _complete_chunks(self, batch: V0FastBatch, chunks: list[tuple[V0FastState, int, int]]) -> list[V0FastState]:
        """Ledgers and tokens of requests outside the decoding batch; returns those that got their last one."""
        done = []
        for state, own, kind in chunks:
            self._write_chunk(state, kind, own, batch)
            if not state.in_prefill and self._deliver(state, batch.end):
                done.append(state)
        return done

    def _deliver(self, state: V0FastState, end: int) -> bool:
        """A token for a request outside the decoding batch; it joins, unless this was its last (True)."""
        record = state.record
        state.num_output_tokens += 1
        if record.first_token is None:
            record.first_token = end
            self.cached_tokens += record.cached
        else:
            gap = end - record.last_token
            self.gaps[gap] = self.gaps.get(gap, 0) + 1
        record.last_token = end
        if state.num_output_tokens >= state.max_output_tokens:
            return True
        self.scheduler.join(state)
        state.mark_time, state.mark_disturbed = end, self._disturbed
        self._fresh[end] = self._fresh.get(end, 0) + 1
        return False
