"""Logs as a server with drafts or with several KV-cache groups prints them, written by the reference engine, with the truth beside them."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from logscope.server.kv_groups import blocks_per_request
from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.kv_group import KvGroup
from reference_engine.model.request import Request
from reference_engine.model.step import Step
from reference_engine.replay.plain import make_scheduler
from tests.inference.statistics_log import SMALL

START = datetime(2026, 11, 29, 10, 0, 0)
COST = LinearStepTime(0.02, 0.0004, 0.0008, 2e-6)
INTERVAL = 10.0
DROP = {
    "iterations": (),
    "requests": ("Iteration(",),
    "statistics": ("Iteration(", "Received request"),
    "bare": ("Iteration(", "Received request", "HTTP/1.1"),
}
"""What is left out of a log, by level of evidence."""


@dataclass
class Truth:
    """What really happened; times in seconds from the log's start."""

    arrival: dict[str, float] = field(default_factory=dict)
    first_token: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    preempted: list[float] = field(default_factory=list)
    recomputed: int = 0

    def percentile(self, what: str, percent: float) -> float:
        """TTFT (`first_token`) or E2E (`finished`) in seconds."""
        values = sorted(getattr(self, what)[i] - self.arrival[i] for i in self.finished)
        return values[min(len(values) - 1, round((len(values) - 1) * percent / 100))]


def drafting_requests(
    count: int, rate: float, seed: int, *, accept: float, drafts: int, ngram: bool = False
) -> list[Request]:
    """Requests whose drafts are accepted one after another with chance `accept`; `ngram`: often none, or fewer, are proposed."""
    draw = random.Random(seed)
    now, made = 2.0, []
    for i in range(count):
        prompt = max(8, min(1500, round(draw.lognormvariate(5.3, 0.7))))
        output = max(4, min(1200, round(draw.lognormvariate(5.0, 0.7))))
        own = min(0.95, max(0.0, accept + draw.uniform(-0.1, 0.1)))
        accepted, proposed = [], []
        for _ in range(257 if drafts else 0):
            run = 0
            while run < drafts and draw.random() < own:
                run += 1
            accepted.append(run)
            proposed.append(draw.choice((0, 0, drafts, draw.randint(1, drafts))) if ngram else drafts)
        made.append(
            Request(
                f"{i:04d}",
                prompt,
                output,
                arrival_s=now,
                accept=tuple(accepted),
                drafts=tuple(proposed) if ngram else (),
            )
        )
        now += draw.expovariate(rate)
    return made


class _Lines:
    def __init__(self) -> None:
        self.found: list[tuple[float, int, str]] = []

    def add(self, time: float, process: str, text: str) -> None:
        stamp = START + timedelta(seconds=time)
        self.found.append((time, len(self.found), f"({process} pid=7) INFO {stamp:%m-%d %H:%M:%S} {text}"))

    def plain(self, time: float, text: str) -> None:
        self.found.append((time, len(self.found), text))

    def text(self) -> str:
        return "".join(line + "\n" for _, _, line in sorted(self.found))


def _setup(config: EngineConfig, architecture: str) -> str:
    when = f"{START:%m-%d %H:%M:%S}"
    spec = "None"
    given = ""
    if config.num_spec_tokens:
        spec = f"SpeculativeConfig(method='{config.spec_method}', model=None, num_spec_tokens={config.num_spec_tokens})"
        given = f"'speculative_config': {{'method': '{config.spec_method}', 'num_speculative_tokens': {config.num_spec_tokens}}}, "
    groups = config.kv_groups or (KvGroup("full", config.block_size),)
    batches = 2 if config.async_scheduling else 1
    one = blocks_per_request(groups, config.version, config.max_model_len, config.max_num_batched_tokens, batches)
    times = config.num_blocks / one
    asynchronous = "enabled" if config.async_scheduling else "disabled"
    lines = [
        f"(APIServer pid=7) INFO {when} [api_utils.py:286] non-default args: {{'model': '/models/m', 'max_model_len': {config.max_model_len}, "
        f"'block_size': {config.block_size}, 'num_gpu_blocks_override': {config.num_blocks}, {given}'enable_prefix_caching': {config.enable_prefix_caching}, "
        f"'max_num_batched_tokens': {config.max_num_batched_tokens}, 'max_num_seqs': {config.max_num_seqs}, 'enable_logging_iteration_details': True}}",
        f"(APIServer pid=7) INFO {when} [model.py:692] Resolved architecture: {architecture}",
        f"(APIServer pid=7) INFO {when} [scheduler.py:10] Asynchronous scheduling is {asynchronous}.",
        f"(EngineCore pid=9) INFO {when} [core.py:133] Initializing a V1 LLM engine (v{config.version}) with config: model='/models/m', "
        f"speculative_config={spec}, max_seq_len={config.max_model_len}, device_config=cpu, enable_prefix_caching={config.enable_prefix_caching}, ",
        f"(EngineCore pid=9) INFO {when} [kv_cache_utils.py:2619] Overriding num_gpu_blocks=4096 with num_gpu_blocks_override={config.num_blocks}",
    ]
    if len(groups) > 1:
        sizes = ", ".join(str(g.block_size) for g in groups)
        lines.append(f"(EngineCore pid=9) WARNING {when} [utils.py:1] kv cache group sizes ({sizes})")
    lines.append(
        f"(EngineCore pid=9) INFO {when} [kv_cache_utils.py:2327] CPU KV cache size: {int(times * config.max_model_len):,} tokens, "
        f"Maximum concurrency for {config.max_model_len:,} tokens per request: {times:.2f}x"
    )
    return "".join(line + "\n" for line in lines)


def _counts(step: Step, sampled: set[str], second_runner: bool) -> tuple[int, int, int, int]:
    """Context requests and tokens, generation requests and tokens, as the model runners tell them apart."""
    c = ct = g = gt = 0
    for name, tokens in step.scheduled.items():
        if name in step.new or str(name) not in sampled or (second_runner and name in step.resumed):
            c, ct = c + 1, ct + tokens
        else:
            g, gt = g + 1, gt + tokens
    return c, ct, g, gt


def write_log(
    requests: list[Request],
    config: EngineConfig,
    *,
    second_runner: bool = False,
    architecture: str = "LlamaForCausalLM",
    seed: int = 0,
    cost: LinearStepTime = COST,
) -> tuple[str, Truth]:
    """Serve the requests and print all that a server prints; returns the log's text and the truth."""
    draw = random.Random(seed)
    scheduler, lines, truth = make_scheduler(config), _Lines(), Truth()
    pending = deque(sorted(requests, key=lambda r: r.arrival_s))
    for request in requests:
        truth.arrival[str(request.id)] = request.arrival_s
        lines.add(
            request.arrival_s,
            "APIServer",
            f"[request_logger.py:65] Received request cmpl-{request.id}: params: SamplingParams(n=1, temperature=0.8, ignore_eos=True, "
            f"max_tokens={request.output_tokens}, min_tokens=0), lora_request: None.",
        )
        lines.plain(request.arrival_s, 'INFO:     127.0.0.1:34416 - "POST /v1/completions HTTP/1.1" 200 OK')
    outputs: Counter[str] = Counter()
    sampled: set[str] = set()  # requests that have a token, or will have it with the step under way
    reached: Counter[str] = Counter()
    flight: deque[tuple[int, Step, tuple[int, int, int, int]]] = deque()
    deep = 2 if config.async_scheduling else 1
    usable = config.num_blocks - 1
    now, number, next_stats = 0.0, 0, INTERVAL + draw.random()
    credited = generated = accepted = drafted = verified = 0
    at_position = [0] * max(1, config.num_spec_tokens)
    while pending or scheduler.unfinished or flight:
        if not scheduler.unfinished and not flight:
            now = max(now, pending[0].arrival_s + 0.0005)
        while pending and pending[0].arrival_s <= now:
            scheduler.add_request(pending.popleft())
        if scheduler.unfinished:
            step = scheduler.schedule(now)
            truth.preempted += [now] * len(step.preempted)
            for name, (start, end) in step.spans.items():
                truth.recomputed += max(0, min(end, reached[str(name)]) - start)
                reached[str(name)] = max(end - step.drafts.get(name, 0), reached[str(name)])
            flight.append((number, step, _counts(step, sampled, second_runner)))
            sampled |= {str(name) for name in step.sampled}
            number += 1
            if len(flight) < deep:
                continue
        which, step, counts = flight.popleft()
        outcome = scheduler.update_from_output(step)
        if not step.scheduled:
            continue
        tokens = counts[1] + counts[3]
        elapsed = cost.seconds(tokens - counts[2], counts[2], sum(step.num_computed_tokens), len(step.scheduled))
        elapsed *= draw.lognormvariate(0.0, 0.05)
        now += elapsed
        for name, end in step.spans.items():
            if name in step.sampled and not outputs[str(name)]:
                credited += end[1]
        for name in outcome.tokens:
            truth.first_token.setdefault(str(name), now)
            many = outcome.delivered.get(name, 1)
            outputs[str(name)] += many
            generated += many
        for name in outcome.finished:
            truth.finished[str(name)] = now
        for name, many in step.drafts.items():
            took = outcome.accepted.get(name, 0)
            drafted, accepted, verified = drafted + many, accepted + took, verified + 1
            for i in range(took):
                at_position[i] += 1
        usage = 1 - outcome.free_blocks / usable
        lines.add(
            now,
            "APIServer",
            f"[loggers.py:199] Engine 000: Iteration({which}): {counts[0]} context requests, {counts[1]} context tokens, {counts[2]} generation requests, "
            f"{counts[3]} generation tokens, iteration elapsed time: {elapsed * 1e3:.2f} ms, GPU KV cache usage: {usage * 100:.1f}%",
        )
        now += 0.001
        while now >= next_stats:
            lines.add(
                next_stats,
                "APIServer",
                f"[loggers.py:335] Engine 000: Avg prompt throughput: {credited / INTERVAL:.1f} tokens/s, Avg generation throughput: {generated / INTERVAL:.1f} tokens/s, "
                f"Running: {len(step.running) - len(outcome.finished)} reqs, Waiting: {len(step.waiting)} reqs, GPU KV cache usage: {usage * 100:.1f}%, Prefix cache hit rate: 0.0%",
            )
            if verified:
                rates = ", ".join(f"{n / verified:.3f}" for n in at_position)
                lines.add(
                    next_stats,
                    "APIServer",
                    f"[metrics.py:101] SpecDecoding metrics: Mean acceptance length: {1 + accepted / verified:.2f}, Accepted throughput: {accepted / INTERVAL:.2f} tokens/s, "
                    f"Drafted throughput: {drafted / INTERVAL:.2f} tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
                    f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%",
                )
            credited = generated = accepted = drafted = verified = 0
            at_position = [0] * max(1, config.num_spec_tokens)
            next_stats += INTERVAL
    lines.add(
        next_stats,
        "APIServer",
        f"[loggers.py:335] Engine 000: Avg prompt throughput: {credited / INTERVAL:.1f} tokens/s, Avg generation throughput: {generated / INTERVAL:.1f} tokens/s, "
        "Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%",
    )
    return _setup(config, architecture) + lines.text(), truth


def at_level(text: str, level: str) -> str:
    """The log with only this level of evidence."""
    return "".join(line for line in text.splitlines(keepends=True) if not any(word in line for word in DROP[level]))


def engine(**changes: object) -> EngineConfig:
    """A small engine; `changes` of its settings."""
    return replace(SMALL, **changes)  # type: ignore[arg-type]
