"""What a change of settings means for blocks, steps and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from logscope.server.engines import EngineFacts, engine_logs
from logscope.server.scenario import flag_text, scenario_of
from logscope.server.settings import SettingError
from tests.logs import parsed, stats_v1, v1_start

MEMORY = [
    "(EngineCore pid=2) INFO 05-09 00:49:02 [gpu_worker.py:298] Available KV cache memory: 40.00 GiB",
    "(EngineCore pid=2) INFO 05-09 00:49:02 [gpu_model_runner.py:1] Model loading took 16.0000 GiB memory and 9.8 seconds",
]


def facts(tmp_path: Path, *lines: str, version: str = "0.32.0") -> EngineFacts:
    data = parsed(tmp_path, [*v1_start(version=version, tokens=80_000), *lines, stats_v1(10, 4, 0, 5.0)])
    return engine_logs(data.frames)[0].facts


def test_seats_change_nothing_but_the_seats(tmp_path: Path) -> None:
    found = scenario_of(facts(tmp_path), {"max_num_seqs": 3})
    assert (found.config.max_num_seqs, found.config.num_blocks) == (3, 5000)
    assert (found.scale.base, found.scale.kv) == (1.0, 1.0)


def test_an_8_bit_cache_holds_twice_the_blocks_and_reads_half(tmp_path: Path) -> None:
    found = scenario_of(facts(tmp_path), {"kv_cache_dtype": "fp8"})
    assert found.config.num_blocks == 10_000
    assert found.scale.kv == 0.5


def test_larger_blocks_are_fewer(tmp_path: Path) -> None:
    assert scenario_of(facts(tmp_path), {"block_size": 32}).config.num_blocks == 2500


def test_more_memory_needs_the_memory_lines(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="num_blocks"):
        scenario_of(facts(tmp_path), {"gpu_memory_utilization": 0.95})


def test_two_ranks_have_at_least_twice_the_blocks_and_shorter_steps(tmp_path: Path) -> None:
    found = scenario_of(facts(tmp_path, *MEMORY), {"tensor_parallel_size": 2})
    assert found.config.num_blocks >= 10_000
    assert 0.5 < found.scale.base < 1.0
    assert found.notes == (
        "KV blocks scale with the number of GPUs (the log shows neither weight size nor free memory)",
        f"with tensor_parallel_size 2 instead of 1 a step takes {found.scale.base:.2f}x as long",
    )


def test_what_the_log_hides_is_said(tmp_path: Path) -> None:
    notes = scenario_of(facts(tmp_path), {"policy": "priority"}).notes
    assert any("priority" in note for note in notes)


@pytest.mark.parametrize(
    ("version", "changes", "flag"),
    [
        ("0.32.0", {"max_num_seqs": 12}, "--max-num-seqs 12"),
        ("0.32.0", {"watermark": 0.05}, "--watermark 0.05"),
        ("0.19.1", {"watermark": 0.05}, None),
        ("0.32.0", {"replicas": 2}, None),
        ("0.32.0", {"max_num_seqs": 12, "watermark": 0.1}, "--max-num-seqs 12 --watermark 0.1"),
    ],
)
def test_never_a_flag_that_the_version_lacks(
    tmp_path: Path, version: str, changes: dict[str, object], flag: str | None
) -> None:
    assert flag_text(facts(tmp_path, version=version), changes) == flag
