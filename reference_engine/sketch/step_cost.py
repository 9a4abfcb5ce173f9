"""How long a step takes, as a log can tell it: five coefficients times a speed of the moment.

`StepCost` is the linear model of the reference engine with a term for the square of a step's prefill tokens: attention
over long prompts, which a window's sums show where prompts are long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["CostFit", "Floats", "StepCost"]

Floats = npt.NDArray[np.float64]

_WIDEST = 0.5  # of a coefficient's logarithm, when costs are drawn
_KEPT = 0.9  # of a particle's own deviation from one window to the next


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step; a `StepTime` of the reference engine. `scale` multiplies the whole."""

    base: float
    per_prefill: float
    per_decode: float
    per_kv: float
    per_prefill_squared: float = 0.0
    scale: float = 1.0

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int) -> float:
        """Seconds of a step; `requests` has no term of its own."""
        return self.scale * (
            self.base
            + prefill_tokens * (self.per_prefill + self.per_prefill_squared * prefill_tokens)
            + self.per_decode * decode_requests
            + self.per_kv * kv_tokens
        )

    def decode(self, requests: int, kv_tokens: int) -> float:
        """Seconds of a step that only decodes."""
        return self.scale * (self.base + self.per_decode * requests + self.per_kv * kv_tokens)

    def growth(self, requests: int) -> float:
        """What each further decode step takes longer: the context grows by a token a request."""
        return self.scale * self.per_kv * requests

    @property
    def coefficients(self) -> tuple[float, float, float, float, float]:
        """The five coefficients, without the scale."""
        return (self.base, self.per_prefill, self.per_decode, self.per_kv, self.per_prefill_squared)

    def scaled(self, scale: float) -> StepCost:
        """The same with another speed."""
        return StepCost(*self.coefficients, scale)


@dataclass(frozen=True, slots=True)
class CostFit:
    """Step costs with their uncertainty.

    `logs` and `covariance`: of the coefficients' logarithms; `error`: relative misfit of the windows' times; `windows`:
    sum of the windows' weights, 0 where nothing but the prior and the mean concurrency speaks.
    """

    logs: Floats
    covariance: Floats
    error: float
    windows: float

    @property
    def cost(self) -> StepCost:
        """The costs at the centre."""
        return StepCost(*map(float, np.exp(self.logs)))

    def draw(self, rng: np.random.Generator, least: float) -> StepCost:
        """Costs as they may be. `least`: smallest spread of the whole, as a logarithm."""
        return StepCost(*map(float, np.exp(self.logs + self._deviation(rng, least))))

    def drift(self, cost: StepCost, rng: np.random.Generator, least: float) -> StepCost:
        """Costs a little further on, so that nobody is bound to what was drawn first; the spread stays that of `draw`."""
        away = np.log(np.maximum(cost.coefficients, 1e-15)) - self.logs
        fresh = self._deviation(rng, least)
        moved = _KEPT * away + np.sqrt(1.0 - _KEPT**2) * fresh
        return StepCost(*map(float, np.exp(self.logs + moved)))

    def _deviation(self, rng: np.random.Generator, least: float) -> Floats:
        values, vectors = np.linalg.eigh(self.covariance)
        noise = vectors @ (np.sqrt(np.maximum(values, 0.0)) * rng.standard_normal(5))
        own = least * (rng.standard_normal(5) + rng.standard_normal()) / 2
        return np.asarray(np.clip(noise, -2 * _WIDEST, 2 * _WIDEST) + own, dtype=np.float64)
