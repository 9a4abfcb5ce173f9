"""The report's charts: figures that plotly accepts, over tables that hold the same numbers."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest

from logscope.output.report.page import charts

Frames = dict[str, pl.DataFrame]


def test_every_figure_is_one_that_plotly_accepts(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    drawn = charts(report_analysis, report_frames).all
    assert [c.id for c in drawn] == ["timeline-0-0-0", "tail-e2e", "tail-ttft", "gantt"]
    for chart in drawn:
        go.Figure(chart.figure)
        json.dumps(chart.figure, allow_nan=False)


def test_the_table_under_the_timeline_is_the_statistics(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    [drawn] = charts(report_analysis, report_frames).timelines
    stats = report_frames["stats"]
    columns = ("running", "waiting", "gpu_kv_cache_usage_pct", "generation_throughput", "prompt_throughput")
    assert [list(row[1:]) for row in drawn.table.rows] == [
        [f"{row[c]:g}" for c in columns] for row in stats.iter_rows(named=True)
    ]
    running = next(t for t in drawn.figure["data"] if t["name"] == "Running")
    assert running["y"] == stats["running"].to_list()


def test_a_silent_stretch_is_a_gap_in_the_curve(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    stats = report_frames["stats"]
    silent = pl.concat([stats.head(5), stats.tail(4)])
    [drawn] = charts(report_analysis, {"stats": silent}).timelines
    running = next(t for t in drawn.figure["data"] if t["name"] == "Running")
    assert running["y"].count(None) == 1


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_statistics_lines_are_enough(rows: int, report_analysis: dict[str, Any], report_frames: Frames) -> None:
    drawn = charts(report_analysis, {"stats": report_frames["stats"].head(rows)})
    assert len(drawn.timelines) == (1 if rows else 0)


def test_a_clock_with_a_zone_is_drawn_as_it_stands(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    stats = report_frames["stats"].with_columns(pl.col("time").dt.replace_time_zone("UTC"))
    [drawn] = charts(report_analysis, {"stats": stats}).timelines
    assert drawn.figure["data"][0]["x"][0] == "2026-11-29 23:56:54"


def test_observed_and_replayed_stand_on_the_same_axes(report_analysis: dict[str, Any], report_frames: Frames) -> None:
    [drawn] = charts(report_analysis, report_frames).timelines
    axis = {t["name"]: t.get("yaxis") for t in drawn.figure["data"]}
    for name in ("Running", "Waiting", "KV usage"):
        assert axis[name] == axis[f"{name}, replayed"]
    assert len(drawn.figure["layout"]["shapes"]) == len(report_analysis["spikes"])


def test_many_intervals_are_bars_that_lose_no_preemption(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    start, each = datetime(2026, 11, 29), timedelta(seconds=10)
    told = [
        {
            "start": (start + i * each).isoformat(),
            "end": (start + (i + 1) * each).isoformat(),
            "value": float(i % 7 == 0),
        }
        for i in range(8_640)
    ]
    engine = report_analysis["engines"][0]
    engine = {**engine, "preemptions": {**engine["preemptions"], "timeline": told}}
    analysis = {**report_analysis, "engines": [engine]}
    [drawn] = charts(analysis, report_frames).timelines
    bars = next(t for t in drawn.figure["data"] if t["name"] == "Preemptions")
    assert len(bars["x"]) == 360
    assert sum(bars["y"]) == sum(w["value"] for w in told)
    assert bars["x"][0] == "2026-11-29 00:02:00"  # the middle of the first 24
    assert bars["width"][0] == 24 * 10 * 900


@pytest.mark.parametrize("count", [1, 99, 216, 50_000])
def test_the_tail_is_drawn_to_the_pixel(count: int, report_analysis: dict[str, Any], report_frames: Frames) -> None:
    row = report_frames["replay_requests"].head(1).drop("e2e_s")
    many = pl.concat([row] * count).with_columns(e2e_s=pl.int_range(1, count + 1) / 10)
    chart, _ = charts(report_analysis, {**report_frames, "replay_requests": many}).tails
    now = chart.figure["data"][0]
    assert len(now["x"]) <= 401
    assert now["x"][-100:] == [i / 10 for i in range(max(0, count - 99), count + 1)][-100:]
    for x, y in list(zip(now["x"], now["y"], strict=True))[:-1]:
        assert y == pytest.approx(1 - 10 * x / count, abs=1e-6)
    falls = [math.log(a / b) for a, b in zip(now["y"], now["y"][1:-100], strict=False)]
    assert max(falls, default=0) <= 1.1 * math.log(count) / 270  # of the chart's height in pixels
