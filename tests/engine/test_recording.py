"""A recorded replay makes the same turns as the bare loop, and the same results as a plain replay."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Iteration
from reference_engine.replay.plain import PlainReplay, drive, make_scheduler
from reference_engine.replay.recording import RecordedReplay
from reference_engine.traces.golden import step_record

CLOCK = LinearStepTime(0.01, 1e-4, 1e-4, 1e-7)

shapes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=10)


def engine(asynchronous: bool, caching: bool, policy: str = "fcfs") -> EngineConfig:
    return EngineConfig(
        num_blocks=26, block_size=4, max_num_seqs=6, max_num_batched_tokens=32, max_model_len=80,
        async_scheduling=asynchronous, enable_prefix_caching=caching, policy=policy,
    )  # fmt: skip


@settings(max_examples=40)
@given(shapes, st.booleans(), st.booleans(), st.sampled_from(["fcfs", "priority"]))
def test_turns_equal_those_of_the_bare_loop(
    sizes: list[tuple[int, int, int]], asynchronous: bool, caching: bool, policy: str
) -> None:
    config = engine(asynchronous, caching, policy)
    requests = [
        Request(number, prompt, output, arrival_step=step, priority=prompt % 3, arrival_time=float(step))
        for number, (prompt, output, step) in enumerate(sizes)
    ]  # fmt: skip
    turns: list[Iteration] = []
    RecordedReplay(config, CLOCK, turns.append).run(requests)
    bare = drive(make_scheduler(config), requests)
    assert [step_record(turn) for turn in turns] == [step_record(turn) for turn in bare]


@settings(max_examples=40)
@given(shapes, st.booleans(), st.booleans(), st.integers(0, 3))
def test_results_equal_and_phases_add_up_with_aborts_too(
    sizes: list[tuple[int, int, int]], asynchronous: bool, caching: bool, aborted: int
) -> None:
    config = engine(asynchronous, caching)
    requests = [
        Request(
            number, prompt, output, arrival_s=0.01 * step,
            abort_s=0.01 * step + 0.005 * prompt if number < aborted else None,
        )
        for number, (prompt, output, step) in enumerate(sizes)
    ]  # fmt: skip
    recorded, plain = RecordedReplay(config, CLOCK), PlainReplay(config, CLOCK)
    recorded.run(requests)
    plain.run(requests)
    recorded.finish()
    assert recorded.log is not None
    assert plain.log is not None
    assert recorded.log.rows == plain.log.rows
    assert [r.ledger for r in recorded.all_records()] == [r.ledger for r in plain.all_records()]
    for record in recorded.all_records():
        lane = [p for p in recorded.phases.phases if p.request_id == record.request.id]
        assert record.end is not None
        life = (record.end - record.arrival) / 1e9
        assert sum(p.end_s - p.start_s for p in lane) == pytest.approx(life, abs=1e-9)
        assert all(a.end_s == b.start_s for a, b in itertools.pairwise(lane))
