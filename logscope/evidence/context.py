"""What a finding may look at: one engine's log, its windows, and the lines that were kept as evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import polars as pl

from logscope.evidence.finding import Evidence
from logscope.evidence.preemptions import Logged
from logscope.evidence.windows import full_pct, stats_windows
from logscope.server.engines import EngineLog

CLEAN_STOP_S = 5.0
"""What dies within so many seconds of a word of shutting down was stopped, and did not crash."""

__all__ = ["CLEAN_STOP_S", "Context", "context_of", "without_client_text"]

# CUDA error: an illegal memory access was encountered; NCCL error in: …; Worker failed with error …; [Errno 28] No space left on device
_FROM_ENGINE = re.compile(
    r"(?:CUDA|HIP|NCCL|RCCL|cuBLAS|CUBLAS|cuDNN|Triton|XPU|EngineCore|Engine core|Worker|Executor|RPC call)\b|\[Errno \d{1,3}\] "
)


@dataclass(frozen=True, slots=True)
class Context:
    """`texts` maps (source, line) to the line's text; `exceptions` are unrecognised last lines of tracebacks, in order."""

    log: EngineLog
    windows: pl.DataFrame | None
    logged: Logged
    texts: Mapping[tuple[str, int], str]
    exceptions: list[Evidence] = field(default_factory=list)

    @property
    def intervals(self) -> int:
        """How many statistics lines show the queues."""
        return 0 if self.windows is None else self.windows.height

    @property
    def served(self) -> bool:
        """Whether the server came up: it printed statistics, took requests, or said that it listens."""
        if any(self.log.get(f) is not None for f in ("stats", "request", "iteration", "preemption")):
            return True
        http = self.log.get("http")
        return http is not None and http.height > 0


def context_of(
    log: EngineLog, logged: Logged, texts: Mapping[tuple[str, int], str], exceptions: list[Evidence]
) -> Context:
    """Prepare an engine's context."""
    context = Context(log, stats_windows(log.get("stats"), full_pct(log.facts)), logged, texts, exceptions)
    if not context.served:
        return context
    return replace(context, exceptions=[replace(e, text=without_client_text(e.text)) for e in exceptions])


def without_client_text(text: str) -> str:
    """Once a server takes requests, an exception's message may quote one; what the engine and its libraries say themselves stays."""
    name, _, message = text.strip().partition(": ")
    return text if not message or _FROM_ENGINE.match(message) else f"{name}: (left out)"
