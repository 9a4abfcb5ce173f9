"""The report's charts: figures that plotly accepts, over tables that hold the same numbers."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest

from logscope.report.charts import charts

Frames = dict[str, pl.DataFrame]


def test_every_figure_is_one_that_plotly_accepts(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    drawn = charts(report_analysis, report_frames).all
    assert [c.id for c in drawn] == ["timeline-0-0-0", "tail-e2e", "tail-ttft", "gantt"]
    for chart in drawn:
        go.Figure(chart.figure)
        json.dumps(chart.figure, allow_nan=False)


def test_the_table_under_the_timeline_is_the_statistics(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    [drawn] = charts(report_analysis, report_frames).timelines
    stats = report_frames["stats"]
    columns = (
        "running",
        "waiting",
        "gpu_kv_cache_usage_pct",
        "generation_throughput",
        "prompt_throughput",
    )
    assert [list(row[1:]) for row in drawn.table.rows] == [
        [f"{row[c]:g}" for c in columns] for row in stats.iter_rows(named=True)
    ]
    running = next(t for t in drawn.figure["data"] if t["name"] == "Running")
    assert running["y"] == stats["running"].to_list()


def test_a_silent_stretch_is_a_gap_in_the_curve(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    stats = report_frames["stats"]
    silent = pl.concat([stats.head(5), stats.tail(4)])
    [drawn] = charts(report_analysis, {"stats": silent}).timelines
    running = next(t for t in drawn.figure["data"] if t["name"] == "Running")
    assert running["y"].count(None) == 1


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_statistics_lines_are_enough(
    rows: int, report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    drawn = charts(report_analysis, {"stats": report_frames["stats"].head(rows)})
    assert len(drawn.timelines) == (1 if rows else 0)


def test_a_clock_with_a_zone_is_drawn_as_it_stands(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    stats = report_frames["stats"].with_columns(pl.col("time").dt.replace_time_zone("UTC"))
    [drawn] = charts(report_analysis, {"stats": stats}).timelines
    assert drawn.figure["data"][0]["x"][0] == "2026-11-29 23:56:54"


def test_observed_and_replayed_stand_on_the_same_axes(
    report_analysis: dict[str, Any], report_frames: Frames
) -> None:
    [drawn] = charts(report_analysis, report_frames).timelines
    axis = {t["name"]: t.get("yaxis") for t in drawn.figure["data"]}
    for name in ("Running", "Waiting", "KV usage"):
        assert axis[name] == axis[f"{name}, replayed"]
    assert len(drawn.figure["layout"]["shapes"]) == len(report_analysis["spikes"])
