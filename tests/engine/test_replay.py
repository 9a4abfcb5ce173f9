"""The plain replay: what each step must keep to, the ledger's rules, aborts, latencies, and bad input."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference_engine.cost.step_time import LinearStepTime, StepTime
from reference_engine.model import ConfigError, EngineError, NoProgressError, WorkloadError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import LABELS, Request
from reference_engine.replay.clock import kv_usage
from reference_engine.replay.plain import drive, make_scheduler
from reference_engine.replay.results import REQUEST_SCHEMA, STEP_SCHEMA, make_replay, replay, weighted_percentiles
from reference_engine.v1.profile import PROFILES, profile_of
from reference_engine.v1.scheduler import V1Scheduler
from tests.engine.workloads import LINEAR, Roofline, cases

SECOND = LinearStepTime(1.0, 0.01, 0.0, 0.0)  # a step takes 1 s and 10 ms a prefill token
CALM = EngineConfig(num_blocks=1001, async_scheduling=False)


# ---- every step ----


@settings(max_examples=200, deadline=None)
@given(case=cases(max_model_len=64))
def test_every_step_keeps_to_budget_seats_and_blocks(case: Any) -> None:
    config, requests, _sharing = case
    scheduler = V1Scheduler(config)
    turns = drive(scheduler, requests)
    delivered: Counter[Any] = Counter()
    finished: Counter[Any] = Counter()
    try:
        for turn in turns:
            step = turn.step
            if step is not None:
                assert sum(step.scheduled.values()) <= config.max_num_batched_tokens
                assert len(step.running) <= config.max_num_seqs
                assert all(tokens > 0 for tokens in step.scheduled.values())
                assert 0 <= step.free_blocks < config.num_blocks
                everybody = [*step.running, *step.waiting]
                assert len(everybody) == len(set(everybody))  # in one place only
                if step.preempted and scheduler.profile.victim_rollback == "full":
                    assert not step.new and not step.resumed  # noqa: PT018
                    assert not set(step.preempted) & set(step.scheduled)
            if turn.outcome is not None:
                assert len(turn.outcome.tokens) == len(set(turn.outcome.tokens))
                delivered.update(turn.outcome.tokens)
                finished.update(turn.outcome.finished)
    except EngineError:
        assume(False)
    assert scheduler.pool.num_free_blocks == config.num_blocks - 1
    assert finished == Counter(r.id for r in requests)
    for request in requests:  # nobody is lost, nobody gets a token twice
        wanted = min(request.output_tokens, config.max_model_len - request.prompt_tokens)
        assert delivered[request.id] == wanted


# ---- the ledger ----


@settings(max_examples=150, deadline=None)
@given(case=cases(), model=st.sampled_from([LINEAR, Roofline()]))
def test_the_ledger_adds_up_and_time_to_first_token_stands(case: Any, model: StepTime) -> None:
    config, requests, _sharing = case
    try:
        result = replay(config, requests, model, plain=True)
    except EngineError:
        assume(False)
    assert [r.request.id for r in result.records] == [r.id for r in requests]
    for record in result.records:
        assert record.end is not None
        assert all(part >= 0 for part in record.ledger)
        assert sum(record.ledger) == record.end - record.arrival
        if record.status == "finished":
            assert record.first_token is not None
            assert record.arrival < record.first_token <= record.end
        parts = dict(zip(LABELS, record.ledger, strict=True))
        if not record.preemptions:
            assert parts["preempted_wait"] == parts["recompute"] == record.recomputed == 0
    again = replay(config, requests, model, plain=True)
    assert [r.ledger for r in again.records] == [r.ledger for r in result.records]


def _parts(result: Any, request_id: int) -> dict[str, float]:
    """The ledger's parts that are not zero, in seconds."""
    row = result.requests().filter(request_id=str(request_id)).row(0, named=True)
    return {label: round(row[label], 9) for label in LABELS if row[label]}


def test_a_lone_request() -> None:
    result = replay(CALM, [Request(0, 100, 4, arrival_s=5.0)], SECOND)
    assert _parts(result, 0) == {"prefill": 2.0, "decode": 3.0}
    row = result.requests().row(0, named=True)
    assert (row["ttft_s"], row["e2e_s"], row["finish_s"]) == (2.0, 5.0, 10.0)


def test_interference_is_the_time_that_others_prefill_takes() -> None:
    result = replay(CALM, [Request(0, 100, 4), Request(1, 50, 2, arrival_s=2.5)], SECOND)
    # steps: prefill of 0 (2 s), decode (1 s), decode and prefill of 1 (1.5 s), decode of both (1 s)
    assert _parts(result, 0) == {"prefill": 2.0, "decode": 3.0, "interference": 0.5}
    assert _parts(result, 1) == {"queued_for_budget": 0.5, "prefill": 1.5, "decode": 1.0}


def test_waiting_for_a_seat() -> None:
    config = EngineConfig(num_blocks=1001, max_num_seqs=1)
    result = replay(config, [Request(0, 100, 3), Request(1, 100, 1, arrival_s=1.0)], SECOND)
    assert _parts(result, 1) == {"queued_for_budget": 1.0, "queued_for_seat": 2.0, "prefill": 2.0}


def test_waiting_for_the_token_budget() -> None:
    config = EngineConfig(num_blocks=1001, max_num_batched_tokens=100)
    result = replay(config, [Request(0, 100, 1), Request(1, 100, 1)], SECOND)
    assert _parts(result, 1) == {"queued_for_budget": 2.0, "prefill": 2.0}


def test_waiting_for_blocks() -> None:
    config = EngineConfig(num_blocks=9, block_size=16, enable_prefix_caching=False)
    result = replay(config, [Request(0, 100, 3), Request(1, 100, 1)], SECOND)
    assert _parts(result, 1) == {"queued_for_kv": 4.0, "prefill": 2.0}


def test_a_preempted_request_waits_and_recomputes() -> None:
    config = EngineConfig(num_blocks=5, block_size=16, enable_prefix_caching=False, version="0.33.0")
    result = replay(config, [Request(0, 32, 12), Request(1, 30, 8)], SECOND)
    # 0 and 1 hold two blocks each; the second step takes 0 to a third and evicts 1, which has one token by then
    first, second = result.requests().rows(named=True)
    assert (second["preemptions"], second["recomputed_tokens"]) == (1, 30)
    assert second["ttft_s"] == pytest.approx(1.62)
    assert _parts(result, 1) == {
        "prefill": 1.3, "interference": 0.32, "preempted_wait": 11.0, "recompute": 1.31, "decode": 6.0,
    }  # fmt: skip
    assert first["preemptions"] == 0


def test_a_resumed_request_finds_its_own_blocks() -> None:
    config = EngineConfig(num_blocks=7, block_size=16, max_num_seqs=2)
    result = replay(config, [Request(0, 48, 30), Request(1, 46, 20)], SECOND)
    without = replay(EngineConfig(num_blocks=7, enable_prefix_caching=False, max_num_seqs=2), [Request(0, 48, 30), Request(1, 46, 20)], SECOND)  # fmt: skip
    assert without.summary().preemptions >= 1
    assert result.summary().recomputed_tokens < without.summary().recomputed_tokens


def test_asynchronous_scheduling_starts_a_batch_later() -> None:
    config = EngineConfig(num_blocks=1001, async_scheduling=True)
    result = replay(config, [Request(0, 100, 6), Request(1, 50, 1, arrival_s=2.5)], SECOND)
    # decided while the batch from 3 s to 4 s is under way, whose successor is already decided
    assert _parts(result, 1) == {"queued_for_budget": 1.5, "prefill": 1.5}
    assert _parts(result, 0) == {"prefill": 2.0, "decode": 5.0, "interference": 0.5}


def test_an_abort_frees_blocks_and_closes_the_ledger() -> None:
    config = EngineConfig(num_blocks=9, block_size=16, enable_prefix_caching=False)
    requests = [Request(0, 100, 20, abort_s=4.5), Request(1, 100, 1)]
    result = replay(config, requests, SECOND)
    aborted, other = result.requests().rows(named=True)
    assert (aborted["status"], aborted["finish_s"], aborted["end_s"]) == ("aborted", None, 5.0)
    assert (other["status"], other["queued_for_kv"]) == ("finished", 5.0)
    assert result.summary().finished == 1


# ---- results ----


def test_frames_have_their_schemas() -> None:
    result = replay(CALM, [Request("a", 100, 4), Request("b", 10, 4)], LINEAR)
    assert dict(result.requests().schema) == REQUEST_SCHEMA
    steps = result.steps()
    assert dict(steps.schema) == STEP_SCHEMA
    assert steps["tokens"].sum() == 8
    assert steps["usage"].to_list() == [kv_usage(CALM, free) for free in steps["free_end"]]


@given(weights=st.dictionaries(st.integers(0, 1000), st.integers(1, 9), min_size=1, max_size=30), q=st.floats(0, 100))
def test_percentiles_of_gaps_are_those_of_the_written_out_list(weights: dict[int, int], q: float) -> None:
    values = [value for value, count in weights.items() for _ in range(count)]
    assert weighted_percentiles([weights], (q,)) == [pytest.approx(float(np.percentile(values, q)))]


def test_the_summary_counts_from_first_arrival_to_last_finish() -> None:
    requests = [Request(0, 100, 5, arrival_s=10.0), Request(1, 100, 5, arrival_s=20.0)]
    summary = replay(CALM, requests, SECOND).summary()
    assert summary.duration_s == 16.0
    assert summary.generation_tokens_per_s == 10 / 16
    assert summary.itl_s == {"p50": 1.0, "p99": 1.0}
    assert summary.ttft_s["p99"] == summary.ttft_s["p50"] == 2.0


# ---- bad input ----


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"num_blocks": 1}, "null block"),
        ({"num_blocks": 9, "block_size": 0}, "block_size"),
        ({"num_blocks": 9, "max_num_seqs": 0}, "max_num_seqs"),
        ({"num_blocks": 9, "max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"num_blocks": 9, "policy": "lottery"}, "fcfs or priority"),
        ({"num_blocks": 9, "watermark": 1.5}, "watermark"),
        ({"num_blocks": 9, "engine": "sglang"}, "not known"),
    ],
)
def test_a_configuration_no_engine_could_run(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replay(EngineConfig(**config), [Request(0, 4, 4)], LINEAR)


@pytest.mark.parametrize(
    ("requests", "says"),
    [
        ([], "no request"),
        ([Request(3, 4, 4), Request(3, 4, 4)], "3 is there twice"),
        ([Request(3, 0, 4)], "request 3 must have"),
        ([Request(3, 4, 0)], "request 3 must have"),
        ([Request(3, 4, 4, arrival_s=math.nan)], "arrival_s nan"),
        ([Request(3, 4, 4, arrival_s=-1.0)], "arrival_s -1.0"),
        ([Request(3, 4, 4, arrival_time=math.inf)], "arrival_time inf"),
        ([Request(3, 4, 4, arrival_s=2.0, abort_s=1.0)], "aborted before"),
        ([Request(3, 9000, 4)], "shorter than max_model_len, 8192"),
        ([Request(3, 8192, 4)], "shorter than max_model_len, 8192"),
        ([Request(3, 4, 4, prompt=(("a", 3),))], "prompt pieces of 3 tokens"),
    ],
)
def test_a_workload_that_breaks_a_rule(requests: list[Request], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        replay(CALM, requests, LINEAR)


@pytest.mark.parametrize("plain", [True, False])
def test_an_id_that_is_added_while_it_runs(plain: bool) -> None:
    running = make_replay(CALM, LINEAR, plain=plain)
    running.add(Request(3, 4, 4))
    running.add(Request(3, 4, 4, arrival_s=0.005))
    with pytest.raises(WorkloadError, match="3 is there twice"):
        running.advance(math.inf)


def test_a_step_time_must_be_a_time() -> None:
    with pytest.raises(ConfigError, match="-1"):
        replay(CALM, [Request(0, 4, 4)], LinearStepTime(-1.0, 0.0, 0.0, 0.0))


def test_a_request_that_never_fits_ends_the_run_and_is_named() -> None:
    config = EngineConfig(num_blocks=4, block_size=16)
    for plain in (True, False):
        with pytest.raises(NoProgressError, match="request 7 cannot progress"):
            replay(config, [Request(7, 100, 4), Request(8, 4, 4)], LINEAR, plain=plain)


def test_an_aborted_request_no_longer_blocks_the_others() -> None:
    config = EngineConfig(num_blocks=4, block_size=16)
    result = replay(config, [Request(7, 100, 4, abort_s=1.0), Request(8, 4, 4)], LINEAR)
    assert [r.status for r in result.records] == ["aborted", "finished"]


def test_a_token_budget_below_one_block_works_as_in_the_real_scheduler() -> None:
    config = EngineConfig(num_blocks=40, max_num_batched_tokens=5)
    assert replay(config, [Request(0, 100, 4)], LINEAR).summary().finished == 1


def test_output_ends_at_the_model_length() -> None:
    config = EngineConfig(num_blocks=40, max_model_len=50)
    assert replay(config, [Request(0, 40, 100)], LINEAR).records[0].output == 10


# ---- versions ----


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.6.0", "0.0.0"), ("0.8.5", "0.0.0"), ("0.9.1", "0.0.0"), ("0.9.2", "0.9.2"), ("0.10.1.1", "0.9.2"),
        ("0.10.2", "0.10.2"), ("0.11.0", "0.10.2"), ("0.11.1rc6", "0.11.1"), ("0.13.0", "0.12.0"),
        ("0.18.1", "0.12.0"), ("0.20.2", "0.19.0"), ("0.23.0", "0.23.0"), ("0.27.1", "0.24.0"),
        ("0.28.0", "0.28.0"), ("0.30.1", "0.28.0"), ("v0.31.0", "0.31.0"), ("0.32.1", "0.32.0"), ("0.33.0", "0.33.0"),
        ("1.0", "0.33.0"), ("dev", "0.33.0"), ("0.24.1.dev3+g1a2b3c", "0.24.0"),
    ],
)  # fmt: skip
def test_the_profile_of_a_version(version: str, since: str) -> None:
    assert profile_of(version).since == since
    assert profile_of(version) in PROFILES


def test_the_scheduler_of_an_engine() -> None:
    assert isinstance(make_scheduler(CALM), V1Scheduler)
