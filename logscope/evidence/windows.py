"""The periodic statistics as windows: what each interval saw, and what stood at its end."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

from logscope.evidence.pressure import FULL_PCT

__all__ = ["stats_windows", "usual_interval"]

DEFAULT_INTERVAL_S = 10.0
ENOUGH_GAPS = 4


def stats_windows(stats: pl.DataFrame | None, full_pct: float = FULL_PCT) -> pl.DataFrame | None:
    """One row a statistics line that shows the queues, in the order of the log.

    Columns: start, end (record's clock), interval_s, running, waiting, swapped, kv_pct, full (from `full_pct` on), prompt_tps, generation_tps (tokens/s, means
    over the interval), idle (no tokens), deferred (of `waiting`: held back by a grammar, a transfer or a LoRA limit), aggregated (means over several engines), source, line, order. None where there is no such line.
    """
    if stats is None or "running" not in stats.columns:
        return None
    rows = stats.filter(pl.col("running").is_not_null() & pl.col("at").is_not_null())
    if rows.height == 0:
        return None
    frame = rows.select(
        end=pl.col("at"),
        running=pl.col("running").cast(pl.Float64),
        waiting=pl.col("waiting").fill_null(0).cast(pl.Float64),
        swapped=_optional(rows, "swapped"),
        deferred=_optional(rows, "deferred"),
        kv_pct=_kv(rows),
        prompt_tps=_optional(rows, "prompt_throughput"),
        generation_tps=_optional(rows, "generation_throughput"),
        aggregated=pl.col("aggregated").fill_null(value=False) if "aggregated" in rows.columns else pl.lit(value=False),
        source=pl.col("source"),
        line=pl.col("line"),
        order=pl.col("order"),
    )
    frame = frame.with_columns(full=pl.col("kv_pct").fill_null(0) >= full_pct)
    gaps = frame["end"].diff().dt.total_microseconds() / 1e6
    usual = _usual(gaps)
    start = frame["end"].shift(1)
    first = frame["end"][0] - timedelta(seconds=usual)
    frame = frame.with_columns(start=start.fill_null(first))
    return frame.with_columns(
        interval_s=(pl.col("end") - pl.col("start")).dt.total_microseconds() / 1e6,
        idle=(pl.col("prompt_tps").fill_null(0) + pl.col("generation_tps").fill_null(0)) == 0,
    )


def usual_interval(windows: pl.DataFrame) -> float:
    """The interval at which this log's lines come, in seconds."""
    return _usual(windows["end"].diff().dt.total_microseconds() / 1e6)


def _usual(gaps: pl.Series) -> float:
    """The lower quartile: idle stretches and stalls leave long gaps; few gaps tell little, then vLLM's default bounds it."""
    positive = gaps.filter(gaps > 0.5)
    low = positive.quantile(0.25, "nearest") if positive.len() else None
    if not isinstance(low, (int, float)):
        return DEFAULT_INTERVAL_S
    return float(low) if positive.len() >= ENOUGH_GAPS else min(float(low), DEFAULT_INTERVAL_S)


def _optional(frame: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64) if name in frame.columns else pl.lit(None, dtype=pl.Float64)


def _kv(frame: pl.DataFrame) -> pl.Expr:
    """KV usage in percent. A CPU build of V0 shows its cache as `CPU KV cache usage` beside an idle GPU's 0."""
    gpu, cpu = (_optional(frame, "gpu_kv_cache_usage_pct"), _optional(frame, "cpu_kv_cache_usage_pct"))
    if "cpu_kv_cache_usage_pct" not in frame.columns or "gpu_kv_cache_usage_pct" not in frame.columns:
        return gpu
    used = frame["gpu_kv_cache_usage_pct"].fill_null(0).max()
    return pl.coalesce(cpu, gpu) if used == 0 else gpu
