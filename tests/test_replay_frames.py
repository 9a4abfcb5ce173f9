"""A replay of the reference engine, drawn: its frames come onto the log's clock and into the charts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl
import pytest

from logscope.diagnosis.spikes import replay_frames
from logscope.output.report.page import charts
from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.replay.recording import PHASES, Phase
from reference_engine.replay.results import replay

ORIGIN = datetime(2026, 11, 29, 23, 58, 10)


@pytest.fixture(scope="module")
def frames() -> dict[str, pl.DataFrame]:
    config = EngineConfig(num_blocks=40, block_size=16, max_num_seqs=8, enable_prefix_caching=False)
    load = [Request(i, prompt_tokens=60, output_tokens=120, arrival_s=0.5 * i) for i in range(20)]
    result = replay(config, load, LinearStepTime(0.02, 1e-4, 1e-3, 1e-6))
    requests = result.requests()
    phases = [
        Phase(row["request_id"], name, row["arrival_s"] + i, row["arrival_s"] + i + 1)
        for row in requests.iter_rows(named=True)
        for i, name in enumerate(PHASES)
    ]
    return replay_frames(requests, result.steps(), phases, origin=ORIGIN, engine=(0, 0, 0))


def test_times_are_the_logs(frames: dict[str, pl.DataFrame]) -> None:
    assert frames["replay_requests"]["arrival"][4] == datetime(2026, 11, 29, 23, 58, 12)
    assert frames["replay_steps"]["time"].min() == ORIGIN
    assert frames["replay_spans"]["start"].min() == ORIGIN


def test_usage_is_in_percent(frames: dict[str, pl.DataFrame]) -> None:
    peak: Any = frames["replay_steps"]["kv_usage_pct"].max()
    assert 50 < peak <= 100


def test_the_replay_is_drawn(
    report_analysis: dict[str, Any], report_frames: dict[str, pl.DataFrame], frames: dict[str, pl.DataFrame]
) -> None:
    drawn = charts(report_analysis, {"stats": report_frames["stats"], **frames})
    assert [c.id for c in drawn.all] == ["timeline-0-0-0", "tail-e2e", "tail-ttft", "gantt"]
    assert drawn.gantt is not None
    names = {t["name"] for t in drawn.gantt.figure["data"]}
    assert names - {"queued behind max_num_batched_tokens"} == {
        "queued for KV blocks",
        "slowed by others' prefill",
        "own prefill",
        "own decode",
        "waiting after preemption",
        "recomputing lost tokens",
    }
    replayed = {t["name"] for t in drawn.timelines[0].figure["data"] if t["name"].endswith("replayed")}
    assert replayed == {"Running, replayed", "Waiting, replayed", "KV usage, replayed", "replayed"}
