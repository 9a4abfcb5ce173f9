"""Pressure: what keeps a queue waiting, and from when on a cache counts as full and preemption as repeated.

The one home of these thresholds: the verdict, the findings, the replay, the inference and `watch` ask here.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from logscope.evidence.finding import Finding
from logscope.server.engines import EngineFacts
from reference_engine.model.kv_group import groups_from_records, next_blocks

__all__ = [
    "FULL_PCT",
    "NEARLY_FULL_PCT",
    "REPEATS",
    "bound_of",
    "full_pct",
    "is_round",
    "pressure_of_count",
    "pressure_of_windows",
    "seats_seen",
]

FULL_PCT = 95.0
"""KV usage (percent, as printed) from which the cache counts as full: the line is taken after finished requests were freed."""

NEARLY_FULL_PCT = 90.0
"""KV usage (percent) under which the cache has room, so that a queue waits for something else."""

MUCH_ROOM_PCT = 60.0
"""KV usage (percent) under which the next prompt fits whatever its length: between two lines a cache fills and empties by a third."""

REPEATS = 3
"""Preemptions from which on they count as repeated (`thrash`)."""

MIN_FULL_WINDOWS = 2
MIN_PLATEAU = 3
SURE_PLATEAU = 6
PLATEAU_SHARE = 0.6
PREFILL_RATIO = 4.0
"""With this many prompt tokens to a generated one, an interval was spent on prompts."""


def pressure_of_count(preemptions: float, *, queued_while_full: bool) -> str:
    """`thrash` where preemptions repeat, `saturated` where requests waited for a full cache, else `none`."""
    if preemptions >= REPEATS:
        return "thrash"
    return "saturated" if queued_while_full else "none"


def pressure_of_windows(findings: Iterable[Finding], windows: pl.DataFrame | None) -> str:
    """The same from what the log itself shows: its preemptions, and a full cache with a queue."""
    ids = {f.id: f for f in findings}
    if "kv-preemption" in ids:
        return "thrash" if ids["kv-preemption"].severity == "critical" else "saturated"
    full = 0 if windows is None else (bound_of(windows, None) == "kv").sum()
    return pressure_of_count(0, queued_while_full=full >= MIN_FULL_WINDOWS)


def full_pct(facts: EngineFacts) -> float:
    """KV usage (percent) from which a server's cache is full: what is free is less than a running request's next block.

    In a small cache that many groups share this comes far below 95 %: of 47 blocks three are free at 93.6 %, and a request
    with one group of attention and three of states asks for four.
    """
    blocks, groups = facts.config.get("num_blocks"), facts.config.get("kv_groups")
    if not blocks or not groups or blocks < 2:
        return FULL_PCT
    lacking = next_blocks(groups_from_records(groups)) - 1
    # one decimal is printed
    return min(FULL_PCT, 100 * (1 - lacking / (int(blocks) - 1)) - 0.051)


def bound_of(windows: pl.DataFrame, seats: int | None) -> pl.Series:
    """What kept each window's queue from being admitted: "kv", "seats", "both", "prefill", or null (no queue, or not visible).

    All `seats` taken bind by themselves, whatever the cache; the line is taken after finished requests gave up their seats, so
    with room in the cache a few free ones count as taken. With much room, an interval that was spent on prompts leaves the
    token budget (V0: one prefill step after the other). Deferred requests wait for none of these; V0's swapped ones are a queue too.
    """
    if not windows["waiting"].sum() and not windows["swapped"].sum():
        return pl.Series("bound", [None] * windows.height, pl.String)
    queue = _queue()
    full = pl.col("full")
    room = ~full & (pl.col("kv_pct").fill_null(100) < NEARLY_FULL_PCT)
    much_room = ~full & (pl.col("kv_pct").fill_null(100) < MUCH_ROOM_PCT)
    taken, nearly = pl.lit(value=False), pl.lit(value=False)
    if seats:
        taken = ~pl.col("aggregated") & (pl.col("running") >= seats)
        nearly = ~pl.col("aggregated") & (pl.col("running") >= seats - max(1, seats // 10))
    prompts = pl.col("prompt_tps").fill_null(0)
    prefill = (prompts > 0) & (prompts >= PREFILL_RATIO * pl.col("generation_tps").fill_null(0))
    bound = (
        pl.when(~queue)
        .then(None)
        .when(full & taken)
        .then(pl.lit("both"))
        .when(full)
        .then(pl.lit("kv"))
        .when(taken | (nearly & room))
        .then(pl.lit("seats"))
        .when(much_room & prefill & ~pl.col("aggregated"))
        .then(pl.lit("prefill"))
    )
    return windows.select(bound=bound.otherwise(None))["bound"]


def _queue() -> pl.Expr:
    """Whether requests wait for room, a seat or the budget: most of the queue is not deferred."""
    waiting = pl.col("waiting") + pl.col("swapped").fill_null(0)
    return (waiting > 0) & (2 * pl.col("deferred").fill_null(0) < waiting)


def seats_seen(windows: pl.DataFrame | None) -> int | None:
    """max_num_seqs where the queue gives it away: Running stands still at its highest number while requests wait and KV has room.

    A round number needs three such lines, any other six; None where nothing stands still.
    """
    if windows is None or windows["aggregated"].any():
        return None
    held = windows.filter(_queue() & (pl.col("kv_pct") < NEARLY_FULL_PCT) & (pl.col("running") >= 1))
    if held.height < MIN_PLATEAU:
        return None
    top = int(windows["running"].max() or 0)  # type: ignore[arg-type]
    at_top = int((held["running"] == top).sum())
    needed = MIN_PLATEAU if is_round(top) else SURE_PLATEAU
    if at_top < needed or at_top < PLATEAU_SHARE * held.height:
        return None
    # Requests that neither finish nor generate stand still too, whatever the number.
    moved = held.filter(pl.col("running") == top)["generation_tps"].fill_null(0).sum()
    return top if moved > top else None


def is_round(number: int) -> bool:
    """Whether people set such numbers: powers of two, multiples of 8 or 10, and small ones."""
    return number <= 8 or number % 8 == 0 or number % 10 == 0
