"""Speculative decoding and the cadence of prompts: what holds for every workload, and what a configuration may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model import ConfigError, NoProgressError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.replay.plain import PlainReplay, drive, make_scheduler
from reference_engine.replay.results import make_replay
from reference_engine.traces.config_file import setup_from_document
from reference_engine.v1.scheduler import V1Scheduler
from tests.engine.workloads import LINEAR, workloads

METHODS = ["ngram", "eagle", "mtp", "draft_model"]


@st.composite
def drafting(draw: st.DrawFn) -> tuple[EngineConfig, list[Request]]:
    """A crowded engine with drafts, and a workload whose requests say in turn how many are accepted."""
    seqs = draw(st.sampled_from([2, 4, 8]))
    config = EngineConfig(
        num_blocks=draw(st.integers(8, 40)),
        block_size=draw(st.sampled_from([4, 16])),
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.sampled_from([16, 64, 256])),
        max_model_len=draw(st.sampled_from([64, 200])),
        version=draw(st.sampled_from(["0.24.0", "0.28.0", "0.32.0", "0.33.0"])),
        enable_prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        async_scheduling=draw(st.booleans()),
        num_spec_tokens=draw(st.integers(1, 5)),
        spec_method=draw(st.sampled_from(METHODS)),
        mtp_layers=draw(st.sampled_from([1, 3])),
        acceptance=draw(st.sampled_from([0.0, 0.4, 1.0])),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3])),
    )
    requests = draw(workloads(config, sharing=True))
    accept = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    return config, [replace(request, accept=draw(accept)) for request in requests]


@settings(max_examples=150, deadline=None)
@given(case=drafting())
def test_outputs_are_whole_blocks_come_back_and_ledgers_add_up(case: tuple[EngineConfig, list[Request]]) -> None:
    config, requests = case
    engine = PlainReplay(config, LINEAR)
    try:
        engine.run(requests)
    except NoProgressError:
        return  # a request that needs more than there is
    scheduler = engine.scheduler
    assert isinstance(scheduler, V1Scheduler)
    assert scheduler.pool.num_free_blocks == config.num_blocks - 1
    for record in engine.all_records():
        assert sum(record.ledger) == (record.end or 0) - record.arrival
        if record.status == "finished":
            longest = max(1, config.max_model_len - record.request.prompt_tokens)
            assert record.output == min(record.request.output_tokens, longest)


@settings(max_examples=100, deadline=None)
@given(case=drafting())
def test_a_step_stays_within_the_budget_and_verifies_what_was_proposed(
    case: tuple[EngineConfig, list[Request]],
) -> None:
    config, requests = case
    by_step = [replace(request, arrival_step=0, abort_s=None) for request in requests]
    try:
        for turn in drive(make_scheduler(config), by_step):
            step, outcome = turn.step, turn.outcome
            if step is not None:
                assert sum(step.scheduled.values()) <= config.max_num_batched_tokens
                for request_id, drafts in step.drafts.items():
                    assert 0 < drafts <= min(config.num_spec_tokens, step.scheduled[request_id] - 1)
            if outcome is not None:
                for request_id, tokens in outcome.delivered.items():
                    assert 1 < tokens <= 1 + outcome.accepted[request_id]
    except NoProgressError:
        pass


def _steps(config: EngineConfig, request: Request) -> list[Any]:
    return [turn for turn in drive(make_scheduler(config), [request]) if turn.step is not None and turn.step.scheduled]


CALM = EngineConfig(num_blocks=100, num_spec_tokens=3, spec_method="ngram")


@pytest.mark.parametrize(
    ("accept", "acceptance", "decode_steps"),
    [((3,), 0.0, 5), ((0,), 0.0, 20), ((), 1.0, 5), ((), 0.0, 20), ((), 1 / 3, 10), ((3, 0), 1.0, 8)],
)
def test_accepted_drafts_are_steps_saved(accept: tuple[int, ...], acceptance: float, decode_steps: int) -> None:
    config = replace(CALM, acceptance=acceptance)
    assert len(_steps(config, Request(0, 10, 21, accept=accept))) == 1 + decode_steps


def test_tokens_that_come_together_are_one_gap() -> None:
    engine = PlainReplay(replace(CALM, acceptance=1.0), LinearStepTime(0.01, 0.0, 0.0, 0.0))
    engine.run([Request(0, 10, 21)])
    assert engine.gaps == {10_000_000: 5}
    assert engine.generated_tokens == 21


def test_prompts_wait_for_their_step_while_others_decode() -> None:
    config = EngineConfig(num_blocks=100, prefill_schedule_interval=4)
    requests = [Request(0, 10, 30, arrival_step=0), *(Request(i, 10, 2, arrival_step=i) for i in (1, 2, 3))]
    held = {i: turn.number for turn in drive(make_scheduler(config), requests) if turn.step for i in turn.step.new}
    assert held == {0: 0, 1: 4, 2: 4, 3: 4}
    before = replace(config, version="0.32.0")  # without data parallelism nothing is held there
    free = {i: turn.number for turn in drive(make_scheduler(before), requests) if turn.step for i in turn.step.new}
    assert free == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_spec_tokens": 3}, "num_spec_tokens needs a spec_method"),
        ({"num_spec_tokens": 3, "spec_method": "dflash"}, "spec_method is 'dflash'"),
        ({"num_spec_tokens": 5000, "spec_method": "ngram"}, "num_spec_tokens is 5000"),
        ({"acceptance": 1.5}, "acceptance is 1.5"),
        ({"prefill_schedule_interval": 0}, "prefill_schedule_interval is 0"),
        ({"num_spec_tokens": 1, "spec_method": "ngram", "engine": "vllm-v0"}, "of V0 is not modelled"),
        ({"num_speculative_tokens": 3}, "unknown key 'num_speculative_tokens'"),
    ],
)
def test_what_is_not_modelled_is_refused_with_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_scheduler(setup_from_document({"num_blocks": 20, **settings}).config)


@pytest.mark.parametrize("change", [{"num_spec_tokens": 2, "spec_method": "ngram"}, {"prefill_schedule_interval": 2}])
def test_the_fast_path_leaves_drafts_and_cadence_to_the_plain_one(change: dict[str, Any]) -> None:
    assert isinstance(make_replay(EngineConfig(num_blocks=20, **change), LINEAR), PlainReplay)
