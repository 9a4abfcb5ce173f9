"""The report's section of a second witness: what was measured beside what the replay infers, and how far off that is."""

from __future__ import annotations

import copy
from typing import Any

import polars as pl
import pytest

from logscope.output.report.page import render_html
from logscope.output.report.view_facts import witness

METRICS = {
    "sources": ["metrics.txt"],
    "samples": 2720,
    "start": "2026-11-29T23:56:44Z",
    "end": "2026-11-29T23:59:23Z",
    "queue_time_mean_s": 3.0,
}
LATENCY = {
    "basis": "measured",
    "ttft_s": {"p50": 0.25, "p90": None, "p99": 15.2},
    "itl_s": {"p50": None, "p99": 0.2},
    "inferred": {"basis": "inferred", "ttft_s": {"p50": 0.2, "p90": 9.0, "p99": 15.2}},
}
ENGINE = {
    "replay": {"requests": 200},
    "ledger": {"total_s": {"queued_for_kv": 600.0, "queued_for_seat": 100.0, "queued_for_budget": 20.0}},
}
ANALYSIS: dict[str, Any] = {
    "witness": {"metrics": METRICS, "latencies": None, "notes": ["<b>a note</b>"]},
    "preemptions": {"basis": "measured", "value": 63.0, "inferred": {"low": 50.0, "value": 70.0, "high": 90.0}},
    "latency": LATENCY,
    "engines": [ENGINE],
}


def rows(**changes: Any) -> dict[str, tuple[str, str, str]]:
    found = witness({**ANALYSIS, **changes})
    assert found is not None
    return {name: tuple(c.replace("\u00a0", " ") for c in cells) for name, *cells in found.rows}  # type: ignore[misc]


def test_measured_stands_beside_inferred() -> None:
    assert rows() == {
        "Preemptions": ("63", "70 (50 to 90)", "+11 %"),
        "Mean time in the queue": ("3.0 s", "3.6 s", "+20 %"),
        "TTFT p50": ("250 ms", "200 ms", "−20 %"),
        "TTFT p99": ("15.2 s", "15.2 s", "±0 %"),
        "ITL p99": ("200 ms", "–", ""),
    }


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"preemptions": {"basis": "inferred", "value": 70.0}}, "Preemptions"),
        ({"latency": {"basis": "inferred", "ttft_s": {"p50": 0.2}}}, "TTFT p50"),
        ({"witness": {"metrics": {}, "latencies": {"requests": 3}}}, "Mean time in the queue"),
    ],
)
def test_what_no_witness_measured_has_no_row(changes: dict[str, Any], missing: str) -> None:
    assert missing not in rows(**changes)


def test_without_a_replay_nothing_stands_beside() -> None:
    told = rows(
        preemptions={"basis": "measured", "value": 63.0, "inferred": None}, engines=[{**ENGINE, "replay": None}]
    )
    assert told["Preemptions"] == ("63", "–", "")
    assert told["Mean time in the queue"] == ("3.0 s", "–", "")


def test_the_queues_of_several_engines_are_one_mean() -> None:
    calm = {"replay": {"requests": 200}, "ledger": {"total_s": {"queued_for_kv": 0.0}}}
    assert rows(engines=[ENGINE, calm])["Mean time in the queue"][1] == "1.8 s"


def test_what_was_read_is_named() -> None:
    found = witness(ANALYSIS)
    assert found is not None
    assert found.said[0].startswith("2,720 samples of vLLM's metrics from metrics.txt, 29 Nov 2026")
    clients = {"metrics": None, "latencies": {"requests": 216, "source": "r.json"}, "notes": []}
    found = witness({**ANALYSIS, "witness": clients})
    assert found is not None
    assert found.said == ("the latencies of 216 requests from r.json, as their clients saw them",)


def test_the_section_is_on_the_page_only_with_a_witness(
    report_analysis: dict[str, Any], report_frames: dict[str, pl.DataFrame]
) -> None:
    plain = {**copy.deepcopy(report_analysis), "witness": None}
    assert 'id="witness"' not in render_html(plain, report_frames)
    page = render_html({**plain, "witness": ANALYSIS["witness"]}, report_frames)
    assert page.count('id="witness"') == page.count('href="#witness"') == 1
    assert "&lt;b&gt;a note&lt;/b&gt;" in page
