"""The ledger over requests: summed over all of them, and the means of the slow and of the typical ones, by the contract's words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from logscope.inference.workloads import Replayed
from reference_engine.model.ledger import LABELS

__all__ = [
    "LABELS",
    "Ledger",
    "delay",
    "ledger_of_replays",
    "means_of",
    "slow_and_typical",
    "slow_of_each",
    "slow_requests",
]

Ledger = dict[str, dict[str, float]]
"""Seconds by label: `total_s` (sum), `slow_s` and `typical_s` (means); empty where nothing finished."""

OWN_WORK = ("prefill", "decode")


def delay() -> pl.Expr:
    """A request's delay: its E2E less its own prefill and decode, in seconds."""
    return pl.sum_horizontal([pl.col(name) for name in LABELS if name not in OWN_WORK])


def slow_requests(requests: pl.DataFrame) -> pl.DataFrame:
    """Finished requests whose delay is at or above the 95th percentile of all delays."""
    done = requests.filter(pl.col("status") == "finished").with_columns(delay_s=delay())
    if done.height == 0:
        return done
    return done.filter(pl.col("delay_s") >= done["delay_s"].quantile(0.95, "linear"))


def slow_and_typical(requests: pl.DataFrame) -> Ledger:
    """The ledger of one replay (typical: between the 40th and 60th percentile of delay).

    `requests` has the ledger's columns in seconds and `status`.
    """
    done = requests.filter(pl.col("status") == "finished").with_columns(delay_s=delay())
    if done.height == 0:
        return {}
    low, high = done["delay_s"].quantile(0.4, "linear"), done["delay_s"].quantile(0.6, "linear")
    typical = done.filter((pl.col("delay_s") >= low) & (pl.col("delay_s") <= high))
    return {
        "total_s": {name: float(requests[name].sum()) for name in LABELS},
        "slow_s": means_of(slow_requests(requests)),
        "typical_s": means_of(typical if typical.height else done),
    }


def means_of(requests: pl.DataFrame) -> dict[str, float]:
    """The mean of each label over some requests, in seconds."""
    if requests.height == 0:
        return dict.fromkeys(LABELS, 0.0)
    row = requests.select([pl.col(name).mean() for name in LABELS]).row(0)
    return {name: float(value or 0.0) for name, value in zip(LABELS, row, strict=True)}


def ledger_of_replays(replayed: Sequence[Replayed]) -> Ledger:
    """The ledger of several replays' finished requests, as means over the replays."""
    totals, slow, typical = [], [], []
    for one in replayed:
        done = [r for r in one.records if r.status == "finished"]
        if not done:
            continue
        table = np.array([r.ledger for r in done], dtype=np.float64) / 1e9
        delays = table.sum(axis=1) - table[:, LABELS.index("prefill")] - table[:, LABELS.index("decode")]
        p40, p50, p60, p95 = np.percentile(delays, (40, 50, 60, 95))
        totals.append(table.sum(axis=0))
        slow.append(table[delays >= min(p95, delays.max())].mean(axis=0))
        middle = (delays >= p40) & (delays <= p60)
        if not middle.any():  # two requests have nobody between the 40th and the 60th percentile
            middle = np.abs(delays - p50) <= np.abs(delays - p50).min()
        typical.append(table[middle].mean(axis=0))
    return {"total_s": _by_label(totals), "slow_s": _by_label(slow), "typical_s": _by_label(typical)}


def slow_of_each(replayed: Sequence[Replayed]) -> tuple[dict[str, float], ...]:
    """`slow_s` of each replay in which something finished: how far equally likely workloads agree on a cause."""
    each = (ledger_of_replays([one]) for one in replayed if any(r.status == "finished" for r in one.records))
    return tuple(ledger["slow_s"] for ledger in each)


def _by_label(rows: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    if not rows:
        return dict.fromkeys(LABELS, 0.0)
    return {name: float(v) for name, v in zip(LABELS, np.mean(rows, axis=0), strict=True)}
