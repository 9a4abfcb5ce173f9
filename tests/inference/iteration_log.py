"""Logs with one line a step, written by the reference engine, with the truth beside them."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Step
from reference_engine.v1.scheduler import V1Scheduler

START = datetime(2026, 11, 29, 10, 0, 0, tzinfo=timezone.utc)
OVERHEAD_S = 0.0015
STEP_TIME = LinearStepTime(0.008, 0.0003, 0.0004, 1e-6)


@dataclass
class Truth:
    """What really happened: seconds from the start of the log; tokens that were computed again."""

    arrival: dict[str, float] = field(default_factory=dict)
    first_token: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    admitted: dict[str, float] = field(default_factory=dict)
    preempted: list[tuple[float, str]] = field(default_factory=list)
    recomputed: int = 0
    prompts: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)

    def latencies(self, what: str) -> list[float]:
        """TTFT (`first_token`) or E2E (`finished`) of the requests that finished, in order of arrival."""
        times = getattr(self, what)
        return [times[i] - self.arrival[i] for i in self.arrival if i in self.finished]


@dataclass(frozen=True)
class Printing:
    """How the server prints: see the fields' names; `slack` multiplies the printed `max_tokens`."""

    usage: bool = True
    engine_process: bool = False
    second_runner: bool = False
    requests: bool = True
    ignore_eos: bool = True
    slack: float = 1.0
    decimals: bool = False


def workload(
    count: int, rate: float, seed: int, prompt: tuple[int, int] = (20, 500), output: tuple[int, int] = (10, 200)
) -> list[Request]:
    """Requests with exponential gaps and uniform lengths."""
    draw = random.Random(seed)
    now, made = 1.0, []
    for i in range(count):
        made.append(Request(f"r{i:04d}", draw.randint(*prompt), draw.randint(*output), arrival_s=now))
        now += draw.expovariate(rate)
    return made


def config(**changes: object) -> EngineConfig:
    """A small engine under pressure."""
    values: dict[str, object] = {
        "num_blocks": 150,
        "block_size": 16,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "max_model_len": 2048,
        "version": "0.32.0",
        "enable_prefix_caching": False,
    }
    return EngineConfig(**{**values, **changes})  # type: ignore[arg-type]


def limit_of(request: Request, printing: Printing) -> int:
    """The `max_tokens` of a request: its true length, or with `slack` more."""
    return max(request.output_tokens, int(request.output_tokens * printing.slack))


class _Printer:
    def __init__(self, printing: Printing, config: EngineConfig) -> None:
        self.printing, self.config = printing, config
        self.lines: list[tuple[float, int, str]] = []

    def add(self, time: float, process: str, origin: str, text: str) -> None:
        stamp = START + timedelta(seconds=time)
        self.lines.append((time, len(self.lines), f"({process} pid=7) INFO {stamp:%m-%d %H:%M:%S} [{origin}] {text}"))

    def request(self, time: float, request: Request) -> None:
        if self.printing.requests:
            limit = limit_of(request, self.printing)
            self.add(
                time,
                "APIServer",
                "request_logger.py:65",
                f"Received request cmpl-{request.id}: params: SamplingParams(n=1, temperature=0.8, ignore_eos={self.printing.ignore_eos}, "
                f"max_tokens={limit}, min_tokens=0), lora_request: None.",
            )
        self.lines.append((time, len(self.lines), 'INFO:     127.0.0.1:34416 - "POST /v1/completions HTTP/1.1" 200 OK'))

    def step(self, time: float, number: int, counts: tuple[int, int, int, int], elapsed: float, usage: float) -> None:
        c, ct, g, gt = counts
        text = (
            f"Iteration({number}): {c} context requests, {ct} context tokens, {g} generation requests, {gt} generation tokens, "
            f"iteration elapsed time: {elapsed * 1e3:.2f} ms"
        )
        if self.printing.engine_process:
            self.add(time, "EngineCore", "core.py:420", text)
            return
        if self.printing.usage:
            text += f", GPU KV cache usage: {usage * 100:.1f}%"
        self.add(time, "APIServer", "loggers.py:199", "Engine 000: " + text)

    def stats(self, time: float, running: int, waiting: int, usage: float) -> None:
        self.add(
            time,
            "APIServer",
            "loggers.py:335",
            f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: {running} reqs, "
            f"Waiting: {waiting} reqs, GPU KV cache usage: {usage * 100:.1f}%, Prefix cache hit rate: 0.0%",
        )

    def text(self) -> str:
        return "".join(line + "\n" for _, _, line in sorted(self.lines))


def _setup(config: EngineConfig) -> str:
    when = f"{START:%m-%d %H:%M:%S}"
    return (
        f"(APIServer pid=7) INFO {when} [api_utils.py:286] non-default args: {{'model': 'm', 'max_model_len': {config.max_model_len}, "
        f"'block_size': {config.block_size}, 'num_gpu_blocks_override': {config.num_blocks}, 'enable_prefix_caching': {config.enable_prefix_caching}, "
        f"'max_num_batched_tokens': {config.max_num_batched_tokens}, 'max_num_seqs': {config.max_num_seqs}, 'enable_logging_iteration_details': True}}\n"
        f"(EngineCore pid=9) INFO {when} [core.py:133] Initializing a V1 LLM engine (v{config.version}) with config: model='m', "
        f"max_seq_len={config.max_model_len}, enable_prefix_caching={config.enable_prefix_caching}\n"
    )


def write_log(requests: list[Request], config: EngineConfig, printing: Printing | None = None) -> tuple[str, Truth]:
    """Run the workload and print it; returns the log's text and the truth."""
    printing = printing or Printing()
    scheduler, printer, truth = V1Scheduler(config), _Printer(printing, config), Truth()
    pending = deque(sorted(requests, key=lambda r: r.arrival_s))
    for request in requests:
        truth.arrival[request.id] = request.arrival_s
        truth.prompts[request.id], truth.outputs[request.id] = (request.prompt_tokens, request.output_tokens)
        printer.request(request.arrival_s, request)
    flight: deque[tuple[int, Step, tuple[int, int, int, int]]] = deque()
    done: dict[str, int] = {}
    delivered: dict[str, int] = {}
    now, number, next_stats = 0.0, 0, 10.0
    deep = 2 if config.async_scheduling else 1
    usable = config.num_blocks - 1
    while pending or scheduler.unfinished or flight:
        if not scheduler.unfinished and not flight:
            now = max(now, pending[0].arrival_s + 0.0005)
        while pending and pending[0].arrival_s <= now:
            request = pending.popleft()
            scheduler.add_request(replace(request, output_tokens=limit_of(request, printing)))
        if scheduler.unfinished:
            step = scheduler.schedule(now)
            for name in step.preempted:
                truth.preempted.append((now, str(name)))
            for name in step.new:
                truth.admitted[str(name)] = now
            for name, (start, end) in step.spans.items():
                truth.recomputed += max(0, min(end, done.get(str(name), 0)) - start)
                done[str(name)] = max(end, done.get(str(name), 0))
            flight.append((number, step, _counts(step, scheduler, printing)))
            number += 1
            if len(flight) < deep:
                continue
        which, step, counts = flight.popleft()
        outcome = scheduler.update_from_output(step)
        if not step.scheduled:
            continue
        tokens = counts[1] + counts[3]
        elapsed = STEP_TIME.seconds(tokens - counts[2], counts[2], sum(step.num_computed_tokens), len(step.scheduled))
        now += elapsed
        for name in outcome.tokens:
            truth.first_token.setdefault(str(name), now)
        for name in outcome.tokens:
            delivered[str(name)] = delivered.get(str(name), 0) + 1
            if delivered[str(name)] == truth.outputs[str(name)]:  # at its limit, or it stops by itself
                truth.finished[str(name)] = now
                scheduler.abort(name)
        usage = 1 - scheduler.pool.num_free_blocks / usable
        printer.step(now, which, counts, elapsed, usage)
        now += OVERHEAD_S
        if now >= next_stats:
            printer.stats(now, len(scheduler.running), len(scheduler.waiting), usage)
            next_stats += 10.0
    printer.stats(next_stats + 10, 0, 0, 0.0)
    return _setup(config) + printer.text(), truth


def _counts(step: Step, scheduler: V1Scheduler, printing: Printing) -> tuple[int, int, int, int]:
    """Context requests and tokens, generation requests and tokens, as the two model runners tell them apart."""
    c = ct = g = gt = 0
    for name, tokens in step.scheduled.items():
        state = scheduler.states[name]
        outputs = (
            state.num_output_tokens
            + state.num_output_placeholders
            - (name in step.sampled and scheduler.config.async_scheduling)
        )
        if name in step.new or outputs == 0 or (printing.second_runner and name in step.resumed):
            c, ct = c + 1, ct + tokens
        else:
            g, gt = g + 1, gt + tokens
    return c, ct, g, gt
