"""`logscope watch` as it is called: what is printed, and that it ends cleanly."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logscope.commands.watch import Publisher
from logscope.live.monitor import Monitor, Notice
from tests.logs import stats_v1, v1_start

FULL = "\n".join([*v1_start(), *[stats_v1(10 * i, 6, 4, 97.0) for i in range(1, 5)]]) + "\n"
CALM = "\n".join(stats_v1(10 * i, 2, 0, 20.0) for i in range(5, 8)) + "\n"


def start(*args: object, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "logscope", "watch", *map(str, args)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,  # type: ignore[call-overload]
    )


def test_a_pipe_gives_alerts_and_a_summary() -> None:
    process = start("-", stdin=subprocess.PIPE)
    out, errors = process.communicate((FULL + CALM).encode(), timeout=60)
    lines = out.decode().splitlines()
    assert (process.returncode, errors) == (0, b"")
    assert [line[21:36] for line in lines] == [
        "KV pressure sta",
        "thrashing: 4 pr",
        "KV pressure end",
        "summary: 7 stat",
    ]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_growing_file_is_followed_until_a_signal(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "server.log"
    path.write_text(FULL)
    process = start(path, "--json", "-")
    assert process.stdout is not None
    first = [json.loads(process.stdout.readline()) for _ in range(5)]
    assert [d["kind"] for d in first].count("state") >= 3
    path.rename(tmp_path / "server.log.1")
    path.write_text(CALM)
    while json.loads(process.stdout.readline())["event"] != "pressure-ended":
        pass
    process.send_signal(how)
    out, errors = process.communicate(timeout=60)
    last = json.loads(out.splitlines()[-1])
    assert (process.returncode, errors) == (0, b"")
    assert (last["kind"], last["pressure"]) == ("summary", "thrash")


def test_json_into_a_file_beside_the_alerts(tmp_path: Path) -> None:
    process = start("--json", tmp_path / "out.jsonl", stdin=subprocess.PIPE)
    out, _ = process.communicate(FULL.encode(), timeout=60)
    assert b"KV pressure started" in out
    kinds = [json.loads(x)["kind"] for x in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert kinds.count("state") == 4
    assert kinds[-1] == "summary"


def test_a_view_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(FULL)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "logscope", "watch", str(tmp_path / "server.log")], stdout=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    until = time.monotonic() + 30
    while b"KV pressure started" not in seen and time.monotonic() < until:
        seen += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    try:
        while more := os.read(ours, 65536):
            seen += more
    except OSError:  # the terminal is gone with its last user
        pass
    os.close(ours)
    assert process.wait(30) == 0
    for word in (b"KV cache", "█".encode(), b"thrash", b"summary: 4 statistics lines"):
        assert word in seen


@pytest.mark.parametrize(
    ("args", "stdin", "word"),
    [
        (["-"], b"", "empty"),
        (["-"], b"hello\n", "none of them a vLLM record"),
        (["nope.log"], b"", "logscope: nope.log: No such file or directory\n"),
        (["."], b"", "logscope: .: a folder; name the file to follow\n"),
        (["packed.gz"], b"", "packed.gz: compressed, so it does not grow; logscope analyze reads it\n"),
    ],
)
def test_nothing_to_watch(tmp_path: Path, args: list[str], stdin: bytes, word: str) -> None:
    (tmp_path / "packed.gz").write_bytes(b"\x1f\x8b" + bytes(20))
    process = start(*args, stdin=subprocess.PIPE, cwd=tmp_path)
    out, errors = process.communicate(stdin, timeout=60)
    assert (process.returncode, out) == (3, b"")
    assert word in errors.decode()
    assert errors.count(b"\n") == 1


def test_without_journalctl_a_unit_is_a_sentence(tmp_path: Path) -> None:
    process = start("--unit", "vllm", env={**os.environ, "PATH": str(tmp_path)})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert b"journalctl" in errors


class _Screen:
    def __init__(self) -> None:
        self.seen: list[Notice] = []
        self.drawn = 0

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, notices: object) -> None:
        self.seen += notices  # type: ignore[arg-type,operator]

    def refresh(self) -> None:
        self.drawn += 1


def test_time_that_passes_is_the_clocks() -> None:
    monitor, screen, now = Monitor(), _Screen(), [100.0]
    publisher = Publisher(monitor, screen, None, clock=lambda: now[0])
    from tests.watching.test_monitor import watch

    watch(monitor, *v1_start(), stats_v1(10, 2, 3, 5.0))

    def pauses() -> object:
        for _ in range(7):
            now[0] += 10.0
            yield None

    assert list(publisher.timed(pauses())) == [None] * 7  # type: ignore[arg-type]
    assert [n.event for n in screen.seen] == ["silent"]
    assert screen.drawn == 7


def test_new_tells_only_what_comes_after(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(FULL)
    process = start(path, "--new", "--json", "-")
    assert process.stdout is not None
    deadline = time.monotonic() + 30
    line = b""
    os.set_blocking(process.stdout.fileno(), False)
    while not line and time.monotonic() < deadline:
        # the line's own time differs each turn, so that one of them comes after the start was read
        with path.open("a") as file:
            file.write(stats_v1(50, 5, 0, 33.0) + "\n")
        time.sleep(0.3)
        line = process.stdout.readline() or b""
    process.terminate()
    process.communicate(timeout=60)
    assert json.loads(line)["kv_usage"] == 0.33


@pytest.mark.skipif(shutil.which("mkfifo") is None, reason="no named pipes here")
def test_a_named_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start(pipe)
    pipe.write_text(FULL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"summary: 4 statistics lines" in out
