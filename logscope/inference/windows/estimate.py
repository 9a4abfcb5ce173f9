"""The inference from windows as a whole: from one engine's frames to an `InferredReplay`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from logscope.evidence.pressure import MOST_AT_ONCE
from logscope.inference.prediction import (
    Replayed,
    Samples,
    Workload,
    ledger_of_replays,
    replay_workload,
    slow_of_each,
    summarise_replays,
)
from logscope.inference.result import CoveredSpan, Effort, InferredReplay
from logscope.inference.steps.observed import Steps, cost_of_steps, prompts_begun, read_steps, recomputations
from logscope.inference.windows.balance import balance_of, with_candidates
from logscope.inference.windows.filtering import ParticleFilter
from logscope.inference.windows.lengths import LengthModel, after_a_pass, length_model
from logscope.inference.windows.observations import Observations, observe, with_marks, with_prompts, with_talks
from logscope.inference.windows.particles import (
    PackedParticles,
    Particle,
    Plan,
    WindowFit,
    packed_particles,
    unpacked_particles,
)
from logscope.inference.windows.portion import with_inherited, worst_span
from logscope.inference.windows.posterior import count_preemptions, counted_by_marks, fit_of, latencies, pressure_of
from logscope.inference.windows.shapes import with_shapes
from logscope.inference.windows.step_time_fit import first_guess, refit
from logscope.server.engines import EngineFacts, engine_config
from reference_engine.cost.step_time import CostFit, Floats, LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.replay.results import ReplayResult
from reference_engine.sketch.request import SketchRequest, SketchRules

__all__ = ["infer"]

Content = tuple[tuple[str, int], ...]

_ALONE = Effort()
_SCREENED = 3  # changes are tried on every third of the sampled workloads before they are on all
# Seconds of one core, about, for all passes, and the spread of their counts (relative) under which more passes would say the same: known
# outputs leave less to find out than latent ones.
_SECONDS, _OF_KNOWN = 1.0, 0.65
_ALIKE = {False: 0.2, True: 0.15}
_POOLED = (
    "statistics",
    "bare",
)  # outputs are drawn anew in every particle, so that one alone has too little of the tail
_AT_LEAST = 3  # passes, before it is asked whether they agree
_REPLAYS = 6  # samples that are replayed exactly, with their ledgers
_MOST_ARRIVALS = 3_000
_DENSE = 2_000  # arrivals from which on a pass is kept short: so many average out by themselves
_MOST_IN_ALL = 600_000
_MOST_WINDOWS = 1_000
# Bounds of at most half of the true count (seven tenths without request lines), also where the value is too high by the
# error that it may have (15 %, 25 %).
_WIDEST = {"requests": 0.5 / 1.15, "statistics": 0.7 / 1.25, "bare": 1.0 / 1.35}


def infer(
    frames: Mapping[str, pl.DataFrame], facts: EngineFacts, effort: Effort = _ALONE, *, engines: int = 1
) -> InferredReplay | None:
    """Infer one engine's workload from its statistics, request and access lines.

    Args:
        frames: the engine's frames.
        facts: who it is.
        effort: its seed decides what is drawn; its mapper does the passes that know nothing of each other.
        engines: so many engines share the requests of these frames (data parallel).

    Returns:
        None where the log holds no statistics lines, nothing was generated, no request ended, the size of the KV cache is not known,
        or more requests came at once than can be inferred.
    """
    config = engine_config(facts)
    seen = observe(frames) if config is not None else None
    if config is None or seen is None:
        return None
    rules = SketchRules.of(config)
    seen = with_talks(seen, rules.credits_hits) if config.enable_prefix_caching and not rules.v0 else seen
    rules = replace(rules, credits_hits=rules.credits_hits or seen.talks)
    steps = _steps_with_drafts(frames, config)
    marks = (
        recomputations(steps, int(facts.config["num_spec_tokens"] or rules.drafts), rules.token_budget)
        if steps is not None
        else None
    )
    if steps is not None and marks is not None:
        seen = with_marks(seen, marks.ends)
        if not config.enable_prefix_caching and engines == 1:
            seen = with_prompts(seen, prompts_begun(steps, rules.token_budget, rules.drafts))
    balance = balance_of(seen, rules) if seen.level == "bare" else None
    if balance is not None and sum(balance.came) > _MOST_IN_ALL:
        return None
    if balance is not None:
        seen, engines = balance.expected(seen), 1
    if not seen.arrivals:
        return None
    everybody = len(seen.arrivals)
    inherited = with_inherited(seen, balance.inherited if balance else None)
    seen, covered = worst_span(inherited, _MOST_ARRIVALS, _MOST_WINDOWS)
    if len(seen.arrivals) > MOST_AT_ONCE:
        return None
    share = _share(seen, engines)
    lengths = length_model(seen, config.max_model_len - 1, rules, share)
    if balance is not None:
        seen, lengths = with_candidates(seen, lengths, balance)
    # a token takes room in each group
    kv_tokens = config.num_blocks * config.block_size // len(config.kv_groups or (None,))
    on_cpu = _on_cpu(facts)
    drafts = rules.drafts, rules.step_tokens
    measured = cost_of_steps(steps, _context(steps, rules)) if steps is not None else None
    cost = measured or first_guess(seen, kv_tokens, on_cpu, drafts)
    plans = _plans(seen, lengths.latent_outputs)
    whole = _lives(plans[0]) + _AT_LEAST * _lives(plans[1]) + _REPLAYS * len(seen.windows)
    particles: list[Particle] = []
    fits: list[list[WindowFit]] = []
    chance = np.random.default_rng([effort.seed, 1000])
    lengths = with_shapes(lengths, seen, rules, cost.cost, share, chance)
    (sent, _fit), *_ = effort.map(_Pass(seen, rules, lengths, cost, share, effort.seed), [(1000, plans[0])])
    first = unpacked_particles(sent)
    lived = _lives(plans[0])
    effort.report(lived / whole)
    cost = measured or refit(first, seen, kv_tokens, cost, on_cpu, drafts)
    lengths = with_shapes(after_a_pass(lengths, _own_prompts(first)), seen, rules, cost.cost, share, chance)
    others = _Pass(seen, rules, lengths, cost, share, effort.seed)
    passes = list(enumerate(plans))[1:]
    for batch in (passes[:_AT_LEAST], passes[_AT_LEAST:]):
        if particles and _agree(particles, len(fits), _ALIKE[lengths.latent_outputs]):
            break  # more passes would say the same
        whole += len(batch) * _lives(plans[1]) if particles else 0
        for sent, fit in effort.map(others, batch):
            particles += unpacked_particles(sent)
            fits.append(fit)
            lived += _lives(plans[1])
            effort.report(lived / whole)
    plain = replace(
        config,
        policy="fcfs",
        async_scheduling=False,
        enable_prefix_caching=lengths.sharing.groups > 0 or seen.talks or keeps_states(config),
    )
    chosen = _some(particles, _replays(seen, plain))
    workloads = tuple(w for p in chosen if (w := _workload(seen, p, plain)).requests)
    if not workloads:
        return None
    replays = tuple(effort.map(_Replay(plain), list(enumerate(workloads))))
    effort.report(1.0)
    ledger = ledger_of_replays(replays)
    counts = count_preemptions(seen, particles, _WIDEST[seen.level], covered)
    if marks is not None and covered >= _ALL:
        counts = counted_by_marks(seen, particles, marks, counts, caching=config.enable_prefix_caching)
    pooled = seen.level in _POOLED
    return InferredReplay(
        origin=seen.epoch,
        level=seen.level,
        requests=round(share * everybody if balance is None else np.mean([p.arrived for p in particles])),
        preemptions=counts,
        pressure=pressure_of(seen, counts, ledger["total_s"]),
        fit=fit_of(seen, fits),
        latency=latencies(seen, particles, replays, pooled, not lengths.latent_outputs) | {"basis": "inferred"},
        ledger=ledger,
        slow_each=slow_of_each(replays),
        step_time=LinearStepTime(cost.cost.base, cost.cost.per_prefill, cost.cost.per_decode, cost.cost.per_kv),
        replay=_shown(replays[0], plain),
        samples=_samples(workloads, replays, plain, pooled),
        screening=_samples(workloads[::_SCREENED], replays[::_SCREENED], plain, pooled),
        seed=effort.seed,
        span=CoveredSpan(seen.time(seen.windows[0].start), seen.time(seen.windows[-1].end), len(seen.windows)),
    )


_ALL = 0.999


def _steps_with_drafts(frames: Mapping[str, pl.DataFrame], config: EngineConfig) -> Steps | None:
    """A drafting server's steps, where iteration lines show them."""
    frame = frames.get("iteration")
    if frame is None or not config.num_spec_tokens:
        return None
    steps = read_steps(frame, config.num_blocks - 1)
    return steps if len(steps) >= 2 else None


def _context(steps: Steps, rules: SketchRules) -> Floats:
    """Tokens in the cache of all that run in each step; unknown where the lines do not show KV usage."""
    crowd = np.maximum(steps.requests, 1)
    each = np.array([rules.mean_tokens(blocks) for blocks in (steps.used / crowd).tolist()])
    return np.asarray(np.maximum(each, 1.0) * crowd, dtype=np.float64)


def _samples(
    workloads: tuple[Workload, ...], replays: Sequence[Replayed], config: EngineConfig, pooled: bool
) -> Samples:
    return Samples(workloads, config, pooled, simplified=True, baseline=summarise_replays(replays, pooled))


def _shown(replayed: Replayed, config: EngineConfig) -> ReplayResult:
    """The representative replay, which was made with its steps."""
    assert replayed.log is not None
    return ReplayResult(config, replayed.records, replayed.gaps, replayed.log)


def keeps_states(config: EngineConfig) -> bool:
    """Whether evicted requests start again from a state that was kept: blocks are long there, and few."""
    groups = config.kv_groups or ()
    return config.enable_prefix_caching and any(group.is_state and group.mode == "align" for group in groups)


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

    def __call__(self, numbered: tuple[int, Plan]) -> tuple[PackedParticles, list[WindowFit]]:
        """The particles and fits of a pass; its number and the seed are all that its chance comes from."""
        number, plan = numbered
        rng = np.random.default_rng([self.seed, number])
        latent = self.seen.level == "bare"
        filtering = ParticleFilter(self.seen, self.rules, self.lengths, self.cost, plan, rng, self.share, latent)
        return packed_particles(filtering.run()), filtering.fits


@dataclass(frozen=True)
class _Replay:
    """The replay of a sampled workload under the present configuration; the first keeps its steps."""

    config: EngineConfig

    def __call__(self, numbered: tuple[int, Workload]) -> Replayed:
        number, workload = numbered
        return replay_workload(workload, self.config, keep_steps=number == 0)


def _lives(plan: Plan) -> int:
    """How often an engine lives through a window in a pass, at most: the measure of what is done."""
    return plan.particles * plan.proposals * plan.rounds


def _agree(particles: Sequence[Particle], passes: int, alike: float) -> bool:
    """Whether passes that know nothing of each other count nearly the same."""
    each = len(particles) // passes
    counts = [
        float(np.mean([p.engine.preemptions for p in particles[i * each : (i + 1) * each]])) for i in range(passes)
    ]
    mean = float(np.mean(counts))
    return float(np.std(counts, ddof=1)) <= max(alike * mean, 1.0)


def _plans(seen: Observations, latent: bool) -> list[Plan]:
    """First a pass that only serves the step costs, then several that know nothing of each other.

    Within a pass all particles soon descend from one: their mean says no more than a single sample. Separate passes do.
    """
    present = sum(w.running + w.waiting for w in seen.windows) / len(seen.windows)
    # measured on one core: seconds of one engine's life through the whole log
    life = 2e-5 * len(seen.arrivals) + len(seen.windows) * (1.2e-4 + 1.2e-6 * present)
    lives = _SECONDS * (1.0 if latent else _OF_KNOWN) / life / 2.5  # a proposal is lived through so often on average
    proposals, islands = (2, 5) if lives >= 60 else (1, 5) if lives >= 24 else (1, 3)
    each = int(min(max(lives / proposals / (_AT_LEAST + 1), 4), 32))
    dense = len(seen.arrivals) > _DENSE
    rounds, first = (2, 2) if dense else (3, min(each, 12) if latent else each)
    return [
        Plan(particles=first, proposals=1, rounds=rounds, cost_sd=0.1),
        *(Plan(particles=each, proposals=proposals, rounds=rounds, cost_sd=0.05) for _ in range(islands)),
    ]


def _replays(seen: Observations, config: EngineConfig) -> int:
    """How many particles are replayed with their ledgers."""
    most = 3 if config.kv_groups else _REPLAYS if config.engine == "vllm-v1" else 4
    return int(min(max(most * 340 / max(len(seen.arrivals), 1), 3), most))


def _some(particles: Sequence[Particle], count: int) -> list[Particle]:
    """As many of each pass, the one with the middle count of preemptions first."""
    picks = [particles[int((i + 0.5) * len(particles) / count)] for i in range(count)]
    middle = sorted(picks, key=lambda p: p.engine.preemptions)[len(picks) // 2]
    return [middle, *(p for p in picks if p is not middle)]


def _headed(request: SketchRequest) -> Content | None:
    """A prompt that begins with a shared head."""
    if request.group < 0:
        return None
    return (f"head{request.group}", request.shared), (f"own{request.id}", request.prompt - request.shared)


def _talks(requests: Sequence[SketchRequest]) -> dict[int, Content]:
    """Contents of prompts of which the cache had kept a part: that is of the last one before that ended and is long enough."""
    if not any(r.given for r in requests):
        return {}
    found: dict[int, Content] = {r.id: ((f"own{r.id}", r.prompt),) for r in requests if not r.given}
    went_on: set[int] = set()
    for request in sorted((r for r in requests if r.given), key=lambda r: r.started or 0.0):
        own = f"own{request.id}"
        started = request.started or 0.0
        before = [
            r
            for r in requests
            if r.end is not None
            and r.end <= started
            and r.prompt >= request.given
            and r.id in found
            and r.id not in went_on
        ]
        if not before:
            found[request.id] = ((own, request.prompt),)
            continue
        last = max(before, key=lambda r: r.end or 0.0)
        went_on.add(last.id)
        kept, left = [], request.given
        for name, tokens in found[last.id]:
            if left > 0:
                kept.append((name, min(tokens, left)))
                left -= tokens
        found[request.id] = (*kept, (own, request.prompt - request.given))
    return found


def _workload(seen: Observations, particle: Particle, config: EngineConfig) -> Workload:
    nodes = particle.past()
    requests = sorted((r for node in nodes for r in node.done), key=lambda r: (r.arrival, r.id))
    contents = _talks(requests)
    made = tuple(
        Request(
            id=r.id,
            prompt_tokens=min(r.prompt, config.max_model_len - 1),
            output_tokens=r.limit,
            arrival_s=r.arrival,
            prompt=contents.get(r.id) if contents else _headed(r),
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
