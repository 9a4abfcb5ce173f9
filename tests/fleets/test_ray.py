"""The same tasks on a Ray cluster of two nodes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logscope.fleets.executors import RayCluster
from logscope.fleets.reading import read_fleet
from logscope.log_frames import read_log
from logscope.times import Span
from parsers.sources import expand
from tests.conftest import ROOT
from tests.fleets.logs import fleet
from tests.fleets.test_parallel import assert_same, square

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'logscope[ray]')")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("PYTHONPATH", str(ROOT))
        arguments = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args=arguments)
        found.add_node(num_cpus=1, object_store_memory=80 << 20)
        yield found
        if ray.is_initialized():
            ray.shutdown()
        found.shutdown()


def where(_: int) -> str:
    import time

    time.sleep(0.3)
    return f"{ray.get_runtime_context().get_node_id()}:{os.getpid()}"


def test_a_fleet_on_two_nodes(cluster: Any, tmp_path: Path) -> None:
    names = fleet(tmp_path)
    expected = read_log(expand(names), Span(), year=2026)
    with RayCluster(cluster.address) as executor:
        assert executor.width == 2
        assert list(executor.map(square, range(5))) == [0, 1, 4, 9, 16]
        with pytest.raises(ValueError, match="no root"):
            list(executor.map(square, [-1]))
        nodes = {place.partition(":")[0] for place in executor.map(where, range(8))}
        assert len(nodes) == 2
        assert_same(read_fleet(expand(names), Span(), executor, year=2026), expected)
