"""Processes beside this one: they change how long an answer takes, never the answer; they never outlive this one."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from logscope.analysis import analyze
from logscope.execution.executors import Beside, ExecutorError, Processes, Serial, executor_for, worker_pool
from logscope.execution.fleet import analyze_fleet
from logscope.inference.result import Effort
from logscope.inference.windows import estimate
from logscope.inference.windows.lengths import OutputShape
from logscope.inference.windows.particles import Node, Particle, packed_particles, unpacked_particles
from logscope.log.frames import LogFrames, read_log
from logscope.log.span import Span
from logscope.output.json import analysis_document
from logscope.server.engines import engine_logs
from parsers.sources.source import expand
from reference_engine.cost.step_time import StepCost
from reference_engine.model.config import EngineConfig
from reference_engine.sketch.engine import SketchReplay
from reference_engine.sketch.request import SketchRules
from tests.conftest import ROOT, SAMPLES
from tests.fleets.test_parallel import square


@pytest.fixture(scope="module")
def short_log(tmp_path_factory: pytest.TempPathFactory) -> LogFrames:
    """A real server's start and first minutes."""
    text = (SAMPLES / "v1-under-pressure.log").read_text().splitlines(keepends=True)
    path = tmp_path_factory.mktemp("logs") / "server.log"
    path.write_text("".join(text[:330]))
    return read_log(expand([str(path)]), Span(), year=2026)


def slowly(number: int) -> tuple[int, int]:
    time.sleep(0.1)
    return number, os.getpid()


def falling(number: int) -> int:
    """Whoever is not the first process dies of it."""
    import multiprocessing

    if multiprocessing.parent_process() is not None:
        os._exit(1)
    time.sleep(0.05)
    return number


def test_work_that_is_long_is_shared_in_order() -> None:
    with Beside(others=1, patience_s=0.0) as executor:
        done = list(executor.map(slowly, range(20)))
        assert [number for number, _ in done] == list(range(20))
        assert len({process for _, process in done}) == 2
        with pytest.raises(ValueError, match="no root"):
            list(executor.map(square, [1, 2, -1, 3]))
        assert list(executor.map(square, range(7))) == [n * n for n in range(7)]


def test_work_that_is_short_stays_here() -> None:
    with Beside(others=3, patience_s=60) as executor:
        assert list(executor.map(square, range(7))) == [n * n for n in range(7)]
        assert executor._pool is None


def test_a_process_that_dies_leaves_its_work_to_this_one() -> None:
    with Beside(others=2, patience_s=0.0) as executor:
        for _ in range(2):
            assert list(executor.map(falling, range(8))) == list(range(8))


def test_where_no_process_can_be_started_this_one_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(jobs: int) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("logscope.execution.executors.worker_pool", refused)
    with Beside(others=1, patience_s=0.0) as executor:
        assert [n for n, _ in executor.map(slowly, range(4))] == list(range(4))


def test_which_executor_answers_which_options() -> None:
    assert isinstance(executor_for(), Beside)
    assert isinstance(executor_for(1), Serial)
    assert isinstance(executor_for(2), Processes)


def test_who_replays_does_not_change_the_answer(short_log: LogFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of the inference, replays and candidates in this process, beside it, and in processes of their own."""
    monkeypatch.setattr(estimate, "_SECONDS", 0.2)  # how large a pass is, its sender says
    plain = analysis_document(analyze(short_log))
    assert plain["replay"] is not None
    with Beside(others=1, patience_s=0.0) as executor:
        assert analysis_document(analyze(short_log, effort=Effort(map=executor.map))) == plain
        assert executor._pool is not None
    with Processes(2) as two:
        assert analysis_document(analyze_fleet(short_log, two)) == plain


def test_a_log_in_which_no_request_ended_gives_no_workload(
    short_log: LogFrames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "_SECONDS", 0.2)
    (log,) = engine_logs(short_log.frames, None)
    assert estimate.infer(log.frames, log.facts) is not None
    made = estimate._workload
    monkeypatch.setattr(estimate, "_workload", lambda *given: replace(made(*given), requests=()))
    assert estimate.infer(log.frames, log.facts) is None


def test_a_long_past_can_be_sent() -> None:
    """A chain of nodes, one a window, is deeper than what pickle follows; what particles share they share afterwards."""
    cost = StepCost(0.01, 0.0, 0.0, 0.0)
    node: Node | None = None
    for window in range(5000):
        node = Node(node, window, cost, 0.0, [], 0.0, 0.0, 0.0, [], [], 0.0)
    own = Node(node, 5000, cost, 0.0, [], 0.0, 0.0, 0.0, [], [], 0.0)
    engine = SketchReplay(SketchRules.of(EngineConfig(64, 16, 4, 256, 512)), cost)
    sent = pickle.loads(
        pickle.dumps(packed_particles([Particle(engine, cost, OutputShape(1.0, 0.5), node=n) for n in (node, own)]))
    )
    first, second = unpacked_particles(sent)
    assert [n.window for n in first.past()] == list(range(5000))
    assert second.node is not None
    assert second.node.parent is first.node
    assert len(sent.nodes) == 5001


def test_a_killed_worker_is_said() -> None:
    with Processes(2) as executor, pytest.raises(ExecutorError, match="a worker process was killed"):
        list(executor.map(falling, range(3)))


def test_each_process_has_its_share_of_the_machine() -> None:
    pool = worker_pool(256)
    try:
        threads = pool.submit(os.getenv, "POLARS_MAX_THREADS").result()
    finally:
        pool.shutdown()
    assert threads == os.environ.get("POLARS_MAX_THREADS", "1")


# --- the command, stopped


def children_of(process: int) -> set[int]:
    """Processes that it started, also those that these started."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found |= {int(path.name)} | children_of(int(path.name))
    return found


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def alive(process: int) -> bool:
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to look for processes")
@pytest.mark.parametrize(("how", "later"), [(signal.SIGINT, 0.0), (signal.SIGINT, 0.3), (signal.SIGKILL, 0.3)])
@pytest.mark.parametrize("jobs", [["--jobs", "2"], []])
def test_nobody_works_on_when_it_is_stopped(jobs: list[str], how: signal.Signals, later: float) -> None:
    """Ctrl-C (which a terminal sends to all of them, also while they begin), and kill -9 of the first one alone."""
    run = subprocess.Popen(
        [sys.executable, "-m", "logscope", "analyze", str(SAMPLES / "v1-under-pressure.log"), *jobs],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        workers: set[int] = set()
        assert eventually(lambda: bool(workers.update(children_of(run.pid)) or workers), 60)
        time.sleep(later)
        workers |= children_of(run.pid)
        if how is signal.SIGINT:
            os.killpg(run.pid, how)
        else:
            run.send_signal(how)
        out, told = run.communicate(timeout=30)
        assert run.returncode == (130 if how is signal.SIGINT else -9)
        assert out == b""
        assert b"Traceback" not in told
        assert eventually(lambda: not any(alive(w) for w in workers), 20), told
    finally:
        run.kill()
