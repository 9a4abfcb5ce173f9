"""An exact account from logs with one line a step: `reconstruct` and its `Reconstruction`.

The steps say what the scheduler did; no replay has to guess it. What comes out has the shape of a finished replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import numpy as np
import polars as pl

from logscope.inference.iteration_records import Story, tell
from logscope.inference.iteration_steps import Arrivals, Steps, read_arrivals, read_steps, timed
from logscope.inference.iteration_track import Rules, Track, track
from logscope.logged_preemptions import Stretch
from logscope.servers import EngineFacts, engine_config
from reference_engine.config import EngineConfig
from reference_engine.results import ReplayResult
from reference_engine.step_time import LinearStepTime
from reference_engine.workload import Request

__all__ = ["Reconstruction", "reconstruct"]

_WINDOW_S = 10
_MARGIN = 0.03  # of the count; the bounds allow for this even where every step is explained


@dataclass(frozen=True)
class Reconstruction:
    """What the steps of one engine say. Times of `result` are seconds from `epoch` (record's clock, no zone).

    `preemptions`: low, value, high; `evictions`: when each happened; `timeline`: windows with their counts; `result`: records
    with ledgers, gaps, steps, as a replay gives them; `step_time` with its median relative `step_time_error`; `fit`: running,
    waiting, kv_usage, generation against the statistics lines (None: nothing to compare); `explained`: share of the changes between steps that the scheduler's rules explain, 0..1;
    `coverage`: share of the generated tokens of the statistics lines that the steps hold (None: unknown); `workload`: the requests as seen; `known_arrivals`: whether requests could be told apart at all.
    """

    epoch: datetime
    result: ReplayResult
    preemptions: tuple[float, float, float]
    evictions: tuple[datetime, ...]
    timeline: tuple[Stretch, ...]
    recomputed_tokens: int
    step_time: LinearStepTime
    step_time_error: float
    fit: Mapping[str, float | None]
    explained: float
    coverage: float | None
    workload: tuple[Request, ...]
    known_arrivals: bool


def reconstruct(
    frames: Mapping[str, pl.DataFrame], facts: EngineFacts, *, seed: int = 0
) -> Reconstruction | None:
    """Account for every step of one engine; None where its log has no iteration lines or its sizes are not known.

    The account is the same for every `seed`; the parameter is there for the sake of the other levels.
    """
    config = engine_config(facts)
    frame = frames.get("iteration")
    if config is None or frame is None or frame.height < 2 or config.engine != "vllm-v1":
        return None
    steps = read_steps(frame, config.num_blocks - 1)
    if len(steps) < 2:
        return None
    arrivals = read_arrivals(frames, steps)
    found, rules = _best_track(steps, arrivals, config)
    arrivals = timed(arrivals, steps, _admitted(found, len(arrivals)))
    prompts = [max(1, round(h.prompt)) for h in found.histories]
    story = tell(found, steps, arrivals, rules, prompts)
    epoch = datetime.fromtimestamp(story.epoch, timezone.utc).replace(tzinfo=None)
    times = [story.epoch + float(story.begin[k]) / 1e9 for k, _ in found.evictions]
    redone = _recomputed(found, steps, rules, story)
    return Reconstruction(
        epoch=epoch,
        result=ReplayResult(config, story.records, story.gaps, story.log),
        preemptions=_bounds(found, len(steps)),
        evictions=tuple(epoch + timedelta(seconds=t - story.epoch) for t in times),
        timeline=_timeline(times),
        recomputed_tokens=redone,
        step_time=story.calibration.model,
        step_time_error=story.calibration.error,
        fit=_fit(frames.get("stats"), story, steps, config),
        explained=max(0.0, 1.0 - found.cost / max(1.0, 3.0 * len(found.histories))),
        coverage=None,
        workload=tuple(r.request for r in story.records),
        known_arrivals=arrivals.known and len(arrivals) > 0,
    )


def _rules(config: EngineConfig) -> Rules:
    return Rules(
        budget=config.max_num_batched_tokens,
        seats=config.max_num_seqs,
        usable=config.num_blocks - 1,
        block_size=config.block_size,
        threshold=config.long_prefill_token_threshold,
        caching=config.enable_prefix_caching,
        asynchronous=config.async_scheduling,
        resumed_as_context=False,
        exact_limits=False,
    )


def _best_track(steps: Steps, arrivals: Arrivals, config: EngineConfig) -> tuple[Track, Rules]:
    """The account that goes least against the rules, over what the log leaves open: the model runner, and what ends a request."""
    first = _rules(config)
    tried: list[tuple[float, int, Track, Rules]] = []
    for asynchronous in (first.asynchronous, not first.asynchronous):
        for exact in (
            (False, True) if not arrivals.exact.all() and arrivals.limit.any() else (False,)
        ):
            for as_context in (False, True):
                rules = replace(
                    first,
                    asynchronous=asynchronous,
                    exact_limits=exact,
                    resumed_as_context=as_context,
                )
                found = track(steps, arrivals, rules)
                tried.append((found.cost, len(tried), found, rules))
                if found.cost < 0.5 * len(found.histories):
                    return found, rules
    best = min(tried, key=lambda t: (t[0], t[1]))
    return best[2], best[3]


def _admitted(found: Track, count: int) -> np.typing.NDArray[np.int64]:
    admitted = np.full(count, -1, dtype=np.int64)
    for history in found.histories:
        if history.request >= 0 and history.spans:
            admitted[history.request] = history.spans[0].first
    return admitted


def _bounds(found: Track, count: int) -> tuple[float, float, float]:
    """Low, value, high: what doubtful steps and missing lines may hide or add, and a small margin."""
    value = len(found.evictions)
    blind = found.blind_steps / max(1, count)
    doubt = found.doubtful
    margin = max(1.0, _MARGIN * value) if value else 0.0
    low = max(0.0, value - doubt - margin)
    high = value + doubt + margin + value * blind
    return float(np.floor(low)), float(value), float(np.ceil(high))


def _timeline(times: list[float]) -> tuple[Stretch, ...]:
    """Windows of ten whole seconds in which somebody was evicted."""
    counts = Counter(int(t // _WINDOW_S) for t in times)
    return tuple(
        Stretch(_naive(w * _WINDOW_S), _naive((w + 1) * _WINDOW_S), float(n))
        for w, n in sorted(counts.items())
    )


def _naive(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc).replace(tzinfo=None)


def _recomputed(found: Track, steps: Steps, rules: Rules, story: Story) -> int:
    """The first model runner's excess is exact; prompts that were cut short, and all of the second's, go by lengths."""
    if rules.resumed_as_context:
        return story.recomputed
    return int(steps.excess.sum()) + round(sum(h.redone for h in found.histories))


def _fit(
    stats: pl.DataFrame | None, story: Story, steps: Steps, config: EngineConfig
) -> dict[str, float | None]:
    """1 - mean absolute error / mean of what the statistics lines say, not under 0."""
    fit: dict[str, float | None] = dict.fromkeys(("running", "waiting", "kv_usage", "generation"))
    if stats is None or "running" not in stats.columns:
        return fit
    rows = stats.filter(pl.col("running").is_not_null()).sort("order")
    at = np.searchsorted(steps.order, rows["order"].to_numpy()) - 1
    inside = at >= 0
    if not inside.any():
        return fit
    at = at[inside]
    fit["running"] = _closeness(rows["running"].to_numpy()[inside], story.running[at])
    fit["waiting"] = _closeness(rows["waiting"].fill_null(0).to_numpy()[inside], story.waiting[at])
    usage = (
        rows["gpu_kv_cache_usage_pct"].cast(pl.Float64).fill_null(np.nan).to_numpy()[inside] / 100
    )
    mine = steps.used[at] / max(1, config.num_blocks - 1)
    if np.isfinite(usage).any() and np.isfinite(mine).any():
        both = np.isfinite(usage) & np.isfinite(mine)
        fit["kv_usage"] = _closeness(usage[both], mine[both])
    tokens = rows["generation_throughput"].cast(pl.Float64).to_numpy()[inside]
    seconds = np.diff(steps.end[at])
    delivered = np.concatenate([[0], np.cumsum(steps.generation)])
    said = tokens[1:] * seconds
    if len(said) and np.isfinite(said).any():
        fit["generation"] = _closeness(np.nan_to_num(said), np.diff(delivered[at + 1]))
    return fit


def _closeness(observed: np.typing.ArrayLike, ours: np.typing.ArrayLike) -> float | None:
    seen, mine = np.asarray(observed, dtype=float), np.asarray(ours, dtype=float)
    if not len(seen):
        return None
    mean = np.abs(seen).mean()
    off = np.abs(seen - mine).mean()
    if mean == 0:
        return 1.0 if off < 0.5 else 0.0
    return float(max(0.0, 1.0 - off / mean))
