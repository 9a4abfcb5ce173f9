"""The answer on a terminal: wrapped with its indentation, evidence with its time and its number, no colour where none is wanted."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from logscope.log.span import Moment, MomentType
from logscope.output.report.captions import evidence_excerpt, evidence_text
from parsers.reading.by_line import MAX_TEXT
from tests.logs import stats_v1, v1_start
from tests.running import invoke, log

STATS = (
    "Engine 000: Avg prompt throughput: 507.8 tokens/s, Avg generation throughput: 459.1 tokens/s, Running: 15 reqs, "
    "Waiting: 25 reqs, GPU KV cache usage: 94.0%, Prefix cache hit rate: 0.0%"
)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return log(tmp_path, *v1_start(seats=40), *[stats_v1(10 * i, 12, 9, 99.5) for i in range(1, 9)])


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_lines_fit_the_screen_and_keep_their_indentation(
    full: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = invoke("analyze", full, "--no-replay").output.splitlines()
    assert max(map(len, lines)) <= columns
    why = lines.index("Why")
    block = lines[why + 1 : lines.index("", why)]
    assert all(line.startswith("  ") for line in block)
    assert re.search(r"line \d+\s+\d\d:\d\d:\d\d\s", " ".join(lines))
    assert "99.5%" in " ".join(lines)


def test_a_pipe_gets_whole_lines(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    (line,) = [
        n for n in invoke("analyze", full, "--no-replay").output.splitlines() if n.startswith("  kv-admission-wait")
    ]
    assert len(line) > 60


def test_no_color_is_obeyed(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in invoke("analyze", full, "--no-replay").output


@pytest.mark.parametrize("width", [40, 72, 90, 120, 400])
def test_the_number_that_is_the_evidence_stays(width: int) -> None:
    shown = evidence_excerpt(STATS, width)
    assert "Waiting: 25" in shown
    assert "94.0%" in shown
    assert len(shown) <= max(width, 72)


@pytest.mark.parametrize(
    ("finding", "kept"),
    [
        ("kv-admission-wait", "KV cache usage: 94.0%"),
        ("cache-reuse", "Prefix cache hit rate: 0.0%"),
        ("prefill-interference", "prompt throughput: 507.8 tokens/s"),
        ("slow-steps", "generation throughput: 459.1 tokens/s"),
    ],
)
def test_what_stays_is_what_the_finding_is_about(finding: str, kept: str) -> None:
    assert kept in evidence_excerpt(STATS, 90, finding)


V0_LINE = (
    "Sequence group cmpl-r0053-0 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the"
    " end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size to provide more KV cache memory."
    " total_num_cumulative_preemption=51"
)


@pytest.mark.parametrize("width", [40, 72, 120])
def test_the_count_in_a_warning_of_v0_stays(width: int) -> None:
    assert "total_num_cumulative_preemption=51" in evidence_excerpt(V0_LINE, width)


@pytest.mark.parametrize("width", range(72, 160, 7))
@pytest.mark.parametrize("finding", ["", "cache-reuse", "slow-steps"])
def test_a_line_is_cut_between_words(width: int, finding: str) -> None:
    shown = evidence_excerpt(STATS, width, finding).strip("…")
    assert shown in STATS
    assert f" {shown} ".replace(",", " ") in f" {STATS} ".replace(",", " ")


def test_a_line_that_was_cut_while_it_was_read_says_so() -> None:
    text = ("word " * 100)[:MAX_TEXT]
    assert evidence_text({"text": text}).endswith("word …")
    assert evidence_text({"text": "whole"}) == "whole"


def test_nothing_is_said_twice(tmp_path: Path) -> None:
    """The reason in the headline does not stand again under what the log could not show."""
    idle = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 0, 0, 0.0, generation=0.0) for i in range(1, 5)])
    words = " ".join(invoke("analyze", idle, "--no-replay").output.split())
    assert words.startswith("not-enough-evidence: The replay was skipped (--no-replay)")
    assert words.count("--no-replay") == 1


def test_html_goes_to_standard_output(full: Path) -> None:
    done = invoke("analyze", full, "--no-replay", "--html", "-")
    assert done.exit_code == 0
    assert done.output.startswith("<!doctype html>")
    assert not Path("-").exists()


@pytest.mark.parametrize(
    ("typed", "end", "meant"),
    [
        ("23:58", "2026-05-10T00:10:00", "2026-05-09T23:58:00"),
        ("23:58", "2026-05-09T23:59:00", "2026-05-09T23:58:00"),
        ("8:05:30", "2026-05-09T23:59:00", "2026-05-09T08:05:30"),
        ("-2h", "2026-05-09T23:59:00", "2026-05-09T21:59:00"),
        ("-10 min", "2026-05-09T23:59:00", "2026-05-09T23:49:00"),
        ("2026-05-09 10:00", "2026-05-09T23:59:00", "2026-05-09T10:00:00"),
    ],
)
def test_times_as_people_write_them(typed: str, end: str, meant: str) -> None:
    moment: Moment = MomentType().convert(typed, None, None)
    assert moment.resolve(datetime.fromisoformat(end)) == datetime.fromisoformat(meant)


@pytest.mark.parametrize(("typed", "ago"), [("now", 0), ("10 min ago", 600), ("2 hours ago", 7200), ("1d ago", 86400)])
def test_times_relative_to_now(typed: str, ago: int) -> None:
    moment = MomentType().convert(typed, None, None)
    assert moment.when is not None
    assert abs(datetime.now() - timedelta(seconds=ago) - moment.when) < timedelta(seconds=5)
