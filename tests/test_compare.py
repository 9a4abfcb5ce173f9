"""`logscope compare`: one workload on a real server before and after a change, and what limits a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logscope.commands.cli import cli
from logscope.comparison import _closing, compare, regressions
from tests.conftest import SAMPLES
from tests.logs import analysed, stats_v1, v1_start

BEFORE, AFTER = SAMPLES / "v1-under-pressure.log", SAMPLES / "v1-under-pressure-12-seats.log.gz"


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, ["compare", *map(str, args)])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The document and the printed text of a real change: 48 seats, then 12."""
    path = tmp_path_factory.mktemp("compare") / "compare.json"
    done = run(BEFORE, AFTER, "--json", path)
    assert done.exit_code == 0, done.output
    return json.loads(path.read_text()), done.stdout


def test_the_change_is_seen(real: tuple[dict[str, Any], str]) -> None:
    document, _ = real
    assert document["config_changed"] == {"max_num_seqs": [48, 12]}
    assert document["before"]["verdict"] == "kv-capacity"
    assert document["after"]["verdict"] == "seat-limit"
    before, after = document["changed"]["e2e_s.p99"]
    assert before == document["before"]["latency"]["e2e_s"]["p99"]
    assert 20 < after < before < 40  # measured by the clients: 33.4 and 25.6 s
    assert document["changed"]["preemptions"][1] < 5 < document["changed"]["preemptions"][0]


def test_the_prediction_is_a_whatif_and_is_judged(real: tuple[dict[str, Any], str]) -> None:
    document, _ = real
    assert document["predicted"]["set"] == {"max_num_seqs": 12}
    assert document["predicted"]["flag"] == "--max-num-seqs 12"
    judged = {j["figure"]: j for j in document["judged"]}
    assert judged["e2e_s.p99"]["right"]
    assert judged["preemptions"]["right"]
    assert judged["e2e_s.p99"]["predicted"] == document["predicted"]["scenario"]["e2e_s"]["p99"]


def test_what_is_printed(real: tuple[dict[str, Any], str]) -> None:
    _, text = real
    for words in ("max_num_seqs: 48 to 12", "predicted", "E2E p99", "of 5 metrics to within 25 %"):
        assert words in text


def sides(folder: Path, first: list[str], second: list[str]) -> dict[str, Any]:
    return compare(analysed(folder, first), analysed(folder, second))


def stats(waiting: int, kv: float, prompt: float = 0.0) -> list[str]:
    return [stats_v1(10 * i, 6, waiting, kv, prompt=prompt) for i in range(1, 6)]


def test_the_same_log_twice(tmp_path: Path) -> None:
    log = [*v1_start(), *stats(0, 9.0)]
    document = sides(tmp_path, log, log)
    assert document["config_changed"] == {}
    assert all(a == b for a, b in document["changed"].values())
    assert document["predicted"] is None
    assert "there is nothing to predict" in document["notes"][0]


def test_a_setting_that_one_log_does_not_show_is_no_change(tmp_path: Path) -> None:
    document = sides(tmp_path, [*v1_start(seats=8), *stats(0, 9.0)], stats(0, 9.0))
    assert document["config_changed"] == {}


def test_another_version_and_another_load_are_said(tmp_path: Path) -> None:
    document = sides(
        tmp_path,
        [*v1_start(version="0.19.1"), *stats(0, 9.0, prompt=100.0)],
        [*v1_start(version="0.24.0", seats=16), *stats(0, 9.0, prompt=300.0)],
    )
    assert document["version_changed"] == ["0.19.1", "0.24.0"]
    assert document["config_changed"]["max_num_seqs"] == [8, 16]
    assert any("load differs (100 and 300 prompt tokens" in note for note in document["notes"])
    assert any("not replayed" in note for note in document["notes"])


def test_a_side_without_an_engine(tmp_path: Path) -> None:
    document = sides(tmp_path, ["INFO 05-09 00:49:10 [a.py:1] hello"], stats(0, 9.0))
    assert document["changed"] == {}
    assert "no engine" in document["notes"][0]


def test_a_missing_side_is_a_sentence() -> None:
    done = run(BEFORE, "nope.log", "--no-replay")
    assert done.exit_code == 1
    assert "nope.log" in done.output + str(done.exception)


def test_json_to_standard_output_is_one_document() -> None:
    done = run(BEFORE, AFTER, "--no-replay", "--json", "-")
    document = json.loads(done.stdout)
    assert document["judged"] == []
    assert document["changed"]["e2e_s.p99"] == [None, None]


def test_one_sentence_says_whether_load_or_engine_changed(real: tuple[dict[str, Any], str]) -> None:
    document, text = real
    assert document["closing"].startswith("Same load, and steps that take as long for the same work: ")
    assert "max_num_seqs" in document["closing"]
    assert " ".join(text.split()).endswith(document["closing"])
    for ratio in (document["engine"], *document["load"].values()):
        assert ratio["low"] <= ratio["value"] <= ratio["high"]


RATIOS = {"rate": 1.0, "prompt_tokens": 1.0, "output_tokens": 1.0}
CLOSING = [
    ({}, 1.21, "Same load, steps 21 % slower (16 to 27 %) for the same work."),
    ({}, 0.8, "Same load, steps 20 % faster (16 to 24 %) for the same work."),
    ({}, 1.02, "Same load, and steps that take as long for the same work: what differs comes from block_size."),
    (
        {"prompt_tokens": 1.4},
        1.0,
        "Same engine (a step takes as long for the same work), another load: prompts 40 % longer (34 to 47 %).",
    ),
    ({"rate": 0.5}, 1.5, "Load and engine both changed: requests 50 % less often"),
]


@pytest.mark.parametrize(("load", "engine", "said"), CLOSING)
def test_closing_sentences(load: dict[str, float], engine: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def around(value: float) -> dict[str, float]:
        return {"low": value * 0.955, "value": value, "high": value * 1.05}

    ratios = {name: around(value) for name, value in {**RATIOS, **load}.items()}
    found = {"load": ratios, "engine": around(engine), "config_changed": {"block_size": [16, 32]}}
    monkeypatch.setattr("logscope.comparison._replayed", lambda _: True)
    assert (_closing(found, None) or "").startswith(said)  # type: ignore[arg-type]


def test_a_regression_ends_with_status_1(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    worse = run(AFTER, BEFORE, "--fail-on-regression", "10%", "--html", page, "--json", tmp_path / "c.json")
    assert worse.exit_code == 1
    assert "Regression: E2E p99 got worse by " in worse.stdout
    figures = {r["figure"]: r for r in json.loads((tmp_path / "c.json").read_text())["regressions"]}
    assert figures["e2e_s.p99"]["change"] > 0.1
    assert "<h1>Same load" in page.read_text()
    assert "Regression: E2E p99" in page.read_text()


@pytest.mark.parametrize("text", ["ten", "-5%", "10%%", ""])
def test_what_is_no_share(text: str) -> None:
    assert run(BEFORE, AFTER, "--fail-on-regression", text).exit_code == 2


REGRESSIONS = [
    ({"e2e_s.p99": [10.0, 12.0]}, ["e2e_s.p99"]),
    ({"e2e_s.p99": [10.0, 10.9]}, []),
    ({"ttft_s.p99": [0.1, 0.3]}, []),  # less than half a second
    ({"itl_s.p99": [0.02, 0.03]}, ["itl_s.p99"]),
    ({"e2e_s.p99": [None, 3.0]}, []),
]


@pytest.mark.parametrize(("changed", "figures"), REGRESSIONS)
def test_what_is_a_regression(changed: dict[str, list[float | None]], figures: list[str]) -> None:
    assert [r["figure"] for r in regressions({"changed": changed, "engine": None}, 0.1)] == figures
