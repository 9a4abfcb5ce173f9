"""Steps in which nothing happens: all requests decode, nobody arrives, finishes, is admitted or lacks a block.

`coast` runs through such steps without looking at the scheduler. It computes what the step-by-step way would: the
step-time model is asked for each step, so that times are the same to the nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

from reference_engine.cost.step_time import LinearStepTime, StepTime
from reference_engine.model.step import StepLog
from reference_engine.replay.clock import batch_duration
from reference_engine.v1.batch import FastBatch
from reference_engine.v1.bulk import BulkScheduler

__all__ = ["Pending", "Stretch", "close_stretch", "coast", "open_stretch"]


@dataclass(slots=True)
class Pending:
    """The batch under way while the next one is decided (asynchronous scheduling). Times in ns."""

    start: int
    end: int
    deliveries: int
    kv_tokens: int
    free: int


@dataclass(slots=True)
class Stretch:
    """Where a stretch of uneventful steps stands; `coast` moves it on.

    `now`: start of the next turn; `last_end`: when the newest tokens came; `batch`: number of the newest batch;
    `last_batch`: the newest batch that may be decided; `stop`: no turn starts at or after it (an arrival, an abort, the
    end of the time allowed); `until`: no batch may end after it. `kv_tokens`: computed tokens of all `members` after
    the newest batch; `demand`: by batch number modulo its length, the requests that need a block; `free`: blocks.
    `allot`: hands out the blocks of a batch where they have names.
    `pending`: None when a batch ends before the next is decided. `elapsed` and `tokens` add up what has passed.
    """

    now: int
    last_end: int
    batch: int
    last_batch: int
    stop: float
    until: float
    members: int
    kv_tokens: int
    demand: Sequence[Sized]
    free: int
    running: int
    waiting: int
    pending: Pending | None
    allot: Callable[[int], None] | None
    elapsed: int = 0
    tokens: int = 0
    steps: int = 0


def open_stretch(scheduler: BulkScheduler, under_way: FastBatch | None, now: int, last_end: int) -> Stretch:
    """A stretch that begins after the newest batch; `under_way` is the one in flight, None when it has ended."""
    pending = None
    if under_way is not None:
        pending = Pending(under_way.start, under_way.end, under_way.deliveries, under_way.kv_tokens, under_way.free)
    bulk = scheduler.bulk
    return Stretch(
        now=now,
        last_end=last_end,
        batch=scheduler.batch,
        last_batch=bulk.next_finish() - 1 + scheduler.lag,
        stop=math.inf,
        until=math.inf,
        members=bulk.count,
        kv_tokens=bulk.tokens(scheduler.batch),
        demand=bulk.phases,
        free=scheduler.pool.free,
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        pending=pending,
        allot=None if scheduler.count_pool is not None else scheduler.allot_members,
    )


def close_stretch(stretch: Stretch, scheduler: BulkScheduler, under_way: FastBatch | None) -> None:
    """Bring the scheduler and the batch in flight to the stretch's end."""
    scheduler.coasted(stretch.batch, stretch.free)
    pending = stretch.pending
    if under_way is not None and pending is not None:
        under_way.number = stretch.batch
        under_way.start, under_way.end = pending.start, pending.end
        under_way.deliveries, under_way.kv_tokens = pending.deliveries, pending.kv_tokens
        under_way.members = stretch.members
        under_way.free = pending.free


def coast(stretch: Stretch, model: StepTime, gaps: dict[int, int], log: StepLog | None) -> None:
    """Run through uneventful steps until something may happen; writes gaps between tokens and the step log."""
    if stretch.pending is None:
        _coast_single(stretch, model, gaps, log)
    else:
        _coast_double(stretch, stretch.pending, model, gaps, log)


def _coast_single(stretch: Stretch, model: StepTime, gaps: dict[int, int], log: StepLog | None) -> None:
    """One batch in flight: a turn is a step."""
    members, demand, size = stretch.members, stretch.demand, len(stretch.demand)
    now, batch, free, kv = stretch.now, stretch.batch, stretch.free, stretch.kv_tokens
    last_batch, stop, until, allot = stretch.last_batch, stretch.stop, stretch.until, stretch.allot
    begun, first = now, batch
    duration_of = _timer(model, members)
    while batch < last_batch and now < stop:
        need = len(demand[(batch + 1) % size])
        if need > free:
            break
        duration = duration_of(kv + members)
        if now + duration > until:
            break
        batch += 1
        if allot is not None:
            allot(batch)
        kv += members
        free -= need
        gaps[duration] = gaps.get(duration, 0) + members
        if log is not None:
            row = (0, members, kv, free, free, stretch.running, stretch.waiting, 0, members, 0)
            log.append(now, now + duration, *row)
        now += duration
    steps = batch - first
    if steps:
        stretch.now = stretch.last_end = now
    stretch.batch, stretch.free, stretch.kv_tokens = batch, free, kv
    stretch.steps = steps
    stretch.elapsed = now - begun
    stretch.tokens = steps * members


def _coast_double(
    stretch: Stretch, under_way: Pending, model: StepTime, gaps: dict[int, int], log: StepLog | None
) -> None:
    """Two batches in flight: a turn decides a batch and then waits for the one before it."""
    members, demand, size = stretch.members, stretch.demand, len(stretch.demand)
    batch, last_batch, free, kv = stretch.batch, stretch.last_batch, stretch.free, stretch.kv_tokens
    start, end, tokens = under_way.start, under_way.end, under_way.deliveries
    kv_before, free_before = under_way.kv_tokens, under_way.free
    now, last_end, first = stretch.now, stretch.last_end, batch
    stop, until, allot = stretch.stop, stretch.until, stretch.allot
    duration_of = _timer(model, members)
    while batch < last_batch and now < stop and end <= until:
        need = len(demand[(batch + 1) % size])
        if need > free:
            break
        batch += 1
        if allot is not None:
            allot(batch)
        kv += members
        free -= need
        gap = end - last_end
        gaps[gap] = gaps.get(gap, 0) + tokens
        if log is not None:
            row = (0, members, kv_before, free_before, free, stretch.running, stretch.waiting, 0)
            log.append(start, end, *row, tokens, 0)
        stretch.elapsed += end - start
        stretch.tokens += tokens
        now = last_end = start = end
        end += duration_of(kv)
        tokens, kv_before, free_before = members, kv, free
    stretch.now, stretch.last_end, stretch.steps = now, last_end, batch - first
    stretch.batch, stretch.free, stretch.kv_tokens = batch, free, kv
    stretch.pending = Pending(start, end, tokens, kv_before, free_before)


def _timer(model: StepTime, members: int) -> Callable[[int], int]:
    """The duration (ns) of a step with so many decoding requests, by its KV tokens."""
    if not isinstance(model, LinearStepTime):
        return lambda kv: batch_duration(model, 0, members, kv, members)
    # the sum of LinearStepTime.seconds, in its order, so that it gives the same number
    fixed = model.base_s + model.per_prefill_token_s * 0 + model.per_decode_s * members
    slope = model.per_kv_token_s

    def duration(kv: int) -> int:
        seconds = fixed + slope * kv
        if not 0.0 <= seconds < math.inf:
            return batch_duration(model, 0, members, kv, members)  # says what is wrong
        return round(seconds * 1e9)

    return duration
