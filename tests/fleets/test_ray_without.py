"""What `--on ray` says where there is no Ray, no cluster, or none that can run anything. The cluster here is a stand-in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from logscope.commands.cli import cli
from logscope.execution.executors import ExecutorError, RayCluster, _call
from tests.conftest import ROOT, SAMPLES
from tests.fleets.test_parallel import square


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class RaySystemError(RayError):
    pass


class Stand(SimpleNamespace):
    """As much of Ray as is used: a task is done when it is asked for."""

    def __init__(self, **given: Any) -> None:
        super().__init__(
            is_initialized=lambda: False,
            init=lambda **_: None,
            shutdown=lambda: None,
            cluster_resources=lambda: {"CPU": 2.0},
            put=lambda value: value,
            wait=lambda refs, timeout: (refs, []),
            exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, RaySystemError=RaySystemError),
        )
        self.__dict__.update(given)

    def remote(self, **_: Any) -> Callable[[Any], Any]:
        return lambda function: SimpleNamespace(remote=lambda *args: lambda: function(*args))

    def get(self, task: Callable[[], Any]) -> Any:
        try:
            return task()
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error


def on(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    monkeypatch.setitem(sys.modules, "ray", stand)
    monkeypatch.setattr("logscope.execution.executors._LOOK_S", 0.0)
    return RayCluster(patience_s=0.0)


def test_a_cluster_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with on(Stand(), monkeypatch) as executor:
        assert list(executor.map(square, range(6))) == [n * n for n in range(6)]
        with pytest.raises(ValueError, match="no root"):
            list(executor.map(square, [-1]))


def test_a_cluster_without_a_processor_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(wait=lambda refs, timeout: ([], refs))
    executor = on(stand, monkeypatch)
    stand.cluster_resources = dict
    with pytest.raises(ExecutorError, match="no node of the Ray cluster is left"):
        list(executor.map(square, [1]))


def lost(task: object) -> None:
    raise RayError("The actor died\nof many things")


def unknown(task: object) -> None:
    raise RayTaskError(RaySystemError("System error: No module named 'logscope'"))


@pytest.mark.parametrize(
    ("get", "said"),
    [
        (lost, "the Ray cluster lost a task: The actor died$"),
        (unknown, "a node of the Ray cluster cannot run logscope .*No module named 'logscope'"),
    ],
)
def test_a_cluster_that_loses_tasks(get: Callable[[object], None], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExecutorError, match=said):
        list(on(Stand(get=get), monkeypatch).map(square, [1]))


def lacking(number: int) -> None:
    raise ModuleNotFoundError("No module named 'polars'")


def test_a_node_without_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExecutorError, match="install logscope there"):
        list(on(Stand(), monkeypatch).map(lacking, [1]))


def test_another_version_on_a_node_is_refused() -> None:
    with pytest.raises(ExecutorError, match=r"has logscope .*, this one 0.0.0"):
        _call("0.0.0", square, 1)


def refused(**_: Any) -> None:
    raise ConnectionError("Could not find any running Ray instance.\nMore of it")


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ExecutorError, match=r"no Ray cluster answers .*; start one"):
        on(Stand(init=refused), monkeypatch)


def test_nobody_listens_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which Ray itself would make sure for minutes."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ExecutorError, match=r"no Ray cluster answers at 127.0.0.1:1 .*; start one"):
        on(Stand(init=pytest.fail), monkeypatch)


def test_without_ray_the_command_says_what_to_install() -> None:
    without = "import sys; sys.modules['ray'] = None; from logscope.commands.cli import main; main()"
    log = str(SAMPLES / "v1-calm.log")
    run = subprocess.run(
        [sys.executable, "-c", without, "analyze", log, "--on", "ray"],
        capture_output=True,
        cwd=ROOT,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 3
    assert run.stdout == ""
    assert run.stderr == "logscope: Ray is not installed; install it with: pip install 'logscope[ray]'\n"


def test_processes_or_a_cluster_not_both() -> None:
    done = CliRunner().invoke(cli, ["analyze", "x.log", "--on", "ray", "--jobs", "2"])
    assert done.exit_code == 2
    assert "not both" in done.stderr
