"""The ledger summed over requests: all of them, the slow ones, the typical ones, by the contract's definitions."""

from __future__ import annotations

import polars as pl

from reference_engine.model.ledger import LABELS

__all__ = ["LABELS", "delay", "means_of", "slow_and_typical", "slow_requests"]

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


def slow_and_typical(requests: pl.DataFrame) -> dict[str, dict[str, float]]:
    """`total_s` (sum over all requests), `slow_s` and `typical_s` (means; typical: between the 40th and 60th percentile of delay).

    `requests` has the ledger's columns in seconds and `status`. Empty where nothing finished.
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
