"""How long a step takes, as a log can tell it: five coefficients times a speed of the moment.

`StepCost` is the linear model of the reference engine with a term for the square of a step's prefill tokens: attention
over long prompts, which a window's sums show where prompts are long.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepCost"]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step; a `StepTime` of the reference engine. `scale` multiplies the whole."""

    base: float
    per_prefill: float
    per_decode: float
    per_kv: float
    per_prefill_squared: float = 0.0
    scale: float = 1.0

    def seconds(
        self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int
    ) -> float:
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
        return (
            self.base,
            self.per_prefill,
            self.per_decode,
            self.per_kv,
            self.per_prefill_squared,
        )

    def scaled(self, scale: float) -> StepCost:
        """The same with another speed."""
        return StepCost(*self.coefficients, scale)
