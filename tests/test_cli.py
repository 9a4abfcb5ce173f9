"""The command line as a user calls it: what it prints where, and its exit statuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.logs import stats_v1, v0_warning, v1_start
from tests.running import invoke, log, run


def test_help_names_each_command_and_an_example() -> None:
    text = invoke("--help").output
    for verb in ("analyze", "parse", "replay", "formats"):
        assert verb in text
        verb_help = invoke(verb, "--help")
        assert verb_help.exit_code == 0
        assert "Example" in verb_help.output, f"{verb} --help shows no example"


def test_analyze_keeps_the_configuration_that_stands_before_the_span(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(seats=33), *[stats_v1(60 * i, i, 0, 5.0) for i in range(1, 10)])
    document = json.loads(invoke("analyze", path, "--no-replay", "--json", "-", "--since", "-3m").output)
    assert document["engines"][0]["config"]["max_num_seqs"] == 33


def test_analyze_json_is_one_document_with_every_key(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 5)])
    result = run("analyze", path, "--json", "-", "--no-replay")
    document = json.loads(result.stdout)
    assert result.returncode == 0
    for key in [
        "schema_version",
        "input",
        "verdict",
        "pressure",
        "worst_engine",
        "preemptions",
        "latency",
        "throughput",
        "ledger",
        "replay",
        "spikes",
        "findings",
        "advice",
        "engines",
    ]:
        assert key in document
    assert document["verdict"] == "healthy"
    assert document["replay"] is None
    assert all(document["latency"]["e2e_s"][point] is None for point in ("p50", "p90", "p99"))
    engine = document["engines"][0]
    assert engine["kv_cache"] == {"tokens": 8000, "num_blocks": 500, "block_size": 16, "bytes": None}
    assert set(engine["config"]) >= {"max_num_seqs", "watermark", "policy", "kv_cache_dtype"}
    assert engine["config_basis"]["max_num_seqs"] == "measured"


def test_the_terminal_answer_is_plain_without_a_terminal(tmp_path: Path, sample_under_pressure: Path) -> None:
    result = run("analyze", sample_under_pressure, "--no-replay")
    assert result.returncode == 0
    assert b"\x1b" not in result.stdout
    assert b"Preemptions" in result.stdout
    assert b"not visible in this log" in result.stdout.lower()


def test_colour_when_asked(tmp_path: Path) -> None:
    assert (
        "\x1b[" in invoke("analyze", log(tmp_path, stats_v1(1, 1, 0, 1.0)), "--no-replay", "--color", "always").output
    )


@pytest.mark.parametrize(("level", "status"), [("critical", 1), ("warning", 1), (None, 0)])
def test_fail_on(tmp_path: Path, level: str | None, status: int) -> None:
    path = log(tmp_path, v0_warning(10, 51), v0_warning(11, 101))
    assert invoke("analyze", path, "--no-replay", *(["--fail-on", level] if level else [])).exit_code == status


@pytest.mark.parametrize("level", ["critical", "warning", "kv-capacity,engine-crash"])
def test_fail_on_does_not_fail_a_calm_log(tmp_path: Path, level: str) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 5)])
    assert invoke("analyze", path, "--no-replay", "--fail-on", level).exit_code == 0


@pytest.mark.parametrize(("names", "status"), [("kv-capacity", 1), ("healthy,kv-capacity", 1), ("engine-crash", 0)])
def test_fail_on_takes_verdicts(tmp_path: Path, names: str, status: int) -> None:
    path = log(tmp_path, v0_warning(10, 51), v0_warning(11, 101))
    assert invoke("analyze", path, "--no-replay", "--fail-on", names).exit_code == status


def test_fail_on_an_unknown_name_is_wrong_usage(tmp_path: Path) -> None:
    found = invoke("analyze", log(tmp_path, v0_warning(10, 51)), "--fail-on", "kv-capacty")
    assert found.exit_code == 2
    assert "did you mean kv-capacity?" in found.output


def test_what_the_user_tells_overrules_the_log(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(seats=8), stats_v1(10, 4, 0, 5.0))
    document = json.loads(invoke("analyze", path, "--no-replay", "--set", "max-num-seqs=99", "--json", "-").output)
    engine = document["engines"][0]
    assert (engine["config"]["max_num_seqs"], engine["config_basis"]["max_num_seqs"]) == (99, "given")


def test_a_pipe_whose_reader_goes_away_ends_quietly(tmp_path: Path) -> None:
    path = log(tmp_path, *[stats_v1(i, i, 0, 1.0) for i in range(5000)])
    command = f"{sys.executable} -m logscope parse {path} | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert result.stderr == b""
    assert result.stdout.count(b"\n") == 1


def test_standard_input_is_the_default_in_a_pipe() -> None:
    result = run("parse", stdin=(stats_v1(1, 1, 0, 1.0) + "\n").encode())
    assert result.returncode == 0
    assert json.loads(result.stdout)["source"] == "-"


def test_terminal_escapes_of_a_log_reach_no_terminal(tmp_path: Path) -> None:
    evil = stats_v1(10, 4, 0, 5.0) + "\x1b]0;owned\x07\x1b[2J"
    result = run(
        "analyze",
        log(tmp_path, *v1_start(), v0_warning(5, 1) + "\x1b[2J\x1b]52;c;eA==\x07", evil),
        "--no-replay",
        "--color",
        "always",
        "-v",
    )
    assert b"\x1b]" not in result.stdout
    assert b"\x1b[2J" not in result.stdout


def test_the_report_is_written_beside_the_answer(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 5)])
    out = tmp_path / "report.html"
    result = run("analyze", path, "--html", out, "--no-replay")
    assert result.returncode == 0, result.stderr
    assert "<html" in out.read_text()[:500]


def test_a_start_that_failed(sample_start_failed: Path) -> None:
    document = json.loads(invoke("analyze", sample_start_failed, "--json", "-").output)
    assert document["verdict"] == "startup-kv-too-small"
    (finding,) = [f for f in document["findings"] if f["id"] == "startup-kv-too-small"]
    assert "largest max_model_len that fits" in finding["title"]
    assert finding["facts"]["largest_max_model_len"] < finding["facts"]["max_model_len"]


def test_the_counts_of_a_real_log_are_those_of_grep(sample_under_pressure: Path) -> None:
    grep = shutil.which("grep")
    assert grep is not None
    found = [json.loads(x) for x in run("parse", sample_under_pressure).stdout.splitlines()]
    for pattern, family, variant in (
        (r"Avg prompt throughput", "stats", None),
        ("Received request", "request", "received"),
        ("Added request", "request", "added"),
    ):
        count = int(
            subprocess.run([grep, "-c", pattern, str(sample_under_pressure)], capture_output=True, check=False).stdout
        )
        assert count > 0
        assert sum(e["family"] == family and variant in (None, e["variant"]) for e in found) == count


def test_a_zone_may_be_an_offset(tmp_path: Path) -> None:
    path = log(tmp_path, *[f"2026-05-09T00:49:0{s}Z {stats_v1(s, 1, 0, 1.0)}" for s in (1, 2, 3)])
    cut = ("--since", "2026-05-09T08:49:02", "--timezone", "+08:00")
    assert len(run("parse", path, *cut).stdout.splitlines()) == 2


def test_a_span_without_events_is_said_aloud(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 4)])
    empty = run("analyze", path, "--no-replay", "--since", "2099-01-01")
    assert (
        b"no log lines between --since and --until (the log covers 9 May"
        in " ".join(empty.stderr.decode().split()).encode()
    )
    some = run("analyze", path, "--no-replay", "--since", "-20s")
    assert some.stderr == b""
