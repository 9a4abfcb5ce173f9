"""An exact account from logs with one line a step: `reconstruct`.

The steps say what the scheduler did; no replay has to guess it. What comes out has the shape of a finished replay. How well it agrees with
the statistics lines, which it did not use but for the queue's length, is its fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import numpy as np
import polars as pl

from logscope.evidence.preemptions import Stretch, stats_windows
from logscope.evidence.pressure import NEARLY_FULL_PCT, pressure_of_count
from logscope.inference.prediction import Samples, Workload, slow_and_typical
from logscope.inference.result import Effort, InferredReplay, PreemptionCount, StepAccount
from logscope.inference.steps.arrivals import Arrivals, guessed, read_arrivals, timed
from logscope.inference.steps.clock import Floats, Ints
from logscope.inference.steps.load import evicted_waiting
from logscope.inference.steps.observed import Rules, Steps, Track, read_steps
from logscope.inference.steps.records import ReconstructedRun, reconstruct_run, stalled_steps
from logscope.inference.steps.track import track
from logscope.server.engines import EngineFacts, engine_config
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.replay.results import ReplayResult

__all__ = ["fit_of_steps", "reconstruct"]

_ALONE = Effort()


def fit_of_steps(
    stats: pl.DataFrame | None, run: ReconstructedRun, steps: Steps, config: EngineConfig
) -> tuple[dict[str, float | None], float | None]:
    """1 - mean absolute error / mean of what the statistics lines say, not under 0; and the share of their tokens that the steps hold."""
    fit: dict[str, float | None] = dict.fromkeys(("running", "waiting", "kv_usage", "generation"))
    if stats is None or "running" not in stats.columns:
        return fit, None
    rows = stats.filter(pl.col("running").is_not_null()).sort("order")
    at = np.searchsorted(steps.order, rows["order"].to_numpy()) - 1
    coverage = _coverage(rows, at, run)
    inside = at >= 0
    if not inside.any():
        return fit, coverage
    rows, at = rows.filter(pl.Series(inside)), at[inside]
    fit["running"] = _closeness(_column(rows, "running"), run.running[at].astype(float))
    fit["waiting"] = _closeness(_column(rows, "waiting"), run.waiting[at].astype(float))
    usage = _column(rows, "gpu_kv_cache_usage_pct") / 100
    fit["kv_usage"] = _closeness(usage, steps.used[at] / max(1, config.num_blocks - 1))
    fit["generation"] = _closeness(*_generated(rows, at, run))
    return fit, coverage


def _generated(rows: pl.DataFrame, at: Ints, run: ReconstructedRun) -> tuple[Floats, Floats]:
    """Tokens between the statistics lines: as they say, and as the steps gave."""
    seconds = rows["at"].dt.epoch("us").to_numpy() / 1e6
    said = _column(rows, "generation_throughput")[1:] * np.diff(seconds)
    done = np.concatenate([[0], np.cumsum(run.delivered)])
    return said, np.diff(done[at + 1]).astype(float)


def _coverage(rows: pl.DataFrame, at: Ints, run: ReconstructedRun) -> float | None:
    if rows.height < 2:
        return None
    said, ours = _generated(rows, at, run)
    known = ~np.isnan(said)
    total = float(said[known].sum())
    return float(np.minimum(said, ours)[known].sum() / total) if total > 0 else None


def _column(rows: pl.DataFrame, name: str) -> Floats:
    if name not in rows.columns:
        return np.full(rows.height, np.nan)
    return np.asarray(rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)


def _closeness(observed: Floats, ours: Floats) -> float | None:
    known = ~(np.isnan(observed) | np.isnan(ours))
    if not known.any():
        return None
    mean = float(np.abs(observed[known]).mean())
    off = float(np.abs(observed - ours)[known].mean())
    if mean == 0:
        return 1.0 if off < 0.5 else 0.0
    return max(0.0, 1.0 - off / mean)


_WINDOW_S = 10
_WIDEST = 0.14  # of the count, on each side
_DOUBT, _UNSEEN_S = 0.03, 0.06  # of a latency: relative (log), and the seconds between the client and the first step
_MARGIN = 0.03  # of the count; the bounds allow for this even where every step is explained
_FLIP = 2.0  # of cost, by which other rules than the log's must be better
_BADLY = 6.0  # of cost a request: the rules explain nothing any more
_ENOUGH = 150  # changes in the steps by which the rules are chosen
_OFTEN = 5  # steps of just the same, largest number of tokens, each with more prompt to come: a budget
# accounts that are followed at a time: so many changes times accounts, and bounds
_WORK, _FEWEST, _MOST = 24_000, 3, 12


def reconstruct(
    frames: Mapping[str, pl.DataFrame], facts: EngineFacts, effort: Effort = _ALONE
) -> InferredReplay | None:
    """Explanation for every step of one engine.

    Args:
        frames: the engine's frames.
        facts: who it is.
        effort: its seed decides only where nothing in the log does (who finished, without limits and KV usage).

    Returns:
        None where there are no iteration lines, or the size of the KV cache is not known.
    """
    config = engine_config(facts)
    frame = frames.get("iteration")
    if config is None or frame is None or config.engine != "vllm-v1":
        return None
    steps = read_steps(frame, config.num_blocks - 1)
    if len(steps) < 2:
        return None
    stats = frames.get("stats")
    arrivals = read_arrivals(frames, steps, _engines(facts))
    found, rules = _best_track(steps, arrivals, config, _hit_rate(stats), effort)
    arrivals = _placed(found, arrivals, steps, stats)
    prompts = [max(1, round(h.prompt)) for h in found.histories]
    hits = _hits(stats, prompts) if config.enable_prefix_caching else 0
    run = reconstruct_run(found, steps, arrivals, rules, prompts, hits)
    effort.report(1.0)
    answer = _answer(found, steps, arrivals, rules, run, stats, config, hits)
    return replace(answer, pressure=_pressure(answer.preemptions.value, stats), seed=effort.seed)


def _engines(facts: EngineFacts) -> int:
    """How many engines share the server's requests."""
    said = facts.more.get("data_parallel_size")
    return max(said if isinstance(said, int) else 1, facts.engine_index + 1)


def _answer(
    found: Track,
    steps: Steps,
    arrivals: Arrivals,
    rules: Rules,
    run: ReconstructedRun,
    stats: pl.DataFrame | None,
    config: EngineConfig,
    hits: int,
) -> InferredReplay:
    explained = max(0.0, 1.0 - found.cost / max(1.0, _BADLY * len(found.histories)))
    ahead = int(rules.asynchronous)  # a step is scheduled while the one before it runs
    evicted = [max(0, k - ahead) for k, _ in found.evictions]
    times = [_naive(run.epoch + float(run.begin[k]) / 1e9) for k in evicted]
    fit, coverage = fit_of_steps(stats, run, steps, config)
    certain = rules.exact_limits or (len(arrivals) > 0 and bool(arrivals.exact.all()))
    low, value, high = _bounds(found, len(steps), explained, certain)
    result = ReplayResult(config, run.records, run.gaps, run.log)
    summary = result.summary()
    doubt = _DOUBT + 0.15 * (1.0 - explained) + (0.0 if certain else 0.04) + (0.08 if hits else 0.0)
    sample = _sample(run, hits, config)
    replayed = replace(config, async_scheduling=False, enable_prefix_caching=hits > 0)
    samples = Samples((sample,), replayed)
    return InferredReplay(
        origin=_naive(run.epoch),
        level="steps",
        requests=len(sample.requests),
        preemptions=PreemptionCount(low, value, high, _recomputed(found, steps, rules, run), _timeline(times)),
        pressure="none",
        fit=fit,
        latency={
            "ttft_s": _with_bounds(summary.ttft_s, doubt),
            "e2e_s": _with_bounds(summary.e2e_s, doubt),
            "itl_s": summary.itl_s,
            "basis": "inferred",
        },
        ledger=slow_and_typical(result.requests()),
        step_time=run.calibration.linear,
        replay=result,
        samples=samples,
        screening=samples,
        steps=StepAccount(explained, coverage, arrivals.known, run.calibration.error, tuple(times), steps.by_stamps),
    )


def _with_bounds(figures: Mapping[str, float | None], doubt: float) -> dict[str, Any]:
    """Percentiles in seconds with `low` and `high`, by a relative `doubt` and some hundredths of a second that no line shows."""
    factor = float(np.exp(1.645 * doubt))
    low = {name: None if v is None else max(0.0, v / factor - _UNSEEN_S) for name, v in figures.items()}
    high = {name: None if v is None else v * factor + _UNSEEN_S for name, v in figures.items()}
    return {**figures, "low": low, "high": high}


def _pressure(preemptions: float, stats: pl.DataFrame | None) -> str:
    """`thrash` where preemption repeats, `saturated` where requests waited at a full cache, else `none`."""
    windows = stats_windows(stats)
    queue = (pl.col("waiting") > 0) & (pl.col("kv_pct") >= NEARLY_FULL_PCT)
    queued = windows is not None and windows.filter(queue).height > 0
    return pressure_of_count(preemptions, queued_while_full=queued)


def _hit_rate(stats: pl.DataFrame | None) -> float:
    """The last prefix cache hit rate that the statistics lines show, 0..1."""
    if stats is None or "prefix_cache_hit_rate_pct" not in stats.columns:
        return 0.0
    rates = stats.sort("order")["prefix_cache_hit_rate_pct"].drop_nulls().to_list()
    return float(rates[-1]) / 100 if rates else 0.0


def _rules(config: EngineConfig, hit_rate: float, steps: Steps) -> Rules:
    return Rules(
        budget=_budget(config, steps),
        seats=max(config.max_num_running_reqs, int(steps.requests.max())),
        usable=config.num_blocks - 1,
        block_size=config.block_size,
        threshold=config.long_prefill_token_threshold,
        caching=config.enable_prefix_caching,
        asynchronous=config.async_scheduling,
        watermark=int((config.watermark or 0.0) * config.num_blocks),
        shared=config.enable_prefix_caching and hit_rate > 0.05,
        priority=config.policy == "priority",
    )


def _budget(config: EngineConfig, steps: Steps) -> int:
    """The token budget: as configured, unless the steps themselves show another."""
    most = int(steps.tokens[steps.context > 0].max(initial=0))
    at = np.flatnonzero((steps.tokens == most) & (steps.context > 0))
    at = at[at + 1 < len(steps)]
    # a prompt that the budget cut goes on in the next step
    cut = len(at) >= _OFTEN and np.mean(steps.context[at + 1] > 0) > 0.9
    if most > config.max_num_batched_tokens or cut:
        return most
    return config.max_num_batched_tokens


def _best_track(
    steps: Steps, arrivals: Arrivals, config: EngineConfig, hit_rate: float, effort: Effort
) -> tuple[Track, Rules]:
    """The account that goes least against the rules, over what the log leaves open: the model runner, and what ends a request."""
    first = _rules(config, hit_rate, steps)
    usage = bool(np.isfinite(steps.used).any())
    bounds = (False, True) if arrivals.limit.any() and not arrivals.exact.all() else (False,)
    # lines without KV usage are older than the second model runner; its usage figure tells the asynchronous scheduler's
    ways = [
        replace(first, asynchronous=a, exact_limits=e, resumed_as_context=c)
        for a in ((first.asynchronous, not first.asynchronous) if usage else (first.asynchronous,))
        for e in bounds
        for c in ((False, True) if usage else (False,))
    ]
    sample = _telling_part(steps, first.usable)
    tried: list[tuple[float, int]] = []
    for index, rules in enumerate(ways):
        quick = track(sample, arrivals, rules, effort.seed, kept=2)
        tried.append((quick.cost + (_FLIP if index else 0.0), index))
        effort.report(0.5 * (index + 1) / len(ways))
        if quick.cost == 0:
            break
    best = ways[min(tried)[1]]
    changes = int(((steps.context > 0) | (steps.excess > 0)).sum())
    # by priority there are many more accounts of each change
    most = _MOST * 2 // 3 if first.priority else _MOST
    work = changes * (1.0 + float(steps.requests.mean()) / 15.0)
    kept = int(np.clip(_WORK / max(1.0, work), _FEWEST, most))
    return track(steps, arrivals, best, effort.seed, kept), best


def _telling_part(steps: Steps, usable: int) -> Steps:
    """The steps from the first on that suffice to tell rules apart: some changes, and some under pressure if there is any."""
    changes = np.cumsum((steps.context > 0) | (steps.excess > 0))
    pressed = np.flatnonzero((steps.used > 0.97 * usable) | (steps.excess > 0))
    since = int(changes[pressed[0]]) if len(pressed) else 0
    return steps.part(int(np.searchsorted(changes, since + _ENOUGH)) + 1)


def _placed(found: Track, arrivals: Arrivals, steps: Steps, stats: pl.DataFrame | None) -> Arrivals:
    """The arrivals with their times."""
    admitted = np.full(len(arrivals), -1, dtype=np.int64)
    for history in found.histories:
        if history.request >= 0 and history.spans:
            admitted[history.request] = history.spans[0].first
    if arrivals.known:
        return timed(arrivals, steps, admitted)
    admitted = admitted[admitted >= 0]
    return guessed(arrivals, steps, admitted, evicted_waiting(found, len(steps)), stats)


def _bounds(found: Track, count: int, explained: float, certain_ends: bool) -> tuple[float, float, float]:
    """Low, value, high: what other accounts say, what missing lines may hide, and a margin.

    The margin grows with what the rules do not explain, and where nothing foretells when requests end.
    """
    value = float(len(found.evictions))
    share = _MARGIN + 0.2 * (1.0 - explained) + (0.0 if certain_ends else 0.06)
    margin = max(1.0, min(_WIDEST, share) * value) if value else 0.0
    low = max(0.0, min(value, found.low) - margin)
    high = max(value, found.high) + margin + value * found.blind_steps / max(1, count)
    return float(np.floor(low)), value, float(np.ceil(high))


def _timeline(times: list[datetime]) -> tuple[Stretch, ...]:
    """Windows of ten whole seconds in which somebody was evicted."""
    counts = Counter(int(_seconds(t) // _WINDOW_S) for t in times)
    return tuple(
        Stretch(_naive(w * _WINDOW_S), _naive((w + 1) * _WINDOW_S), float(n)) for w, n in sorted(counts.items())
    )


def _seconds(time: datetime) -> float:
    return time.replace(tzinfo=timezone.utc).timestamp()


def _naive(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc).replace(tzinfo=None)


def _recomputed(found: Track, steps: Steps, rules: Rules, run: ReconstructedRun) -> int:
    """The first model runner's excess is exact; prompts that were cut short, and all of the second's, go by lengths."""
    if rules.resumed_as_context:
        return round(run.recomputed * _not_cached(found, steps))
    return int(steps.excess.sum()) + round(sum(h.redone for h in found.histories))


def _not_cached(found: Track, steps: Steps) -> float:
    """Share of the tokens of resumed requests that had to be computed, by the steps that brought nothing else as context."""
    again = np.zeros(len(steps))
    first = np.zeros(len(steps), dtype=np.bool_)
    for history in found.histories:
        out = 0
        for span in history.spans:
            if span.kind == "recompute":
                again[span.first] += history.prompt + out
            elif span.kind == "prefill":
                first[span.first : span.last + 1] = True
            out += span.last - span.first + 1 if span.kind == "decode" else 1
    alone = (again > 0) & ~first
    expected = float(again[alone].sum())
    return min(1.0, float(steps.context_tokens[alone].sum()) / expected) if expected else 1.0


def _hits(stats: pl.DataFrame | None, prompts: list[int]) -> int:
    """Tokens of a prompt that the cache held, on the average: the hit rate is over all tokens that were looked up."""
    rate = _hit_rate(stats)
    computed = np.mean(prompts or [0])
    return round(float(rate / max(1.0 - rate, 0.02) * computed)) if rate > 0.02 else 0


def _sample(run: ReconstructedRun, hits: int, config: EngineConfig) -> Workload:
    """The requests as seen, with the speed of the machine in each window; single steps that stalled stand apart."""
    length = (run.end - run.begin) / 1e9
    stalled = stalled_steps(run.begin, run.end, run.predicted)
    ends = tuple(np.arange(_WINDOW_S, float(run.end[-1]) / 1e9, _WINDOW_S).tolist())
    window = np.searchsorted(np.array(ends), run.begin / 1e9, side="right")
    speeds, speed = [], 1.0
    for i in range(len(ends) + 1):
        inside = (window == i) & ~stalled
        expected = float(run.predicted[inside].sum())
        if expected > 0.5:
            speed = float(np.clip(length[inside].sum() / expected, 0.3, 3.0))
        speeds.append(speed)
    stalls = [_stall(run, int(k)) for k in np.flatnonzero(stalled)]
    # whole blocks, as the cache holds nothing else
    head = hits // config.block_size * config.block_size
    requests = sorted((_sharing(r.request, head) for r in run.records), key=lambda r: (r.arrival_s, str(r.id)))
    return Workload(tuple(requests), run.calibration.model, ends, tuple(speeds), tuple(stalls))


def _stall(run: ReconstructedRun, step: int) -> tuple[float, float]:
    """Start and end of a step that stalled; it begins with the request that woke an idle engine."""
    begin = int(run.begin[step])
    woke = [r.arrival for r in run.records if 0 <= begin - r.arrival < 20_000_000]
    return min([begin, *woke]) / 1e9, float(run.end[step]) / 1e9


def _sharing(request: Request, head: int) -> Request:
    """A request whose prompt begins with what the cache holds."""
    if not head or head >= request.prompt_tokens:
        return request
    own = request.prompt_tokens - head
    return replace(request, prompt=(("head", head), (f"own{request.id}", own)))
