"""What a log says of one engine's load: statistics windows, arrivals with their bounds, and how outputs are known.

`observe` reads the frames; `Observations`, `Window` and `Arrival` are what it finds. All times are seconds on one clock
that starts at `Observations.epoch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from logscope.evidence.pressure import interval_hits
from logscope.inference.windows.log_clock import LogClock, Mark
from parsers.families.http import endpoint

__all__ = ["ENDPOINTS", "Arrival", "Observations", "Window", "observe", "with_marks", "with_prompts", "with_talks"]

Row = dict[str, Any]

ENDPOINTS = ("completions", "responses", "generate", "messages", "invocations", "transcriptions")


_TELLING, _FALLEN = (
    0.1,
    0.5,
)  # the best hit rate that tells something, and the share of it at the end from which on it has fallen
_SHORTEST = 4.0  # seconds of a window; shorter ones hold too few steps to tell anything


@dataclass(frozen=True, slots=True)
class Window:
    """The time between two statistics lines. Times in seconds, `kv_usage` 0..1, None where the line lacks a figure.

    `prompt_tokens` and `generated_tokens` are the line's throughputs times its interval; the gauges stand for the
    last step that ended before `end`. `recomputing`: steps in which requests resumed, where iteration lines show them. `given`: the share of the prompts' tokens that came from the prefix cache, where each talk
    has its own there (`with_talks`); `prompt_tokens` then holds them.
    """

    start: float
    end: float
    running: int
    waiting: int
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    kv_usage: float | None = None
    hit_rate: float | None = None
    line: int = 0
    given: float = 0.0
    recomputing: int | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request's receipt lies in `low` .. `high` (seconds), after those of the arrivals before it.

    Lengths in tokens, None where the log does not tell: `max_tokens` is what was asked for, `output_tokens` what is
    known for certain, `prompt_chars` the printed prompt's length. `abort` is when the client went away.
    """

    low: float
    high: float
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    output_tokens: int | None = None
    prompt_chars: int | None = None
    abort: float | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Observations:
    """One engine's load as its log shows it.

    `level`: "requests", "statistics" (arrivals from access lines only) or "bare" (no line tells of a request); `log_end`: the last stamped record;
    `talks`: prompts hold conversations so far, of which the prefix cache keeps what it has room for.
    """

    epoch: datetime
    windows: tuple[Window, ...]
    arrivals: tuple[Arrival, ...]
    level: str
    end: float
    log_end: float = 0.0
    talks: bool = False

    def time(self, seconds: float) -> datetime:
        """A moment of the inference's clock as the log would print it."""
        return self.epoch + timedelta(seconds=seconds)


def observe(frames: Mapping[str, pl.DataFrame]) -> Observations | None:
    """Read one engine's frames; None where there are no statistics lines. Without requests there are no arrivals."""
    stats = _stats_rows(frames)
    if not stats:
        return None
    received = _received_rows(frames)
    accesses = _access_rows(frames)
    rows, level = (received, "requests") if received else (accesses, "statistics") if accesses else ([], "bare")
    clock = LogClock.of(stats, [*received, *accesses], _probe_rows(frames))
    windows = _merged(_windows(stats, clock))
    if not windows:
        return None
    marks = [clock.mark(row) for row in rows]
    arrivals = _in_order(
        [_arrival(row, mark) for row, mark in zip(rows, marks, strict=True) for _ in range(_copies(row))]
    )
    if level == "statistics":
        arrivals = _if_answered_whole(arrivals, windows)
    arrivals = _with_aborts(arrivals, frames, clock)
    log_end = max(windows[-1].end, _last_stamp(frames, clock))
    windows = _fallen_silent(windows, log_end)
    end = max([windows[-1].end, *(a.high for a in arrivals)])
    return Observations(clock.epoch, tuple(windows), tuple(arrivals), level, end, max(end, log_end))


def with_talks(seen: Observations, counts_hits: bool) -> Observations:
    """Note what the prefix cache gave in each window where talks return to it: its rate falls, as a shared head's never does."""
    rated = [w for w in seen.windows if w.hit_rate is not None and w.prompt_tokens is not None]
    rates = [w.hit_rate or 0.0 for w in rated]
    if not rates or max(rates) < _TELLING or rates[-1] > _FALLEN * max(rates):
        return seen
    hits = interval_hits([w.prompt_tokens or 0.0 for w in rated], rates, counts_hits)
    found = {w.end: (asked, given / asked if asked else 0.0) for w, (asked, given) in zip(rated, hits, strict=True)}
    windows = tuple(
        replace(w, prompt_tokens=found[w.end][0], given=found[w.end][1]) if w.end in found else w for w in seen.windows
    )
    return replace(seen, windows=windows, talks=True)


def with_marks(seen: Observations, ends: Sequence[float]) -> Observations:
    """Note in each window how many steps recomputed; `ends`: theirs, in seconds since 1970 on the log's clock."""
    epoch = seen.epoch.replace(tzinfo=timezone.utc).timestamp()
    at = np.sort(np.asarray(ends, dtype=np.float64) - epoch)
    edges = np.searchsorted(at, [w.end for w in seen.windows], side="right")
    counts = np.diff(edges, prepend=0)
    windows = tuple(replace(w, recomputing=int(n)) for w, n in zip(seen.windows, counts, strict=True))
    return replace(seen, windows=windows)


_SENT_AGAIN = 0.1  # of the arrivals: so many more prompts begun leave open who began which


def with_prompts(seen: Observations, begun: Sequence[int]) -> Observations:
    """Note the prompts' lengths as steps show them (0: not known), in the order in which they began, that of arrival."""
    if not 0.5 * len(seen.arrivals) <= len(begun) <= (1 + _SENT_AGAIN) * len(seen.arrivals):
        return seen
    arrivals = list(seen.arrivals)
    for i, tokens in enumerate(begun[: len(arrivals)]):
        arrivals[i] = replace(arrivals[i], prompt_tokens=arrivals[i].prompt_tokens or tokens or None)
    return replace(seen, arrivals=tuple(arrivals))


def _last_stamp(frames: Mapping[str, pl.DataFrame], clock: LogClock) -> float:
    """When the last stamped record was written."""
    found = [f["time"].max() for f in frames.values() if "time" in f.columns and f.height]
    return max(((at - clock.epoch).total_seconds() for at in found if isinstance(at, datetime)), default=0.0)


def _fallen_silent(windows: list[Window], log_end: float) -> list[Window]:
    """A server prints no statistics while it is idle: where the log goes on without the next lines, all requests had ended by then."""
    last = windows[-1]
    period = max(w.end - w.start for w in windows[-5:])
    if not (last.running or last.waiting) or log_end < last.end + 2.0 * period + 2.0:
        return windows
    return [*windows, Window(last.end, last.end + 1.5 * period, 0, 0, line=last.line)]


_PLACE = ("order", "line", "time", "outer_time", "at", "variant")
_STATS = (
    "running",
    "waiting",
    "swapped",
    "aggregated",
    "prompt_throughput",
    "generation_throughput",
    "gpu_kv_cache_usage_pct",
    "prefix_cache_hit_rate_pct",
)
_REQUEST = (
    "request_id",
    "request_ids",
    "n",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "num_prompt_token_ids",
    "prompt_chars",
)
_ACCESS = ("method", "path", "status")


def _rows(frame: pl.DataFrame | None, columns: Sequence[str], variants: Sequence[str] = ()) -> list[Row]:
    """Rows in the order of the log; only what is needed, as a day's log has hundreds of thousands."""
    if frame is None:
        return []
    if variants:
        frame = frame.filter(pl.col("variant").is_in(variants))
    return frame.select(*_PLACE, *columns).sort("order").rows(named=True)


def _stats_rows(frames: Mapping[str, pl.DataFrame]) -> list[Row]:
    rows = [row for row in _rows(frames.get("stats"), _STATS) if row["running"] is not None and row["at"] is not None]
    return [row for row in rows if not row["aggregated"]] or rows


def _received_rows(frames: Mapping[str, pl.DataFrame]) -> list[Row]:
    for variant in ("received", "added"):
        rows = _rows(frames.get("request"), _REQUEST, (variant,))
        found = [r for r in rows if r["at"] is not None]
        if found:
            return found
    return []


def _access_rows(frames: Mapping[str, pl.DataFrame]) -> list[Row]:
    """Answered calls of an endpoint that generates."""
    http = frames.get("http")
    if http is None:
        return []
    answered = (pl.col("method") == "POST") & (pl.col("status") == 200) & endpoint().is_in(ENDPOINTS)
    return _rows(http.filter(answered), _ACCESS, ("access",))


def _probe_rows(frames: Mapping[str, pl.DataFrame]) -> list[Row]:
    """Health checks and scrapes: where they are regular, they are a clock."""
    return [row for row in _rows(frames.get("http"), _ACCESS, ("access",)) if row["method"] == "GET"]


def _copies(row: Row) -> int:
    """A request with `n` > 1 is so many sequences."""
    return max(1, min(int(row.get("n") or 1), 64))


def _windows(stats: Sequence[Row], clock: LogClock) -> list[Window]:
    windows = []
    previous: float | None = None
    for row in stats:
        end = clock.stats_time(row)
        interval = clock.interval(previous, end, continuous=row["variant"].startswith("v0_"))
        if interval <= 0:
            continue
        usage, hits = row["gpu_kv_cache_usage_pct"], row["prefix_cache_hit_rate_pct"]
        windows.append(
            Window(
                start=end - interval,
                end=end,
                running=row["running"] + (row.get("swapped") or 0),
                waiting=(row["waiting"] or 0),
                prompt_tokens=_tokens(row["prompt_throughput"], interval),
                generated_tokens=_tokens(row["generation_throughput"], interval),
                kv_usage=None if usage is None else usage / 100.0,
                hit_rate=None if hits is None else hits / 100.0,
                line=row["line"],
            )
        )
        previous = end
    return windows


def _merged(windows: list[Window]) -> list[Window]:
    """Join windows that are shorter than `_SHORTEST`: tokens add up, the gauges are the last one's."""
    out: list[Window] = []
    for window in windows:
        last = out[-1] if out else None
        if last is not None and last.end - last.start < _SHORTEST - 0.1 and window.start - last.end < 0.5:
            out[-1] = replace(
                window,
                start=last.start,
                prompt_tokens=_sum(last.prompt_tokens, window.prompt_tokens),
                generated_tokens=_sum(last.generated_tokens, window.generated_tokens),
            )
        else:
            out.append(window)
    return out


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _tokens(rate: float | None, interval: float) -> float | None:
    return None if rate is None else rate * interval


def _arrival(row: Row, mark: Mark) -> Arrival:
    known = row.get("max_tokens") if row.get("ignore_eos") else None
    least, most = row.get("min_tokens"), row.get("max_tokens")
    if known is None and least and least == most:
        known = most
    return Arrival(
        low=mark.low,
        high=mark.high,
        prompt_tokens=row.get("num_prompt_token_ids") or None,
        max_tokens=most,
        output_tokens=known,
        prompt_chars=row.get("prompt_chars"),
        label=row.get("request_id"),
    )


def _in_order(arrivals: list[Arrival]) -> list[Arrival]:
    """Tighten the bounds by the order of the lines: nobody before its predecessor, nobody after its successor."""
    low = float("-inf")
    for i, a in enumerate(arrivals):
        low = max(low, a.low)
        arrivals[i] = replace(a, low=low, high=max(a.high, low))
    high = float("inf")
    for i in range(len(arrivals) - 1, -1, -1):
        a = arrivals[i]
        high = min(high, a.high)
        arrivals[i] = replace(a, high=max(high, a.low))
    return arrivals


def _if_answered_whole(arrivals: list[Arrival], windows: Sequence[Window]) -> list[Arrival]:
    """Access lines of answers that are not streamed stand at a request's end: then only the windows tell arrivals.

    Were the lines arrivals, as many less those present must have ended, a number that never falls.
    """
    counts = [sum(a.high <= w.end for a in arrivals) for w in windows]
    ended = [n - w.running - w.waiting for n, w in zip(counts, windows, strict=True)]
    falls = sum(max(0, a - b) for a, b in pairwise([0, *ended]))
    if falls <= max(3.0, 0.05 * len(arrivals)):
        return arrivals
    out: list[Arrival] = []
    before = 0
    for n, window in zip(counts, windows, strict=True):
        present = n + window.running + window.waiting
        new = max(0, present - before)
        out += [Arrival(window.start, window.end)] * new
        before += new
    return out


def _with_aborts(arrivals: list[Arrival], frames: Mapping[str, pl.DataFrame], clock: LogClock) -> list[Arrival]:
    """Note when a client went away; ids of the engine carry a suffix that the front end's lack."""
    times: dict[str, float] = {}
    for row in _rows(frames.get("request"), _REQUEST, ("aborted", "req_aborted")):
        if row["at"] is not None:
            mark = clock.mark(row)
            for name in [row["request_id"], *(row["request_ids"] or [])]:
                if name:
                    times[name] = (mark.low + mark.high) / 2
    if not times:
        return arrivals
    shortened = {name.rpartition("-")[0]: t for name, t in times.items()}
    return [
        a
        if a.label is None or (t := times.get(a.label, shortened.get(a.label))) is None
        else replace(a, abort=max(t, a.high))
        for a in arrivals
    ]
