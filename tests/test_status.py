"""How a command ends when its streams are closed or full, when its reader goes, and when it is told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

LOG = str(ROOT / "samples" / "v1-calm.log")
LONG = str(ROOT / "samples" / "v1-under-pressure.log")


def shell(redirection: str, *args: str) -> tuple[int, str]:
    """Status and everything that was said, of a command under a shell's redirection."""
    command = f'{{ exec "$0" -m logscope "$@" {redirection}; }}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        timeout=60,
    )
    return done.returncode, done.stdout.decode()


@pytest.mark.parametrize("args", [("analyze", LOG, "--no-replay"), ("parse", LOG), ("formats",), ("--help",)])
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_an_answer_that_is_lost_is_73(args: tuple[str, ...], redirection: str) -> None:
    status, said = shell(redirection, *args)
    assert status == 73, said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(
    ("args", "status"),
    [(("analyze", LOG, "--no-replay"), 0), (("analyze", "nope.log"), 3), (("analyze", "--nope"), 2), (("nope",), 2)],
)
def test_what_is_said_to_nobody_changes_nothing(args: tuple[str, ...], status: int, redirection: str) -> None:
    assert shell(redirection, *args)[0] == status


def test_a_closed_standard_input_is_not_waited_for() -> None:
    assert shell("<&-", "analyze")[0] == 3
    assert shell("<&-", "analyze", LOG, "--no-replay")[0] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("after_s", [0.3, 1.5])
def test_a_command_that_is_stopped_is_quiet_and_leaves_nothing(
    number: signal.Signals, status: int, after_s: float, tmp_path: Path
) -> None:
    answer = tmp_path / "answer.json"
    running = subprocess.Popen(
        [sys.executable, "-m", "logscope", "analyze", LONG, "--json", str(answer)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    time.sleep(after_s)
    running.send_signal(number)
    out, said = running.communicate(timeout=30)
    if running.returncode == -number:  # before logscope itself was loaded
        assert after_s < 1
        return
    assert (running.returncode, said, out) == (status, b"", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("exec('signal.raise_signal(number)')", id="in a dataclass being made"),
        pytest.param("type('C', (), {'__del__': lambda self: signal.raise_signal(number)})()", id="in a __del__"),
        pytest.param(
            "type('C', (), {'x': type('N', (), {'__set_name__': lambda *_: signal.raise_signal(number)})()})",
            id="in a __set_name__",
        ),
    ],
)
def test_wherever_a_signal_comes_it_ends_the_command(place: str, number: signal.Signals) -> None:
    program = f"""
import signal, time
from logscope.commands import cli
number = {number.value}
def slow(**_):
    {place}
    time.sleep(5)
cli.cli.main = slow
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_among_the_options_ends_the_command(number: signal.Signals) -> None:
    program = f"""
import click, signal
from logscope.commands import cli
click.Command.make_context = lambda *_, **__: signal.raise_signal({number.value})
cli.main([])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")


def test_a_pool_that_is_stopped_leaves_nothing_waiting_and_says_nothing() -> None:
    """Tasks too large for the pipe, whose processes die: what writes them is not waited for."""
    program = """
import time
from logscope.execution.executors import stop_at_once, worker_pool
pool = worker_pool(1)
asked = [pool.submit(len, bytes(10_000_000)) for _ in range(3)]
asked.append(pool.submit(time.sleep, 60))
asked += [pool.submit(len, bytes(10_000_000)) for _ in range(3)]
asked[2].result()
asked[-1].cancel()
stop_at_once(pool)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
