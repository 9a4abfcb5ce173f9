"""Steps in which nothing happens: all requests decode, nobody arrives, finishes, is admitted or lacks a block.

`run_decode_stretch` runs through such steps without looking at the scheduler. It computes what the step-by-step way
would: the step-time model is asked for each step, so that times are the same to the nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

from reference_engine.cost.step_time import LinearStepTime, StepTime
from reference_engine.model.step import StepLog
from reference_engine.replay.clock import batch_duration
from reference_engine.v1.batch import V1FastBatch
from reference_engine.v1.fast_scheduler import V1FastScheduler

__all__ = ["DecodeStretch", "Pending", "close_decode_stretch", "open_decode_stretch", "run_decode_stretch"]


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
    after the newest batch; `demand`: by batch number modulo its length, the requests that need a block; `free_blocks`:
    blocks. `allocate`: hands out the blocks of a batch where they have names. `pending`: None when a batch ends before
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
    demand: Sequence[Sized]
    free_blocks: int
    running: int
    waiting: int
    pending: Pending | None
    allocate: Callable[[int], None] | None
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
        demand=decoding_batch.phases,
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
        if allocate is not None:
            allocate(batch)
        kv += num_decoding
        free_blocks -= need
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
        if allocate is not None:
            allocate(batch)
        kv += num_decoding
        free_blocks -= need
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
