"""Who reads and replays a fleet does not change the answer."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal

from logscope.analysis import analyze
from logscope.commands.cli import cli
from logscope.execution.executors import ExecutorError, Processes, RayCluster, Serial
from logscope.execution.fleet import analyze_fleet, read_fleet
from logscope.log.frames import read_log
from logscope.log.span import Moment, Reading, Span
from logscope.output.json import analysis_document
from parsers.sources.source import expand
from tests.fleets.logs import busy, fleet, quiet
from tests.logs import minutes_under_pressure
from tests.readings import assert_same

T = TypeVar("T")
R = TypeVar("R")


def square(number: int) -> int:
    if number < 0:
        raise ValueError("no root")
    return number * number


def test_executors_keep_the_order_and_raise_what_the_function_raises() -> None:
    with Serial() as one, Processes(2) as two:
        for executor in (one, two):
            assert list(executor.map(square, range(7))) == [n * n for n in range(7)]
            with pytest.raises(ValueError, match="no root"):
                list(executor.map(square, [1, -1, 2]))


def test_a_fleet_is_read_as_one_log_after_the_other(tmp_path: Path) -> None:
    names = fleet(tmp_path)
    expected = read_log(expand(names), Span(), year=2026)
    with Serial() as one, Processes(2) as two:
        assert_same(read_fleet(expand(names), Reading(year=2026), one), expected)
        assert_same(read_fleet(expand(names), Reading(year=2026), two), expected)


def test_a_pod_in_two_files_is_one_server(tmp_path: Path) -> None:
    def of_pod(pod: str, lines: list[str]) -> str:
        return "".join(f"[pod/{pod}/vllm] {line}\n" for line in lines)

    half = len(busy()) // 2
    (tmp_path / "1.log").write_text(of_pod("a", busy()[:half]) + of_pod("b", quiet()))
    (tmp_path / "2.log").write_text("\n".join(quiet()) + "\n")
    (tmp_path / "3.log").write_text(of_pod("c", quiet()) + of_pod("a", busy()[half:]))
    names = [str(tmp_path)]
    expected = read_log(expand(names), Span(), year=2026)
    assert max(f["server"].max() for f in expected.frames.values()) == 3  # type: ignore[type-var]
    assert_same(read_fleet(expand(names), Reading(year=2026), Serial()), expected)


@pytest.mark.parametrize("span", [Span(Moment(before_end_s=60)), Span(None, Moment(before_end_s=45))])
def test_a_span_counts_from_the_end_of_all_logs(span: Span, tmp_path: Path) -> None:
    names = fleet(tmp_path)
    (tmp_path / "d.log").write_text("\n".join(quiet(600)) + "\n")
    expected = read_log(expand(names), span, year=2026)
    found = read_fleet(expand(names), Reading(span, 2026), Serial())
    assert found.frames.keys() == expected.frames.keys()
    for family, frame in expected.frames.items():
        assert_frame_equal(found.frames[family], frame)


def test_what_cannot_be_read_is_counted_once(tmp_path: Path) -> None:
    names = [*fleet(tmp_path), str(tmp_path / "none.log")]
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress("\n".join(busy()).encode())[:-20])
    names.append(str(tmp_path / "cut.log.gz"))
    expected = read_log(expand(names), Span(), year=2026)
    assert [Path(s["source"]).name for s in expected.coverage.skipped_sources] == ["cut.log.gz", "none.log"]
    assert_same(read_fleet(expand(names), Reading(year=2026), Serial()), expected)


def run(*args: str) -> Any:
    done = CliRunner().invoke(cli, ["analyze", *args, "--json", "-"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_jobs_give_the_same_document(tmp_path: Path) -> None:
    names = fleet(tmp_path)
    one = run(*names, "--no-replay", "--year", "2026")
    assert [e["server"] for e in one["engines"]] == [0, 1, 2, 2]
    assert run(*names, "--no-replay", "--year", "2026", "--jobs", "2") == one


class Posted(Serial):
    """One process, but all that is asked and answered goes through the post, as to another."""

    def map(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        for item in items:
            work, sent = pickle.loads(pickle.dumps((function, item)))
            yield pickle.loads(pickle.dumps(work(sent)))


def test_replays_elsewhere_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two real servers, inferred and replayed, as whole tasks and in parts: document, and the frames that the report draws."""
    monkeypatch.setattr("logscope.inference.windows.estimate._SECONDS", 0.2)
    (tmp_path / "a.log").write_text("\n".join(minutes_under_pressure()) + "\n")
    (tmp_path / "b.log").write_text("".join(quiet(minutes=1)))
    data = read_log(expand([str(tmp_path)]), Span(), year=2026)
    plain = analyze(data)
    document = analysis_document(plain)
    assert document["advice"]
    whole = analyze_fleet(data, Posted())
    assert analysis_document(whole) == document
    answer, expected = whole.engines[0].answer, plain.engines[0].answer
    assert answer is not None
    assert expected is not None
    assert answer.requests_frame.equals(expected.requests_frame)
    assert answer.predict(None) == expected.predict(None)
    with Processes(2) as two:
        assert analysis_document(analyze_fleet(data, two)) == document


def test_without_ray_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExecutorError, match="pip install"):
        RayCluster()
