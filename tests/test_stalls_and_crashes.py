"""When a server stands still, dies, or runs out of memory, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs import access, document, ids, stats_v0, stats_v1, v0_warning, v1_start


@pytest.mark.parametrize(("waiting", "stalled"), [(6, True), (0, False)])
def test_silence_with_a_queue_is_a_stall_and_without_one_idleness(tmp_path: Path, waiting: int, stalled: bool) -> None:
    lines = [*v1_start(), stats_v1(10, 4, 0, 10.0), stats_v1(20, 0, waiting, 0.0, generation=0.0)] + [access()] * 54
    assert (document(tmp_path, lines)["verdict"] == "engine-stall") is stalled


@pytest.mark.parametrize(("waiting", "stalled"), [(6, True), (1, True), (0, False)])
def test_a_gap_between_statistics(tmp_path: Path, waiting: int, stalled: bool) -> None:
    lines = [*v1_start(), stats_v1(10, 0, waiting, 3.0, generation=0.0), stats_v1(550, 0, waiting, 3.0, generation=0.0)]
    assert (document(tmp_path, lines)["verdict"] == "engine-stall") is stalled


@pytest.mark.parametrize(("silence", "stalled"), [(170, False), (190, True)])
def test_what_is_a_gap_goes_by_the_interval_of_the_log(tmp_path: Path, silence: int, stalled: bool) -> None:
    every = [stats_v1(60 * i, 2, 3, 3.0) for i in range(1, 7)]
    late = stats_v1(360 + silence, 2, 3, 3.0, generation=0.0)
    found = ids(document(tmp_path, [*v1_start(), *every, late]))
    assert ("engine-stall" in found) is stalled


def test_out_of_memory_beside_preemptions(tmp_path: Path) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 79.11 GiB of which 812.38 MiB is free."
    found = document(
        tmp_path, [stats_v0(0, 8, 3, 99.0), v0_warning(10, 1), v0_warning(11, 51), oom, stats_v0(20, 8, 3, 99.0)]
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


def test_a_clean_stop_of_0_32_is_no_crash(tmp_path: Path, sample_under_pressure: Path) -> None:
    from logscope.analysis import analyze
    from logscope.log.frames import read_log
    from logscope.log.span import Span
    from parsers.sources.source import expand

    data = read_log(expand([str(sample_under_pressure)]), Span())
    assert "runtime" in data.frames
    assert not [f for f in analyze(data, replay=False).engines[0].findings if f.id == "engine-crash"]


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


@pytest.mark.parametrize("form", ["RuntimeError: {}", "ERROR 05-09 00:49:02 engine.py:158] RuntimeError('{}')"])
def test_v0_without_swap_space_dies_of_it(tmp_path: Path, form: str) -> None:
    error = "Aborted due to the lack of CPU swap space. Please increase the swap space to avoid this error."
    found = document(tmp_path, [stats_v0(0, 8, 3, 99.0), form.format(error)])
    assert found["verdict"] == "engine-crash"
    assert "swap" in found["findings"][0]["title"]


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


@pytest.mark.parametrize(("probes", "stalled"), [(60, True), (25, False)])
def test_probes_tell_the_time_when_nothing_else_does(tmp_path: Path, probes: int, stalled: bool) -> None:
    lines = v1_start()
    for i in range(1, 7):  # five probes in each interval of 10 s
        lines += [stats_v1(10 * i, 4, 2, 30.0), *[access()] * 5]
    found = document(tmp_path, lines + [access()] * (probes - 5))
    assert ("engine-stall" in ids(found)) is stalled


def test_a_crash_of_which_the_log_only_says_that_it_came_names_no_cause(tmp_path: Path) -> None:
    found = document(tmp_path, [*v1_start(), stats_v1(10, 4, 0, 10.0), *CRASH[3:]])
    [crash] = [f for f in found["findings"] if f["id"] == "engine-crash"]
    assert crash["title"] == "The engine died while serving; its requests failed"
