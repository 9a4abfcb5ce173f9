"""Logs with statistics and request lines, written by the reference engine, with the truth beside them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from logscope.server.engines import EngineLog, engine_logs
from parsers.reading.by_line import read_events
from parsers.reading.events import Coverage
from parsers.reading.frames import frames_of
from parsers.sources.source import expand
from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request, RequestRecord
from reference_engine.replay.plain import PlainReplay

START = datetime(2026, 11, 29, 10, 0, 0)
STEP_TIME = LinearStepTime(0.012, 0.0003, 0.0006, 1e-6)
SMALL = EngineConfig(
    num_blocks=250,
    block_size=32,
    max_num_seqs=48,
    max_num_batched_tokens=1024,
    max_model_len=4096,
    version="0.32.0",
    enable_prefix_caching=False,
)


@dataclass(frozen=True)
class Served:
    """What a server did: its log, the records of all requests, and how often it preempted."""

    text: str
    records: list[RequestRecord]
    preemptions: int

    def percentile(self, what: str, percent: float) -> float:
        """A percentile of TTFT ("first_token") or E2E ("end"), in seconds."""
        values = sorted((getattr(r, what) - r.arrival) / 1e9 for r in self.records)
        position = (len(values) - 1) * percent / 100
        below = int(position)
        above = min(below + 1, len(values) - 1)
        return values[below] + (values[above] - values[below]) * (position - below)


def burst(count: int, seed: int, rate: float, long_share: float = 0.2) -> list[Request]:
    """Requests that arrive at random, some with long answers; lengths are log-normal."""
    rng = random.Random(seed)
    at = 3.0
    found = []
    for i in range(count):
        at += rng.expovariate(rate)
        output = rng.gauss(6.0, 0.2) if rng.random() < long_share else rng.gauss(4.7, 0.5)
        found.append(
            Request(
                id=f"cmpl-{i:04d}-0",
                prompt_tokens=max(4, min(2000, round(math.exp(rng.gauss(5.4, 0.7))))),
                output_tokens=max(2, round(math.exp(output))),
                arrival_s=at,
            )
        )
    return found


def serve(
    config: EngineConfig,
    requests: list[Request],
    *,
    step_time: LinearStepTime = STEP_TIME,
    interval: float = 10.0,
    phase: float = 0.4,
    received: bool = True,
    certain: bool = True,
    tail: float = 0.0,
) -> Served:
    """Serve requests and print what a server prints.

    `phase`: fraction of the second at which statistics lines come; `received`: print request lines; `certain`: outputs
    are their limits (`ignore_eos`); `tail`: seconds of the log after the last answer.
    """
    engine = PlainReplay(config, step_time, keep_steps=False)
    lines = [(0.0, _setup(config))]
    for request in requests:
        engine.add(request)
        lines += _request_lines(request, received, certain)
    before = engine.observe()
    at = interval + phase
    while True:
        engine.advance(at)
        now = engine.observe()
        lines.append((at, _statistics(config, before, now, interval, at)))
        before = now
        if now.finished == len(requests):
            break
        at += interval
    if tail:
        lines.append((at + tail, ""))
    lines.sort(key=lambda line: line[0])
    text = "".join(text for _at, text in lines)
    return Served(text, engine.all_records(), engine.preemptions)


def stamp(at: float) -> str:
    """A record's time: cut to the second."""
    return (START + timedelta(seconds=math.floor(at))).strftime("%m-%d %H:%M:%S")


def _setup(config: EngineConfig) -> str:
    arguments = {
        "model": "/models/small",
        "max_model_len": config.max_model_len,
        "block_size": config.block_size,
        "enable_prefix_caching": config.enable_prefix_caching,
        "num_gpu_blocks_override": config.num_blocks,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "async_scheduling": False,
    }
    who = f"INFO {stamp(0)}"
    tokens = config.num_blocks * config.block_size
    return (
        f"(APIServer pid=11) {who} [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {config.version}\n"
        f"(APIServer pid=11) {who} [api_utils.py:286] non-default args: {arguments}\n"
        f"(EngineCore pid=12) {who} [core.py:133] Initializing a V1 LLM engine (v{config.version}) with config: "
        f"model='/models/small', enable_prefix_caching={config.enable_prefix_caching}, enable_chunked_prefill=True\n"
        f"(EngineCore pid=12) {who} [kv_cache_utils.py:2327] GPU KV cache size: "
        f"{tokens:,} tokens, Maximum concurrency for {config.max_model_len:,} tokens per request: "
        f"{tokens / config.max_model_len:.2f}x\n"
    )


def _request_lines(request: Request, received: bool, certain: bool) -> list[tuple[float, str]]:
    at = request.arrival_s
    access = 'INFO:     127.0.0.1:50554 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    if not received:
        return [(at, access)]
    limit = request.output_tokens if certain else 4000
    params = f"SamplingParams(n=1, temperature=0.8, ignore_eos={certain}, max_tokens={limit}, min_tokens=0)"
    line = (
        f"(APIServer pid=11) INFO {stamp(at)} [request_logger.py:65] Received request {request.id}: "
        f"params: {params}, lora_request: None.\n"
    )
    return [(at, line + access)]


def _statistics(config: EngineConfig, before, now, interval: float, at: float) -> str:  # type: ignore[no-untyped-def]
    prompt = (now.prompt_tokens - before.prompt_tokens) / interval
    generated = (now.generated_tokens - before.generated_tokens) / interval
    return (
        f"(APIServer pid=11) INFO {stamp(at)} [loggers.py:335] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
        f"Avg generation throughput: {generated:.1f} tokens/s, Running: {now.running} reqs, Waiting: {now.waiting} reqs, "
        f"GPU KV cache usage: {100 * now.kv_usage:.1f}%\n"
    )


def parsed(text: str, folder: Path, name: str = "server.log") -> EngineLog:
    """The only engine of a log text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return parsed_file(path)


def parsed_file(path: Path) -> EngineLog:
    """The first engine of a log file."""
    return engine_logs(frames_of(read_events(expand([str(path)]), Coverage())))[0]


def with_blocks(blocks: int) -> EngineConfig:
    """The small engine with another number of blocks."""
    return replace(SMALL, num_blocks=blocks)
