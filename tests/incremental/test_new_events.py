"""`--state`: parse gives each event once, analyze answers over everything that was read."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from logscope.commands.cli import cli
from logscope.log.state import read_new as reading
from logscope.log.state.read_new import new_events
from logscope.log.state.read_state import StateError
from logscope.output.events import event_object
from parsers.reading.by_line import KEEP_EVENTS, read_events
from parsers.reading.events import Coverage
from parsers.sources.source import expand
from tests.fleets.logs import busy
from tests.incremental.test_any_split import TEXTS, YEAR


def files_read(state: Path, log: Path) -> list[dict[str, Any]]:
    events = new_events(state, expand([str(log)]), Coverage(), year=YEAR, keep=KEEP_EVENTS)
    return [event_object(e) for e in events]


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), cuts=st.lists(st.floats(0, 1), max_size=6))
def test_the_events_of_all_runs_are_those_of_one(name: str, cuts: list[float]) -> None:
    data = (TEXTS[name] + "\n").encode()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patched:
        log, state = Path(temporary) / "server.log", Path(temporary) / "state"
        patched.setattr(reading, "QUIET_S", float("inf"))
        for stop in sorted(int(c * len(data)) for c in cuts):
            log.write_bytes(data[:stop])
            found += files_read(state, log)
        log.write_bytes(data)
        patched.setattr(reading, "QUIET_S", float("-inf"))  # nobody writes to it any more
        found += files_read(state, log)
        assert files_read(state, log) == []
        expected = read_events(expand([str(log)]), Coverage(), year=YEAR)
        key = lambda e: (e["line"], json.dumps(e["fields"], default=str))  # noqa: E731
        assert sorted(found, key=key) == sorted(map(event_object, expected), key=key)


def test_the_last_line_is_given_at_once_but_not_a_half_one(tmp_path: Path) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    text = "\n".join(busy(minutes=1)[:-1]) + "\n"
    log.write_text(text[:-40])
    first = files_read(state, log)
    log.write_text(text)
    assert all(e["line"] < text.count("\n") for e in first)
    *_, last = rest = files_read(state, log)
    assert (last["family"], last["line"]) == ("stats", text.count("\n"))
    assert len(first + rest) == len(list(read_events(expand([str(log)]), Coverage(), year=YEAR)))


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(a) for a in args])


def test_the_commands(tmp_path: Path) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    lines = busy()
    log.write_text("\n".join(lines[:15]) + "\n")
    first = run("parse", log, "--state", state)
    assert first.exit_code == 0
    assert run("analyze", log, "--state", state, "--no-replay").exit_code == 0
    log.write_text("\n".join(lines) + "\n")
    second = run("parse", log, "--state", state)
    assert first.stdout + second.stdout == run("parse", log).stdout
    assert run("parse", log, "--state", state).stdout == ""
    whole = run("analyze", log, "--no-replay", "--json", "-")
    assert run("analyze", log, "--state", state, "--no-replay", "--json", "-").stdout == whole.stdout


def test_what_cannot_be_read_on_is_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    log = tmp_path / "server.log"
    log.write_text("\n".join(busy()) + "\n")
    run("parse", log, "--state", state, "--year", "2026")
    other = run("parse", log, "--state", state, "--year", "2025")
    assert "another folder" in str(other.exception)
    pipe = CliRunner().invoke(cli, ["parse", "-", "--state", str(tmp_path / "new")], input="x\n")
    assert "begins anew" in str(pipe.exception)
    (state / "parse" / "state.json").write_text("{")
    assert isinstance(run("parse", log, "--state", state).exception, StateError)


def test_a_quiet_log_gives_its_last_traceback(tmp_path: Path) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    text = TEXTS["plain"]
    end = text.index("\n", text.index("torch.OutOfMemoryError")) + 1
    log.write_text(text[:end])
    assert "runtime" not in {e["family"] for e in files_read(state, log)}
    os.utime(log, (1_700_000_000, 1_700_000_000))
    assert {e["family"] for e in files_read(state, log)} == {"runtime"}
