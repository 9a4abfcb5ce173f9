"""What strangers' logs show of servers that died, failed or waited for something else than space: a table for each kind, of real lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.logs import access, document, ids, stats_v0, stats_v1

SERVES = stats_v1(10, 4, 0, 12.0)
RANKS = ("(Worker_TP0 pid=300)", "(Worker_TP1 pid=301)")
AT = "05-09 00:49:14"


def the(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(f for f in found["findings"] if f["id"] == name)


def both(text: str) -> list[str]:
    """A line as the workers of two GPUs print it, one after the other."""
    return [f"{rank} ERROR {AT} [multiproc_executor.py:654] {text}" for rank in RANKS]


DEATHS = {
    "torch's watchdog of collectives": (
        [
            "[rank0]:[E509 00:59:21.538263561 ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2,"
            " OpType=ALLREDUCE, NumelIn=134217728, NumelOut=134217728, Timeout(ms)=600000) ran for 600059 milliseconds before timing out."
        ],
        "an NCCL operation (ALLREDUCE) timed out after 600 s",
    ),
    "the same of older releases": (
        [
            "[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=BROADCAST,"
            " NumelIn=131137536, NumelOut=131137536, Timeout(ms)=1800000) ran for 1800648 milliseconds before timing out."
        ],
        "an NCCL operation (BROADCAST) timed out after 1800 s",
    ),
    "the watchdog met a CUDA error": (
        [
            "[rank1]:[E509 00:59:21.538263561 ProcessGroupNCCL.cpp:1896] [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with"
            " exception: CUDA error: an illegal memory access was encountered"
        ],
        "CUDA error: an illegal memory access was encountered",
    ),
    "C++": (["terminate called after throwing an instance of 'c10::DistBackendError'"], "c10::DistBackendError"),
    "glog": (
        ["*** SIGSEGV received at time=1741079535 on cpu 33 ***", "PC: @     0x7f1fdd5e6b12  (unknown)  ncclAllReduce"],
        "SIGSEGV",
    ),
    "NCCL's own handler": (["!!!!!!! Segfault encountered !!!!!!!"], "segmentation fault"),
    "the interpreter": (["Fatal Python error: Bus error"], "Bus error"),
    "the shell": (["Segmentation fault (core dumped)"], "segmentation fault"),
    "V0's worker, killed": (
        [f"ERROR {AT} multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 1159 died, exit code: -9"],
        "a process was ended by SIGKILL, most often because the host ran out of memory",
    ),
    "a thread of the engine": (
        [
            "(EngineCore_DP0 pid=967) Exception in thread Thread-1 (process_input_sockets):",
            "(EngineCore_DP0 pid=967) Traceback (most recent call last):",
            '(EngineCore_DP0 pid=967)   File "/usr/lib/python3.12/threading.py", line 1075, in _bootstrap_inner',
        ],
        "the engine's thread process_input_sockets ended with an exception",
    ),
    "workers whose tracebacks alternate": (
        [
            *both("WorkerProc hit an exception."),
            *both("Traceback (most recent call last):"),
            *both('  File "/vllm/v1/worker/gpu_worker.py", line 430, in execute_model'),
            *both("torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
            *both("CUDA kernel errors might be asynchronously reported at some other API call."),
        ],
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    "an exception without a text": (
        [
            f"ERROR {AT} [core.py:517] EngineCore encountered a fatal error.",
            f"ERROR {AT} [core.py:517] Traceback (most recent call last):",
            f"ERROR {AT} [core.py:517]     assert num_local_blocks <= num_remote_blocks",
            f"ERROR {AT} [core.py:517] AssertionError",
        ],
        "AssertionError",
    ),
    "rows that a terminal padded": (
        [f"CRITICAL {AT} launcher.py:72] AsyncLLMEngine has failed, terminating server process                "],
        "The engine died while serving; its requests failed",
    ),
    "a device that is no GPU of NVIDIA's": (
        [
            *both("WorkerProc hit an exception."),
            *both("RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
        ],
        "level_zero backend failed with error: 40",
    ),
}


@pytest.mark.parametrize(("lines", "said"), DEATHS.values(), ids=DEATHS.keys())
def test_a_death_is_seen_and_its_cause_named(tmp_path: Path, lines: list[str], said: str) -> None:
    found = document(tmp_path, [SERVES, *lines])
    assert found["verdict"] == "engine-crash"
    assert said in the(found, "engine-crash")["title"]


STOPS = {
    "Ray at a stop": ["*** SIGTERM received at time=1743979322 on cpu 1 ***"],
    "a thread of somebody else": ["Exception in thread Thread-7 (scrape):"],
    "a prompt about crashes": ["Segmentation fault (core dumped) is what I got from my program"],
}


@pytest.mark.parametrize("lines", STOPS.values(), ids=STOPS.keys())
def test_what_is_no_death(tmp_path: Path, lines: list[str]) -> None:
    assert document(tmp_path, [SERVES, stats_v1(20, 4, 0, 12.0), *lines])["verdict"] == "healthy"


def test_an_exception_of_long_before_is_no_cause(tmp_path: Path) -> None:
    request = "jinja2.exceptions.TemplateError: Conversation roles must alternate"
    many = [access("/v1/chat/completions", "POST")] * 2100
    dead = f"(EngineCore pid=2) ERROR {AT} [core.py:700] EngineCore encountered a fatal error."
    found = document(tmp_path, [SERVES, request, *many, stats_v1(12, 4, 0, 12.0), dead])
    assert the(found, "engine-crash")["title"] == "The engine died while serving; its requests failed"


def test_what_a_server_says_to_its_clients_is_no_cause(tmp_path: Path) -> None:
    said = f"(APIServer pid=1) ERROR {AT} [serving_chat.py:164] ValueError: FORGED"
    dead = f"(EngineCore pid=2) ERROR {AT} [core.py:700] EngineCore encountered a fatal error."
    found = document(tmp_path, [SERVES, said, dead])
    assert the(found, "engine-crash")["title"] == "The engine died while serving; its requests failed"


def test_a_sampler_without_memory_gets_what_vllm_asks_for(tmp_path: Path) -> None:
    text = (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering `max_num_seqs` or"
        " `gpu_memory_utilization` when initializing the engine."
    )
    found = document(
        tmp_path, [f"ERROR {AT} [core.py:396] EngineCore failed to start.", f"ERROR {AT} [core.py:396] {text}"]
    )
    assert found["verdict"] == "startup-failed"
    assert found["advice"][0]["set"] == {"max_num_seqs": 128}
    assert "256" in the(found, "startup-failed")["title"]


def test_outputs_that_left_their_grammar_are_said(tmp_path: Path) -> None:
    line = "(EngineCore_0 pid=9) ERROR {at} [backend_xgrammar.py:160] Failed to advance FSM for request resp_{n} for tokens {t}. Please file an issue."
    lines = [line.format(at=AT, n=n, t=t) for n, t in ((1, 410), (1, 745), (2, 256))]
    found = document(tmp_path, [SERVES, stats_v1(20, 4, 0, 12.0), *lines])
    title = the(found, "failed-requests")["title"]
    assert "for 2 requests" in title
    assert "3 times" in title


def test_refusals_of_all_kinds_are_counted(tmp_path: Path) -> None:
    posts = [
        access("/v1/chat/completions", "POST").replace("200 OK", s)
        for s in ("404 Not Found", "404 Not Found", "401 Unauthorized")
    ]
    title = the(document(tmp_path, [SERVES, *posts]), "rejected-requests")["title"]
    assert "3 requests were rejected" in title
    assert "2 with HTTP status 404" in title
    assert "1 with HTTP status 401 or 403" in title


def test_a_queue_behind_slow_transfers_is_no_queue_for_prefill(tmp_path: Path) -> None:
    moved = (
        f"(APIServer pid=1) INFO {AT} [metrics.py:96] KV Transfer metrics: Num successful transfers=80, Avg xfer time (ms)=3173.794,"
        " P90 xfer time (ms)=4235.706, Throughput (MB/s)=98.6"
    )
    rows = [stats_v1(10 * i, 3 + i % 3, 30 + i, 31.0, prompt=8200.0, generation=16.0) for i in range(1, 5)]
    rows = [f"{row}, External prefix cache hit rate: 97.7%" for row in rows]
    found = document(tmp_path, [*rows, moved])
    assert found["verdict"] == "not-enough-evidence"
    assert "prefill-bound" not in ids(found)
    assert the(found, "kv-transfer")["severity"] == "warning"
    assert "3.2 s each" in the(found, "kv-transfer")["title"]


@pytest.mark.parametrize(
    ("kv", "running", "verdict"),
    [(94.6, 18, "kv-capacity"), (80.0, 18, "not-enough-evidence"), (94.6, 256, "seat-limit")],
)
def test_a_nearly_full_cache_with_free_seats_holds_the_queue(
    tmp_path: Path, kv: float, running: int, verdict: str
) -> None:
    """V0's default of seats is known (256): a queue before a cache that is full but for a prompt waits for blocks."""
    lines = [stats_v0(5 * i, running, 70 + i, kv, generation=300.0) for i in range(1, 5)]
    assert document(tmp_path, lines)["verdict"] == verdict


def test_a_queue_behind_one_request_is_said_sooner(tmp_path: Path) -> None:
    rows = [stats_v1(10 * i, 1, 14, 76.0 + i / 10, generation=5.4) for i in range(1, 5)]
    assert "14 requests wait behind it" in the(document(tmp_path, rows), "endless-request")["title"]


def test_requests_that_wait_while_none_runs_are_a_stall_at_once(tmp_path: Path) -> None:
    rows = [stats_v0(5 * i, 0, 12 + 5 * i, 0.0, generation=0.0) for i in range(1, 4)]
    found = document(tmp_path, [stats_v0(0, 2, 0, 0.1, generation=5.6), *rows])
    assert found["verdict"] == "engine-stall"
    assert "17 requests waiting and none running" in the(found, "engine-stall")["title"]


def test_health_probes_that_are_refused_are_said(tmp_path: Path) -> None:
    probes = [access(), *[access().replace("200 OK", "503 Service Unavailable")] * 3]
    found = document(tmp_path, [SERVES, stats_v1(20, 4, 0, 12.0), *probes])
    assert "3 of 4 health probes got HTTP 503" in the(found, "failed-requests")["title"]
