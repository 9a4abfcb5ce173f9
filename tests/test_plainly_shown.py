"""What a log plainly shows is never missed: a table for each kind, in the dresses of several versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from logscope.diagnosis.verdict import certainty, seen_to_wait, verdict_of_ledger
from logscope.evidence.pressure import evicted_share
from logscope.sanitize import without_client_text
from tests.logs import document, ids, stats_v0, stats_v1, v0_warning, v1_start


def the(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(f for f in found["findings"] if f["id"] == name)


def swapped(at: float, running: int, swapped: int, kv: float = 99.8) -> str:
    return stats_v0(at, running, 0, kv).replace("Swapped: 0", f"Swapped: {swapped}")


def shm(at: int, seconds: int = 60) -> str:
    return (
        f"(EngineCore pid=9) INFO 05-09 00:{49 + at // 60:02d}:{at % 60:02d} [shm_broadcast.py:466] No available shared memory broadcast"
        f" block found in {seconds} seconds."
    )


STALLS = {
    "running, no queue, V1 at DEBUG": [
        stats_v1(10 * i, 5, 0, 12.5, generation=0.0, level="DEBUG") for i in range(1, 8)
    ],
    "running, no queue, V0": [stats_v0(5 * i, 3, 0, 4.2, generation=0.0) for i in range(1, 12)],
    "20 s in which nothing at all changes, V0": [
        stats_v0(5 * i, 31, 90 + i, 98.8, generation=118.0 * (i == 1)) for i in range(1, 6)
    ],
    "queued, none running": [stats_v1(10 * i, 0, 9, 0.0, generation=0.0) for i in range(1, 8)],
    "silence behind a line without tokens": [
        stats_v1(10, 2, 0, 3.0),
        stats_v1(20, 2, 0, 3.0, generation=0.0),
        stats_v1(200, 2, 0, 3.0, generation=0.0),
    ],
}


@pytest.mark.parametrize("lines", STALLS.values(), ids=STALLS)
def test_a_stall_needs_no_queue(tmp_path: Path, lines: list[str]) -> None:
    assert document(tmp_path, [*v1_start()[:1], *lines])["verdict"] == "engine-stall"


WORKS = {
    "a long prefill takes blocks": [stats_v1(10 * i, 1, 0, 10.0 + 3 * i, generation=0.0) for i in range(1, 9)],
    "nobody is there": [stats_v1(10 * i, 0, 0, 0.0, generation=0.0) for i in range(1, 9)],
}


@pytest.mark.parametrize("lines", WORKS.values(), ids=WORKS)
def test_what_is_no_stall(tmp_path: Path, lines: list[str]) -> None:
    assert "engine-stall" not in ids(document(tmp_path, [*v1_start(), *lines]))


def test_a_stall_that_printed_lines_was_not_silent(tmp_path: Path) -> None:
    found = document(tmp_path, STALLS["queued, none running"])
    assert "silent" not in the(found, "engine-stall")["title"]
    assert "9 requests waiting and none running" in the(found, "engine-stall")["title"]


def test_processes_that_wait_for_each_other_are_worth_a_warning(tmp_path: Path) -> None:
    found = document(tmp_path, [*v1_start(), *[shm(at) for at in (300, 360, 420)]])
    assert "through shared memory (3 waits of 60 s)" in the(found, "engine-stall")["title"]
    assert found["verdict"] != "healthy"


def test_before_it_serves_a_wait_is_compilation(tmp_path: Path) -> None:
    serving = [stats_v1(300 + 10 * i, 4, 0, 5.0) for i in range(1, 6)]
    found = document(tmp_path, [*v1_start(), shm(120), *serving])
    assert (the(found, "engine-stall")["severity"], found["verdict"]) == ("info", "healthy")


@pytest.mark.parametrize(
    "lines",
    [
        [stats_v0(5 * i, 2, 0, 0.6, generation=0.4) for i in range(1, 8)],
        [stats_v1(10 * i, 16, 0, 30.0, generation=3.2) for i in range(1, 8)],
        [stats_v1(10 * i, 4, 0, 82.7, generation=5.0) for i in range(1, 8)],  # over the network, pipeline-parallel
    ],
)
def test_steps_that_crawl(tmp_path: Path, lines: list[str]) -> None:
    found = document(tmp_path, lines)
    assert "slow-steps" in ids(found)
    assert found["verdict"] != "healthy"


@pytest.mark.parametrize(("first", "rise", "said"), [(91.0, 0.5, "110 s"), (80.0, 1.5, "63 s"), (70.0, 0.1, None)])
def test_a_cache_that_fills_says_when_it_is_full(tmp_path: Path, first: float, rise: float, said: str | None) -> None:
    found = document(tmp_path, [stats_v1(10 * i, 8, 0, round(first + rise * i, 1)) for i in range(8)])
    assert ("kv-filling" in ids(found)) is (said is not None)
    if said is not None:
        assert f"full in about {said}" in the(found, "kv-filling")["title"]


_PRE = "(EngineCore pid=2) ERROR 05-09 00:50:00 [core.py:700] "
_V0 = "ERROR 05-09 00:50:00 async_llm_engine.py:63] "
CRASHES = {
    "V1, cut to the end": [f"{_PRE}EngineCore encountered a fatal error.", f"{_PRE}AssertionError"],
    "a worker that ran": [
        f"{_PRE}WorkerProc hit an exception.",
        f"{_PRE}Traceback (most recent call last):",
        f'{_PRE}  File "/opt/vllm/v1/worker/gpu_worker.py", line 1, in execute_model',
        f"{_PRE}RuntimeError: CUDA error: device-side assert triggered",
    ],
    "V0, the background loop": [
        f"{_V0}Engine background task failed",
        f"{_V0}Traceback (most recent call last):",
        f"{_V0}IndexError: list index out of range",
    ],
    "a step of a worker timed out": [f"{_PRE}TimeoutError: RPC call to execute_model timed out."],
    "V0, a step failed": [
        v0_warning(1, 1),
        "INFO 05-09 00:50:00 model_runner_base.py:120] Writing input of failed execution to /tmp/err_execute_model_input_1.pkl...",
    ],
}


@pytest.mark.parametrize("lines", CRASHES.values(), ids=CRASHES)
def test_what_only_a_running_engine_prints_is_a_crash_in_service(tmp_path: Path, lines: list[str]) -> None:
    assert document(tmp_path, lines)["verdict"] == "engine-crash"


STARTS = {
    "V1": [
        f"{_PRE}EngineCore failed to start.",
        f"{_PRE}Traceback (most recent call last):",
        f"{_PRE}ImportError: libcudart.so.12: cannot open shared object file",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
    ],
    "a worker while it profiled": [
        f"{_PRE}WorkerProc hit an exception.",
        f"{_PRE}Traceback (most recent call last):",
        f'{_PRE}  File "/opt/vllm/v1/worker/gpu_worker.py", line 1, in determine_available_memory',
        f'{_PRE}  File "/opt/vllm/v1/worker/gpu_worker.py", line 1, in execute_model',
        f"{_PRE}RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ],
    "a worker that did not come up": [
        f"{_PRE}WorkerProc failed to start.",
        f"{_PRE}Traceback (most recent call last):",
        f"{_PRE}RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ],
    "a traceback of which only the end was kept": [
        f"{_PRE}EngineCore failed to start.",
        f"{_PRE}ImportError: libcudart.so.12: cannot open shared object file",
    ],
    "a rank's traceback": [
        "INFO 05-09 00:49:00 [api_server.py:1043] vLLM API server version 0.8.5",
        "[rank0]: Traceback (most recent call last):",
        "[rank0]: ImportError: libcudart.so.12: cannot open shared object file",
    ],
    "a port that is taken": [
        "INFO 05-09 00:49:00 [api_server.py:913] Starting vLLM API server on http://0.0.0.0:8000",
        "Traceback (most recent call last):",
        "OSError: [Errno 98] Address already in use",
    ],
    "a port that is taken, as uvicorn says it": [
        "INFO 05-09 00:49:00 [api_server.py:913] Starting vLLM API server on http://0.0.0.0:8000",
        "INFO:     Application startup complete.",
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
    ],
}


@pytest.mark.parametrize("lines", STARTS.values(), ids=STARTS)
def test_a_start_that_failed_names_the_cause_and_not_its_wrapper(tmp_path: Path, lines: list[str]) -> None:
    found = document(tmp_path, lines)
    assert found["verdict"] == "startup-failed"
    title = the(found, "startup-failed")["title"]
    assert any(
        cause in title.lower() for cause in ("libcudart", "no kernel image", "nccl error", "address already in use")
    )


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ValueError: max() arg is an empty sequence", True),
        ("AttributeError: 'NoneType' object has no attribute 'shape'", True),
        ("RuntimeError: shape '[1, 4096]' is invalid for input of size 12", True),
        ("RuntimeError: NCCL error: unhandled system error", True),
        ("ValueError: my password is hunter2", False),
        ("ValueError: the prompt 'free my cat' is invalid", False),
        ("KeyError: 'Alice Smith'", False),
    ],
)
def test_a_message_of_the_engine_s_own_words_is_shown_and_a_client_s_is_not(text: str, kept: bool) -> None:
    assert (without_client_text(text) == text) is kept


def test_swapped_requests_were_preempted(tmp_path: Path) -> None:
    found = document(tmp_path, [swapped(5 * i, 30, 40 + 3 * i) for i in range(6)])
    assert found["verdict"] == "kv-capacity"
    assert (found["preemptions"]["low"], found["preemptions"]["value"], found["preemptions"]["high"]) == (
        15,
        None,
        None,
    )
    assert "swap" in the(found, "kv-preemption")["title"]


def test_requests_that_went_back_into_the_queue_together_were_preempted(tmp_path: Path) -> None:
    lines = [stats_v0(0, 18, 0, 99.9), stats_v0(5, 1, 17, 3.1), stats_v0(10, 18, 0, 99.7)]
    found = document(tmp_path, lines)
    assert "kv-preemption" in ids(found)
    assert (found["preemptions"]["low"], found["preemptions"]["basis"]) == (17, "inferred")


def test_requests_that_finished_together_were_not(tmp_path: Path) -> None:
    found = document(tmp_path, [stats_v0(0, 18, 0, 99.9), stats_v0(5, 1, 0, 3.1), stats_v0(10, 18, 0, 40.0)])
    assert "kv-preemption" not in ids(found)


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("(EngineCore_DP0 pid=7) INFO 05-09 00:49:00 [kv_cache_utils.py:864] GPU KV cache size: 40,000 tokens", "V1"),
        ("INFO 05-09 00:49:00 executor_base.py:76] # GPU blocks: 4000, # CPU blocks: 2048", "V0"),
        (f"{_PRE}Dumping input data for V1 LLM engine (v0.18.0) with config: model='m', ", "V1"),
        (
            "INFO 05-09 00:49:00 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
            None,
        ),
    ],
)
def test_any_line_that_tells_the_engine_tells_it(tmp_path: Path, line: str, engine: str | None) -> None:
    assert document(tmp_path, [line])["engines"][0]["engine"] == engine


def test_a_dump_tells_the_version(tmp_path: Path) -> None:
    line = f"{_PRE}Dumping input data for V1 LLM engine (v0.18.0) with config: model='m', "
    assert document(tmp_path, [line])["engines"][0]["vllm_version"] == "0.18.0"


@pytest.mark.parametrize(
    ("seats", "kv", "verdict"),
    [
        (256, 40.0, "seat-limit"),
        (100, 55.0, "seat-limit"),
        (37, 20.0, "not-enough-evidence"),
        (256, 99.0, "kv-capacity"),
        (1, 76.0, "not-enough-evidence"),  # the next request may be as large, and would not fit
        (1, 20.0, "seat-limit"),
    ],
)
def test_seats_are_told_by_running_that_stands_still(tmp_path: Path, seats: int, kv: float, verdict: str) -> None:
    lines = [stats_v1(10 * i, seats, 50 + i, kv + i / 10, prompt=900.0, generation=5000.0) for i in range(5)]
    found = document(tmp_path, lines)
    assert found["verdict"] == verdict
    if verdict == "seat-limit":
        engine = found["engines"][0]
        assert (engine["config"]["max_num_seqs"], engine["config_basis"]["max_num_seqs"]) == (seats, "inferred")


def test_deferred_requests_do_not_wait_for_space(tmp_path: Path) -> None:
    lines = [stats_v1(10 * i, 3, 90, 22.0, extra="Deferred: 88 reqs, ") for i in range(5)]
    found = document(tmp_path, lines)
    assert "up to 88 of 90" in the(found, "deferred")["title"]
    assert found["verdict"] not in ("kv-capacity", "seat-limit", "healthy")


def test_a_queue_of_prompts_is_not_for_want_of_space(tmp_path: Path) -> None:
    lines = [
        stats_v0(5 * i, 20 + i, 9 - i, 25.0, generation=1.0).replace(
            "prompt throughput: 0.0", "prompt throughput: 1032.0"
        )
        for i in range(5)
    ]
    found = document(tmp_path, lines)
    assert found["verdict"] == "prefill-interference"
    assert "Prefill, not KV space" in the(found, "prefill-bound")["title"]


@pytest.mark.parametrize(("lines", "severity"), [(10, "info"), (70, "warning")])
def test_one_request_that_does_not_end(tmp_path: Path, lines: int, severity: str) -> None:
    found = document(tmp_path, [stats_v1(10 * i, 1, 0, round(5 + 0.1 * i, 1), generation=30.0) for i in range(lines)])
    assert the(found, "endless-request")["severity"] == severity


def test_who_waits_behind_an_endless_request_is_said(tmp_path: Path) -> None:
    found = document(tmp_path, [stats_v1(10 * i, 1, 14, round(76 + 0.1 * i, 1), generation=5.0) for i in range(10)])
    assert "14 requests wait behind it" in the(found, "endless-request")["title"]
    assert found["verdict"] == "not-enough-evidence"


def test_a_burst_that_was_admitted_is_no_queue_of_prompts(tmp_path: Path) -> None:
    lines = [
        stats_v1(0, 1, 0, 0.1, prompt=600.0),
        stats_v1(10, 106, 22, 2.5, prompt=63000.0, generation=32.0),
        stats_v1(20, 128, 0, 2.8, prompt=13000.0, generation=7000.0),
    ]
    assert document(tmp_path, lines)["verdict"] == "not-enough-evidence"


def test_a_cap_that_the_server_never_reached_is_not_advised(tmp_path: Path) -> None:
    lines = [stats_v0(5 * i, 2, 98, 99.0) for i in range(6)]
    advice = document(tmp_path, lines)["advice"]
    assert advice
    assert "--max-num-seqs 2" not in [a["flag"] for a in advice]


def test_lines_of_drafts_name_no_engine(tmp_path: Path) -> None:
    drafts = (
        "(APIServer pid=1) INFO 05-09 00:49:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.92, Accepted throughput: 16.70 tokens/s,"
        " Drafted throughput: 18.20 tokens/s, Accepted: 167 tokens, Drafted: 182 tokens, Per-position acceptance rate: 0.918, Avg Draft acceptance rate: 91.8%"
    )
    found = document(
        tmp_path, [stats_v1(10, 2, 0, 1.0, engine="Engine 001"), drafts, stats_v1(20, 2, 0, 1.0, engine="Engine 001")]
    )
    assert [engine["engine_index"] for engine in found["engines"]] == [1]
    assert "speculation" in ids(found)


def test_a_compilation_that_took_the_tokens(tmp_path: Path) -> None:
    jit = "(Worker_TP0 pid=7) WARNING 05-09 00:49:15 [jit_monitor.py:135] TileLang JIT compilation during inference: mhc_pre. This causes a latency spike."
    rates = (60.0, 2.0, 61.0, 60.0)
    lines = [stats_v1(10 * i, 3, 0, 5.0, generation=rate) for i, rate in enumerate(rates, 1)]
    found = document(tmp_path, [lines[0], jit, *lines[1:]])
    assert the(found, "compile-stall")["severity"] == "warning"
    assert found["verdict"] != "healthy"


def test_refused_failed_and_aborted_requests_are_counted(tmp_path: Path) -> None:
    answers = [(200, 20), (400, 5), (500, 2)]
    lines = [f'INFO:     192.0.2.7:1 - "POST /v1/completions HTTP/1.1" {s} X' for s, n in answers for _ in range(n)]
    aborted = "(APIServer pid=1) INFO 05-09 00:49:20 [async_llm.py:724] Aborted request(s) a-1,a-2."
    found = document(tmp_path, [stats_v1(10, 4, 0, 5.0), stats_v1(20, 4, 0, 5.0), *lines, aborted])
    assert "5 requests were rejected" in the(found, "rejected-requests")["title"]
    assert "2 with an HTTP 5xx status, 2 aborted" in the(found, "failed-requests")["title"]


def test_a_pool_smaller_than_one_request_is_a_risk(tmp_path: Path) -> None:
    found = document(tmp_path, [*v1_start(tokens=2000), *[stats_v1(10 * i, 1, 0, 5.0) for i in range(1, 4)]])
    assert "holds 2,000 tokens, but max_model_len allows 4,096" in the(found, "config-risk")["title"]


@pytest.mark.parametrize("line", ["INFO 05-09 00:49:00 llm_engine.py:322] # GPU blocks: 0, # CPU blocks: 1365"])
def test_no_block_is_too_small_a_cache(tmp_path: Path, line: str) -> None:
    assert document(tmp_path, [line])["verdict"] == "startup-kv-too-small"


def test_a_full_cache_with_a_queue_gets_rules_of_thumb_and_the_reason(tmp_path: Path) -> None:
    found = document(tmp_path, [stats_v1(10 * i, 34, 18 + 8 * i, 99.2, generation=700.0) for i in range(6)])
    assert found["verdict"] == "kv-capacity"
    assert {a["basis"] for a in found["advice"]} == {"rule"}
    assert all(a["scenario"] is None for a in found["advice"])
    assert "--max-num-seqs 27" in [a["flag"] for a in found["advice"]]
    assert any("Nothing was replayed" in f["title"] for f in found["findings"])


def test_under_healthy_nothing_is_above_info(tmp_path: Path) -> None:
    calm = [stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 8)]
    found = document(tmp_path, [*v1_start(tokens=2000), *calm])
    assert found["verdict"] == "healthy"
    assert {f["severity"] for f in found["findings"]} == {"info"}


def test_engines_that_differ_at_one_instant(tmp_path: Path) -> None:
    rows = [(256, 90, 99.0), (3, 0, 2.0), (4, 0, 2.5)]
    lines = [stats_v1(10, r, w, kv, engine=f"Engine {i:03d}") for i, (r, w, kv) in enumerate(rows)]
    found = document(tmp_path, lines)
    assert "requests queue at engine 0" in the(found, "engine-imbalance")["title"]


def _companion(at: int, text: str) -> str:
    return f"(APIServer pid=1) INFO 05-09 00:49:{at:02d} [metrics.py:100] {text}"


def test_what_the_features_say_of_themselves(tmp_path: Path) -> None:
    spec = "SpecDecoding metrics: Mean acceptance length: 1.60, Accepted throughput: 12.0 tokens/s, Drafted throughput: 60.0 tokens/s, Accepted: 120 tokens, Drafted: 600 tokens, Per-position acceptance rate: 0.4, 0.2, Avg Draft acceptance rate: 20.0%"
    moved = "KV Transfer metrics: Num successful transfers=12, Avg xfer time (ms)=3.5, Num failed transfers=2"
    hits = [
        stats_v1(10 * i, 4, 0, 30.0, prompt=500.0).replace("hit rate: 0.0%", f"hit rate: {rate}%")
        for i, rate in enumerate((62.0, 55.0, 40.0, 28.0, 21.0), 1)
    ]
    found = document(tmp_path, [*v1_start(), *hits, _companion(55, spec), _companion(56, moved)])
    assert "fell from 62 % to 21 % of prompt tokens" in the(found, "cache-reuse")["title"]
    assert "120 of 600 drafted tokens were accepted (20" in the(found, "speculation")["title"]
    assert "12 succeeded, 3.5 ms each on average, 2 failed" in the(found, "kv-transfer")["title"]


def test_an_idle_server_was_not_seen_to_do_well(tmp_path: Path) -> None:
    idle = [stats_v1(10 * i, 0, 0, 0.0, generation=0.0) for i in range(1, 5)]
    assert document(tmp_path, idle)["verdict"] == "not-enough-evidence"


KV = {"queued_for_kv": 8.0, "decode": 2.0}
SEATS = {"queued_for_seat": 8.0, "decode": 2.0}
BOTH = {"queued_for_kv": 4.0, "queued_for_seat": 4.0, "decode": 2.0}


@pytest.mark.parametrize(
    ("ledgers", "sure", "second"),
    [
        ([KV] * 4, 1.0, None),
        ([KV] * 3 + [SEATS], 0.75, ("seat-limit", 0.25)),
        ([KV] * 9 + [SEATS], 0.9, None),
        ([BOTH], 0.5, ("seat-limit", 0.5)),
    ],
)
def test_certainty_is_the_share_of_workloads_that_agree(
    ledgers: list[dict[str, float]], sure: float, second: tuple[str, float] | None
) -> None:
    assert certainty("kv-capacity", ledgers) == (sure, second)


HITS = {
    # hit rate by line, Waiting by line, and the share of the prefill that is for lack of room
    "talks return and find nothing, as the cache is full": ([10, 50, 40, 30, 20, 15], [0, 0, 5, 5, 5, 5], (0.3, 0.6)),
    "a shared head stays": ([50, 70, 80, 82, 83, 84], [0, 0, 5, 5, 5, 5], (0.0, 0.02)),
    "other prompts, and nobody waits": ([10, 50, 40, 30, 20, 15], [0] * 6, (0.0, 0.0)),
    "nothing was ever shared": ([0] * 6, [0, 0, 5, 5, 5, 5], (0.0, 0.0)),
}


@pytest.mark.parametrize("kind", HITS)
def test_prefill_of_what_was_evicted_is_told_by_the_hit_rate(kind: str) -> None:
    rates, waiting, (least, most) = HITS[kind]
    windows = pl.DataFrame(
        {"hit_pct": [float(r) for r in rates], "waiting": [float(w) for w in waiting], "prompt_tps": [300.0] * 6}
    ).with_columns(interval_s=10.0, kv_pct=90.0, full=False, aggregated=False)
    assert least <= evicted_share(windows, counts_hits=False) <= most


def test_prefill_for_lack_of_room_is_no_fault_of_the_prompts() -> None:
    slow = {"queued_for_kv": 4.0, "interference": 6.0, "decode": 5.0}
    assert verdict_of_ledger(slow) == "prefill-interference"
    assert verdict_of_ledger(slow, evicted=0.4) == "kv-capacity"
    assert verdict_of_ledger({"interference": 6.0, "decode": 5.0}, evicted=0.4) == "prefill-interference"


@pytest.mark.parametrize(
    ("waiting", "kv", "verdict"), [(0.0, 88.0, "healthy"), (3.0, 88.0, "seat-limit"), (0.0, 95.0, "healthy")]
)
def test_a_queue_that_no_line_shows_is_no_verdict_where_arrivals_are_made_up(
    waiting: float, kv: float, verdict: str
) -> None:
    windows = pl.DataFrame({"waiting": [0.0, waiting], "swapped": [None, None], "kv_pct": [40.0, kv]})
    slow = {"queued_for_seat": 5.6, "interference": 0.1, "prefill": 0.0, "decode": 8.9}
    assert verdict_of_ledger(seen_to_wait(slow, windows)) == verdict


def test_without_a_workload_nothing_is_sure() -> None:
    assert certainty("kv-capacity", []) is None
