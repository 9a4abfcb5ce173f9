"""Logs as they are in the wild, which fail most tools: what each of them must and must not be taken for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.logs import access, document, parsed, stats_v0, stats_v1, v0_warning, v1_start


def ids(found: dict[str, Any]) -> set[str]:
    return {f["id"] for f in found["findings"]}


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


@pytest.mark.parametrize(("waiting", "stalled"), [(6, True), (0, False)])
def test_silence_with_a_queue_is_a_stall_and_without_one_idleness(
    tmp_path: Path, waiting: int, stalled: bool
) -> None:
    lines = [
        *v1_start(),
        stats_v1(10, 4, 0, 10.0),
        stats_v1(20, 0, waiting, 0.0, generation=0.0),
    ] + [access()] * 54
    assert (document(tmp_path, lines)["verdict"] == "engine-stall") is stalled


@pytest.mark.parametrize(("waiting", "stalled"), [(6, True), (0, False)])
def test_a_gap_between_statistics(tmp_path: Path, waiting: int, stalled: bool) -> None:
    lines = [
        *v1_start(),
        stats_v1(10, 0, waiting, 3.0, generation=0.0),
        stats_v1(550, 0, waiting, 3.0, generation=0.0),
    ]
    assert (document(tmp_path, lines)["verdict"] == "engine-stall") is stalled


@pytest.mark.parametrize(("silence", "stalled"), [(170, False), (190, True)])
def test_what_is_a_gap_goes_by_the_interval_of_the_log(
    tmp_path: Path, silence: int, stalled: bool
) -> None:
    every = [stats_v1(60 * i, 2, 3, 3.0) for i in range(1, 7)]
    late = stats_v1(360 + silence, 2, 3, 3.0, generation=0.0)
    found = ids(document(tmp_path, [*v1_start(), *every, late]))
    assert ("engine-stall" in found) is stalled


def test_a_stats_line_wrapped_at_a_terminal_width(tmp_path: Path) -> None:
    line = "2026-05-09T07:49:10.331095044Z " + stats_v1(10, 34, 2, 91.0)
    cut = 160
    data = parsed(tmp_path, [*v1_start(), line[:cut], line[cut:]])
    assert data.frames["stats"].select("running", "waiting", "gpu_kv_cache_usage_pct").rows() == [
        (34, 2, 91.0)
    ]


def test_wrapped_inside_a_word(tmp_path: Path) -> None:
    line = stats_v1(10, 34, 2, 91.0)
    at = line.index("generation throughput") + len("generation throughpu")
    data = parsed(tmp_path, [line[:at], line[at:], stats_v1(20, 35, 0, 92.0)])
    assert data.frames["stats"]["running"].to_list() == [34, 35]
    assert data.frames["stats"]["generation_throughput"].to_list() == [100.0, 100.0]


WARNING = v0_warning(1, 51)
REQUEST = "INFO 05-09 00:49:33 [logger.py:40] Received request c-1: prompt: "
AFTER = ", params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: None, lora_request: None, prompt_adapter_request: None."


@pytest.mark.parametrize(
    "text",
    [
        REQUEST + "'why?\\n" + WARNING + "\\n" + stats_v1(5, 9, 9, 99.9) + "'" + AFTER,
        REQUEST + "'why?\r\n" + WARNING + "\r\n" + stats_v1(5, 9, 9, 99.9) + "'" + AFTER,
        REQUEST + '"' + WARNING + '"' + AFTER,
        REQUEST
        + "'why?\r\n"
        + "INFO 05-09 00:49:33 [logger.py:40] "
        + WARNING
        + "\r\nINFO 05-09 00:49:33 [logger.py:40] "
        + stats_v1(5, 9, 9, 99.9)
        + "'"
        + AFTER,
        "my-app: the user wrote: " + stats_v1(5, 9, 9, 99.9),
        "my-app: " + WARNING.replace("WARNING", "we saw WARNING"),
    ],
    ids=[
        "escaped",
        "real line breaks",
        "quoted",
        "re-prefixed",
        "another program",
        "another program's warning",
    ],
)
def test_what_a_client_sent_is_never_an_event(tmp_path: Path, text: str) -> None:
    data = parsed(
        tmp_path,
        "INFO 05-09 00:49:30 [api_server.py:1] ready\n"
        + text
        + "\n"
        + stats_v1(40, 1, 0, 1.0)
        + "\n",
    )
    assert "preemption" not in data.frames
    assert data.frames["stats"].height == 1


def test_the_word_preempt_in_dumps_is_no_preemption(tmp_path: Path) -> None:
    lines = [
        "INFO 05-09 00:49:33 [core.py:60] Initializing a V1 LLM engine (v0.10.2) with config: model='m', preemption_mode=None",
        "ERROR 05-09 00:49:33 [dump_input.py:69] Dumping input data for V1 LLM engine (v0.10.2) with config: x, scheduler_output=SchedulerOutput(resumed_from_preemption=[false], preempted_requests=0)",
    ]
    data = parsed(tmp_path, lines)
    assert "preemption" not in data.frames


def test_a_warning_glued_to_a_progress_bar(tmp_path: Path) -> None:
    bar = "\r".join(
        f"Processed prompts: {i:3d}%|##| {i}/3000 [00:01<00:00, 9.9it/s]" for i in range(3000)
    )
    data = parsed(tmp_path, bar + WARNING + "\n")
    assert data.frames["preemption"]["total_num_cumulative_preemption"].to_list() == [51]


def test_two_statistics_on_one_line(tmp_path: Path) -> None:
    data = parsed(tmp_path, stats_v1(10, 1, 0, 1.0) + stats_v1(20, 2, 0, 2.0) + "\n")
    assert data.frames["stats"]["running"].to_list() == [1, 2]


def test_a_record_of_300_kilobytes_in_the_middle(tmp_path: Path) -> None:
    ids_text = ", ".join(str(i % 50000) for i in range(50_000))
    line = (
        "INFO 05-09 00:49:33 [logger.py:40] Received request c-1: prompt: 'x', params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: ["
        + ids_text
        + "], lora_request: None, prompt_adapter_request: None."
    )
    data = parsed(tmp_path, [stats_v1(10, 1, 0, 1.0), line, stats_v1(20, 2, 0, 2.0)])
    assert len(line) > 300_000
    assert data.frames["request"]["num_prompt_token_ids"].to_list() == [50_000]
    assert data.frames["stats"].height == 2


def test_new_year_and_a_restart_with_an_older_clock(tmp_path: Path) -> None:
    old = stats_v1(10, 1, 0, 1.0).replace("05-09", "12-31")
    new = stats_v1(20, 2, 0, 2.0).replace("05-09", "01-01")
    data = parsed(tmp_path, [old, new, stats_v1(5, 3, 0, 3.0).replace("05-09", "01-01")])
    times = data.frames["stats"]["time"].to_list()
    assert [t.year for t in times] == [2026, 2027, 2027]
    assert data.frames["stats"]["running"].to_list() == [1, 2, 3]
    assert data.coverage.out_of_order == 1


def test_the_mean_over_engines_hides_a_full_one(tmp_path: Path) -> None:
    lines = [
        *v1_start(),
        *[stats_v1(10 * i, 64, 117, 14.1, engine="8 Engines Aggregated") for i in range(1, 5)],
    ]
    found = document(tmp_path, lines)
    assert any(
        f["id"] == "coverage" and "means over several engines" in f["title"]
        for f in found["findings"]
    )
    assert found["verdict"] not in ("healthy", "seat-limit")


def test_only_the_full_engines_of_eight_are_named(tmp_path: Path) -> None:
    lines = v1_start(seats=256)
    for i in range(1, 6):
        lines += [
            stats_v1(
                10 * i, 40, 30 if k < 2 else 0, 99.5 if k < 2 else 20.0, engine=f"Engine {k:03d}"
            )
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
    assert any(
        "logs no preemption" in f["title"] for f in found["findings"] if f["id"] == "coverage"
    )


def test_a_patched_builds_field_counts_the_interval(tmp_path: Path) -> None:
    lines = [
        *v1_start(),
        *[stats_v1(10 * i, 8, 3, 99.0, extra="Preemptions: 5, ") for i in range(1, 4)],
    ]
    counted = document(tmp_path, lines)["preemptions"]
    assert (counted["low"], counted["value"], counted["high"], counted["basis"]) == (
        15,
        15,
        15,
        "measured",
    )


def test_out_of_memory_beside_preemptions(tmp_path: Path) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 79.11 GiB of which 812.38 MiB is free."
    found = document(
        tmp_path,
        [
            stats_v0(0, 8, 3, 99.0),
            v0_warning(10, 1),
            v0_warning(11, 51),
            oom,
            stats_v0(20, 8, 3, 99.0),
        ],
    )
    assert found["verdict"] == "runtime-oom"
    assert {"runtime-oom", "kv-preemption"} <= ids(found)


def test_a_long_prefill_is_no_stall_and_no_preemption(tmp_path: Path) -> None:
    lines = [
        *v1_start(),
        *[stats_v1(10 * i, 1, 0, 41.0, generation=1.0) for i in range(1, 25)],
        stats_v1(250, 1, 0, 41.0, prompt=25000.0),
    ]
    found = document(tmp_path, lines)
    assert found["verdict"] == "healthy"
    assert not {"kv-preemption", "engine-stall", "kv-admission-wait"} & ids(found)


def test_v0_on_a_cpu_shows_its_cache_as_cpu_usage(tmp_path: Path) -> None:
    lines = [
        stats_v0(10 * i, 8, 3, 0.0).replace("CPU KV cache usage: 0.0%", "CPU KV cache usage: 98.0%")
        for i in range(5)
    ]
    assert "kv-admission-wait" in ids(document(tmp_path, lines))


def test_new_fields_with_commas_break_nothing(tmp_path: Path) -> None:
    line = stats_v1(
        10,
        4,
        6,
        50.0,
        extra="Deferred: 5 reqs, KV fetch: 1 waiting to start, 3 in progress, 1 completed waiting, Sparkle rate: 3.1%, ",
    )
    (row,) = parsed(tmp_path, [line]).frames["stats"].rows(named=True)
    assert (row["running"], row["waiting"], row["deferred"], row["kv_fetch_in_progress"]) == (
        4,
        6,
        5,
        3,
    )
    assert "sparkle" in row["extra"]


def test_a_log_that_begins_inside_a_record(tmp_path: Path) -> None:
    lines = [
        "ut: 3.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 5%",
        stats_v1(20, 2, 0, 2.0),
    ]
    assert parsed(tmp_path, lines).frames["stats"]["running"].to_list() == [2]


def test_a_clean_stop_of_0_32_is_no_crash(tmp_path: Path, sample_under_pressure: Path) -> None:
    from logscope.analysis import analyze
    from logscope.log_frames import read_log
    from logscope.times import Span
    from parsers.sources import expand

    data = read_log(expand([str(sample_under_pressure)]), Span())
    assert "runtime" in data.frames
    assert not [
        f for f in analyze(data, replay=False).engines[0].findings if f.id == "engine-crash"
    ]


def test_a_dead_engine_is_a_crash(tmp_path: Path) -> None:
    dead = [
        "(EngineCore pid=2) ERROR 05-09 00:50:00 [core.py:700] EngineCore encountered a fatal error.",
        "(EngineCore pid=2) ERROR 05-09 00:50:00 [core.py:700] Traceback (most recent call last):",
        '(EngineCore pid=2) ERROR 05-09 00:50:00 [core.py:700]   File "core.py", line 1, in run',
        "(EngineCore pid=2) ERROR 05-09 00:50:00 [core.py:700] RuntimeError: CUDA error: an illegal memory access was encountered",
        "(APIServer pid=1) ERROR 05-09 00:50:00 [async_llm.py:707] AsyncLLM output_handler failed.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ]
    found = document(tmp_path, [*v1_start(), stats_v1(10, 4, 0, 10.0), *dead])
    assert found["verdict"] == "engine-crash"


def test_v0_without_swap_space_dies_of_it(tmp_path: Path) -> None:
    lines = [
        stats_v0(0, 8, 3, 99.0),
        "RuntimeError: Aborted due to the lack of CPU swap space. Please increase the swap space to avoid this error.",
    ]
    found = document(tmp_path, lines)
    assert found["verdict"] == "engine-crash"
    assert "swap" in found["findings"][0]["title"]


def test_several_api_servers_print_no_statistics(tmp_path: Path) -> None:
    line = "(APIServer pid=1) WARNING 05-09 00:49:33 [loggers.py:665] AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid incomplete stats."
    found = document(tmp_path, [*v1_start(), line, access("/v1/completions", "POST")])
    assert found["verdict"] == "not-enough-evidence"
    assert any("--api-server-count 1" in f["title"] for f in found["findings"])


def test_two_starts_are_two_runs(tmp_path: Path) -> None:
    lines = [
        *v1_start(0, pid=1),
        stats_v1(10, 1, 0, 1.0),
        *v1_start(100, pid=50),
        stats_v1(120, 2, 0, 2.0),
    ]
    found = document(tmp_path, lines)
    assert [(e["server"], e["run"]) for e in found["engines"]] == [(0, 0), (0, 1)]


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


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_clock_that_is_set_is_no_stall(tmp_path: Path, step: int) -> None:
    lines = [
        *v1_start(3600),
        *[stats_v1(3600 + 10 * i, 4, 3, 30.0) for i in range(1, 7)],
        *[stats_v1(3600 + 10 * i + step, 4, 3, 30.0) for i in range(7, 13)],
    ]
    found = document(tmp_path, lines)
    assert "engine-stall" not in ids(found)
    assert found["verdict"] == "not-enough-evidence"


CRASH = [
    "(EngineCore pid=2) ERROR 05-09 00:50:35 [core.py:700] EngineCore encountered a fatal error.",
    "(EngineCore pid=2) ERROR 05-09 00:50:35 [core.py:700] Traceback (most recent call last):",
    "(EngineCore pid=2) ERROR 05-09 00:50:35 [core.py:700] RuntimeError: {message}",
    "(APIServer pid=1) ERROR 05-09 00:50:36 [async_llm.py:480] AsyncLLM output_handler failed.",
    "(APIServer pid=1) ERROR 05-09 00:50:36 [async_llm.py:480] Traceback (most recent call last):",
    "(APIServer pid=1) ERROR 05-09 00:50:36 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "CUDA error: an illegal memory access was encountered",
            "RuntimeError: CUDA error: an illegal memory access was encountered",
        ),
        ("the prompt 'my secret' is bad", "RuntimeError: (left out)"),
    ],
)
def test_a_crash_names_what_the_engine_died_of(tmp_path: Path, message: str, said: str) -> None:
    lines = [*v1_start(), *[stats_v1(10 * i, 8, 2, 30.0) for i in range(1, 7)]]
    lines += [line.format(message=message) for line in CRASH]
    later = "(APIServer pid=1) INFO 05-09 00:59:00 [launcher.py:1] Aborted request c-1."
    found = document(tmp_path, [*lines, later])
    assert found["verdict"] == "engine-crash"
    assert "engine-stall" not in ids(found)  # it is dead, not hung
    (crash,) = [f for f in found["findings"] if f["id"] == "engine-crash"]
    assert crash["title"] == f"The engine died while serving: {said}; its requests failed"


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
def test_a_hint_names_the_flag_of_the_version(
    tmp_path: Path, version: str | None, hints: tuple[str, ...]
) -> None:
    start = [] if version is None else v1_start(version=version)
    found = document(tmp_path, [*start, stats_v1(10, 4, 0, 10.0), stats_v1(20, 4, 0, 10.0)])
    titles = [f["title"] for f in found["findings"] if f["id"] == "coverage"]
    assert [t.partition("(")[2].rstrip(")") for t in titles if t.startswith("No ")] == list(hints)


@pytest.mark.parametrize(("probes", "stalled"), [(60, True), (25, False)])
def test_probes_tell_the_time_when_nothing_else_does(
    tmp_path: Path, probes: int, stalled: bool
) -> None:
    lines = v1_start()
    for i in range(1, 7):  # five probes in each interval of 10 s
        lines += [stats_v1(10 * i, 4, 2, 30.0), *[access()] * 5]
    found = document(tmp_path, lines + [access()] * (probes - 5))
    assert ("engine-stall" in ids(found)) is stalled


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
def test_the_block_size_follows_from_how_many_requests_fit(
    tmp_path: Path, fits: str, block: int, basis: str
) -> None:
    lines = [
        "INFO 05-09 00:49:03 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.5) with config: model='m', max_seq_len=32000",
        "INFO 05-09 00:49:09 [executor_base.py:112] # cuda blocks: 6250, # CPU blocks: 2048",
        f"INFO 05-09 00:49:09 [executor_base.py:117] Maximum concurrency for 32000 tokens per request: {fits}x",
    ]
    (engine,) = document(tmp_path, lines)["engines"]
    assert (engine["config"]["block_size"], engine["config_basis"]["block_size"]) == (block, basis)
    assert engine["kv_cache"] == {
        "tokens": 6250 * block,
        "num_blocks": 6250,
        "block_size": block,
        "bytes": None,
    }
