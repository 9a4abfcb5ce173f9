"""The results of a replay as Polars frames. Times are seconds, lengths tokens, ratios 0..1; null is what did not happen."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from reference_engine.model.config_part import EngineConfig
from reference_engine.model.ledger import LABELS, RequestRecord
from reference_engine.model.step_log import STEP_COLUMNS, StepLog
from reference_engine.replay.clock import usage_blocks

__all__ = ["REQUEST_SCHEMA", "STEP_SCHEMA", "requests_frame", "steps_frame"]

REQUEST_SCHEMA: dict[str, type[pl.DataType]] = {
    "request_id": pl.String,
    "status": pl.String,
    "arrival_s": pl.Float64,
    "first_token_s": pl.Float64,
    "finish_s": pl.Float64,
    "end_s": pl.Float64,
    "ttft_s": pl.Float64,
    "e2e_s": pl.Float64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "cached_tokens": pl.Int64,
    "preemptions": pl.Int64,
    "recomputed_tokens": pl.Int64,
    **dict.fromkeys(LABELS, pl.Float64),
}

STEP_SCHEMA: dict[str, type[pl.DataType]] = {
    "step": pl.Int64,
    "time_s": pl.Float64,
    "duration_s": pl.Float64,
    "prefill_tokens": pl.Int64,
    "decode_requests": pl.Int64,
    "kv_tokens": pl.Int64,
    "free_blocks": pl.Int64,
    "free_end": pl.Int64,
    "usage": pl.Float64,
    "running": pl.Int64,
    "waiting": pl.Int64,
    "preempted": pl.Int64,
    "tokens": pl.Int64,
    "finished": pl.Int64,
}


def _seconds(time: int | None) -> float | None:
    return None if time is None else time / 1e9


def _row(record: RequestRecord) -> tuple[object, ...]:
    finish = record.end if record.status == "finished" else None
    first = record.first_token
    return (
        str(record.request.id),
        record.status,
        record.arrival / 1e9,
        _seconds(first),
        _seconds(finish),
        _seconds(record.end),
        None if first is None else (first - record.arrival) / 1e9,
        None if finish is None else (finish - record.arrival) / 1e9,
        record.request.prompt_tokens,
        record.output,
        record.cached,
        record.preemptions,
        record.recomputed,
        *(part / 1e9 for part in record.ledger),
    )


def requests_frame(records: Sequence[RequestRecord]) -> pl.DataFrame:
    """One row a request, `REQUEST_SCHEMA`; the ledger's columns sum to `end_s - arrival_s`."""
    rows = [_row(record) for record in records]
    return pl.DataFrame(rows, schema=REQUEST_SCHEMA, orient="row")


def steps_frame(log: StepLog, config: EngineConfig) -> pl.DataFrame:
    """One row a step, `STEP_SCHEMA`. `free_blocks` after scheduling; `free_end` and `usage` after the update."""
    raw = pl.DataFrame(log.rows, schema=dict.fromkeys(STEP_COLUMNS, pl.Int64), orient="row")
    return raw.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("step"),
        (pl.col("start") / 1e9).alias("time_s"),
        ((pl.col("end") - pl.col("start")) / 1e9).alias("duration_s"),
        *STEP_COLUMNS[2:7],
        (1.0 - pl.col("free_end") / usage_blocks(config)).alias("usage"),
        *STEP_COLUMNS[7:],
    ).cast(STEP_SCHEMA)  # type: ignore[arg-type]
