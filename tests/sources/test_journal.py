"""A real systemd journal, written by systemd-journal-remote, read through journalctl in every way."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from parsers.sources.source import JournalQuery, expand, journal_of
from tests.dressers import HOST, NO_JOURNAL, PID, UNIT, Stamped, journal_export, real_log

_PLACES = ("/usr/lib/systemd", "/lib/systemd")
REMOTE = shutil.which("systemd-journal-remote", path=":".join(_PLACES))
LOG = [
    *real_log()[:120],
    Stamped(1795993700000000, "(APIServer pid=1) ERROR 11-29 23:08:20 [a.py:1] with CR\r"),
    Stamped(1795993700000001, "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m INFO 11-29 23:08:20 [a.py:1] ünïcode"),
    Stamped(1795993700000002, "(EngineCore pid=7) INFO 11-29 23:08:20 [a.py:1] one\n(EngineCore pid=7) INFO two"),
    Stamped(1795993700000003, "(EngineCore pid=7) INFO 11-29 23:08:20 [a.py:1] " + "x" * 5000),
    Stamped(1795993700000004, "(EngineCore pid=7) INFO 11-29 23:08:20 [a.py:1] prompt: '\x01'"),
]
PAYLOADS = [part.rstrip("\r") for s in LOG for part in s.text.split("\n")]
FORMS = ["short", "short-precise", "short-iso", "short-iso-precise", "short-full", "short-unix"]
FORMS += ["short-monotonic", "with-unit", "verbose", "json", "json-pretty", "json-sse", "json-seq"]
FORMS += ["export", "cat"]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if REMOTE is None or shutil.which("journalctl") is None:
        pytest.skip(NO_JOURNAL)
    folder = tmp_path_factory.mktemp("machine") / "journal"
    folder.mkdir()
    path = folder / "system.journal"
    subprocess.run([REMOTE, "-o", str(path), "-"], input=journal_export(LOG), check=True, capture_output=True)
    return path


@pytest.mark.parametrize("what", ["file", "folder", "parent"])
def test_journal_as_source(journal: Path, what: str) -> None:
    path = {"file": journal, "folder": journal.parent, "parent": journal.parent.parent}[what]
    sources = [s for s in expand([str(path)]) if s.path and "journal" in s.path.name]
    assert len(sources) == 1
    lines = list(sources[0].lines())
    assert sources[0].problem is None
    assert [line.text for line in lines] == PAYLOADS
    assert lines[0].outer is not None
    assert lines[0].outer[1:4] == (LOG[0].time_us, HOST, f"{UNIT}.service")
    assert lines[0].outer.pid == PID
    assert lines[-1].number == len(LOG)  # entries, which is what a journal has


@pytest.mark.parametrize("form", FORMS)
def test_output_of_journalctl(journal: Path, form: str) -> None:
    command = ["journalctl", f"--file={journal}", "-o", form, "--no-pager", "--all", "--utc"]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    source = expand(["-"], stdin=io.BytesIO(output))[0]
    lines = list(source.lines())
    assert [line.text for line in lines] == PAYLOADS
    if form != "cat":
        assert {line.outer and line.outer.host for line in lines} - {None} <= {HOST}
        assert all(line.outer for line in lines)


def test_messages_that_journalctl_left_out_are_counted(journal: Path) -> None:
    command = ["journalctl", f"--file={journal}", "-o", "short", "--no-pager", "--quiet"]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    source = expand(["-"], stdin=io.BytesIO(output))[0]
    left_out = sum(line.text.endswith("blob data]") for line in source.lines())
    assert left_out > 0
    assert source.loss.truncated == left_out


def test_unit_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments given to journalctl, by a journalctl that shows them as an entry."""
    fake = tmp_path / "journalctl"
    fake.write_text('#!/bin/sh\nprintf "__REALTIME_TIMESTAMP=1778262423906123\\nMESSAGE=%s\\n\\n" "$*"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    source = journal_of(JournalQuery("vllm; rm -rf", since="today", until="-1h"))
    [line] = source.lines()
    assert line.text == "--unit=vllm; rm -rf --since=today --until=-1h --output=export --no-pager --quiet"
    assert source.name == "journal:vllm; rm -rf"
    [line] = journal_of(JournalQuery("vllm", follow=True, user=True)).lines()
    assert line.text.startswith("--user-unit=vllm --follow --lines=all --output=export")


def test_without_journalctl_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "system.journal"
    path.write_bytes(b"LPKSHHRH" + bytes(200))
    monkeypatch.setenv("PATH", str(tmp_path))
    [source] = expand([str(path)])
    assert list(source.lines()) == []
    assert source.problem is not None
    assert "journalctl" in source.problem
    assert "export" in source.problem


def test_damaged_journal(tmp_path: Path) -> None:
    if shutil.which("journalctl") is None:
        pytest.skip(NO_JOURNAL)
    path = tmp_path / "system.journal"
    path.write_bytes(b"LPKSHHRH" + bytes(200))
    [source] = expand([str(path)])
    assert list(source.lines()) == []
    assert source.problem is not None
    assert source.problem.startswith("journalctl failed")
