"""Steps in which nothing happens: all requests decode, nobody arrives, finishes, is admitted or lacks a block.

`coast` runs through such steps without looking at the scheduler. It computes what the step-by-step way would: the
step-time model is asked for each step, so that times are the same to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

from .clock import batch_duration
from .step_log import StepLog
from .step_time import StepTime

__all__ = ["Pending", "Stretch", "coast"]


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


def coast(stretch: Stretch, model: StepTime, gaps: dict[int, int], log: StepLog | None) -> None:
    """Run through uneventful steps until something may happen; writes gaps between tokens and the step log."""
    if stretch.pending is None:
        _coast_single(stretch, model, gaps, log)
    else:
        _coast_double(stretch, stretch.pending, model, gaps, log)


def _coast_single(
    stretch: Stretch, model: StepTime, gaps: dict[int, int], log: StepLog | None
) -> None:
    """One batch in flight: a turn is a step."""
    members, demand, size = stretch.members, stretch.demand, len(stretch.demand)
    now, batch, free, kv = stretch.now, stretch.batch, stretch.free, stretch.kv_tokens
    begun, first = now, batch
    while batch < stretch.last_batch and now < stretch.stop:
        need = len(demand[(batch + 1) % size])
        if need > free:
            break
        duration = batch_duration(model, 0, members, kv + members, members)
        if now + duration > stretch.until:
            break
        batch += 1
        if stretch.allot is not None:
            stretch.allot(batch)
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
    stretch: Stretch,
    under_way: Pending,
    model: StepTime,
    gaps: dict[int, int],
    log: StepLog | None,
) -> None:
    """Two batches in flight: a turn decides a batch and then waits for the one before it."""
    members, demand, size = stretch.members, stretch.demand, len(stretch.demand)
    running, waiting = stretch.running, stretch.waiting
    while stretch.batch < stretch.last_batch and stretch.now < stretch.stop:
        need = len(demand[(stretch.batch + 1) % size])
        end = under_way.end
        if need > stretch.free or end > stretch.until:
            break
        stretch.batch += 1
        if stretch.allot is not None:
            stretch.allot(stretch.batch)
        stretch.kv_tokens += members
        stretch.free -= need
        duration = batch_duration(model, 0, members, stretch.kv_tokens, members)
        gap, tokens = end - stretch.last_end, under_way.deliveries
        gaps[gap] = gaps.get(gap, 0) + tokens
        if log is not None:
            row = (under_way.kv_tokens, under_way.free, stretch.free, running, waiting, 0)
            log.append(under_way.start, end, 0, members, *row, tokens, 0)
        stretch.elapsed += end - under_way.start
        stretch.tokens += tokens
        stretch.steps += 1
        stretch.now = stretch.last_end = end
        under_way = Pending(end, end + duration, members, stretch.kv_tokens, stretch.free)
    stretch.pending = under_way
