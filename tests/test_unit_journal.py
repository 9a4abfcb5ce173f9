"""`--unit`: a systemd unit's journal, read and followed through the real journalctl over a journal of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from logscope.log.span import Moment, MomentType, Span, unit_source
from tests.conftest import NO_JOURNAL
from tests.logs import START, stats_v1, v1_start

REMOTE = shutil.which("systemd-journal-remote", path="/usr/lib/systemd:/lib/systemd")
JOURNALCTL = shutil.which("journalctl")
BOOT = "0" * 31 + "1"


def entry(at: float, message: str, **more: str) -> str:
    """An entry of the export format, `at` seconds after START (UTC)."""
    us = int((START.replace(tzinfo=timezone.utc) + timedelta(seconds=at)).timestamp() * 1e6)
    fields = {
        "__CURSOR": f"s=0c4e;i={us:x};b={BOOT};m={us:x};t={us:x};x=1",
        "__REALTIME_TIMESTAMP": str(us),
        "__MONOTONIC_TIMESTAMP": str(us - 1_700_000_000_000_000),
        "_BOOT_ID": BOOT,
        "_HOSTNAME": "gpu-node-3",
        "MESSAGE": message,
        **more,
    }
    return "".join(f"{k}={v}\n" for k, v in fields.items()) + "\n"


def line(at: float, message: str, unit: str = "vllm.service") -> str:
    return entry(at, message, _TRANSPORT="stdout", _SYSTEMD_UNIT=unit, _PID="77")


def started(at: float) -> str:
    id_ = "39f53479d3a045ac8e11786248231fbf"
    return entry(at, "Started vLLM.", MESSAGE_ID=id_, UNIT="vllm.service", _PID="1")


def server(at: float, seats: int) -> list[str]:
    return [started(at), *[line(at, text) for text in v1_start(at, seats=seats)]]


DAY = 86_400.0
ENTRIES = [
    *server(0, seats=4),
    line(10, stats_v1(10, 1, 0, 1.0)),
    line(11, stats_v1(11, 9, 9, 9.0), unit="other.service"),
    *server(DAY, seats=8),
    *[line(DAY + 10 * i, stats_v1(DAY + 10 * i, 6, 4, 97.0)) for i in range(1, 5)],
    *[line(2 * DAY + 10 * i, stats_v1(2 * DAY + 10 * i, 2, 0, 9.0)) for i in range(1, 4)],
]


def append(path: Path, *entries: str) -> None:
    assert REMOTE is not None
    subprocess.run([REMOTE, "-o", str(path), "-"], input="".join(entries).encode(), check=True, capture_output=True)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of two starts of a unit; the journalctl that is found reads it instead of the machine's, and notes how it is called."""
    if REMOTE is None or JOURNALCTL is None:
        pytest.skip(NO_JOURNAL)
    path = tmp_path / "system.journal"
    append(path, *ENTRIES)
    tools = tmp_path / "tools"
    tools.mkdir()
    ours = tools / "journalctl"
    ours.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {JOURNALCTL} --file={path} "$@"\n')
    ours.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("TZ", "UTC")
    return path


def logscope(*args: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "logscope", *args]
    return subprocess.run(command, capture_output=True, timeout=120, check=False)


def test_a_unit_is_analysed(journal: Path) -> None:
    done = logscope("analyze", "--unit", "vllm", "--no-replay", "--json", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    assert document["input"]["sources"] == ["journal:vllm"]
    assert [e["config"]["max_num_seqs"] for e in document["engines"]] == [4, 8]
    assert document["pressure"] == "saturated"


def test_with_since_the_last_start_before_it_is_read_and_no_more(journal: Path) -> None:
    day = (START + timedelta(days=2)).date().isoformat()
    done = logscope("analyze", "--unit", "vllm", "--since", day, "--no-replay", "--json", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    [engine] = document["engines"]
    assert engine["config"]["max_num_seqs"] == 8
    assert document["pressure"] == "none"  # the full hours were the day before
    assert document["input"]["lines"] == len(ENTRIES) - 8
    assert "--since=@" in (journal.parent / "calls").read_text()


@pytest.mark.parametrize("since", ["-25s", "2026-05-11T00:49:05"])
def test_parse_reads_only_the_span(journal: Path, since: str) -> None:
    done = logscope("parse", "--unit", "vllm", "--since", since, "--year", "2026")
    times = [json.loads(x)["time"][:18] for x in done.stdout.splitlines()]
    assert (done.returncode, times) == (0, [f"2026-05-11T00:49:{s}" for s in (1, 2, 3)])


def test_until_is_passed_on(journal: Path) -> None:
    until = Moment(when=datetime(2026, 5, 10, tzinfo=timezone.utc))
    source = unit_source("vllm", Span(until=until), from_start=True)
    assert len(list(source.lines())) == 7


def test_a_unit_without_entries(journal: Path) -> None:
    done = logscope("analyze", "--unit", "vlm")
    assert done.returncode == 3
    assert b'unit "vlm"' in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(("word", "days"), [("today", 0), ("yesterday", 1)])
def test_days_begin_at_midnight(word: str, days: int) -> None:
    before = datetime.now()
    found = MomentType().convert(word, None, None).when
    assert found is not None
    midnights = {(t - timedelta(days=days)).date() for t in (before, datetime.now())}
    assert found.date() in midnights
    assert (found.hour, found.minute, found.second, found.microsecond) == (0, 0, 0, 0)


def test_without_journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = logscope("parse", "--unit", "vllm", "--since", "today")
    assert done.returncode == 3
    assert b"journalctl" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_unit_is_watched(journal: Path) -> None:
    command = [sys.executable, "-m", "logscope", "watch", "--unit", "vllm", "--json", "-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    while (told := json.loads(process.stdout.readline()))["kv_usage"] != 0.09:
        pass
    append(journal, line(2 * DAY + 60, stats_v1(2 * DAY + 60, 3, 1, 33.0)))
    while (told := json.loads(process.stdout.readline()))["kv_usage"] != 0.33:
        pass
    assert (told["kind"], told["running"], told["waiting"]) == ("state", 3, 1)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    assert json.loads(out.splitlines()[-1])["kind"] == "summary"
