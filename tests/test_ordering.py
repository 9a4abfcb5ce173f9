"""Ordering or capacity: another order of the same work helps some at the cost of others."""

from __future__ import annotations

from logscope.inference.step_times import StepCost
from logscope.inference.workloads import Workload
from logscope.ordering import compare_orders
from reference_engine.config import EngineConfig
from reference_engine.workload import Request

COST = StepCost(0.02, 1e-4, 5e-4, 0.0)


def workload(gap_s: float) -> Workload:
    requests = tuple(Request(i, 100, 400 if i % 2 else 20, arrival_s=i * gap_s) for i in range(80))
    return Workload(requests, COST)


def engine(version: str = "0.32.0", seats: int = 4) -> EngineConfig:
    return EngineConfig(
        num_blocks=2000, max_num_seqs=seats, version=version, enable_prefix_caching=False
    )


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
