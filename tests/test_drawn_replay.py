"""A part of a replay, replayed once more to be drawn: it goes as the whole one went."""

from __future__ import annotations

import polars as pl
import pytest

from logscope.diagnosis import spikes as drawn_replay
from logscope.diagnosis.spikes import lanes, latencies_under, since_idle
from logscope.inference.prediction import Samples, Workload
from logscope.server.scenario import Scenario
from reference_engine.cost.step_time import LinearStepTime, StepCost
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.replay.results import replay

CONFIG = EngineConfig(num_blocks=60, block_size=16, max_num_seqs=8, enable_prefix_caching=False)
STEP = LinearStepTime(0.02, 1e-4, 1e-3, 1e-6)
# Three bursts, an idle minute between each and the next.
LOAD = tuple(
    Request(10 * burst + i, prompt_tokens=80, output_tokens=100, arrival_s=60.0 * burst + 0.1 * i)
    for burst in range(3)
    for i in range(10)
)


def samples() -> Samples:
    cost = StepCost(STEP.base_s, STEP.per_prefill_token_s, STEP.per_decode_s, STEP.per_kv_token_s)
    return Samples((Workload(LOAD, cost),), CONFIG)


@pytest.fixture(scope="module")
def whole() -> pl.DataFrame:
    return replay(CONFIG, LOAD, STEP).requests()


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [(61, 70, 10, 19), (60, 60.45, 10, 14), (62, 121, 10, 29), (0, 1, 0, 9), (50, 59, 0, 9)],
)
def test_a_part_begins_where_the_engine_was_empty(
    start: float, end: float, first: int, last: int, whole: pl.DataFrame
) -> None:
    chosen = since_idle(whole, start, end)
    assert chosen == {str(i) for i in range(first, last + 1)}


def test_of_too_many_the_latest_are_kept(whole: pl.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_replay, "MAX_TOKENS", 350)
    assert since_idle(whole, 61, 70) == {"17", "18", "19"}


def test_the_part_goes_as_the_whole_went(whole: pl.DataFrame) -> None:
    chosen = since_idle(whole, 61, 70)
    phases = lanes(samples(), chosen)
    rows = {row["request_id"]: row for row in whole.iter_rows(named=True)}
    assert {str(p.request_id) for p in phases} == chosen
    for request in chosen:
        lane = [p for p in phases if str(p.request_id) == request]
        assert lane[0].start_s == pytest.approx(rows[request]["arrival_s"])
        assert max(p.end_s for p in lane) == pytest.approx(rows[request]["end_s"])
        preempted = sum(p.name == "preempted" for p in lane)
        assert preempted == rows[request]["preemptions"]
    assert any(p.name == "recompute" for p in phases)


@pytest.mark.parametrize("seats", [2, 8])
def test_latencies_under_a_scenario_are_those_of_its_replay(seats: int) -> None:
    config = EngineConfig(num_blocks=60, block_size=16, max_num_seqs=seats, enable_prefix_caching=False)
    found = latencies_under(samples(), Scenario(config, {"max_num_seqs": seats}))
    assert found["e2e_s"].to_list() == replay(config, LOAD, STEP).requests()["e2e_s"].to_list()
