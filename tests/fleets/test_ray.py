"""The same tasks on a Ray cluster of two nodes of this machine, as a user runs them, and what is seen when a part of it goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from logscope.execution.executors import RayCluster
from logscope.execution.fleet import read_fleet
from logscope.log.frames import read_log
from logscope.log.span import Reading, Span
from parsers.sources.source import expand
from tests.conftest import ROOT, SAMPLES
from tests.fleets.logs import fleet
from tests.fleets.test_beside import eventually
from tests.fleets.test_parallel import square
from tests.readings import assert_same

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'logscope[ray]')")

STORE = 80 << 20
LOST = b"damaged.log.zst: the Zstandard stream is cut short"
UNREADABLE = b"unreadable.log.zst: "


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_worker_niceness", "0")  # on a busy machine its workers would starve
        patched.setenv("PYTHONPATH", str(ROOT))
        arguments = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args=arguments)
        found.add_node(num_cpus=1, object_store_memory=STORE)
        patched.setenv("RAY_ADDRESS", found.address)
        yield found
        if ray.is_initialized():
            ray.shutdown()
        found.shutdown()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real logs below one folder, compressed: two that are whole, one cut short, one that cannot be opened, one of another kind."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "logs" / "pods").mkdir(parents=True)
    for place, sample, start, end in (
        ("pods/a.log.zst", "v1-under-pressure.log", 420, 620),
        ("b.log.zst", "v1-calm.log", 60, 260),
        ("pods/damaged.log.zst", "v1-under-pressure.log", 60, 330),
    ):
        lines = (SAMPLES / sample).read_bytes().splitlines(keepends=True)
        text = b"".join(lines[:60] + lines[start:end])
        writer = zstandard.ZstdCompressor().compressobj()
        pressed = b"".join(
            writer.compress(text[i : i + 8192]) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
            for i in range(0, len(text), 8192)
        )
        pressed = pressed[:-2000] if "damaged" in place else pressed + writer.flush()
        (folder / "logs" / place).write_bytes(pressed)
    (folder / "logs" / "unreadable.log.zst").symlink_to("unreadable.log.zst")
    (folder / "logs" / "not-asked-for.log").write_text("no log\n")
    return folder


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "logscope", "analyze", "logs/**/*.log.zst", *more]


def analyzed(folder: Path, *more: str) -> dict[str, Any]:
    """The command as a user types it, and its document."""
    run = subprocess.run(
        command(*more, "--json", "answer.json"), cwd=folder, capture_output=True, timeout=300, check=False
    )
    assert run.returncode == 4, run.stderr
    return told(folder, run.stderr)


def told(folder: Path, stderr: bytes) -> dict[str, Any]:
    """What was lost is said in a line each, and nothing else."""
    lines = sorted(stderr.splitlines())
    assert [b"damaged" in lines[0], b"unreadable" in lines[1], len(lines)] == [True, True, 2], lines
    found: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    (folder / "answer.json").unlink()
    return found


@pytest.fixture(scope="module")
def plain(logs: Path) -> dict[str, Any]:
    """The answer of one process."""
    return analyzed(logs, "--jobs", "1")


def where(_: int) -> str:
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
        assert_same(read_fleet(expand(names), Reading(year=2026), executor), expected)


def test_as_a_user_types_it(cluster: Any, logs: Path, plain: dict[str, Any]) -> None:
    assert len(plain["engines"]) == 3
    assert sum(engine["replay"] is not None for engine in plain["engines"]) == 2
    assert plain["verdict"] == "kv-capacity"
    assert plain["advice"]
    assert [s["source"].rpartition("/")[2] for s in plain["input"]["skipped_sources"]] == [
        "damaged.log.zst",
        "unreadable.log.zst",
    ]
    assert analyzed(logs, "--jobs", "2") == plain
    assert analyzed(logs, "--on", "ray") == plain


def busy() -> bool:
    """Whether a task runs in the cluster that the test has joined."""
    have, free = ray.cluster_resources(), ray.available_resources()
    return bool(free.get("CPU", 0) < have["CPU"])


@pytest.fixture
def joined(cluster: Any) -> Iterator[Any]:
    """The test looks on from within the cluster."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()


def started(logs: Path) -> subprocess.Popen[bytes]:
    """A run on the cluster, its first tasks under way."""
    assert eventually(lambda: not busy(), 30)
    run = subprocess.Popen(
        command("--on", "ray", "--json", "answer.json"),
        cwd=logs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert eventually(busy, 60)
    return run


def test_ctrl_c_ends_it_and_the_cluster_is_free_again(joined: Any, logs: Path) -> None:
    run = started(logs)
    os.killpg(run.pid, signal.SIGINT)
    out, stderr = run.communicate(timeout=60)
    assert (run.returncode, out, stderr) == (130, b"", b"")
    assert eventually(lambda: not busy(), 60)


def test_a_node_that_dies_costs_time_and_nothing_else(joined: Any, logs: Path, plain: dict[str, Any]) -> None:
    node = joined.add_node(num_cpus=2, object_store_memory=STORE)
    run = started(logs)
    time.sleep(1.0)
    joined.remove_node(node, allow_graceful=False)
    _, stderr = run.communicate(timeout=200)
    assert run.returncode == 4, stderr
    assert told(logs, stderr) == plain
