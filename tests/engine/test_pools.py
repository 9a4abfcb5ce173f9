"""Block pools: the one that names its blocks, and the one that only knows whose they were."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from reference_engine.model import EngineError
from reference_engine.model.request import Request, RequestState
from reference_engine.replay.plain import drive
from reference_engine.v1.blocks import BlockPool, Contents, UnsharedPool
from reference_engine.v1.scheduler import V1Scheduler
from tests.engine.workloads import cases


def _state(number: int, tokens: int, prompt: Any = None) -> RequestState:
    return RequestState(Request(number, tokens, 50, prompt=prompt), 1000)


def _pool(usable: int, unhashed_first: bool = True) -> BlockPool:
    return BlockPool(usable, Contents(4), unhashed_first)


def _hold(pool: BlockPool, state: RequestState, blocks: int, full: int) -> None:
    pool.admit(state, 0, blocks)
    pool.cache_blocks(state, full)


def test_released_blocks_are_found_by_content_and_given_up_from_the_tail() -> None:
    pool = _pool(6)
    first, same, other = (_state(0, 16, (("a", 16),)), _state(1, 20, (("a", 16), ("u1", 4))), _state(2, 8))
    _hold(pool, first, 4, 4)
    assert pool.get_computed_blocks(same, 5) == (4, 0)  # in use: they cost nothing
    pool.free(first)
    assert pool.get_computed_blocks(same, 5) == (4, 4)
    _hold(pool, other, 3, 2)  # two that were never used, then the last block of `first`
    assert pool.get_computed_blocks(same, 5) == (3, 3)
    pool.admit(same, 3, 0)
    assert (pool.num_free_blocks, same.num_blocks) == (0, 3)


def test_a_block_in_use_by_two_is_freed_by_the_last() -> None:
    pool = _pool(3)
    first, second = _state(0, 8, (("a", 8),)), _state(1, 8, (("a", 8),))
    _hold(pool, first, 2, 2)
    assert pool.get_computed_blocks(second, 1) == (1, 0)
    pool.admit(second, 1, 1)
    assert pool.num_free_blocks == 0
    pool.free(first)
    assert pool.num_free_blocks == 1
    pool.free(second)
    assert pool.num_free_blocks == 3


def test_blocks_without_a_hash_are_reused_first_since_0_23() -> None:
    for unhashed_first, left in ((True, 2), (False, 1)):
        pool = _pool(3, unhashed_first)
        old = _state(0, 10, (("a", 10),))
        _hold(pool, old, 3, 2)  # the third block is not full
        pool.free(old)
        _hold(pool, _state(1, 4), 1, 0)
        assert pool.get_computed_blocks(_state(2, 12, (("a", 12),)), 2)[0] == left + (not unhashed_first)
        _hold(pool, _state(3, 4), 1, 0)
        assert pool.get_computed_blocks(_state(2, 12, (("a", 12),)), 2)[0] == 1


def test_a_prompt_may_hold_an_earlier_answer() -> None:
    pool = _pool(8)
    asked = _state(5, 4, (("a", 4),))
    asked.num_output_tokens = 8
    _hold(pool, asked, 3, 3)
    assert pool.get_computed_blocks(_state(6, 16, (("a", 4), ("o5", 8), ("u6", 4))), 4)[0] == 3
    assert pool.get_computed_blocks(_state(7, 16, (("a", 4), ("o6", 8), ("u6", 4))), 4)[0] == 1
    assert pool.get_computed_blocks(_state(8, 16, (("b", 4), ("o5", 8), ("u6", 4))), 4)[0] == 0


@settings(max_examples=120, deadline=None)
@given(case=cases(policy="fcfs", enable_prefix_caching=True))
def test_segments_decide_what_named_blocks_decide(case: Any) -> None:
    config, requests, _sharing = case
    alone = [Request(r.id, r.prompt_tokens, r.output_tokens, arrival_step=r.id) for r in requests]

    def told(scheduler: V1Scheduler) -> list[Any]:
        turns = []
        try:
            for turn in drive(scheduler, alone):
                turns.append(turn)  # noqa: PERF402
        except EngineError as error:
            return [*turns, str(error)]
        return turns

    named = V1Scheduler(config)
    assert isinstance(named.pool, BlockPool)
    owned = UnsharedPool(config.num_blocks - 1, named.profile.unhashed_first)
    assert told(named) == told(V1Scheduler(config, owned))
    assert owned.num_free_blocks == named.pool.num_free_blocks
