"""Client-side results in the forms that are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logscope.witness.latencies import LatencyWitness, read_latencies
from logscope.witness.metrics import WitnessError
from tests.conftest import DATA

DETAILED = {
    "completed": 2,
    "ttfts": [0.5, 1.5, 0.0],
    "itls": [[0.1, 0.1, 0.1], [0.1, 2.0], []],
    "errors": ["", "", "Traceback"],
    "median_ttft_ms": 1.0,
}
SUMMARY = {
    "completed": 9,
    "median_ttft_ms": 500.0,
    "p99_ttft_ms": 900.0,
    "median_e2el_ms": 4000.0,
    "p99_e2el_ms": 9000.0,
    "median_itl_ms": 20.0,
    "p99_itl_ms": 40.0,
}
GUIDELLM = {
    "benchmarks": [
        {
            "requests": {
                "successful": [
                    {"time_to_first_token_ms": 500.0, "request_latency": 4.0},
                    {"time_to_first_token_ms": None, "request_latency": 6.0},
                ],
                "errored": [{}],
                "incomplete": None,
            }
        }
    ]
}
CSV = "sent,first_token,finished\n0.0,0.5,4.0\n1.0,,7.0\n2.0,bad,1.0\n"
JSONL = '{"sent_s": 0, "first_token_s": 0.5, "finished_s": 4.0, "max_gap_s": 3}\n{"sent_s": 1, "finished_s": 7}\nnone\n'


def read(folder: Path, text: str) -> LatencyWitness:
    (folder / "result").write_text(text)
    return read_latencies(str(folder / "result"))


@pytest.mark.parametrize(
    ("text", "requests", "failed", "ttft", "e2e"),
    [
        (json.dumps(DETAILED), 2, 1, 1.0, (0.8 + 3.6) / 2),
        (json.dumps(SUMMARY), 9, 0, 0.5, 4.0),
        (json.dumps(GUIDELLM), 2, 1, 0.5, 5.0),
        (CSV, 2, 1, 0.5, 5.0),
        (JSONL, 2, 1, 0.5, 5.0),
    ],
    ids=["bench serve, detailed", "bench serve", "guidellm", "csv", "jsonl"],
)
def test_forms(tmp_path: Path, text: str, requests: int, failed: int, ttft: float, e2e: float) -> None:
    found = read(tmp_path, text)
    assert (found.requests, found.failed) == (requests, failed)
    assert found.latency["ttft_s"]["p50"] == pytest.approx(ttft)
    assert found.latency["e2e_s"]["p50"] == pytest.approx(e2e)


def test_what_a_summary_does_not_tell_is_not_known(tmp_path: Path) -> None:
    found = read(tmp_path, json.dumps(SUMMARY))
    assert found.latency["e2e_s"] == {"p50": 4.0, "p90": None, "p99": 9.0}
    assert found.latency["itl_s"] == {"p50": 0.02, "p99": 0.04}
    assert found.stood_still is None


def test_gaps_between_tokens(tmp_path: Path) -> None:
    found = read(tmp_path, json.dumps(DETAILED))
    assert found.latency["itl_s"]["p50"] == pytest.approx(0.1)
    assert found.longest_gap_s["max"] == 2.0
    assert found.stood_still == 1  # a gap of twenty usual ones: that request was evicted, or the server stalled


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "{}", '{"benchmarks": [1]}', "[]", "{bad", "[[]]"])
def test_what_is_no_result_is_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(WitnessError, match="no finished request"):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["sent,finished\n0,\0\n", "sent,finished\n0," + "1" * 200_000 + "\n"])
def test_a_table_that_is_damaged_is_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(WitnessError, match=r"no finished request|no CSV that can be read"):
        read(tmp_path, text)


def test_a_real_servers_clients() -> None:
    found = read_latencies(str(DATA / "witness" / "under-pressure.requests.csv.gz"))
    assert found.requests == 216
    assert found.latency["e2e_s"]["p99"] == pytest.approx(33.41, abs=0.01)
    assert found.stood_still == 23
