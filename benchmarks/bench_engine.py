"""The reference engine: fast path against plain loop, requests per CPU second, a public trace end to end, memory.

Each run has a process of its own (CPU seconds and peak memory are its own); figures are medians of the repeats. Runs
that are compared alternate, so that a busy machine hits both. The results of fast and plain runs must be equal.

    python benchmarks/bench_engine.py [--minutes 10] [--repeats 3] [--mooncake FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.kv_group import KvGroup
from reference_engine.model.request import Request, RequestRecord
from reference_engine.replay.fast_v1 import FastReplay
from reference_engine.replay.plain import PlainReplay
from reference_engine.replay.results import replay, summarise
from reference_engine.traces import read_workload
from reference_engine.traces.config_file import nominal_setup

# About an 8-billion-parameter model on one A100: 23 ms a step with 256 requests of 800 tokens.
CLOCK = LinearStepTime(0.012, 9e-5, 1e-5, 4e-8)


@dataclass(frozen=True)
class Case:
    """A workload and the engine it runs on."""

    config: EngineConfig
    requests: list[Request]


@dataclass(frozen=True)
class Run:
    """One measured run. CPU seconds of the replay alone, peak memory of its process in MB (10^6 bytes)."""

    cpu_s: float
    wall_s: float
    requests: int
    steps: int
    preemptions: int
    duration_s: float
    memory_mb: float
    digest: str


def saturated(minutes: float) -> Case:
    """256 seats always taken, answers of 500 to 1,500 tokens to prompts of 128, blocks for all of them."""
    draw = random.Random(1)
    config = EngineConfig(num_blocks=30_000, max_num_seqs=256, max_num_batched_tokens=8192, async_scheduling=True)
    arrival = 0.0
    requests: list[Request] = []
    # 256 seats, 1,000 tokens each at 23 ms: 11.1 requests a second can be served.
    while arrival < minutes * 60:
        requests.append(Request(len(requests), 128, draw.randint(500, 1500), arrival))
        arrival += draw.expovariate(11.5) if len(requests) > 256 else 0.0
    return Case(config, requests)


def calm(minutes: float) -> Case:
    """One request a second, some four running at a time."""
    draw = random.Random(2)
    config = EngineConfig(num_blocks=30_000, max_num_seqs=256, max_num_batched_tokens=8192, async_scheduling=True)
    arrival = 0.0
    requests: list[Request] = []
    while arrival < minutes * 60:
        requests.append(Request(len(requests), draw.randint(50, 800), draw.randint(50, 500), arrival))
        arrival += draw.expovariate(1.0)
    return Case(config, requests)


def pressure(count: int) -> Case:
    """512 tokens in, 256 out, 4,000 blocks, 256 seats, a budget of 8,192: all there from the start."""
    config = EngineConfig(num_blocks=4000, max_num_seqs=256, max_num_batched_tokens=8192)
    return Case(config, [Request(number, 512, 256) for number in range(count)])


def sharing_pressure(count: int) -> Case:
    """As `pressure`, with 20 shared prefixes of 256 tokens, so that block contents have to be followed."""
    base = pressure(0).config
    return Case(
        base,
        [Request(number, 512, 256, prompt=((f"p{number % 20}", 256), (f"u{number}", 256))) for number in range(count)],
    )


def drafting_pressure(count: int) -> Case:
    """As `pressure`, with three drafts a step of which half are accepted: replayed by the plain loop."""
    config = replace(pressure(0).config, num_spec_tokens=3, spec_method="eagle", acceptance=0.5)
    return Case(config, pressure(count).requests)


def saturated_groups(minutes: float) -> Case:
    """As `saturated`, on a model with a full and a sliding-window group (window of 1,024)."""
    base = saturated(minutes)
    groups = (KvGroup("full", 16), KvGroup("sliding", 16, window=1024))
    return Case(replace(base.config, kv_groups=groups, num_blocks=60_000), base.requests)


def groups_pressure(count: int) -> Case:
    """As `pressure`, with both groups sharing 6,000 blocks."""
    base = pressure(count)
    groups = (KvGroup("full", 16), KvGroup("sliding", 16, window=256))
    return Case(replace(base.config, kv_groups=groups, num_blocks=6000), base.requests)


def mooncake(path: str) -> Case:
    """The trace, on the engine that `logscope replay` takes without a configuration."""
    return Case(nominal_setup().config, list(read_workload(path).requests))


CASES: dict[str, Callable[..., Case]] = {
    "saturated": saturated,
    "calm": calm,
    "pressure": pressure,
    "sharing": sharing_pressure,
    "drafting": drafting_pressure,
    "saturated-groups": saturated_groups,
    "groups": groups_pressure,
    "mooncake": mooncake,
}


def measure(name: str, argument: float | int | str, engine: str) -> Run:
    """Build the case and replay it in this process."""
    case = CASES[name](argument)
    clock = nominal_setup().clock if name == "mooncake" else CLOCK
    assert clock is not None
    shares = any(request.prompt is not None for request in case.requests)
    cpu, wall = time.process_time(), time.perf_counter()
    records: list[RequestRecord]
    if engine == "result":  # as the library's `replay`: with the log of steps
        result = replay(case.config, case.requests, clock)
        records, gaps, steps = result.records, result.gaps, len(result.log.rows)
    else:
        run = (
            PlainReplay(case.config, clock, keep_steps=False)
            if engine == "plain"
            else FastReplay(case.config, clock, sharing=shares)
        )
        run.run(case.requests)
        records, gaps, steps = list(run.all_records()), run.gaps, run.steps
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    summary = summarise(records, gaps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Run(
        cpu_s=cpu,
        wall_s=wall,
        requests=summary.finished,
        steps=steps,
        preemptions=summary.preemptions,
        duration_s=summary.duration_s or 0.0,
        memory_mb=peak * (1e-6 if sys.platform == "darwin" else 1024e-6),
        digest=json.dumps([asdict(summary), steps], sort_keys=True),
    )


def measured(name: str, argument: float | int | str, engines: list[str], repeats: int) -> dict[str, Run]:
    """Median run of each engine, the engines taking turns; equal results or an error."""
    context = multiprocessing.get_context("spawn")
    runs: dict[str, list[Run]] = {engine: [] for engine in engines}
    for _ in range(repeats):
        for engine in engines:
            with context.Pool(1) as pool:
                runs[engine].append(pool.apply(measure, (name, argument, engine)))
    digests = {run.digest for several in runs.values() for run in several}
    if len(digests) != 1:
        raise SystemExit(f"{name}: the engines do not agree")
    middle = {}
    for engine, several in runs.items():
        cpu = statistics.median_low([run.cpu_s for run in several])
        middle[engine] = next(run for run in several if run.cpu_s == cpu)
    return middle


def report(name: str, runs: dict[str, Run]) -> None:
    """One line an engine, and the ratio."""
    for engine, run in runs.items():
        print(
            f"{name:28} {engine:6} {run.cpu_s:9.2f} CPU s {run.requests / run.cpu_s:9,.0f} requests/CPU s "
            f"{run.steps:9,} steps {run.steps / run.cpu_s:10,.0f} steps/CPU s {run.preemptions:7,} preemptions "
            f"{run.memory_mb:6.0f} MB  {run.duration_s:8,.0f} s replayed"
        )
    if {"plain", "fast"} <= set(runs):
        print(f"{name:28} fast is {runs['plain'].cpu_s / runs['fast'].cpu_s:.1f} x as fast as plain")
    sys.stdout.flush()


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="of the saturated and the calm hour (60: all of it)"
    )
    parser.add_argument("--requests", type=int, default=20_000, help="of the case under constant pressure")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mooncake", type=Path, help="the conversation trace of kvcache-ai/Mooncake")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}; load {os.getloadavg()[0]:.1f}"
    )
    found: dict[str, dict[str, Run]] = {}

    def case(
        title: str, name: str, argument: float | int | str, engines: list[str], repeats: int = options.repeats
    ) -> None:
        found[title] = measured(name, argument, engines, repeats)
        report(title, found[title])

    case(f"saturated, {options.minutes:g} min", "saturated", options.minutes, ["plain", "fast"])
    case(f"calm, {options.minutes:g} min", "calm", options.minutes, ["plain", "fast"])
    case("512/256 under pressure", "pressure", options.requests, ["fast", "result"])
    case("the same, small", "pressure", options.requests // 10, ["plain", "fast"])
    case("with shared prefixes", "sharing", options.requests // 10, ["plain", "fast"])
    case(
        f"two KV-cache groups, {options.minutes / 2:g} min", "saturated-groups", options.minutes / 2, ["plain", "fast"]
    )
    case("two groups under pressure", "groups", options.requests // 10, ["plain", "fast"])
    case("with drafts", "drafting", options.requests // 10, ["plain"])
    if options.mooncake is not None:
        case("Mooncake conversations", "mooncake", str(options.mooncake), ["result"], 1)
    if options.json is not None:
        document = {
            t: {e: {k: v for k, v in asdict(r).items() if k != "digest"} for e, r in runs.items()}
            for t, runs in found.items()
        }
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
