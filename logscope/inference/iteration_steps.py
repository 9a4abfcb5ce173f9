"""What a log says of each engine step and of each request's arrival, as arrays in the order of the log.

`Steps` are the iteration lines of one engine, `Arrivals` its requests' first lines; both carry the `order` of their
lines, by which a request stands between two steps even where clocks have whole seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from logscope.inference.iteration_clock import Floats, Ints, arrival_times, end_times

__all__ = ["Arrivals", "Steps", "read_arrivals", "read_steps", "timed"]

_COMPLETION_PATHS = r"/(?:completions|chat/completions|generate|responses|messages)$"


@dataclass(frozen=True)
class Steps:
    """One row a step. Lengths in tokens, times in seconds since 1970 on the log's own clock.

    `context`/`generation`: requests that got prefill and other tokens, `context_tokens`/`generation_tokens` how many;
    `used`: KV blocks in use after the step (NaN where the line does not say), known to `used_error` blocks;
    `lost`: steps between the one before and this one whose lines are missing.
    """

    number: Ints
    order: Ints
    line: Ints
    context: Ints
    context_tokens: Ints
    generation: Ints
    generation_tokens: Ints
    elapsed: Floats
    end: Floats
    used: Floats
    used_error: float
    lost: Ints

    def __len__(self) -> int:
        return len(self.number)

    @property
    def requests(self) -> Ints:
        """Scheduled requests of each step."""
        return self.context + self.generation

    @property
    def tokens(self) -> Ints:
        """Scheduled tokens of each step."""
        return self.context_tokens + self.generation_tokens

    @property
    def excess(self) -> Ints:
        """Generation tokens beyond one a request: the first model runner's recomputation."""
        return np.maximum(self.generation_tokens - self.generation, 0)

    @property
    def start(self) -> Floats:
        """When each step began, at the earliest when the one before it ended."""
        begin = self.end - self.elapsed
        begin[1:] = np.maximum(begin[1:], self.end[:-1])
        return begin


@dataclass(frozen=True)
class Arrivals:
    """Requests in the order in which the server took them. Unknown numbers are 0, unknown times NaN.

    `limit`: most output tokens; `exact`: nothing but the limit ends it; `stamp`: the line's own time; `time`: seconds, as `Steps.end` (after `timed`); `position`:
    number of steps whose lines stand before the request's; `gone`: position of its abort, or a large number.
    """

    ids: list[str]
    limit: Ints
    exact: npt.NDArray[np.bool_]
    stamp: Floats
    time: Floats
    position: Ints
    gone: Ints
    known: bool

    def __len__(self) -> int:
        return len(self.ids)


def _seconds(frame: pl.DataFrame) -> Floats:
    """The envelope's clock where it is finer than a second and complete, else the record's own."""
    own = frame["at"].dt.epoch("us").cast(pl.Float64).to_numpy() / 1e6
    outer = frame["outer_time"].dt.epoch("us").cast(pl.Float64).to_numpy() / 1e6
    known = ~np.isnan(outer)
    if not known.all() or not np.mean(outer != np.floor(outer)) > 0.5:
        return np.asarray(own, dtype=np.float64)
    both = ~np.isnan(own)
    zone = np.round(np.median((own - outer)[both]) / 900.0) * 900.0 if both.any() else 0.0
    return np.asarray(outer + zone, dtype=np.float64)


def read_steps(frame: pl.DataFrame, usable_blocks: int | None) -> Steps:
    """The steps of one engine's iteration frame; `usable_blocks` is the pool without the null block."""
    frame = frame.filter(
        ~pl.col("dummy").fill_null(False)
        & (pl.col("context_requests") + pl.col("generation_requests") > 0)
    ).sort("order")
    column = {
        name: frame[name].cast(pl.Int64).to_numpy().astype(np.int64)
        for name in (
            "context_requests",
            "context_tokens",
            "generation_requests",
            "generation_tokens",
        )
    }
    elapsed = frame["elapsed_ms"].to_numpy().astype(np.float64) / 1e3
    number = frame["iteration"].to_numpy().astype(np.int64)
    stamps = _forward_filled(_seconds(frame))
    end = end_times(stamps, elapsed, column["generation_requests"] == 0)
    share = frame["gpu_kv_cache_usage_pct"].cast(pl.Float64).to_numpy() / 100.0
    blocks = float(usable_blocks or 0) or np.nan
    lost = np.maximum(np.diff(number, prepend=number[:1] - 1) - 1, 0)
    lost[lost > 100_000] = 0
    return Steps(
        number=number,
        order=frame["order"].to_numpy().astype(np.int64),
        line=frame["line"].to_numpy().astype(np.int64),
        context=column["context_requests"],
        context_tokens=column["context_tokens"],
        generation=column["generation_requests"],
        generation_tokens=column["generation_tokens"],
        elapsed=elapsed,
        end=end,
        used=np.asarray(share * blocks, dtype=np.float64),
        used_error=0.0005 * blocks + 0.01 if blocks == blocks else np.inf,
        lost=lost,
    )


def _forward_filled(seconds: Floats) -> Floats:
    known = ~np.isnan(seconds)
    if known.all() or not known.any():
        return np.nan_to_num(seconds)
    index = np.maximum.accumulate(np.where(known, np.arange(len(seconds)), -1))
    return seconds[np.where(index < 0, int(np.argmax(known)), index)]


def read_arrivals(frames: Mapping[str, pl.DataFrame], steps: Steps) -> Arrivals:
    """The requests that the log names, or (without request lines) those that its access lines count."""
    requests = frames.get("request")
    if requests is not None:
        for variant in ("received", "added"):
            rows = requests.filter(pl.col("variant") == variant).sort("order")
            if rows.height:
                return _of_requests(rows, requests, steps)
    return _of_access_lines(frames.get("http"), steps)


def _of_requests(rows: pl.DataFrame, requests: pl.DataFrame, steps: Steps) -> Arrivals:
    ids = [str(i) for i in rows["request_id"].to_list()]
    limit = rows["max_tokens"].fill_null(0).to_numpy().astype(np.int64)
    least = rows["min_tokens"].fill_null(0).to_numpy().astype(np.int64)
    forced = rows["ignore_eos"].fill_null(False).to_numpy().astype(np.bool_)
    position = _position(rows, steps)
    gone = np.full(len(ids), len(steps) + 10, dtype=np.int64)
    ended = requests.filter(
        pl.col("variant").is_in(["aborted", "req_aborted", "req_failed", "queue_full"])
    )
    if ended.height:
        index = {name: i for i, name in enumerate(ids)}
        for names, one, at in zip(
            ended["request_ids"].to_list(),
            ended["request_id"].to_list(),
            _position(ended, steps).tolist(),
            strict=True,
        ):
            for name in names or ([one] if one else []):
                i = _same(index, str(name))
                if i is not None:
                    gone[i] = min(gone[i], at)
    exact = (forced | (least >= limit)) & (limit > 0)
    stamps = _seconds(rows)
    return Arrivals(ids, limit, exact, stamps, stamps, position, gone, True)


def _same(index: dict[str, int], name: str) -> int | None:
    """A request's number by its id; newer releases add a random tail to the id inside the engine."""
    found = index.get(name)
    return found if found is not None else index.get(name.rpartition("-")[0])


def _of_access_lines(frame: pl.DataFrame | None, steps: Steps) -> Arrivals:
    """Access lines of completions are printed when a streamed answer starts, so that their place is the arrival's."""
    none = _nothing(0, np.zeros(0, dtype=np.int64), steps, False)
    if frame is None:
        return none
    rows = frame.filter(
        (pl.col("method") == "POST")
        & (pl.col("status") == 200)
        & pl.col("path").str.contains(_COMPLETION_PATHS)
    ).sort("order")
    if not rows.height:
        return none
    position = _position(rows, steps)
    # every admission must have had its arrival before; answers that are printed at their end come too late for that
    admitted = np.cumsum(_least_new(steps))
    seen = np.searchsorted(np.sort(position), np.arange(len(steps)), side="right")
    if np.mean(admitted <= seen + 1) < 0.9:
        return none
    return _nothing(rows.height, position, steps, True)


def _nothing(count: int, position: Ints, steps: Steps, known: bool) -> Arrivals:
    """Arrivals of which nothing but their places is known."""
    return Arrivals(
        ids=[f"request-{i}" for i in range(count)],
        limit=np.zeros(count, dtype=np.int64),
        exact=np.zeros(count, dtype=np.bool_),
        stamp=np.full(count, np.nan),
        time=np.full(count, np.nan),
        position=position,
        gone=np.full(count, len(steps) + 10, dtype=np.int64),
        known=known,
    )


def _least_new(steps: Steps) -> Ints:
    """At least so many requests are new in each step: its context requests less those of the step before."""
    return np.maximum(np.diff(steps.context, prepend=0), 0)


def _position(rows: pl.DataFrame, steps: Steps) -> Ints:
    return np.searchsorted(steps.order, rows["order"].to_numpy()).astype(np.int64)


def timed(found: Arrivals, steps: Steps, admitted: Ints) -> Arrivals:
    """The arrivals with their times, now that it is known which step admitted each (-1: none)."""
    time = arrival_times(found.position, found.stamp, steps.start, steps.end, admitted)
    return replace(found, time=time)
