"""What a change would do: the sampled workloads, replayed under another configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logscope.inference.windows.posterior import Ledgers, gap_percentiles, ledgers, percentiles_of_many
from logscope.inference.workloads import Replayed, StepFactors, Workload, replay_workload
from reference_engine.model.config import EngineConfig
from reference_engine.replay.results import summarise

__all__ = ["Prediction", "predict_workloads", "summarise_replays"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the sampled workloads say together: counts as means, latencies in seconds by percentile, None where nothing finished."""

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
    pooled: bool = False,
) -> Prediction:
    """Replay each workload under `config` and average.

    Args:
        workloads: equally likely samples.
        config: the engine after the change.
        arrival_scale: 2 for twice the load (the same requests in half the time).
        replicas: so many engines, requests in turn.
        factors: what the change does to the step times.
        pooled: latencies over all replays together (see `percentiles_of_many`).
    """
    return summarise_replays(
        [
            replay_workload(workload, config, arrival_scale=arrival_scale, replicas=replicas, factors=factors)
            for workload in workloads
        ],
        pooled,
    )


def summarise_replays(replayed: Sequence[Replayed], pooled: bool = False) -> Prediction:
    """What several replays say together; `pooled` as in `percentiles_of_many`."""
    found = [summarise(one.records, one.gaps) for one in replayed]
    return Prediction(
        preemptions=_mean([s.preemptions for s in found]) or 0.0,
        recomputed_tokens=_mean([s.recomputed_tokens for s in found]) or 0.0,
        ttft_s=percentiles_of_many([_seconds(one, "first_token") for one in replayed], pooled),
        e2e_s=percentiles_of_many([_seconds(one, "end") for one in replayed], pooled),
        itl_s=gap_percentiles(replayed),
        generation_tokens_per_s=_mean([s.generation_tokens_per_s for s in found]),
        duration_s=_mean([s.duration_s for s in found]),
        ledgers=ledgers(replayed),
        finished=_mean([s.finished for s in found]) or 0.0,
    )


def _seconds(replayed: Replayed, what: str) -> list[float]:
    """Seconds from arrival to `first_token` or `end`, of the requests that finished."""
    done = [r for r in replayed.records if r.status == "finished"]
    return [(getattr(r, what) - r.arrival) / 1e9 for r in done if getattr(r, what) is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [float(v) for v in values if v is not None]
    return float(np.mean(known)) if known else None
