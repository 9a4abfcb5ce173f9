"""What the lines of a start tell of the server, and what follows where they tell it only in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs import access, document, stats_v1, v1_start


def test_several_api_servers_print_no_statistics(tmp_path: Path) -> None:
    line = "(APIServer pid=1) WARNING 05-09 00:49:33 [loggers.py:665] AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid incomplete stats."
    found = document(tmp_path, [*v1_start(), line, access("/v1/completions", "POST")])
    assert found["verdict"] == "not-enough-evidence"
    assert any("--api-server-count 1" in f["title"] for f in found["findings"])


def test_two_starts_are_two_runs(tmp_path: Path) -> None:
    lines = [*v1_start(0, pid=1), stats_v1(10, 1, 0, 1.0), *v1_start(100, pid=50), stats_v1(120, 2, 0, 2.0)]
    found = document(tmp_path, lines)
    assert [(e["server"], e["run"]) for e in found["engines"]] == [(0, 0), (0, 1)]


def test_a_block_size_that_nobody_printed_is_a_default(tmp_path: Path) -> None:
    (engine,) = document(tmp_path, [*v1_start(tokens=8000), stats_v1(10, 1, 0, 1.0)])["engines"]
    assert engine["kv_cache"]["block_size"] == 16
    assert engine["config_basis"]["block_size"] == "default"
    assert engine["config_basis"]["num_blocks"] == "inferred"


START = "model='m', dtype=torch.float16, max_seq_len=4096, tensor_parallel_size=1"


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        (f"INFO 05-09 00:49:01 llm_engine.py:72] Initializing an LLM engine with config: {START}", "V0"),
        (f"INFO 05-09 00:49:01 llm_engine.py:237] Initializing an LLM engine (v0.6.5) with config: {START}", "V0"),
        (f"INFO 05-09 00:49:01 core.py:45] Initializing an LLM engine (v0.6.5) with config: {START}", "V1"),
        (f"INFO 05-09 00:49:01 [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: {START}", "V1"),
        (f"INFO 05-09 00:49:01 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.5) with config: {START}", "V0"),
    ],
)  # fmt: skip
def test_the_engine_is_told_by_its_start(tmp_path: Path, line: str, engine: str) -> None:
    assert document(tmp_path, [line])["engines"][0]["engine"] == engine


@pytest.mark.parametrize(
    ("args", "budget", "seats"),
    [
        ("", 2048, (256, "default")),
        ("", 8192, (1024, "default")),
        ("", 4096, (None, None)),  # which no version chooses by itself
        (", 'max_num_batched_tokens': 8192", 8192, (None, None)),  # the user's own says nothing
        (", 'max_num_seqs': 40", 8192, (40, "measured")),
    ],
)
def test_the_budget_that_a_server_chose_tells_its_default_of_seats(
    tmp_path: Path, args: str, budget: int, seats: tuple[int | None, str | None]
) -> None:
    lines = [
        "(APIServer pid=1) INFO 05-09 00:49:00 [utils.py:299] vLLM server version 0.19.1, serving model m",
        f"(APIServer pid=1) INFO 05-09 00:49:00 [utils.py:233] non-default args: {{'model': 'm'{args}}}",
        f"(APIServer pid=1) INFO 05-09 00:49:01 [scheduler.py:231] Chunked prefill is enabled with max_num_batched_tokens={budget}.",
        stats_v1(10, 1, 0, 1.0),
    ]
    (engine,) = document(tmp_path, lines)["engines"]
    assert (engine["config"]["max_num_seqs"], engine["config_basis"].get("max_num_seqs")) == seats
    assert engine["config"]["max_num_batched_tokens"] == budget


@pytest.mark.parametrize(
    ("version", "hints"),
    [
        ("0.9.2", ("start without --disable-log-requests",)),
        ("0.12.0", ("start with --enable-log-requests",)),
        ("0.19.1", ("start with --enable-log-requests", "start with --enable-logging-iteration-details")),
        (None, ("vLLM 0.10.1 and later: start with --enable-log-requests, older ones: start without --disable-log-requests", "vLLM 0.14.0 and later: start with --enable-logging-iteration-details")),
    ],
)  # fmt: skip
def test_a_hint_names_the_flag_of_the_version(tmp_path: Path, version: str | None, hints: tuple[str, ...]) -> None:
    start = [] if version is None else v1_start(version=version)
    found = document(tmp_path, [*start, stats_v1(10, 4, 0, 10.0), stats_v1(20, 4, 0, 10.0)])
    titles = [f["title"] for f in found["findings"] if f["id"] == "coverage"]
    assert [t.partition("(")[2].rstrip(")") for t in titles if t.startswith("No ")] == list(hints)


def test_several_api_servers_are_one_start(tmp_path: Path) -> None:
    lines = v1_start()
    off = "(ApiServer_{0} pid=5{0}) WARNING 05-09 00:49:01 [async_llm.py:1] AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid incomplete stats."
    lines[2:2] = [off.format(k) for k in range(4)]
    found = document(tmp_path, [*lines, access("/v1/completions", "POST")])
    assert [e["run"] for e in found["engines"]] == [0]
    assert found["engines"][0]["kv_cache"]["tokens"] == 8000
    assert any("several API servers" in f["title"] for f in found["findings"])


def test_a_length_that_vllm_did_not_estimate_is_whole_blocks(tmp_path: Path) -> None:
    lines = [
        "INFO 05-09 00:49:00 [api_server.py:1] vLLM API server version 0.8.4",
        "ValueError: To serve at least one request with the models's max seq len (16384), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.37 GiB). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
    ]
    found = document(tmp_path, lines)
    assert found["verdict"] == "startup-kv-too-small"
    assert [a["flag"] for a in found["advice"]] == ["--max-model-len 9584"]


@pytest.mark.parametrize(
    ("fits", "block", "basis"), [("6.25", 32, "measured"), ("3.13", 16, "measured"), ("4.00", 16, "default")]
)  # fmt: skip
def test_the_block_size_follows_from_how_many_requests_fit(tmp_path: Path, fits: str, block: int, basis: str) -> None:
    lines = [
        "INFO 05-09 00:49:03 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.5) with config: model='m', max_seq_len=32000",
        "INFO 05-09 00:49:09 [executor_base.py:112] # cuda blocks: 6250, # CPU blocks: 2048",
        f"INFO 05-09 00:49:09 [executor_base.py:117] Maximum concurrency for 32000 tokens per request: {fits}x",
    ]
    (engine,) = document(tmp_path, lines)["engines"]
    assert (engine["config"]["block_size"], engine["config_basis"]["block_size"]) == (block, basis)
    assert engine["kv_cache"] == {"tokens": 6250 * block, "num_blocks": 6250, "block_size": block, "bytes": None}


def test_the_throughput_of_starts_that_follow_each_other_is_a_mean_and_of_engines_that_run_together_a_sum(
    tmp_path: Path,
) -> None:
    engines = ("Engine 000", "Engine 001")
    first = [*v1_start(0), *(stats_v1(10 * i, 3, 0, 10.0, generation=100.0, engine=e) for i in (1, 2) for e in engines)]
    second = [
        *v1_start(60, pid=9),
        *(stats_v1(60 + 10 * i, 3, 0, 10.0, generation=40.0, engine=e) for i in range(1, 7) for e in engines),
    ]
    found = document(tmp_path, [*first, *second])
    assert [e["throughput"]["generation_tokens_per_s"] for e in found["engines"]] == pytest.approx([100, 100, 40, 40])
    assert found["throughput"]["generation_tokens_per_s"] == pytest.approx((200 * 20 + 80 * 60) / 80)
