"""More work than a server can do: told from what only looks like it, what a bound for the queue would turn away, and which limit holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logscope.diagnosis.advice import overloaded
from logscope.diagnosis.candidates import Candidate, Offered, candidates, queue_caps
from logscope.server.engines import EngineFacts, KvCache
from reference_engine.model.config import EngineConfig
from reference_engine.sketch.request import SketchRules
from tests.logs import analysed, stats_v1, v1_start


def replayed(duration_s: float, ttft_p50: float, e2e_p50: float) -> dict[str, Any]:
    return {"duration_s": duration_s, "ttft_s": {"p50": ttft_p50}, "e2e_s": {"p50": e2e_p50}}


def facts(version: str | None) -> EngineFacts:
    return EngineFacts(0, 0, 0, "V1", version, None, None, {}, {}, KvCache())


EVEN = Offered([float(i) for i in range(100)], [100.0] * 100, running=4, served_per_s=0.5, prompt_tps=50.0)


def test_a_backlog_long_after_the_last_arrival_is_overload() -> None:
    assert overloaded(replayed(200, 50, 60), [replayed(180, 40, 60)], arrivals_s=100)
    assert not overloaded(replayed(110, 5, 15), [replayed(108, 5, 15)], arrivals_s=100)
    assert not overloaded(replayed(200, 50, 60), [], arrivals_s=100)


def test_a_setting_that_ends_the_backlog_is_no_overload() -> None:
    """As on a server whose max_num_seqs held requests back: with more of them nobody waits, though the last ones still write their answers."""
    assert not overloaded(replayed(200, 50, 90), [replayed(130, 0.1, 30)], arrivals_s=100)


def test_the_time_of_an_answer_is_no_backlog() -> None:
    assert not overloaded(replayed(60, 0.2, 40), [replayed(60, 0.2, 40)], arrivals_s=30)


def changes(found: list[Candidate]) -> dict[str, int]:
    return {name: value for candidate in found for name, value in candidate.changes.items()}


def test_a_queue_is_bounded_by_what_a_client_would_wait() -> None:
    """Ten seconds of 0.5 requests/s beside the 4 that run, and of 50 prompt tokens/s."""
    found = queue_caps(facts("0.33.0"), EVEN, target_ttft_s=10)
    assert changes(found) == {"max_num_queued_reqs": 9, "max_num_queued_tokens": 500}
    for candidate in found:
        assert (
            "4" in candidate.trade
        )  # of 100 requests at twice the rate that is served half are turned away, less those in flight
        assert "HTTP 503" in candidate.why


def test_half_of_twice_the_load_is_turned_away() -> None:
    (by_requests, _) = queue_caps(facts("0.33.0"), EVEN, target_ttft_s=10)
    share = float(by_requests.trade.split("About ")[1].split(" %")[0])
    assert 40 <= share <= 50


def test_a_cap_lets_the_longest_prompt_in() -> None:
    load = Offered([0.0, 1.0], [10.0, 9000.0], running=1, served_per_s=0.1, prompt_tps=20.0)
    assert changes(queue_caps(facts("0.33.0"), load))["max_num_queued_tokens"] == 9000


def test_a_cap_holds_for_all_engines_of_a_server() -> None:
    two = Offered(EVEN.arrivals, EVEN.prompts, EVEN.running, EVEN.served_per_s, EVEN.prompt_tps, engines=2)
    assert changes(queue_caps(facts("0.33.0"), two)) == {"max_num_queued_reqs": 18, "max_num_queued_tokens": 1000}


@pytest.mark.parametrize("version", ["0.28.0", "0.8.5", None])
def test_no_flag_that_the_version_lacks(version: str | None) -> None:
    assert queue_caps(facts(version), EVEN) == []


ACTIVE = ", 'max_num_active_seqs': 4"


def test_the_lower_limit_of_running_requests_is_the_one_that_is_named(tmp_path: Path) -> None:
    """`max_num_active_seqs` (0.31) holds requests back below `max_num_seqs`: it is what was reached, and what to raise."""
    lines = [stats_v1(10 * i, 4, 6, 40.0) for i in range(1, 9)]
    (engine,) = analysed(tmp_path, [*v1_start(version="0.32.0", more=ACTIVE), *lines]).engines
    assert engine.verdict == "seat-limit"
    (title,) = [f.title for f in engine.findings if f.id == "seat-limit"]
    assert title.startswith("max_num_active_seqs (4) was reached")
    raised = candidates(engine.context, "seat-limit", out_of_memory=False)
    assert {"max_num_active_seqs": 8} in [c.changes for c in raised]
    # the one may not be above the other
    assert {"max_num_active_seqs": 16, "max_num_seqs": 16} in [c.changes for c in raised]


@pytest.mark.parametrize(("version", "said"), [("0.32.0", True), ("0.30.0", False)])
def test_fewer_running_requests_can_be_had_with_the_same_cuda_graphs(tmp_path: Path, version: str, said: bool) -> None:
    lines = [stats_v1(10 * i, 6, 4, 99.0) for i in range(1, 9)]
    (engine,) = analysed(tmp_path, [*v1_start(version=version, seats=64), *lines]).engines
    fewer = [c for c in candidates(engine.context, "kv-capacity", out_of_memory=False) if "max_num_seqs" in c.changes]
    assert fewer
    assert all(("--max-num-active-seqs" in c.why) == said for c in fewer)


@pytest.mark.parametrize(("version", "most"), [("0.31.0", 4), ("0.30.0", 8)])
def test_the_approximate_engine_runs_no_more_than_the_exact_one(version: str, most: int) -> None:
    config = EngineConfig(num_blocks=100, max_num_seqs=8, max_num_active_seqs=4, version=version)
    assert SketchRules.of(config).max_num_running_reqs == most
