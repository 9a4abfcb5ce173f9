"""KV blocks that stay taken with nobody there are told; a full cache, a pause and a small rest are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from logscope.evidence.finding import Finding
from tests.logs import analysed, stats_v0, stats_v1, v1_start

BUSY = [(4, 2, 97.0), (4, 0, 60.0)]


def leaks(folder: Path, lines: list[str]) -> list[Finding]:
    (engine,) = analysed(folder, lines).engines
    return [f for f in engine.findings if f.id == "kv-leak"]


def log(states: list[tuple[int, int, float]], start: list[str] | None = None) -> list[str]:
    rows = [stats_v1(10.0 * i, *state) for i, state in enumerate(states, start=1)]
    return [*(v1_start() if start is None else start), *rows]


def test_blocks_that_nobody_gives_back_are_told_with_their_lines(tmp_path: Path) -> None:
    held = [(0, 0, 0.0), *BUSY, (0, 0, 12.4), (1, 0, 14.0), (0, 0, 12.3), (0, 0, 12.5)]
    (found,) = leaks(tmp_path, log(held))
    assert (found.severity, found.basis, found.proves) == ("warning", "measured", None)
    assert found.title.startswith(
        "KV usage stays at 12.3 % or more with no request running or waiting (3 lines, 12.5 % in the last)"
    )
    assert found.title.endswith("a restart frees them, and a newer release may have the fix")
    first = len(v1_start()) + 4
    assert [e.line for e in found.evidence] == [first, first + 2, first + 3]


@pytest.mark.parametrize(
    "states",
    [
        [*BUSY, *[(0, 0, 12.4)] * 2],  # two lines may be chance
        [*BUSY, *[(0, 0, 12.4)] * 5, (0, 0, 0.0)],  # they came back
        [*BUSY, *[(0, 0, 0.9)] * 5],  # rounding, the null block
        [(1, 0, 12.4)] * 5,
        [(0, 1, 12.4)] * 5,
    ],
)
def test_what_is_no_leak(states: list[tuple[int, int, float]], tmp_path: Path) -> None:
    assert leaks(tmp_path, log(states)) == []


def test_a_hundredth_of_the_cache_is_enough(tmp_path: Path) -> None:
    assert len(leaks(tmp_path, log([(0, 0, 1.0)] * 3))) == 1


def test_a_few_blocks_of_a_small_cache_are_none(tmp_path: Path) -> None:
    start = v1_start(more=", 'num_gpu_blocks_override': 100")
    assert leaks(tmp_path, log([(0, 0, 2.9)] * 5, start)) == []
    assert len(leaks(tmp_path, log([(0, 0, 3.1)] * 5, start))) == 1


def test_swapped_requests_hold_blocks_rightly(tmp_path: Path) -> None:
    lines = [stats_v0(10.0 * i, 0, 0, 12.0) for i in range(1, 6)]
    assert len(leaks(tmp_path, lines)) == 1
    assert leaks(tmp_path, [x.replace("Swapped: 0", "Swapped: 1") for x in lines]) == []


def test_means_over_engines_tell_of_no_single_one(tmp_path: Path) -> None:
    rows = [stats_v1(10.0 * i, 0, 0, 12.0, engine="2 Engines Aggregated") for i in range(1, 6)]
    assert leaks(tmp_path, [*v1_start(), *rows]) == []


def test_a_connector_is_named_where_one_is_used(tmp_path: Path) -> None:
    start = v1_start(more=", 'kv_transfer_config': {'kv_connector': 'NixlConnector'}")
    (found,) = leaks(tmp_path, log([(0, 0, 12.0)] * 4, start))
    assert "a KV connector keeps those of finished requests until they are fetched" in found.title
