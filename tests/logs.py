"""Small logs for tests, written as vLLM writes them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from logscope.analysis import Analysis, analyze
from logscope.log.frames import LogFrames, read_log
from logscope.log.span import Span
from logscope.output.json import analysis_document
from parsers.sources.source import expand

__all__ = [
    *("START", "access", "analysed", "document", "ids", "minutes_under_pressure", "parsed"),
    *("stats_v0", "stats_v1", "v0_warning", "v1_start"),
]
SAMPLES = Path(__file__).resolve().parents[1] / "samples"

START = datetime(2026, 5, 9, 0, 49, 0)


def _stamp(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).strftime("%m-%d %H:%M:%S")


def minutes_under_pressure() -> list[str]:
    """Lines of a real server: its start, and some minutes in which its cache is full."""
    lines = (SAMPLES / "v1-under-pressure.log").read_text(encoding="utf-8").splitlines()
    return lines[:60] + lines[420:620]


def stats_v1(
    at: float,
    running: int,
    waiting: int,
    kv: float,
    *,
    prompt: float = 0.0,
    generation: float = 100.0,
    engine: str = "Engine 000",
    extra: str = "",
    level: str = "INFO",
) -> str:
    """A V1 statistics line, `at` seconds after START."""
    return (
        f"(APIServer pid=1) {level} {_stamp(at)} [loggers.py:259] {engine}: Avg prompt throughput: {prompt} tokens/s, "
        f"Avg generation throughput: {generation} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
        f"{extra}GPU KV cache usage: {kv}%, Prefix cache hit rate: 0.0%"
    )


def stats_v0(at: float, running: int, pending: int, kv: float, *, generation: float = 100.0) -> str:
    """A V0 statistics line."""
    return (
        f"INFO {_stamp(at)} [metrics.py:486] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {generation} tokens/s, "
        f"Running: {running} reqs, Swapped: 0 reqs, Pending: {pending} reqs, GPU KV cache usage: {kv}%, CPU KV cache usage: 0.0%."
    )


def v0_warning(at: float, count: int | None, prefix: str = "", suffix: str = "") -> str:
    """V0's preemption warning."""
    counter = f" total_num_cumulative_preemption={count}" if count is not None else ""
    return (
        f"{prefix}WARNING {_stamp(at)} [scheduler.py:1754] Sequence group c-{count} is preempted by PreemptionMode.RECOMPUTE mode because there is "
        f"not enough KV cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or "
        f"tensor_parallel_size to provide more KV cache memory.{counter}{suffix}"
    )


def v1_start(
    at: float = 0, *, version: str = "0.19.1", seats: int = 8, tokens: int = 8000, pid: int = 1, more: str = ""
) -> list[str]:
    """The lines of a V1 start that came up."""
    return [
        f"(APIServer pid={pid}) INFO {_stamp(at)} [utils.py:299] vLLM server version {version}, serving model acme/m",
        f"(APIServer pid={pid}) INFO {_stamp(at)} [utils.py:233] non-default args: {{'model': 'acme/m', 'max_model_len': 4096, 'max_num_seqs': {seats}, 'max_num_batched_tokens': 2048{more}}}",
        f"(EngineCore pid={pid + 1}) INFO {_stamp(at + 1)} [core.py:105] Initializing a V1 LLM engine (v{version}) with config: model='acme/m', speculative_config=None, dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto, enable_prefix_caching=True, enable_chunked_prefill=True",
        f"(EngineCore pid={pid + 1}) INFO {_stamp(at + 2)} [kv_cache_utils.py:1307] GPU KV cache size: {tokens:,} tokens",
        f"(APIServer pid={pid}) INFO {_stamp(at + 3)} [launcher.py:37] Available routes are:",
    ]


def access(path: str = "/health", method: str = "GET") -> str:
    """A uvicorn access line: it has no time."""
    return f'INFO:     192.0.2.7:51908 - "{method} {path} HTTP/1.1" 200 OK'


def _write(folder: Path, lines: list[str] | str, name: str = "server.log") -> Path:
    path = folder / name
    path.write_bytes((lines if isinstance(lines, str) else "\n".join(lines) + "\n").encode())
    return path


def parsed(folder: Path, lines: list[str] | str) -> LogFrames:
    """Read lines as a log file."""
    return read_log(expand([str(_write(folder, lines))]), Span(), year=2026)


def analysed(folder: Path, lines: list[str] | str) -> Analysis:
    """Analyse lines without a replay."""
    return analyze(parsed(folder, lines), replay=False)


def document(folder: Path, lines: list[str] | str) -> dict[str, Any]:
    """The document of `analyze --json --no-replay` over lines."""
    return analysis_document(analysed(folder, lines))


def ids(found: dict[str, Any]) -> set[str]:
    """The ids of a document's findings."""
    return {f["id"] for f in found["findings"]}
