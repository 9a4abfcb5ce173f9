"""Inferred and measured beside each other: what changes in an analysis when a second witness speaks."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logscope.analysis import Analysis
from logscope.commands.cli import cli
from logscope.evidence.preemptions import Logged, Preemptions
from logscope.output.json import analysis_document
from logscope.witness.attach import witnessed
from logscope.witness.metrics import MetricsWitness, read_metrics
from tests.conftest import DATA, SAMPLES
from tests.logs import analysed, stats_v1, v0_warning, v1_start

STATS = [stats_v1(10 * i, 6, 4, 97.0) for i in range(1, 6)]
METRICS = DATA / "witness" / "under-pressure.metrics.jsonl.gz"
LATENCIES = DATA / "witness" / "under-pressure.requests.csv.gz"


def metrics(folder: Path, *values: float | str) -> MetricsWitness:
    path = folder / "metrics"
    path.write_text("".join(v if isinstance(v, str) else f"vllm:num_preemptions_total {v}\n" for v in values))
    return read_metrics([str(path)])


def count(analysis: Analysis, witness: MetricsWitness) -> dict[str, Any]:
    document = analysis_document(witnessed(analysis, witness, None))
    found: dict[str, Any] = document["preemptions"]
    return found


def test_a_counter_is_the_count(tmp_path: Path) -> None:
    found = count(analysed(tmp_path, [*v1_start(), *STATS]), metrics(tmp_path, 5.0, 42.0))
    assert (found["low"], found["value"], found["high"], found["basis"]) == (42, 42, 42, "measured")
    assert found["logged"] == {"low": 42, "high": 42}


def test_without_the_start_only_the_difference_counts(tmp_path: Path) -> None:
    assert count(analysed(tmp_path, STATS), metrics(tmp_path, 5.0, 42.0))["value"] == 37


def test_one_scrape_without_the_start_is_an_upper_bound(tmp_path: Path) -> None:
    found = count(analysed(tmp_path, STATS), metrics(tmp_path, 42.0))
    assert found["logged"] == {"low": 0, "high": 42}
    assert found["basis"] is None


def test_what_the_replay_inferred_stays_beside_it(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, [*v1_start(), *STATS])
    inferred = Preemptions(Logged(), 20.0, 30.0, 45.0, "inferred", 6000.0)
    engines = (replace(analysis.engines[0], preemptions=inferred),)
    found = count(replace(analysis, engines=engines), metrics(tmp_path, 60.0))
    assert found["value"] == 60
    assert found["recomputed_tokens"] == 12000
    assert found["inferred"] == {"low": 20, "value": 30, "high": 45, "recomputed_tokens": 6000}


@pytest.mark.parametrize(("counter", "pressure", "said"), [(0, "saturated", 0), (2, "saturated", 1), (40, "thrash", 1)])
def test_findings_and_pressure_follow(tmp_path: Path, counter: int, pressure: str, said: int) -> None:
    analysis = analysed(tmp_path, [*v1_start(), *STATS])
    document = analysis_document(witnessed(analysis, metrics(tmp_path, counter), None))
    findings = [f for f in document["findings"] if f["id"] == "kv-preemption"]
    assert document["pressure"] == pressure
    assert [f["basis"] for f in findings] == ["measured"] * said
    assert not [f for f in document["findings"] if "--metrics" in f["title"]]


def test_metrics_that_do_not_cover_the_log_are_left_out(tmp_path: Path) -> None:
    log = [*v1_start(), v0_warning(5, 1), v0_warning(6, 51), *STATS]
    document = analysis_document(witnessed(analysed(tmp_path, log), metrics(tmp_path, 7.0), None))
    assert document["preemptions"]["logged"] == {"low": 51, "high": 100}
    assert "do not cover" in document["witness"]["notes"][0]


def two_engines() -> list[str]:
    return [stats_v1(10 * i, 6, 4, 97.0, engine=f"Engine 00{e}") for i in range(1, 4) for e in (0, 1)]


def test_engines_by_label_else_together(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, [*v1_start(), *two_engines()])
    labelled = [f'vllm:num_preemptions_total{{engine="{e}"}} {n}\n' for e, n in ((0, 3), (1, 4))]
    document = analysis_document(witnessed(analysis, metrics(tmp_path, *labelled), None))
    assert [e["preemptions"]["value"] for e in document["engines"]] == [3, 4]
    assert document["preemptions"]["value"] == 7
    document = analysis_document(witnessed(analysis, metrics(tmp_path, 7.0), None))
    assert [e["preemptions"]["value"] for e in document["engines"]] == [None, None]
    assert (document["preemptions"]["value"], document["preemptions"]["basis"]) == (7, "measured")


def test_starts_by_the_counters_resets(tmp_path: Path) -> None:
    log = [*v1_start(), *STATS, *v1_start(100, pid=9), stats_v1(120, 1, 0, 1.0)]
    analysis = analysed(tmp_path, log)
    document = analysis_document(witnessed(analysis, metrics(tmp_path, 1.0, 8.0, 2.0), None))
    assert [e["preemptions"]["value"] for e in document["engines"]] == [8, 2]
    assert document["preemptions"]["value"] == 10


def run(*args: object) -> dict[str, Any]:
    sample = SAMPLES / "v1-under-pressure.log"
    words = ["analyze", sample, "--no-replay", "--json", "-", *args]
    done = CliRunner().invoke(cli, [str(a) for a in words])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_real_server_its_counter_and_its_clients() -> None:
    document = run("--metrics", METRICS, "--latencies", LATENCIES)
    found = document["preemptions"]
    assert (found["value"], found["basis"]) == (63, "measured")
    assert sum(s["value"] for s in found["timeline"]) == 63
    assert found["timeline"][0]["start"] > "2026-11-29T23:57:3"
    assert document["latency"]["basis"] == "measured"
    assert document["latency"]["e2e_s"]["p99"] == pytest.approx(33.41, abs=0.01)
    assert document["latency"]["itl_s"] == {"p50": None, "p99": None}
    assert document["witness"]["metrics"]["running_max"] == 23
    assert document["witness"]["latencies"]["stood_still"] == 23


def test_without_a_witness_nothing_is_claimed() -> None:
    document = run()
    assert document["witness"] is None
    assert document["preemptions"]["inferred"] is None


def test_a_missing_witness_is_an_error_before_the_log_is_read() -> None:
    done = CliRunner().invoke(cli, ["analyze", "nope.log", "--metrics", "nope.prom"])
    assert done.exit_code == 1
    assert "nope.prom" in str(done.exception)


def test_the_timeline_is_on_the_records_clock_which_an_envelope_tells(tmp_path: Path) -> None:
    lines = [*v1_start(), *STATS, stats_v1(7_800, 6, 4, 97.0)]
    # docker logs -t: the host's clock is UTC, the server's own two hours ahead. By its times alone the log, from 00:49 to
    # 02:59, could hold the scrapes with other zones, too.
    stamps = [f"2026-05-08T22:49:{i:02d}" for i in range(len(lines) - 1)] + ["2026-05-09T00:59:00"]
    stamped = [f"{s}.000000000Z {line}" for s, line in zip(stamps, lines, strict=True)]
    first = datetime(2026, 5, 9, 0, 30, tzinfo=timezone.utc).timestamp()
    path = tmp_path / "scrapes.jsonl"
    path.write_text(
        "".join(
            json.dumps({"ts": first + 10 * i, "vllm:num_preemptions_total": value}) + "\n"
            for i, value in enumerate((0.0, 3.0, 3.0))
        )
    )
    found = count(analysed(tmp_path, stamped), read_metrics([str(path)]))
    told = [w for w in found["timeline"] if w["value"]]
    assert told == [{"start": "2026-05-09T02:30:00", "end": "2026-05-09T02:30:10", "value": 3.0}]


def healthy(folder: Path) -> Analysis:
    analysis = analysed(folder, [*v1_start(), *(stats_v1(10 * i, 2, 0, 5.0) for i in range(1, 6))])
    return replace(analysis, engines=(replace(analysis.engines[0], verdict="healthy", pressure="none", findings=()),))


@pytest.mark.parametrize(
    ("counted", "verdict", "severities"),
    [(40.0, "kv-capacity", {"critical"}), (1.0, "healthy", {"info"}), (0.0, "healthy", set())],
)
def test_a_headline_does_not_contradict_the_counter(
    counted: float, verdict: str, severities: set[str], tmp_path: Path
) -> None:
    document = analysis_document(witnessed(healthy(tmp_path), metrics(tmp_path, 0.0, counted), None))
    assert document["verdict"] == verdict
    assert {f["severity"] for f in document["findings"] if f["id"] == "kv-preemption"} == severities
    assert (document["pressure"] == "none") == (verdict == "healthy")
