"""How many requests a second a server can take and keep its targets: the inferred load, replayed faster and slower.

A rate is kept where each target holds and the server finishes requests as fast as they come. What a higher rate does is never
better than what a lower one did; noise of a replay that says so is levelled out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from logscope.diagnosis.candidates import Candidate, candidates
from logscope.evidence.context import Context
from logscope.inference.prediction import (
    Replayed,
    Samples,
    gap_percentiles,
    ledger_of_replays,
    percentiles_of_many,
    seconds_to,
)
from logscope.inference.result import Effort, InferredReplay
from logscope.server.scenario import Scenario, flag_text, scenario_of
from logscope.server.settings import SettingError
from logscope.wording import LOST_TO
from reference_engine.replay.results import summarise

__all__ = ["BINDINGS", "CapacityError", "Target", "binding_of", "capacity", "parse_target"]

BINDINGS = {"kv-capacity": "kv", "seat-limit": "seats", "prefill-interference": "budget"}
"""What holds the engine back, by the cause that it is of the slow requests' delay; `compute` where their own work is most of their time."""

NEAR = 1.03
"""How close the highest rate that is kept and the lowest that is not come before the search ends."""

FARTHEST = 64.0
"""Rates are looked for within this factor of the log's own."""

AT_ONCE = 1e9
_LARGEST_RATIO = 1e9
_TARGET = re.compile(
    r"(?P<what>ttft|e2e|itl)_p(?P<point>\d{1,2}(?:\.\d{1,2})?)=(?P<value>\d+(?:\.\d+)?)(?P<unit>us|µs|ms|s|m|min)?"
)
_UNITS = {None: 1.0, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0}
_TABLE = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)


class CapacityError(ValueError):
    """A target that is none, or a load for which a rate means nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: of `metric` (`ttft_s`, `e2e_s`, `itl_s`) the percentile `point` is at most `limit_s` seconds."""

    metric: str
    point: float
    limit_s: float

    @property
    def name(self) -> str:
        """As `--slo` spells it: `ttft_p95`."""
        return f"{self.metric.removesuffix('_s')}_p{self.point:g}"


def parse_target(text: str) -> Target:
    """Read `ttft_p95=2s` (ttft, e2e or itl; a percentile; ms, s or min). Raises CapacityError."""
    found = _TARGET.fullmatch(text.strip())
    if found is None or float(found["value"]) <= 0 or float(found["point"]) <= 0:
        raise CapacityError(f"'{text}' is no target; write ttft_p95=2s, e2e_p99=30s or itl_p99=200ms")
    return Target(f"{found['what']}_s", float(found["point"]), float(found["value"]) * _UNITS[found["unit"]])


@dataclass(frozen=True, slots=True)
class _Point:
    """The load at one rate: latencies by metric and percentile, generated tokens a second, what held the slow requests back.

    `ratio` is the worst latency over its target, `each` the same in each of the workloads alone.
    """

    scale: float
    latency: Mapping[str, Mapping[str, float | None]]
    binding: str
    ratio: float
    each: tuple[float, ...]

    def worst_of(self, other: _Point) -> _Point:
        """This point, nowhere better than one at a lower rate."""
        latency = {
            name: {point: _larger(value, other.latency[name][point]) for point, value in points.items()}
            for name, points in self.latency.items()
        }
        return replace(self, latency=latency, ratio=max(self.ratio, other.ratio))


def _larger(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


@dataclass(slots=True)
class _Load:
    """Workloads under one scenario, at any rate; every rate is replayed once. `own_rate`: requests a second in the log."""

    samples: Samples
    scenario: Scenario
    targets: tuple[Target, ...]
    own_rate: float
    points: dict[float, _Point] = field(default_factory=dict)
    ceilings: tuple[float, ...] = ()
    ceiling: float = math.inf

    def at(self, scale: float) -> _Point:
        """The load at `scale` times its own rate."""
        if scale not in self.points:
            replays = self.samples.replays(replace(self.scenario, arrival_scale=scale))
            latency = _latencies(replays, self.samples.pooled, self.targets)
            each = tuple(self._ratio(_latencies([one], False, self.targets)) for one in replays)
            ratio = self._ratio(latency)
            self.points[scale] = _Point(scale, latency, binding_of(ledger_of_replays(replays)["slow_s"]), ratio, each)
        return self.points[scale]

    def _ratio(self, latency: Mapping[str, Mapping[str, float | None]]) -> float:
        values = [(latency[t.metric][f"p{t.point:g}"], t.limit_s) for t in self.targets]
        return max((_LARGEST_RATIO if v is None else v / limit for v, limit in values), default=0.0)

    def find_ceiling(self) -> None:
        """Requests a second that the server finishes where there are always more: what a second load on top of the first takes.

        Prompts with content would be found in the prefix cache by the second load; for those it is what the first takes.
        """
        at_once = replace(self.scenario, arrival_scale=AT_ONCE)
        shares = any(r.prompt is not None for r in self.samples.first.requests)
        one = self.samples.replays(at_once)
        took = [summarise(r.records, r.gaps).duration_s or 0.0 for r in one]
        if not shares:
            both = self.samples.replays(at_once, rounds=2)
            took = [(summarise(r.records, r.gaps).duration_s or 0.0) - t for r, t in zip(both, took, strict=True)]
        self.ceilings = tuple(len(r.records) / t if t > 0 else math.inf for r, t in zip(one, took, strict=True))
        self.ceiling = float(np.median(self.ceilings))

    def edge(self, ratio_of: Callable[[_Point], float]) -> tuple[float | None, float | None]:
        """The highest scale that is kept and the lowest that is not, closely; None where there is none within `FARTHEST`."""
        top = self.ceiling / self.own_rate
        while True:
            failing = min((s for s, p in self.points.items() if s > top or ratio_of(p) > 1), default=None)
            kept = [s for s in self.points if s <= top and (failing is None or s < failing)]
            low = max(kept, default=None)
            high = failing if failing is not None else (top * 1.001 if low is not None and low * 2 > top else None)
            if low is None:
                wanted = min(1.0, top) if high is None else high / 2
            elif high is None:
                wanted = low * 2
            elif high / low <= NEAR:
                return low, high
            else:
                wanted = min(math.sqrt(low * high), top)
            if not 1 / FARTHEST <= wanted <= FARTHEST:
                return low, high
            if wanted in self.points:  # the ceiling itself was tried
                return low, high
            self.at(wanted)


def _latencies(
    replays: Sequence[Replayed], pooled: bool, targets: Sequence[Target]
) -> dict[str, dict[str, float | None]]:
    def points(metric: str, usual: Sequence[float]) -> list[float]:
        return sorted({*usual, *(t.point for t in targets if t.metric == metric)})

    return {
        "ttft_s": percentiles_of_many(
            [seconds_to(r, "first_token") for r in replays], pooled, points("ttft_s", (50, 90, 99))
        ),
        "e2e_s": percentiles_of_many([seconds_to(r, "end") for r in replays], pooled, points("e2e_s", (50, 90, 99))),
        "itl_s": gap_percentiles(replays, points("itl_s", (50, 99))),
    }


def binding_of(slow_s: Mapping[str, float]) -> str:
    """What holds the slow requests of a ledger back: kv, seats, budget, or compute where most of their time is their own work."""
    total = sum(slow_s.values())
    lost = {name: sum(slow_s.get(label, 0.0) for label in labels) for name, labels in LOST_TO.items()}
    if total <= 0 or sum(lost.values()) < total / 3:
        return "compute"
    return BINDINGS[max(lost, key=lost.__getitem__)]


@dataclass(frozen=True, slots=True)
class _Search:
    """Finds the highest rate under a scenario: a piece of work that another process may do."""

    samples: Samples
    targets: tuple[Target, ...]
    own_rate: float

    def load(self, scenario: Scenario) -> _Load:
        """The load under a scenario, with the rate that it cannot exceed."""
        load = _Load(self.samples, scenario, self.targets, self.own_rate)
        load.find_ceiling()
        return load

    def ratio(self, asked: tuple[Scenario, float]) -> float:
        """How far a scenario is from its targets at a scale; under 1 they are kept."""
        load = self.load(asked[0])
        return max(load.at(asked[1]).ratio, asked[1] * self.own_rate / load.ceiling)

    def highest(self, scenario: Scenario) -> dict[str, Any]:
        """The row of a scenario in `highest`, without its change."""
        return _row(self.load(scenario))


def _row(load: _Load) -> dict[str, Any]:
    """The highest rate that is kept under a load's scenario; its bounds are where nine in ten and one in ten of the workloads keep it."""
    low, high = load.edge(lambda p: p.ratio)
    most, few = load.edge(lambda p: _quantile(p.each, 0.9))[0], load.edge(lambda p: _quantile(p.each, 0.1))[1]
    at, beyond = (load.points.get(low) if low is not None else None), None
    limit = None if high is None else "throughput" if high * load.own_rate > load.ceiling else "targets"
    rates: dict[str, float | None] = {"low": None, "value": None, "high": None}
    if low is not None:
        highest = None if high is None or few is None else max(high, few) * load.own_rate
        rates = {"low": min(most or 0.0, low) * load.own_rate, "value": low * load.own_rate, "high": highest}
        if limit == "throughput":
            slow, fast = (_quantile(load.ceilings, q) for q in (0.1, 0.9))
            rates |= {"low": min(rates["low"] or 0.0, slow), "high": max(highest or 0.0, fast)}
    if high is not None:
        beyond = load.at(min(high, FARTHEST))
    return {
        "rate_per_s": rates,
        "binding": (beyond or load.at(FARTHEST)).binding,
        "limit": limit,
        **{
            n: dict(at.latency[n] if at else dict.fromkeys(load.at(1.0).latency[n]))
            for n in ("ttft_s", "e2e_s", "itl_s")
        },
    }


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


def capacity(
    context: Context,
    answer: InferredReplay,
    targets: Sequence[Target],
    effort: Effort,
    *,
    out_of_memory: bool = False,
    gpu_hour: float | None = None,
) -> dict[str, Any]:
    """The document of `capacity --json` for one engine.

    `gpu_hour` is the price of a GPU for an hour; with `out_of_memory` nothing that takes more of the GPU's memory is tried. Raises CapacityError where all requests came at one moment.
    """
    spans = [
        w.requests[-1].arrival_s - w.requests[0].arrival_s for w in answer.samples.workloads if len(w.requests) > 1
    ]
    counts = [len(w.requests) for w in answer.samples.workloads]
    if not spans or float(np.median(spans)) <= 0:
        raise CapacityError("all requests of this log come at one moment: there is no rate to scale")
    own_rate = float(np.median(counts)) / float(np.median(spans))
    facts, own = context.log.facts, scenario_of(context.log.facts, {})
    search = _Search(answer.samples, tuple(targets), own_rate)
    load = search.load(own)
    now = load.at(1.0)
    first = _row(load)
    effort.report(0.3)
    best = first["rate_per_s"]["value"] or own_rate / 2
    cheaper = replace(search, samples=answer.screening)
    changes = _changes(context, cheaper, best / own_rate * 1.1, effort, out_of_memory)
    effort.report(0.5)
    rows = [{"change": {}, "flag": None, "cost": "free", **first}]
    found = effort.map(cheaper.highest, [scenario for _, scenario in changes])
    for (candidate, scenario), row in zip(changes, found, strict=True):
        named = {"change": dict(candidate.changes), "flag": flag_text(facts, candidate.changes), "cost": candidate.cost}
        rows.append({**named, **row, "notes": list(scenario.notes)})
        effort.report(0.5 + 0.5 * len(rows) / (len(changes) + 1))
    rows[1:] = sorted(rows[1:], key=lambda r: (r["cost"] != "free", -(r["rate_per_s"]["value"] or 0.0)))
    for row in rows:
        row.setdefault("notes", [])
        row["cost_per_million_tokens"] = _price(row, answer, facts.config, gpu_hour)
    return {
        "schema_version": 1,
        "slo": {t.name: t.limit_s for t in targets},
        "now": {
            "rate_per_s": own_rate,
            "meets": now.ratio <= 1 and own_rate <= load.ceiling,
            "binding": now.binding,
            "served_per_s": load.ceiling if math.isfinite(load.ceiling) else None,
            **{name: dict(points) for name, points in now.latency.items()},
        },
        "at_once": _at_once(answer),
        "highest": rows,
        "rates": _table(load, best / own_rate),
        "gpu_hour": gpu_hour,
        "withheld": None,
        "notes": [],
    }


def _changes(
    context: Context, search: _Search, scale: float, effort: Effort, out_of_memory: bool
) -> list[tuple[Candidate, Scenario]]:
    """Of each free setting the value that is best a little above the rate that is kept today; and double the hardware."""
    tried: list[tuple[Candidate, Scenario]] = []
    for verdict in LOST_TO:
        for candidate in candidates(context, verdict, out_of_memory=out_of_memory):
            if all(candidate.changes != c.changes for c, _ in tried):
                try:
                    tried.append((candidate, scenario_of(context.log.facts, candidate.changes)))
                except SettingError:
                    continue
    best: dict[tuple[str, ...], tuple[float, Candidate, Scenario]] = {}
    ratios = effort.map(search.ratio, [(scenario, scale) for _, scenario in tried])
    for (candidate, scenario), ratio in zip(tried, ratios, strict=True):
        key = tuple(candidate.changes)
        if key not in best or ratio < best[key][0]:
            best[key] = (ratio, candidate, scenario)
    return [(candidate, scenario) for _, candidate, scenario in best.values()]


def _table(load: _Load, best: float) -> list[dict[str, Any]]:
    """The load at rates around the log's own and the highest that is kept, never better at a higher one."""
    scales = sorted({*(best * s for s in _TABLE), 1.0})
    points = [load.at(s) for s in scales if 1 / FARTHEST <= s <= FARTHEST]
    rows = []
    for place, point in enumerate(points):
        if place:
            point = points[place] = point.worst_of(points[place - 1])
        rate = point.scale * load.own_rate
        kept = point.ratio <= 1 and rate <= load.ceiling
        latency = {name: dict(values) for name, values in point.latency.items()}
        rows.append({"rate_per_s": rate, "own": point.scale == 1.0, "meets": kept, "binding": point.binding, **latency})
    return rows


def _at_once(answer: InferredReplay) -> dict[str, Any]:
    """How many requests of this log's mean length run at once: what the KV cache holds to their end, and the seats."""
    config = answer.samples.config
    tokens = _mean_tokens(answer)
    room = None if config.kv_groups or not tokens else (config.num_blocks - 1) * config.block_size / sum(tokens)
    return {
        "kv": None if room is None else int(room),
        "seats": config.max_num_running_reqs,
        "tokens_per_request": sum(tokens) if tokens else None,
    }


def _mean_tokens(answer: InferredReplay) -> tuple[float, float] | None:
    """Mean prompt and output tokens of a finished request."""
    done = answer.requests_frame.filter(answer.requests_frame["status"] == "finished")
    if not done.height:
        return None
    prompt, output = done["prompt_tokens"].mean(), done["output_tokens"].mean()
    return float(prompt), float(output)  # type: ignore[arg-type]


def _price(
    row: Mapping[str, Any], answer: InferredReplay, config: Mapping[str, Any], gpu_hour: float | None
) -> float | None:
    """What a million generated tokens cost at the highest rate that is kept."""
    tokens, rate = _mean_tokens(answer), row["rate_per_s"]["value"]
    if gpu_hour is None or tokens is None or not rate or not tokens[1]:
        return None
    setting = {**config, **row["change"]}
    gpus = (setting.get("tensor_parallel_size") or 1) * (setting.get("pipeline_parallel_size") or 1)
    gpus *= row["change"].get("replicas", 1)
    return float(gpus * gpu_hour / 3600 / (rate * tokens[1]) * 1e6)
