"""Logs as they are in the wild: preemptions, full caches and taken seats, and what only looks like them."""

from __future__ import annotations

from pathlib import Path

from tests.logs import document, ids, stats_v0, stats_v1, v0_warning, v1_start


def test_counters_with_a_restart_between_are_152_to_250_preemptions(tmp_path: Path) -> None:
    start = [
        "INFO 05-09 00:49:00 [api_server.py:1043] vLLM API server version 0.8.5",
        "INFO 05-09 00:49:01 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.5) with config: model='m', max_seq_len=4096",
    ]
    lines = [
        *start,
        v0_warning(10, 1),
        v0_warning(20, 51),
        v0_warning(30, 101),
        *start,
        v0_warning(50, 1),
        v0_warning(60, 51),
    ]
    found = document(tmp_path, lines)
    assert (found["preemptions"]["low"], found["preemptions"]["high"]) == (152, 250)
    assert found["preemptions"]["logged"] == {"low": 152, "high": 250}
    assert found["verdict"] == "kv-capacity"
    assert [e["run"] for e in found["engines"]] == [0, 1]


def test_ray_workers_count_apart_and_folded_lines_widen(tmp_path: Path) -> None:
    lines = [
        v0_warning(10, 1, "(RayWorkerWrapper pid=11) "),
        v0_warning(10, 1, "(RayWorkerWrapper pid=12) "),
        v0_warning(11, 1, "(RayWorkerWrapper pid=13) ", " [repeated 2x across cluster]"),
    ]
    counted = document(tmp_path, lines)["preemptions"]
    assert counted["low"] == 4
    assert counted["high"] > 4 * 50 - 1


def test_a_preemption_by_priority_is_not_short_space(tmp_path: Path) -> None:
    lines = [
        "INFO 05-09 00:49:00 [api_server.py:1044] args: Namespace(model='m', scheduling_policy='priority', max_num_seqs=8)",
        *[stats_v0(10 * i, 8, 0, 12.0) for i in range(6)],
        v0_warning(31, 1),
    ]
    found = document(tmp_path, lines)
    assert "kv-preemption" in ids(found)
    assert found["verdict"] != "kv-capacity"


def test_the_mean_over_engines_hides_a_full_one(tmp_path: Path) -> None:
    lines = [*v1_start(), *[stats_v1(10 * i, 64, 117, 14.1, engine="8 Engines Aggregated") for i in range(1, 5)]]
    found = document(tmp_path, lines)
    assert any(f["id"] == "coverage" and "averages over several engines" in f["title"] for f in found["findings"])
    assert found["verdict"] not in ("healthy", "seat-limit")


def test_only_the_full_engines_of_eight_are_named(tmp_path: Path) -> None:
    lines = v1_start(seats=256)
    for i in range(1, 6):
        lines += [
            stats_v1(10 * i, 40, 30 if k < 2 else 0, 99.5 if k < 2 else 20.0, engine=f"Engine {k:03d}")
            for k in range(8)
        ]
    found = document(tmp_path, lines)
    assert [e["verdict"] for e in found["engines"]] == ["kv-capacity"] * 2 + ["healthy"] * 6
    assert found["worst_engine"] in (0, 1)


def test_a_saturated_v1_log_says_that_preemption_is_not_visible(tmp_path: Path) -> None:
    lines = [*v1_start(seats=256), *[stats_v1(10 * i, 33, 40, 97.0 + i % 3) for i in range(1, 40)]]
    found = document(tmp_path, lines)
    assert found["pressure"] == "saturated"
    assert found["preemptions"]["value"] is None
    assert found["preemptions"]["logged"] == {"low": None, "high": None}
    assert any("does not log preemptions" in f["title"] for f in found["findings"] if f["id"] == "coverage")


def test_a_patched_builds_field_counts_the_interval(tmp_path: Path) -> None:
    lines = [*v1_start(), *[stats_v1(10 * i, 8, 3, 99.0, extra="Preemptions: 5, ") for i in range(1, 4)]]
    counted = document(tmp_path, lines)["preemptions"]
    assert (counted["low"], counted["value"], counted["high"], counted["basis"]) == (15, 15, 15, "measured")


def test_v0_on_a_cpu_shows_its_cache_as_cpu_usage(tmp_path: Path) -> None:
    lines = [
        stats_v0(10 * i, 8, 3, 0.0).replace("CPU KV cache usage: 0.0%", "CPU KV cache usage: 98.0%") for i in range(5)
    ]
    assert "kv-admission-wait" in ids(document(tmp_path, lines))


def test_all_seats_taken_in_a_full_cache_are_two_limits_at_once(tmp_path: Path) -> None:
    lines = [*v1_start(seats=8), *[stats_v1(10 * i, 8, 4, 98.0) for i in range(1, 7)]]
    found = document(tmp_path, lines)
    assert found["verdict"] == "not-enough-evidence"
    assert found["pressure"] == "saturated"
    assert not ids(found) & {"kv-admission-wait", "seat-limit"}
    assert any("which of the two" in f["title"] for f in found["findings"])


def test_deferred_requests_wait_for_no_seat(tmp_path: Path) -> None:
    lines = [
        *v1_start(version="0.24.0", seats=8),
        *[stats_v1(10 * i, 8, 3, 50.0, extra="Deferred: 3 reqs, ") for i in range(1, 7)],
    ]
    found = document(tmp_path, lines)
    assert "seat-limit" not in ids(found)
    assert found["verdict"] == "not-enough-evidence"
