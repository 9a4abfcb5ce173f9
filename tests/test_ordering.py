"""Ordering or capacity: another order of the same work helps some at the cost of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logscope.diagnosis.findings.replayed import compare_orders, ordering_finding
from logscope.inference.prediction import Samples, Workload
from logscope.server.engines import EngineFacts, KvCache
from reference_engine.cost.step_time import StepCost
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request

from .running import invoke

COST = StepCost(0.02, 1e-4, 5e-4, 0.0)


def workload(gap_s: float) -> Workload:
    requests = tuple(Request(i, 100, 400 if i % 2 else 20, arrival_s=i * gap_s) for i in range(80))
    return Workload(requests, COST)


def engine(version: str = "0.32.0", seats: int = 4) -> EngineConfig:
    return EngineConfig(num_blocks=2000, max_num_seqs=seats, version=version, enable_prefix_caching=False)


def test_short_requests_first_helps_them_at_equal_work() -> None:
    orders = compare_orders(workload(0.5), engine())
    assert orders is not None
    now, then = orders
    assert then.short_p99_s < 0.5 * now.short_p99_s
    assert then.long_p99_s >= now.long_p99_s
    assert abs(then.duration_s - now.duration_s) < 0.05 * now.duration_s


def test_without_a_queue_the_order_changes_nothing() -> None:
    orders = compare_orders(workload(10.0), engine())
    assert orders is not None
    assert orders[0] == orders[1]


def test_a_version_whose_priority_policy_is_broken_is_not_tried() -> None:
    assert compare_orders(workload(0.5), engine("0.10.2")) is None


def facts(policy: str) -> EngineFacts:
    return EngineFacts(0, 0, 0, "V1", "0.32.0", None, None, {"policy": policy}, {}, KvCache())


def test_another_order_is_offered_to_who_serves_first_come_first_served() -> None:
    (found,) = ordering_finding(facts("fcfs"), Samples((workload(0.5),), engine()))
    assert "Priority scheduling would only redistribute the waiting" in found.title


def test_it_is_not_offered_to_who_serves_by_priority_already() -> None:
    assert ordering_finding(facts("priority"), Samples((workload(0.5),), engine())) == []


@pytest.mark.parametrize(("version", "said"), [("0.32.0", True), ("0.9.2", True), ("0.9.1", False), ("0.8.5", False)])
def test_priorities_are_in_no_log_and_the_answer_says_so(
    version: str, said: bool, sample_under_pressure: Path, tmp_path: Path
) -> None:
    sample = sample_under_pressure.read_text(encoding="utf-8")
    assert sample.count("'max_num_seqs': 48") == 1
    text = sample.replace("'max_num_seqs': 48", "'max_num_seqs': 48, 'scheduling_policy': 'priority'")
    log = tmp_path / "server.log"
    log.write_text(text.replace("0.32.0", version), encoding="utf-8")
    document = json.loads(invoke("analyze", log, "--no-replay", "--json", "-").stdout)
    titles = [f["title"] for f in document["findings"] if f["id"] == "coverage"]
    assert any("serves by priority" in title for title in titles) == said
