"""The replay of one engine's log, or of its worst portion: what one inference can afford of a long log is cut out before it looks at the rows.

`logscope.inference.windows.portion` chooses the worst span of what it is given, request by request. Of a log of millions of requests the same
choice is made here over the statistics windows, from the places of rows alone, and only the rows of that span are read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from logscope.errors import fault_of, tried
from logscope.evidence.finding import Finding
from logscope.inference.result import CoveredSpan, Effort, InferredReplay
from logscope.inference.windows.observations import ENDPOINTS
from logscope.inference.windows.portion import FULL, worst_stretch
from logscope.log.stored_rows import StoredRows
from logscope.server.engines import EngineLog
from logscope.server.unsupported import widened
from parsers.families.http import endpoint

__all__ = ["Portion", "extrapolated", "replay_engine", "replay_worst", "worst_portion"]

MANY_ARRIVALS = 20_000
MANY_STEPS = 400_000
MANY_WINDOWS = 20_000
"""A log with more of one of these is cut."""

_ARRIVALS, _STEPS, _WINDOWS = 6_000, 150_000, 1_000
"""So much is cut out at most, and a margin."""
_MARGIN = 30
_STEPS_A_WINDOW = 500
_SURE = 0.9
_NEARLY_ALL = 0.9

Orders = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Portion:
    """An engine's log, or its worst span: `share` of the log's pressed windows lie in it, of its `requests` requests."""

    log: EngineLog
    share: float = 1.0
    requests: int | None = None

    @property
    def cut(self) -> bool:
        """Whether it is only a part."""
        return self.requests is not None or self.share != 1.0


def worst_portion(log: EngineLog, stored: Mapping[str, StoredRows]) -> Portion:
    """The part of a log that a replay looks at: all of it where it is not too long."""
    rows = {family: _rows_of(log, family, stored) for family in ("request", "http", "iteration")}
    arrivals = _arrivals(rows)
    steps = _orders(rows["iteration"])
    windows = _windows(log, rows)
    frames = {f: frame for f, frame in log.frames.items() if f not in stored}
    too_long = len(arrivals) > MANY_ARRIVALS or len(steps) > MANY_STEPS or windows.height > MANY_WINDOWS
    if not too_long or windows.height < 2:
        if too_long or not stored:
            return Portion(log)
        back = {f: stored[f].frame(r) for f, r in rows.items() if f in stored and r is not None}
        return Portion(replace(log, frames=_kept(log, frames | back)))
    ends = windows["order"].to_numpy()
    limits = [
        (np.concatenate(([0], np.searchsorted(orders, ends))), most)
        for orders, most in ((arrivals, _ARRIVALS), (steps, _STEPS))
    ]
    first, last = worst_stretch(windows["pressed"].to_numpy(), windows["present"].to_numpy(), _WINDOWS, limits)
    low = -1 if first <= _MARGIN else int(ends[first - _MARGIN - 1])
    high = int(ends[min(last + _MARGIN, len(ends) - 1)])
    if last + _MARGIN >= len(ends) - 1:
        high = np.iinfo(np.int64).max
    inside = pl.col("order").is_between(low, high, closed="right")
    cut = {}
    for family, part in rows.items():
        if part is not None:
            chosen = part.filter(inside)
            cut[family] = stored[family].frame(chosen) if family in stored else chosen.collect()
    if "stats" in frames:
        cut["stats"] = frames["stats"].filter(inside)
    pressed = windows["pressed"].to_numpy()
    within = slice(max(0, first - _MARGIN), last + _MARGIN + 1)
    everything = pressed.sum()
    share = float(pressed[within].sum() / everything) if everything else 1.0
    return Portion(replace(log, frames=_kept(log, frames | cut)), share, len(arrivals) if len(arrivals) else None)


def replay_worst(
    log: EngineLog, stored: Mapping[str, StoredRows], intervals: int, effort: Effort
) -> tuple[InferredReplay | None, list[Finding], str | None]:
    """Infer and replay one engine's workload, of a long log (of so many `intervals`) that of its worst portion.

    Returns the replay in terms of the whole log, a finding that says which portion it is of, and the reason where it failed: whatever lies
    in a log, what it proves by itself is still said. All empty where there is nothing to replay.
    """
    try:
        portion = worst_portion(log, stored)
    except (OSError, pl.exceptions.PolarsError) as error:  # the rows' file is gone, or cannot be read
        return None, [], fault_of(error)
    answer, failure = tried(partial(replay_engine, portion.log, effort))
    if answer is None:
        return None, [], failure
    return extrapolated(answer, portion), _of_a_portion(answer, portion, intervals), None


def replay_engine(log: EngineLog, effort: Effort) -> InferredReplay | None:
    """Infer and replay one engine's workload; None where there is nothing to replay.

    Iteration lines tell nearly everything, so they decide where they explain the run; else requests and statistics are fitted.
    """
    found = None
    if log.get("iteration") is not None and not log.facts.config.get("num_spec_tokens"):
        from logscope.inference.steps.reconstruct import reconstruct

        found = reconstruct(log.frames, log.facts, replace(effort, progress=None))
    if found is None or (found.steps is not None and not found.steps.trusted):
        from logscope.inference.windows.estimate import infer

        found = infer(log.frames, log.facts, effort, engines=log.engines_in_run)
    if found is None or not log.facts.unsupported:
        return found
    low, value, high = widened(*found.preemptions.bounds)
    return replace(
        found,
        preemptions=replace(found.preemptions, low=low, value=value, high=high),
        unsupported=log.facts.unsupported,
    )


def extrapolated(answer: InferredReplay, portion: Portion) -> InferredReplay:
    """What was replayed of a portion, in terms of the whole log: the count of preemptions and of requests."""
    if not portion.cut:
        return answer
    share = portion.share if portion.share > 0 else 1.0
    low, value, high = (count / share for count in answer.preemptions.bounds)
    if share < _SURE:
        low, high = low * (0.5 + 0.5 * share), high * (1.5 - 0.5 * share)
    tokens = round(answer.preemptions.recomputed_tokens / share)
    alone = portion.log.engines_in_run == 1
    return replace(
        answer,
        preemptions=replace(answer.preemptions, low=low, value=value, high=high, recomputed_tokens=tokens),
        requests=max(answer.requests, portion.requests or 0) if alone else round(answer.requests / share),
    )


def _of_a_portion(answer: InferredReplay, portion: Portion, intervals: int) -> list[Finding]:
    """Say which part of a log (of so many intervals) was looked at; nothing where it was all of it, or nearly."""
    span = answer.span
    if span is None or not intervals or span.intervals >= _NEARLY_ALL * intervals:
        if not portion.cut:
            return []
        stats = portion.log.get("stats")
        times = (stats if stats is not None else portion.log.frames["iteration"])["at"].drop_nulls()
        span = CoveredSpan(times[0], times[-1], 0 if stats is None else stats.height)
    title = (
        f"The log is long: latencies, ledger, spikes and advice are those of its worst span, {span.start:%Y-%m-%d %H:%M} to {span.end:%H:%M}"
        f" ({span.intervals} of {intervals} intervals); preemptions are counted there and extrapolated"
        " (give --since and --until to look at another)"
    )
    return [Finding("coverage", "info", "inferred", title, span.start, span.end)]


def _kept(log: EngineLog, frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    return {f: frames[f] for f in log.frames if f in frames and frames[f].height}


def _rows_of(log: EngineLog, family: str, stored: Mapping[str, StoredRows]) -> pl.LazyFrame | None:
    """All rows of a family that are the engine's."""
    frame = log.frames.get(family)
    if frame is None:
        return None
    if family not in stored:
        return frame.lazy()
    facts = log.facts
    rows = stored[family].scan()
    rows = rows.filter((pl.col("server") == facts.server) & (pl.col("run") == facts.run))
    if family != "iteration":
        return rows
    own = pl.col("engine_index") == facts.engine_index
    return rows.filter(own | pl.col("engine_index").is_null() if log.engines_in_run == 1 else own)


def _orders(rows: pl.LazyFrame | None) -> Orders:
    if rows is None:
        return np.empty(0, np.int64)
    orders: Orders = rows.select("order").collect()["order"].sort().to_numpy()
    return orders


def _arrivals(rows: Mapping[str, pl.LazyFrame | None]) -> Orders:
    """The places of what `logscope.inference.windows.observations` takes for arrivals."""
    requests, http = rows["request"], rows["http"]
    if requests is not None:
        for variant in ("received", "added"):
            found = _orders(requests.filter((pl.col("variant") == variant) & pl.col("at").is_not_null()))
            if len(found):
                return found
    if http is None:
        return np.empty(0, np.int64)
    answered = (pl.col("method") == "POST") & (pl.col("status") == 200) & endpoint().is_in(ENDPOINTS)
    return _orders(http.filter((pl.col("variant") == "access") & answered))


def _windows(log: EngineLog, rows: Mapping[str, pl.LazyFrame | None]) -> pl.DataFrame:
    """A row for each statistics line, or (without any) for each stretch of steps: `order` of its end, `present` requests, `pressed`."""
    stats, steps = log.get("stats"), rows["iteration"]
    found = pl.DataFrame(schema={"order": pl.Int64, "present": pl.Float64, "pressed": pl.Boolean})
    if stats is not None and "running" in stats.columns:
        told = stats.filter(pl.col("running").is_not_null() & pl.col("at").is_not_null())
        own = told.filter(~pl.col("aggregated").fill_null(value=False))
        told = (own if own.height else told).sort("order")
        waiting = pl.col("waiting").fill_null(0)
        full = pl.col("gpu_kv_cache_usage_pct").fill_null(0.0) >= 100 * FULL
        found = told.select(
            "order", present=(pl.col("running") + waiting).cast(pl.Float64), pressed=(waiting > 0) | full
        )
    if found.height >= 2 or steps is None:
        return found
    full = pl.col("gpu_kv_cache_usage_pct").fill_null(0.0) >= 100 * FULL
    return (
        steps.select(
            "order", present=(pl.col("context_requests") + pl.col("generation_requests")).cast(pl.Float64), pressed=full
        )
        .collect()
        .sort("order")
        .group_by(pl.int_range(pl.len()) // _STEPS_A_WINDOW, maintain_order=True)
        .agg(pl.col("order").last(), pl.col("present").max(), pl.col("pressed").any())
        .select("order", "present", "pressed")
    )
