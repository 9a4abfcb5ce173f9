"""What held the engine back, interval by interval: in the answer's JSON, its frames, its report and on the terminal."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from logscope.wording import BINDING
from tests.conftest import SAMPLES
from tests.logs import document, stats_v1, v1_start
from tests.running import invoke, log

# running, waiting, KV usage in percent, prompt tokens/s; then the limit. 8 seats.
LANES = [
    ((3, 0, 20.0, 10.0), "arrivals"),
    ((8, 4, 50.0, 10.0), "seats"),
    ((5, 4, 99.0, 10.0), "kv"),
    ((8, 4, 99.0, 10.0), "kv"),
    ((3, 4, 30.0, 4000.0), "budget"),
    ((3, 4, 92.0, 10.0), "kv"),  # seats are free: a prompt needs many blocks at once
    ((3, 4, 75.0, 10.0), None),
]


@pytest.mark.parametrize(("state", "limit"), LANES)
def test_each_interval_has_its_limit(tmp_path: Path, state: tuple[int, int, float, float], limit: str | None) -> None:
    running, waiting, kv, prompt = state
    lines = [stats_v1(10 * i, running, waiting, kv, prompt=prompt) for i in range(1, 6)]
    [engine] = document(tmp_path, [*v1_start(), *lines])["engines"]
    assert {part["limit"] for part in engine["binding"]} == {limit}


def test_neighbours_with_one_limit_are_one_stretch(tmp_path: Path) -> None:
    lines = [stats_v1(10 * i, 8, 4 if 3 <= i < 6 else 0, 50.0) for i in range(1, 10)]
    [engine] = document(tmp_path, [*v1_start(), *lines])["engines"]
    assert [part["limit"] for part in engine["binding"]] == ["arrivals", "seats", "arrivals"]
    starts, ends = ([part[side] for part in engine["binding"]] for side in ("start", "end"))
    assert starts[1:] == ends[:-1]


def test_a_real_log_in_every_form(tmp_path: Path) -> None:
    forms = ("--frames", tmp_path / "frames", "--html", tmp_path / "report.html")
    done = invoke("analyze", SAMPLES / "v1-under-pressure.log", "--no-replay", *forms)
    assert "  Limit " in done.stdout
    assert BINDING["kv"] in done.stdout
    lane = pl.read_parquet(tmp_path / "frames" / "binding.parquet")
    assert set(lane.columns) == {"start", "end", "limit", "server", "run", "engine_index"}
    assert "kv" in lane["limit"].to_list()
    assert "what held requests back" in (tmp_path / "report.html").read_text()


def test_without_statistics_there_is_no_lane(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start())
    done = invoke("analyze", path, "--no-replay", "--frames", tmp_path / "frames")
    assert "  Limit " not in done.stdout
    assert not (tmp_path / "frames" / "binding.parquet").exists()
