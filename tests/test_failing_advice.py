"""Whatever lies in a log, what it proves by itself is said: also where the replay of a change fails on it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from logscope.analysis import EngineResult, analyze
from logscope.execution.executors import ExecutorError
from logscope.log.frames import LogFrames, read_log
from logscope.log.span import Span
from parsers.sources.source import expand
from tests.conftest import DATA


@pytest.fixture(scope="module")
def data() -> LogFrames:
    return read_log(expand([str(DATA / "iterations" / "v1-under-pressure.log.gz")]), Span())


def failing(error: Exception) -> object:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_a_change_whose_replay_fails_costs_the_advice_alone(data: LogFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGSCOPE_DEBUG", raising=False)
    (whole,) = analyze(data).engines
    monkeypatch.setattr("logscope.analysis.advise", failing(ValueError("a secret of the log")))
    (found,) = analyze(data).engines
    assert (whole.advice != (), found.advice) == (True, ())
    assert (found.verdict, found.preemptions) == (whole.verdict, whole.preemptions)
    said = [f.title for f in found.findings if "replay of changes failed" in f.title]
    assert len(said) == 1
    assert "secret" not in said[0]


def test_a_lost_cluster_is_no_fault_of_the_log(data: LogFrames, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logscope.analysis.advise", failing(ExecutorError("lost")))
    with pytest.raises(ExecutorError, match="lost"):
        analyze(data)


def test_lines_that_stand_twice_in_the_log(tmp_path: Path) -> None:
    """As in a log that was shipped twice: the same ids come again."""
    lines = gzip.decompress((DATA / "iterations" / "v1-under-pressure.log.gz").read_bytes())
    some = lines.splitlines(keepends=True)
    again = [line for line in some if b"Received request" in line or b"Added request" in line]
    path = tmp_path / "server.log"
    path.write_bytes(b"".join([*some[:3000], *again[20:24], *some[3000:]]))
    results: tuple[EngineResult, ...] = analyze(read_log(expand([str(path)]), Span())).engines
    assert not [f for r in results for f in r.findings if "failed" in f.title]
