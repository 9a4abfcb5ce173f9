"""The inference as a whole: from one engine's frames to an `Inference`, and from there to predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from logscope.inference.effort import Spread, in_turn
from logscope.inference.windows.filtering import ParticleFilter
from logscope.inference.windows.lengths import LengthModel, after_a_pass, length_model
from logscope.inference.windows.observations import Observations, observe
from logscope.inference.windows.particles import Carried, Particle, Plan, WindowFit, carried, unpacked
from logscope.inference.windows.portion import with_inherited, worst_span
from logscope.inference.windows.posterior import (
    Counts,
    Ledgers,
    count_preemptions,
    fit_of,
    latencies,
    ledgers,
    pressure_of,
)
from logscope.inference.windows.prediction import Prediction, predict_workloads, summarise_replays
from logscope.inference.windows.step_time_fit import first_guess, refit
from logscope.inference.workloads import Replayed, StepFactors, Workload, replay_workload
from logscope.server.engines import EngineFacts, engine_config
from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.replay.results import requests_frame, steps_frame
from reference_engine.sketch.request import SketchRules
from reference_engine.sketch.step_cost import CostFit

__all__ = ["Inference", "as_inferred", "infer", "predict"]

_SECONDS = 5.0  # of one core, about, for all passes
_POOLED = "statistics"  # outputs are drawn anew in every particle, so that one alone has too little of the tail
_MOST_ARRIVALS = 6_000
_MOST_WINDOWS = 1_000
# Bounds of at most half of the true count (seven tenths without request lines), also where the value is too high by the
# error that it may have (15 %, 25 %).
_WIDEST = {"requests": 0.5 / 1.15, "statistics": 0.7 / 1.25}


@dataclass(frozen=True)
class Inference:
    """What one engine's log says of its requests. Times are seconds on the clock that starts at `observations.epoch`.

    `config`: what was replayed (first come first served and one batch at a time, as no log shows priorities;
    prefix caching only where prompts share a head); `workloads`:
    equally likely samples; `covered`: the share of the log's pressed windows that was replayed (a long log is cut to its
    worst span, its counts are extrapolated); `replays`: each under `config`; `requests_frame` and `steps_frame`: those of the first.
    """

    observations: Observations
    config: EngineConfig
    workloads: tuple[Workload, ...]
    replays: tuple[Replayed, ...]
    requests: int
    covered: float
    fit: Mapping[str, float | None]
    cost: CostFit
    preemptions: Counts
    pressure: str
    latency: Mapping[str, Mapping[str, float | None]]
    ledger: Ledgers
    seed: int

    @property
    def step_time(self) -> LinearStepTime:
        """The fitted step time in the reference engine's linear form, at the mean speed."""
        cost = self.cost.cost
        return LinearStepTime(cost.base, cost.per_prefill, cost.per_decode, cost.per_kv)

    @property
    def requests_frame(self) -> pl.DataFrame:
        """Requests of a representative replay with their ledgers (reference engine's schema)."""
        return requests_frame(self.replays[0].records)

    @property
    def steps_frame(self) -> pl.DataFrame:
        """Steps of that replay."""
        log = self.replays[0].log
        if log is None:
            raise ValueError("the representative replay was made without its steps")
        return steps_frame(log, self.config)

    @property
    def pooled(self) -> bool:
        """Whether latencies are taken over all samples together (see `percentiles_of_many`)."""
        return self.observations.level == _POOLED

    def baseline(self) -> Prediction:
        """The present configuration in the terms of a prediction."""
        return summarise_replays(self.replays, self.pooled)


def infer(
    frames: Mapping[str, pl.DataFrame],
    facts: EngineFacts,
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    engines: int = 1,
    spread: Spread = in_turn,
) -> Inference | None:
    """Infer one engine's workload from its statistics, request and access lines.

    Args:
        frames: the engine's frames.
        facts: who it is.
        seed: same input and seed, same answer.
        progress: is told the share that is done, 0..1.
        engines: so many engines share the requests of these frames (data parallel).
        spread: does the passes that know nothing of each other; whoever does them, the answer is the same.

    Returns:
        None where the log holds no statistics lines, no requests (or none that ended), or not the size of the KV cache.
    """
    config = engine_config(facts)
    seen = observe(frames) if config is not None else None
    if config is None or seen is None:
        return None
    everybody = len(seen.arrivals)
    seen, covered = worst_span(with_inherited(seen), _MOST_ARRIVALS, _MOST_WINDOWS)
    rules = SketchRules.of(config)
    share = _share(seen, engines)
    lengths = length_model(seen, config.max_model_len - 1, rules, share)
    kv_tokens, on_cpu = config.num_blocks * config.block_size, _on_cpu(facts)
    cost = first_guess(seen, kv_tokens, on_cpu)
    plans = _plans(seen)
    report = _Progress(progress, sum(plan.particles for plan in plans))
    particles: list[Particle] = []
    fits: list[list[WindowFit]] = []
    first = _Pass(seen, rules, lengths, cost, share, seed)
    ((sent, _),) = spread(first, [(0, plans[0])])
    report.done(plans[0].particles)
    found = unpacked(sent)
    cost = refit(found, seen, kv_tokens, cost, on_cpu)
    lengths = after_a_pass(lengths, _own_prompts(found))
    others = _Pass(seen, rules, lengths, cost, share, seed)
    for sent, fit in spread(others, list(enumerate(plans))[1:]):
        particles += unpacked(sent)
        fits.append(fit)
        report.done(plans[len(fits)].particles)
    plain = replace(config, policy="fcfs", async_scheduling=False, enable_prefix_caching=lengths.sharing.groups > 0)
    chosen = _some(particles, _replays(seen, plain))
    workloads = tuple(w for p in chosen if (w := _workload(seen, p, plain)).requests)
    if not workloads:
        return None
    replays = tuple(spread(_Replay(plain), list(enumerate(workloads))))
    ledger = ledgers(replays)
    counts = count_preemptions(seen, particles, _WIDEST[seen.level], covered)
    if progress is not None:
        progress(1.0)
    return Inference(
        observations=seen,
        config=plain,
        workloads=workloads,
        replays=replays,
        requests=round(share * everybody),
        covered=covered,
        fit=fit_of(seen, fits),
        cost=cost,
        preemptions=counts,
        pressure=pressure_of(seen, counts, ledger.total_s),
        latency=latencies(particles, replays, seen.level == _POOLED),
        ledger=ledger,
        seed=seed,
    )


def predict(
    inference: Inference,
    config: EngineConfig,
    *,
    arrival_scale: float = 1.0,
    replicas: int = 1,
    factors: StepFactors | None = None,
) -> Prediction:
    """Replay the inferred workloads under a changed configuration (see `predict_workloads`)."""
    return predict_workloads(
        inference.workloads,
        as_inferred(config, inference.config),
        arrival_scale=arrival_scale,
        replicas=replicas,
        factors=factors,
        pooled=inference.pooled,
    )


def as_inferred(config: EngineConfig, inferred: EngineConfig) -> EngineConfig:
    """A changed configuration with what the inference assumed of the scheduler (see `Inference.config`)."""
    return replace(
        config,
        policy="fcfs",
        async_scheduling=False,
        enable_prefix_caching=config.enable_prefix_caching and inferred.enable_prefix_caching,
    )


def _share(seen: Observations, engines: int) -> float:
    """The part of a server's requests that came to one of its engines: by tokens where the outputs are known."""
    if engines <= 1:
        return 1.0
    last = seen.windows[-1].end
    asked = sum(a.output_tokens or a.max_tokens or 0 for a in seen.arrivals if a.low <= last)
    generated = sum(w.generated_tokens or 0.0 for w in seen.windows)
    if any(a.output_tokens for a in seen.arrivals) and asked:
        return min(max(generated / asked, 0.2 / engines), 1.0)
    return 1.0 / engines


def _on_cpu(facts: EngineFacts) -> bool:
    """Whether the log names the CPU as the device (older releases call every cache a GPU's)."""
    told = (facts.device, facts.more.get("device"), facts.more.get("platform"))
    return any(str(t).lower() == "cpu" for t in told)


def _own_prompts(particles: Sequence[Particle]) -> dict[int, float]:
    """Mean own prompt tokens of the requests that finished, over particles."""
    found: dict[int, list[int]] = {}
    for particle in particles:
        for node in particle.past():
            for request in node.done:
                found.setdefault(request.id, []).append(request.prompt - request.shared)
    return {i: float(np.mean(values)) for i, values in found.items()}


@dataclass(frozen=True)
class _Pass:
    """A pass of the filter over the log, as a piece of work that another process may do."""

    seen: Observations
    rules: SketchRules
    lengths: LengthModel
    cost: CostFit
    share: float
    seed: int

    def __call__(self, numbered: tuple[int, Plan]) -> tuple[Carried, list[WindowFit]]:
        """The particles and fits of a pass; its number and the seed are all that its chance comes from."""
        number, plan = numbered
        rng = np.random.default_rng([self.seed, number])
        filtering = ParticleFilter(self.seen, self.rules, self.lengths, self.cost, plan, rng, self.share)
        return carried(filtering.run()), filtering.fits


@dataclass(frozen=True)
class _Replay:
    """The replay of a sampled workload under the present configuration; the first keeps its steps."""

    config: EngineConfig

    def __call__(self, numbered: tuple[int, Workload]) -> Replayed:
        number, workload = numbered
        return replay_workload(workload, self.config, keep_steps=number == 0)


class _Progress:
    """Tells the share of all particles that are done."""

    def __init__(self, tell: Callable[[float], None] | None, whole: int) -> None:
        self._tell = tell
        self._whole = whole * 1.1  # the replays at the end
        self._done = 0

    def done(self, particles: int) -> None:
        """A pass of so many is done."""
        self._done += particles
        if self._tell is not None:
            self._tell(self._done / self._whole)


def _plans(seen: Observations) -> list[Plan]:
    """First a pass that only serves the step costs, then several that know nothing of each other.

    Within a pass all particles soon descend from one: their mean says no more than a single sample. Separate passes do.
    """
    present = sum(w.running + w.waiting for w in seen.windows) / len(seen.windows)
    # measured on one core: seconds of one engine's life through the whole log
    life = 2e-5 * len(seen.arrivals) + len(seen.windows) * (1.2e-4 + 1.2e-6 * present)
    lives = _SECONDS / life / 2.5  # a proposal is lived through so often on average
    proposals, islands = (2, 6) if lives >= 120 else (1, 6) if lives >= 45 else (1, 3)
    particles = int(min(max(lives / proposals, 4 * (islands + 1)), 240))
    each = particles // (islands + 1)
    return [
        Plan(particles=max(each, particles // 5), cost_sd=0.1),
        *(Plan(particles=each, proposals=proposals, cost_sd=0.05) for _ in range(islands)),
    ]


def _replays(seen: Observations, config: EngineConfig) -> int:
    """How many particles are replayed with their ledgers."""
    most = 12 if config.engine == "vllm-v1" else 6
    return int(min(max(most * 340 / max(len(seen.arrivals), 1), 3), most))


def _some(particles: Sequence[Particle], count: int) -> list[Particle]:
    """As many of each pass, the one with the middle count of preemptions first."""
    picks = [particles[int((i + 0.5) * len(particles) / count)] for i in range(count)]
    middle = sorted(picks, key=lambda p: p.engine.preemptions)[len(picks) // 2]
    return [middle, *(p for p in picks if p is not middle)]


def _workload(seen: Observations, particle: Particle, config: EngineConfig) -> Workload:
    nodes = particle.past()
    requests = sorted((r for node in nodes for r in node.done), key=lambda r: (r.arrival, r.id))
    made = tuple(
        Request(
            id=r.id,
            prompt_tokens=min(r.prompt, config.max_model_len - 1),
            output_tokens=r.limit,
            arrival_s=r.arrival,
            prompt=((f"head{r.group}", r.shared), (f"own{r.id}", r.prompt - r.shared)) if r.group >= 0 else None,
        )
        for r in requests
    )
    return Workload(
        made,
        nodes[0].cost,
        tuple(w.end for w in seen.windows),
        tuple(math.exp(node.speed) for node in nodes),
        tuple(particle.engine.stalls),
        tuple(node.cost for node in nodes),
    )
