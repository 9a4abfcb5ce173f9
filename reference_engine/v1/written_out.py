"""The fast path's decisions written out in full, to be held against the plain scheduler's."""

from __future__ import annotations

from reference_engine.model.step import Step
from reference_engine.v1.bulk import BulkScheduler

__all__ = ["written_out"]


def written_out(scheduler: BulkScheduler, step: Step) -> Step:
    """The newest decision with all members in it, as the plain scheduler would tell it."""
    batch = scheduler.batch
    full = Step(
        preempted=list(step.preempted),
        new=list(step.new),
        resumed=list(step.resumed),
        hits=dict(step.hits),
        blocked=step.blocked,
        waiting=[s.id for s in scheduler.waiting.in_order()],
        free_blocks=scheduler.pool.free,
    )
    for state in scheduler.walk:
        full.running.append(state.id)
        full.num_computed.append(state.base + batch if state.bulk else state.computed)
        if state.bulk and state.first <= batch:
            full.scheduled[state.id] = 1
        elif state.id in step.scheduled:
            full.scheduled[state.id] = step.scheduled[state.id]
    return full
