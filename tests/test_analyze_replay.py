"""`analyze` with its replay on real logs: what it says, and the files that it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from logscope.commands.cli import cli
from logscope.diagnosis.advice import Advice
from logscope.diagnosis.candidates import Candidate
from tests.test_report_end_to_end import assert_spans


def invoke(*args: object) -> str:
    result = CliRunner().invoke(cli, [str(a) for a in args])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def calm(sample_calm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All outputs of one run over a calm server's log."""
    out = tmp_path_factory.mktemp("calm")
    invoke(
        "analyze",
        sample_calm,
        "--json",
        out / "a.json",
        "--frames",
        out / "frames",
        "--workload-out",
        out / "w.jsonl",
        "--trace",
        out / "t.json",
        "--html",
        out / "r.html",
    )
    return out


def test_a_calm_server_is_healthy_and_nothing_is_advised(calm: Path) -> None:
    document = json.loads((calm / "a.json").read_text())
    assert document["verdict"] == "healthy"
    assert document["advice"] == []
    assert document["preemptions"]["high"] <= 2
    assert document["replay"]["requests"] == 37
    assert set(document["replay"]["fit"]) == {"running", "waiting", "kv_usage", "generation"}


def test_a_replayed_finding_covers_a_span_within_the_log(calm: Path) -> None:
    document = json.loads((calm / "a.json").read_text())
    assert any(f["basis"] == "replayed" for f in document["findings"])
    assert_spans(document)


def test_the_ledgers_parts_are_the_requests_lives(calm: Path) -> None:
    requests = pl.read_parquet(calm / "frames" / "replay_requests.parquet")
    labels = [
        "queued_for_kv",
        "queued_for_seat",
        "queued_for_budget",
        "prefill",
        "decode",
        "interference",
        "preempted_wait",
        "recompute",
    ]
    off = (
        requests.filter(pl.col("status") == "finished")
        .select((pl.sum_horizontal(labels) - pl.col("e2e_s")).abs().max())
        .item()
    )
    assert off < 1e-6


def test_the_inferred_workload_replays_by_itself(calm: Path) -> None:
    output = invoke("replay", calm / "w.jsonl", "--config", calm / "w.jsonl.config.json", "--json", "-")
    (result,) = json.loads(output)["results"]
    assert result["requests"] == 37
    assert result["preemptions"] == 0


def test_the_trace_has_a_lane_for_each_request(calm: Path) -> None:
    trace = json.loads((calm / "t.json").read_text())
    lanes = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    assert len(lanes) == 37
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "C"}


def test_no_half_file_is_left(calm: Path) -> None:
    assert not list(calm.rglob("*.part"))


@pytest.fixture(scope="module")
def pressed(answered: tuple[Path, str]) -> dict[str, object]:
    found: dict[str, object] = json.loads((answered[0] / "a.json").read_text())
    return found


def test_hidden_preemptions_are_found_and_bounded(pressed: dict[str, dict[str, float]]) -> None:
    """The server's own counter said 63."""
    counted = pressed["preemptions"]
    assert pressed["verdict"] == "kv-capacity"
    assert counted["basis"] == "inferred"
    assert counted["low"] <= 63 <= counted["high"]
    assert counted["high"] - counted["low"] <= 0.6 * 63


def test_latencies_are_those_that_clients_saw(pressed: dict[str, dict[str, dict[str, float]]]) -> None:
    """Clients saw E2E p50 5.9 s and p99 33.4 s, TTFT p99 15.1 s."""
    latency = pressed["latency"]
    assert latency["e2e_s"]["p50"] == pytest.approx(5.86, rel=0.25)
    assert latency["e2e_s"]["p99"] == pytest.approx(33.4, rel=0.2)
    assert latency["ttft_s"]["p99"] == pytest.approx(15.1, rel=0.2)


def test_advice_names_flags_and_both_sides(pressed: dict[str, list[dict[str, object]]]) -> None:
    advice = pressed["advice"]
    assert advice
    assert [a["cost"] for a in advice] == sorted((str(a["cost"]) for a in advice), key=lambda c: c != "free")
    seats = [a for a in advice if "max_num_seqs" in a["set"]]  # type: ignore[operator]
    assert seats
    assert seats[0]["flag"] == f"--max-num-seqs {seats[0]['set']['max_num_seqs']}"  # type: ignore[index]
    assert seats[0]["scenario"]["preemptions"] < seats[0]["baseline"]["preemptions"]  # type: ignore[index]


def test_a_spike_has_a_cause_and_its_lines(pressed: dict[str, list[dict[str, object]]]) -> None:
    spikes = pressed["spikes"]
    assert spikes
    assert spikes[0]["cause"] == "kv-capacity"
    assert spikes[0]["evidence"]


def test_the_same_seed_gives_the_same_answer(pressed: dict[str, object], sample_under_pressure: Path) -> None:
    assert json.loads(invoke("analyze", sample_under_pressure, "--json", "-")) == pressed


def test_whatif_shows_both_sides(sample_under_pressure: Path) -> None:
    document = json.loads(invoke("whatif", sample_under_pressure, "--set", "max_num_seqs=12", "--json", "-"))
    assert document["flag"] == "--max-num-seqs 12"
    assert document["scenario"]["preemptions"] <= 3 < document["baseline"]["preemptions"]
    assert document["scenario"]["e2e_s"]["p99"] < document["baseline"]["e2e_s"]["p99"]
    text = CliRunner().invoke(cli, ["whatif", str(sample_under_pressure), "--set", "nonsense=1"])
    assert text.exit_code == 2
    assert "max_num_seqs" in text.output


def test_the_advice_starts_from_the_figures_that_the_answer_gives(pressed: dict[str, Any]) -> None:
    assert pressed["advice"]
    for advice in pressed["advice"]:
        assert advice["baseline"]["preemptions"] == round(pressed["preemptions"]["value"])
        assert advice["baseline"]["recomputed_tokens"] == round(pressed["preemptions"]["recomputed_tokens"])
        flow = advice["baseline"]["generation_tokens_per_s"]
        assert flow == pytest.approx(pressed["throughput"]["generation_tokens_per_s"])
        for name in ("ttft_s", "e2e_s"):
            assert advice["baseline"][name] == {p: pressed["latency"][name][p] for p in ("p50", "p90", "p99")}


def test_an_advices_percentiles_stay_in_order() -> None:
    """Found by the fuzz target: p90 fell less than p99 did."""
    before = {"ttft_s": {"p50": 1.0, "p90": 10.0, "p99": 20.0}, "e2e_s": {"p50": 2.0, "p90": None, "p99": 30.0}}
    after = {"ttft_s": {"p50": 1.0, "p90": 9.0, "p99": 9.5}, "e2e_s": {"p50": 1.0, "p90": None, "p99": 15.0}}
    own = {"ttft_s": {"p50": 2.0, "p90": 12.0, "p99": 20.0}, "e2e_s": {"p50": 2.0, "p90": None, "p99": 40.0}}
    candidate = Candidate({"watermark": 0.1}, "free", "", "")
    now = {**before, "preemptions": 10, "recomputed_tokens": 100, "generation_tokens_per_s": 50.0}
    then = {**after, "preemptions": 5, "recomputed_tokens": 50, "generation_tokens_per_s": 60.0}
    told = Advice(candidate, None, now, then, 0.0).beside(own, 20, 300, 100.0)
    assert told.baseline == {**own, "preemptions": 20, "recomputed_tokens": 300, "generation_tokens_per_s": 100.0}
    assert (told.scenario["recomputed_tokens"], told.scenario["generation_tokens_per_s"]) == (150, 120.0)
    assert told.scenario["ttft_s"] == {"p50": 2.0, "p90": pytest.approx(10.8), "p99": pytest.approx(10.8)}
    assert (told.scenario["e2e_s"]["p99"], told.scenario["preemptions"]) == (20.0, 10)
