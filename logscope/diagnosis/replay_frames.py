"""The frames of a replay as the report reads them: on the log's clock, and by server, run and engine."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import polars as pl

from reference_engine.replay.phases import Phase

__all__ = ["replay_frames"]

Place = tuple[int, int, int]
"""(server, run, engine index)"""

# The phases of a request's life in the ledger's words; a queue's label depends on the request.
LABELS = {
    "prefill": "prefill",
    "decode": "decode",
    "preempted": "preempted_wait",
    "recompute": "recompute",
}
QUEUES = ("queued_for_kv", "queued_for_seat", "queued_for_budget")


def replay_frames(
    requests: pl.DataFrame,
    steps: pl.DataFrame,
    phases: Iterable[Phase] = (),
    *,
    origin: datetime,
    engine: Place,
) -> dict[str, pl.DataFrame]:
    """`replay_requests`, `replay_steps` and `replay_spans` as `write_html` reads them.

    `requests`, `steps`: the frames of a replay's result; `phases`: its lanes, where they
    were recorded (without them no lanes are drawn). `origin` is the log's time at the
    replay's second 0; `engine` is (server, run, engine index).
    """
    server, run, index = (pl.lit(number, pl.Int64) for number in engine)
    place = {"server": server, "run": run, "engine_index": index}
    reasons = _queue_reasons(requests)
    spans = pl.DataFrame(
        [
            (
                str(p.request_id),
                LABELS.get(p.name) or reasons[str(p.request_id)],
                p.start_s,
                p.end_s,
            )
            for p in phases
        ],
        schema={"id": pl.String, "label": pl.String, "start_s": pl.Float64, "end_s": pl.Float64},
        orient="row",
    )
    return {
        "replay_requests": requests.rename({"request_id": "id"}).with_columns(
            arrival=_clock("arrival_s", origin), **place
        ),
        "replay_steps": steps.with_columns(
            time=_clock("time_s", origin), kv_usage_pct=pl.col("usage") * 100, **place
        ),
        "replay_spans": spans.with_columns(
            start=_clock("start_s", origin), end=_clock("end_s", origin), **place
        ),
    }


def _queue_reasons(requests: pl.DataFrame) -> dict[str, str]:
    """What each request was queued for the longest."""
    rows = requests.select("request_id", *QUEUES).iter_rows()
    return {request: max(zip(parts, QUEUES, strict=True))[1] for request, *parts in rows}


def _clock(seconds: str, origin: datetime) -> pl.Expr:
    length = (pl.col(seconds) * 1e6).round().cast(pl.Duration("us"))
    return pl.lit(origin.replace(tzinfo=None)).cast(pl.Datetime("us")) + length
