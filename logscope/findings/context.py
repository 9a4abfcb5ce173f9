"""What a finding may look at: one engine's log, its windows, and the lines that were kept as evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from logscope.finding import Evidence
from logscope.logged_preemptions import Logged
from logscope.servers import EngineLog
from logscope.windows import stats_windows

__all__ = ["Context", "context_of"]


@dataclass(frozen=True, slots=True)
class Context:
    """`texts` maps (source, line) to the line's text; `exceptions` are unrecognised last lines of tracebacks, in order."""

    log: EngineLog
    windows: pl.DataFrame | None
    logged: Logged
    texts: dict[tuple[str, int], str]
    exceptions: list[Evidence] = field(default_factory=list)

    @property
    def served(self) -> bool:
        """Whether the server came up: it printed statistics, took requests, or said that it listens."""
        if any(
            self.log.get(f) is not None for f in ("stats", "request", "iteration", "preemption")
        ):
            return True
        http = self.log.get("http")
        return http is not None and http.height > 0


def context_of(
    log: EngineLog, logged: Logged, texts: dict[tuple[str, int], str], exceptions: list[Evidence]
) -> Context:
    """Prepare an engine's context."""
    return Context(log, stats_windows(log.get("stats")), logged, texts, exceptions)
