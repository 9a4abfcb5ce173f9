"""What a change would do: the sampled workloads, replayed under another configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logscope.inference.posterior import Ledgers, gap_percentiles, ledgers
from logscope.inference.workloads import Replayed, StepFactors, Workload, replay_workload
from reference_engine.config import EngineConfig
from reference_engine.summary import Summary, summarise

__all__ = ["Prediction", "predict_workloads", "summarise_replays"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over the sampled workloads: latencies in seconds by percentile, None where nothing finished."""

    preemptions: float
    recomputed_tokens: float
    ttft_s: Mapping[str, float | None]
    e2e_s: Mapping[str, float | None]
    itl_s: Mapping[str, float | None]
    generation_tokens_per_s: float | None
    duration_s: float | None
    ledgers: Ledgers
    finished: float

    def as_dict(self) -> dict[str, Any]:
        """The keys of `whatif --json`."""
        return {
            "preemptions": round(self.preemptions),
            "recomputed_tokens": round(self.recomputed_tokens),
            "ttft_s": dict(self.ttft_s),
            "e2e_s": dict(self.e2e_s),
            "itl_s": dict(self.itl_s),
            "generation_tokens_per_s": self.generation_tokens_per_s,
            "duration_s": self.duration_s,
        }


def predict_workloads(
    workloads: Sequence[Workload],
    config: EngineConfig,
    *,
    arrival_scale: float = 1.0,
    replicas: int = 1,
    factors: StepFactors | None = None,
) -> Prediction:
    """Replay each workload under `config` and average.

    Args:
        workloads: equally likely samples.
        config: the engine after the change.
        arrival_scale: 2 for twice the load (the same requests in half the time).
        replicas: so many engines, requests in turn.
        factors: what the change does to the step times.
    """
    return summarise_replays(
        [
            replay_workload(
                workload, config, arrival_scale=arrival_scale, replicas=replicas, factors=factors
            )
            for workload in workloads
        ]
    )


def summarise_replays(replayed: Sequence[Replayed]) -> Prediction:
    """The mean of several replays' summaries."""
    found = [summarise(one.records, one.gaps) for one in replayed]
    return Prediction(
        preemptions=_mean([s.preemptions for s in found]) or 0.0,
        recomputed_tokens=_mean([s.recomputed_tokens for s in found]) or 0.0,
        ttft_s=_percentiles(found, "ttft_s"),
        e2e_s=_percentiles(found, "e2e_s"),
        itl_s=gap_percentiles(replayed),
        generation_tokens_per_s=_mean([s.generation_tokens_per_s for s in found]),
        duration_s=_mean([s.duration_s for s in found]),
        ledgers=ledgers(replayed),
        finished=_mean([s.finished for s in found]) or 0.0,
    )


def _percentiles(found: Sequence[Summary], name: str) -> dict[str, float | None]:
    return {p: _mean([getattr(s, name)[p] for s in found]) for p in ("p50", "p90", "p99")}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [float(v) for v in values if v is not None]
    return float(np.mean(known)) if known else None
