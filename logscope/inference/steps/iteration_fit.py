"""How well an account of the steps agrees with the statistics lines, which it did not use but for the queue's length."""

from __future__ import annotations

import numpy as np
import polars as pl

from logscope.inference.steps.clock import Floats, Ints
from logscope.inference.steps.observed import Steps
from logscope.inference.steps.records import Story
from reference_engine.model.config_part import EngineConfig

__all__ = ["fit_of_steps"]


def fit_of_steps(
    stats: pl.DataFrame | None, story: Story, steps: Steps, config: EngineConfig
) -> tuple[dict[str, float | None], float | None]:
    """1 - mean absolute error / mean of what the statistics lines say, not under 0; and the share of their tokens that the steps hold."""
    fit: dict[str, float | None] = dict.fromkeys(("running", "waiting", "kv_usage", "generation"))
    if stats is None or "running" not in stats.columns:
        return fit, None
    rows = stats.filter(pl.col("running").is_not_null()).sort("order")
    at = np.searchsorted(steps.order, rows["order"].to_numpy()) - 1
    coverage = _coverage(rows, at, story)
    inside = at >= 0
    if not inside.any():
        return fit, coverage
    rows, at = rows.filter(pl.Series(inside)), at[inside]
    fit["running"] = _closeness(_column(rows, "running"), story.running[at].astype(float))
    fit["waiting"] = _closeness(_column(rows, "waiting"), story.waiting[at].astype(float))
    usage = _column(rows, "gpu_kv_cache_usage_pct") / 100
    fit["kv_usage"] = _closeness(usage, steps.used[at] / max(1, config.num_blocks - 1))
    fit["generation"] = _closeness(*_generated(rows, at, story))
    return fit, coverage


def _generated(rows: pl.DataFrame, at: Ints, story: Story) -> tuple[Floats, Floats]:
    """Tokens between the statistics lines: as they say, and as the steps gave."""
    seconds = rows["at"].dt.epoch("us").to_numpy() / 1e6
    said = _column(rows, "generation_throughput")[1:] * np.diff(seconds)
    done = np.concatenate([[0], np.cumsum(story.delivered)])
    return said, np.diff(done[at + 1]).astype(float)


def _coverage(rows: pl.DataFrame, at: Ints, story: Story) -> float | None:
    if rows.height < 2:
        return None
    said, ours = _generated(rows, at, story)
    known = ~np.isnan(said)
    total = float(said[known].sum())
    return float(np.minimum(said, ours)[known].sum() / total) if total > 0 else None


def _column(rows: pl.DataFrame, name: str) -> Floats:
    if name not in rows.columns:
        return np.full(rows.height, np.nan)
    return np.asarray(rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)


def _closeness(observed: Floats, ours: Floats) -> float | None:
    known = ~(np.isnan(observed) | np.isnan(ours))
    if not known.any():
        return None
    mean = float(np.abs(observed[known]).mean())
    off = float(np.abs(observed - ours)[known].mean())
    if mean == 0:
        return 1.0 if off < 0.5 else 0.0
    return max(0.0, 1.0 - off / mean)
