"""The fast replay of V0 equals the plain one: every step, every time, every ledger; and V0 on the clock at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model import ConfigError, EngineError, NoProgressError, SchedulerFailedError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Step
from reference_engine.replay.fast_v0 import V0FastReplay
from reference_engine.replay.plain import PlainReplay
from reference_engine.replay.results import make_replay
from reference_engine.v0.fast_scheduler import v0_fast_path_covers

CLOCK = LinearStepTime(0.01, 1e-4, 1e-3, 1e-6)
MODEL_LENGTH = 120


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    chunked = draw(st.booleans())
    seats = draw(st.integers(1, 8))
    budget = st.sampled_from([7, 16, 33, 64]) if chunked else st.sampled_from([60, 120, 300])
    return EngineConfig(
        engine="vllm-v0",
        version=draw(st.sampled_from(["0.8.5", "0.6.6"] if chunked else ["0.8.5", "0.5.5"])),
        num_blocks=draw(st.integers(4, 60)),
        num_cpu_blocks=draw(st.sampled_from([0, 10, 100])),
        block_size=draw(st.sampled_from([4, 8, 16])),
        max_num_seqs=seats,
        max_num_batched_tokens=max(seats, draw(budget)),
        max_model_len=MODEL_LENGTH,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=False,
        preemption_mode=draw(st.sampled_from([None, "swap"])),
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    requests = []
    for number in range(draw(st.integers(1, 14))):
        arrival = draw(st.integers(0, 40)) * 0.013
        abort = draw(st.none() | st.none() | st.integers(1, 60))
        requests.append(
            Request(
                number,
                draw(st.integers(1, MODEL_LENGTH - 1)),
                draw(st.integers(1, 60)),
                arrival_s=arrival,
                abort_s=None if abort is None else arrival + abort * 0.017,
            )
        )
    return requests


class _Plain(PlainReplay):
    """A plain replay that keeps its steps."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, CLOCK)
        self.all_steps: list[Step] = []

    def _batch(self, step: Step) -> Any:
        self.all_steps.append(step)
        return super()._batch(step)


def story(record: Any) -> dict[str, Any]:
    names = ("status", "arrival", "end", "first_token", "preemptions", "recomputed", "reached")
    return {name: getattr(record, name) for name in names} | {
        "id": record.request.id,
        "ledger": record.ledger,
        "output": record.output,
    }


def run(replay: Any, requests: list[Request]) -> tuple[type[EngineError], str] | None:
    try:
        if requests:
            replay.run(requests)
        replay.advance(math.inf)
    except (NoProgressError, SchedulerFailedError) as error:
        return type(error), str(error)
    return None


def ended(replay: Any) -> list[dict[str, Any]]:
    return [story(record) for record in replay.all_records() if record.end is not None]


@settings(max_examples=200, deadline=None)
@given(configs(), workloads())
def test_fast_equals_plain_step_for_step(config: EngineConfig, requests: list[Request]) -> None:
    plain = _Plain(config)
    steps: list[Step] = []
    fast = V0FastReplay(config, CLOCK, keep_steps=True, on_step=steps.append)
    assert run(plain, requests) == run(fast, requests)
    for ours, wanted in zip(steps, plain.all_steps, strict=True):
        assert ours == wanted
        assert list(ours.scheduled) == list(wanted.scheduled)
    assert fast.log is not None
    assert plain.log is not None
    assert fast.log.rows == plain.log.rows
    assert ended(fast) == ended(plain)
    assert [r.request.id for r in fast.finished] == [r.request.id for r in plain.finished]
    assert {k: v for k, v in fast.gaps.items() if v} == plain.gaps
    assert fast.observe() == plain.observe()


@settings(max_examples=100, deadline=None)
@given(configs(), workloads())
def test_ledgers_add_up_and_statistics_count_chunks(config: EngineConfig, requests: list[Request]) -> None:
    replay = PlainReplay(config, CLOCK)
    run(replay, requests)
    for record in replay.all_records():
        if record.end is not None:
            assert sum(record.ledger) == record.end - record.arrival
    assert replay.generated_tokens == sum(record.output for record in replay.all_records())
    if all(r.abort_s is None for r in requests) and replay.unfinished == 0:
        num_computed_tokens = sum(r.recomputed + r.request.prompt_tokens for r in replay.finished)
        assert replay.prompt_tokens >= sum(r.request.prompt_tokens for r in replay.finished)
        if config.preemption_mode is None and len(replay.finished) == len(requests):
            assert replay.prompt_tokens >= num_computed_tokens


@settings(max_examples=60, deadline=None)
@given(configs(), workloads(), st.floats(0.0, 2.0))
def test_a_replay_in_two_pieces_is_the_whole_replay(config: EngineConfig, requests: list[Request], at: float) -> None:
    whole, pieces = (V0FastReplay(config, CLOCK, keep_steps=True) for _ in range(2))
    outcome = run(whole, requests)
    for r in requests:
        pieces.add(r)
    try:
        pieces.advance(at)
    except EngineError:
        return
    assert run(pieces, []) == outcome
    assert ended(pieces) == ended(whole)
    assert pieces.log is not None
    assert whole.log is not None
    assert pieces.log.rows == whole.log.rows
    assert pieces.observe() == whole.observe()


@pytest.mark.parametrize(
    ("settings", "covered"),
    [
        ({}, True),
        ({"version": "0.8.5.post1", "enable_chunked_prefill": True}, True),
        ({"preemption_mode": "swap"}, True),
        ({"enable_prefix_caching": True}, False),
        ({"policy": "priority"}, False),
        ({"delay_factor": 1.0}, False),
        ({"max_num_partial_prefills": 2}, False),
        ({"version": "0.4.2", "enable_chunked_prefill": False}, False),
        ({"version": "0.5.5", "enable_chunked_prefill": False}, True),
        ({"version": "0.5.5", "enable_chunked_prefill": True}, False),
        ({"engine": "vllm-v1", "version": "0.8.5"}, False),
    ],
)
def test_what_the_fast_replay_covers(settings: dict[str, Any], covered: bool) -> None:
    base = {"engine": "vllm-v0", "version": "0.8.5", "enable_prefix_caching": False}
    config = EngineConfig(num_blocks=100, **{**base, **settings})
    assert v0_fast_path_covers(config) is covered
    assert isinstance(make_replay(config, CLOCK), V0FastReplay) is covered
    if not covered:
        with pytest.raises(ConfigError):
            V0FastReplay(config, CLOCK)
