"""Copying a fast replay in the middle of its run: everything that can still change is copied, nothing else.

Finished records, requests, the numbering of block contents and the configuration are shared.
"""

from __future__ import annotations

from copy import copy

from .blocks import BlockPool
from .bulk import BulkScheduler
from .fast_state import FastState
from .owned_pool import OwnedPool

__all__ = ["StateMap", "fork_scheduler"]

StateMap = dict[int, FastState]  # id() of an old state: its copy


def fork_scheduler(old: BulkScheduler) -> tuple[BulkScheduler, StateMap]:
    """A scheduler that decides what `old` would, and the copies of its requests."""
    moved: StateMap = {id(state): state.copy() for state in old.known.values()}
    new = copy(old)
    new.states = {key: moved[id(state)] for key, state in old.states.items()}
    new.running = [moved[id(state)] for state in old.running]
    new.waiting = old.waiting.empty()
    new.waiting.restore(moved[id(state)] for state in old.waiting.in_order())
    _fork_pool(old, new, moved)
    new.phases = [{moved[id(state)] for state in phase} for phase in old.phases]
    new.single = [moved[id(state)] for state in old.single]
    new.skipped = [moved[id(state)] for state in old.skipped if id(state) in moved]
    new.finish_at = {
        batch: [moved[id(state)] for state in states if id(state) in moved]
        for batch, states in old.finish_at.items()
    }
    new._finishes = old._finishes.copy()
    new.left, new.retired = [], []
    new.reset()
    return new, moved


def _fork_pool(old: BulkScheduler, new: BulkScheduler, moved: StateMap) -> None:
    pool = old.pool
    if isinstance(pool, OwnedPool):
        new.count_pool, segments = pool.fork()
        new.pool = new.count_pool
        for state in moved.values():
            if state.segment is not None:
                state.segment = segments.get(id(state.segment), [0, 0])
    elif isinstance(pool, BlockPool):
        new.pool = new.block_pool = pool.copy()
    else:
        new.count_pool = copy(old.count_pool)
        assert new.count_pool is not None
        new.pool = new.count_pool
