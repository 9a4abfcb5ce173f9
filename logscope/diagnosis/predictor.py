"""What a change would do to an inferred workload, as a piece of work that another process may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logscope.inference.windows.estimate import Inference, as_inferred
from logscope.inference.windows.prediction import predict_workloads
from logscope.inference.workloads import Workload
from logscope.server.scenario import Scenario
from reference_engine.model.config import EngineConfig

__all__ = ["Predictor"]


@dataclass(frozen=True, slots=True)
class Predictor:
    """Replays sampled workloads under a scenario; None is the present configuration.

    `config`: the one under which they were inferred; `baseline`: what they say under it, where that is known already; `pooled` as in
    `logscope.inference.windows.prediction`; `assumed`: what the inference assumed of the scheduler is assumed of the change too.
    """

    workloads: tuple[Workload, ...]
    config: EngineConfig
    baseline: Mapping[str, Any] | None = None
    pooled: bool = False
    assumed: bool = False

    @classmethod
    def of(cls, found: Inference) -> Predictor:
        """From the samples of an inference, whose replays are the baseline."""
        known = found.baseline().as_dict()
        return cls(found.workloads, found.config, known, found.pooled, assumed=True)

    def __call__(self, scenario: Scenario | None) -> Mapping[str, Any]:
        """The keys of `whatif --json`."""
        if scenario is None:
            if self.baseline is not None:
                return self.baseline
            return predict_workloads(self.workloads, self.config, pooled=self.pooled).as_dict()
        config = scenario.config
        return predict_workloads(
            self.workloads,
            as_inferred(config, self.config) if self.assumed else config,
            arrival_scale=scenario.arrival_scale,
            replicas=scenario.replicas,
            factors=scenario.scale,
            pooled=self.pooled,
        ).as_dict()
