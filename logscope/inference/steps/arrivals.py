"""When requests came, as a log with iteration lines tells: by the place of their lines among those of the steps.

`read_arrivals` takes request lines, else access lines, else nothing; `timed` and `guessed` give times once it is known which step
admitted whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from logscope.inference.steps.clock import Floats, Ints, arrival_times
from logscope.inference.steps.observed import Steps, seconds_of

__all__ = ["Arrivals", "guessed", "read_arrivals", "timed"]

_COMPLETION_PATHS = r"/(?:completions|chat/completions|generate|responses|messages)$"
_FIRST_ADMISSIONS = 12


@dataclass(frozen=True)
class Arrivals:
    """Requests in the order in which the server took them. Unknown numbers are 0, unknown times NaN.

    `limit`: most output tokens; `exact`: nothing but the limit ends it; `stamp`: the line's own time; `time`: seconds, as `Steps.end` (after `timed`); `position`:
    number of steps whose lines stand before the request's; `gone`: position of its abort, or a large number. The first `before`
    are nameless ones that waited already when the log begins. `gauges`: (step, waiting requests after it) of the statistics lines.
    """

    ids: list[str]
    limit: Ints
    exact: npt.NDArray[np.bool_]
    stamp: Floats
    time: Floats
    position: Ints
    gone: Ints
    known: bool
    before: int = 0
    gauges: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


def read_arrivals(frames: Mapping[str, pl.DataFrame], steps: Steps, engines: int = 1) -> Arrivals:
    """The requests that the log names, or (without request lines) those that its access lines count.

    Where it shows none, or does not say to which of several engines they went, there are as many nameless ones as the steps can have
    admitted (`known` is false).
    """
    if engines > 1:
        return _nameless(steps)
    gauges = _gauges(frames.get("stats"), steps)
    requests = frames.get("request")
    if requests is not None:
        for variant in ("received", "added"):
            rows = requests.filter(pl.col("variant") == variant).sort("order")
            if rows.height:
                return _with_those_before(_of_requests(rows, requests, steps), steps, gauges)
    found = _of_access_lines(frames.get("http"), steps)
    return _with_those_before(found, steps, gauges) if found.known else found


def _gauges(stats: pl.DataFrame | None, steps: Steps) -> tuple[tuple[int, int], ...]:
    if stats is None or "waiting" not in stats.columns:
        return ()
    rows = stats.filter(pl.col("waiting").is_not_null()).sort("order")
    at = np.searchsorted(steps.order, rows["order"].to_numpy()) - 1
    pairs = zip(at.tolist(), rows["waiting"].to_list(), strict=True)
    return tuple((k, many) for k, many in pairs if 0 <= k < len(steps))


def _with_those_before(found: Arrivals, steps: Steps, gauges: tuple[tuple[int, int], ...]) -> Arrivals:
    """A log that begins in the middle lacks the lines of those who wait; the first statistics line counts them."""
    found = replace(found, gauges=gauges)
    if steps.number[0] <= 1 or not steps.generation[0] or not gauges:
        return found
    step, waiting = gauges[0]
    admitted = int(_least_new(steps)[: step + 1].sum())
    came = int((found.position < step).sum())
    missing = waiting + admitted - came
    if missing <= 0:
        return found
    ahead = _nothing(missing, np.zeros(missing, dtype=np.int64), steps, True)
    return replace(
        found,
        ids=[*(f"before-{i}" for i in range(missing)), *found.ids],
        limit=np.concatenate([ahead.limit, found.limit]),
        exact=np.concatenate([ahead.exact, found.exact]),
        stamp=np.concatenate([ahead.stamp, found.stamp]),
        time=np.concatenate([ahead.time, found.time]),
        position=np.concatenate([ahead.position, found.position]),
        gone=np.concatenate([ahead.gone, found.gone]),
        before=missing,
    )


def _of_requests(rows: pl.DataFrame, requests: pl.DataFrame, steps: Steps) -> Arrivals:
    ids = [str(i) for i in rows["request_id"].to_list()]
    limit = rows["max_tokens"].fill_null(0).to_numpy().astype(np.int64)
    least = rows["min_tokens"].fill_null(0).to_numpy().astype(np.int64)
    forced = rows["ignore_eos"].fill_null(False).to_numpy().astype(np.bool_)
    position = _position(rows, steps)
    gone = np.full(len(ids), len(steps) + 10, dtype=np.int64)
    ended = requests.filter(pl.col("variant").is_in(["aborted", "req_aborted", "req_failed", "queue_full"]))
    if ended.height:
        index = {name: i for i, name in enumerate(ids)}
        for names, one, at in zip(
            ended["request_ids"].to_list(), ended["request_id"].to_list(), _position(ended, steps).tolist(), strict=True
        ):
            for name in names or ([one] if one else []):
                i = _same(index, str(name))
                if i is not None:
                    gone[i] = min(gone[i], at)
    exact = (forced | (least >= limit)) & (limit > 0)
    stamps = seconds_of(rows)
    return Arrivals(_told_apart(ids), limit, exact, stamps, stamps, position, gone, True)


def _told_apart(ids: list[str]) -> list[str]:
    """Ids that come again (a client's own, or lines that stand twice in the log) with the number of their turn."""
    turns: Counter[str] = Counter()
    found = []
    for name in ids:
        turns[name] += 1
        found.append(name if turns[name] == 1 else f"{name} ({turns[name]})")
    return found


def _same(index: dict[str, int], name: str) -> int | None:
    """A request's number by its id; newer releases add a random tail to the id inside the engine."""
    found = index.get(name)
    return found if found is not None else index.get(name.rpartition("-")[0])


def _of_access_lines(frame: pl.DataFrame | None, steps: Steps) -> Arrivals:
    """Access lines of completions are printed when a streamed answer starts, so that their place is the arrival's."""
    none = _nameless(steps)
    if frame is None:
        return none
    rows = frame.filter(
        (pl.col("method") == "POST") & (pl.col("status") == 200) & pl.col("path").str.contains(_COMPLETION_PATHS)
    ).sort("order")
    if not rows.height:
        return none
    position = _position(rows, steps)
    # each of the first admissions must have had its arrival before: lines that are printed at an answer's end come too late
    admitted = np.cumsum(_least_new(steps))
    seen = np.searchsorted(np.sort(position), np.arange(len(steps)), side="right")
    early = admitted <= _FIRST_ADMISSIONS
    if np.mean(admitted[early] <= seen[early]) < 0.9:
        return none
    return _nothing(rows.height, position, steps, True)


def _nameless(steps: Steps) -> Arrivals:
    most = int(steps.context.sum())
    return _nothing(most, np.zeros(most, dtype=np.int64), steps, False)


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


def guessed(
    found: Arrivals, steps: Steps, admitted: Ints, evicted_waiting: Ints, stats: pl.DataFrame | None
) -> Arrivals:
    """Nameless requests in the order of their admission, as early as the waiting requests of the statistics lines ask for.

    `admitted`: the step of each; `evicted_waiting`: evicted requests that wait after each step.
    """
    count = len(admitted)
    starts = steps.start[admitted]
    known_at, known_count = [steps.start[0] - 0.001], [0.0]
    if stats is not None and "waiting" in stats.columns:
        rows = stats.filter(pl.col("waiting").is_not_null()).sort("order")
        at = np.searchsorted(steps.order, rows["order"].to_numpy()) - 1
        waiting = rows["waiting"].to_numpy()
        for k, many in zip(at.tolist(), waiting.tolist(), strict=True):
            if 0 <= k < len(steps) and steps.end[k] > known_at[-1]:
                came = int((admitted <= k).sum()) + max(0, many - int(evicted_waiting[k]))
                known_at.append(float(steps.end[k]))
                known_count.append(max(known_count[-1], float(min(came, count))))
    known_at.append(float(steps.end[-1]))
    known_count.append(float(count))
    place = np.arange(1, count + 1, dtype=np.float64)
    # where the queue was empty a request came when it was admitted
    times = np.minimum(np.interp(place, known_count, known_at), starts)
    queued = np.interp(starts, known_at, known_count) - place > 0.5
    times = np.maximum.accumulate(np.where(queued, times, starts))
    position = np.searchsorted(steps.end, times).astype(np.int64)
    return replace(
        found,
        ids=found.ids[:count],
        limit=found.limit[:count],
        exact=found.exact[:count],
        stamp=found.stamp[:count],
        time=times,
        position=position,
        gone=found.gone[:count],
    )
