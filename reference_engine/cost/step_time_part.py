"""How long a step takes: the interface that every step-time model offers, and its linear, calibrated form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["LinearStepTime", "StepTime"]


class StepTime(Protocol):
    """Seconds of one step from what it computes.

    `prefill_tokens`: tokens of all chunks that are prefill or recompute; `decode_requests`: requests that compute one
    new token; `kv_tokens`: context lengths after the step, summed over all scheduled requests; `requests`: how many
    requests are scheduled.
    """

    def seconds(
        self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int
    ) -> float:
        """Duration of the step in seconds, not negative."""


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """base + per prefill token + per decode request + per KV token read, all in seconds."""

    base_s: float
    per_prefill_token_s: float
    per_decode_s: float
    per_kv_token_s: float

    def seconds(
        self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int
    ) -> float:
        """The linear sum; `requests` has no term of its own."""
        return (
            self.base_s
            + self.per_prefill_token_s * prefill_tokens
            + self.per_decode_s * decode_requests
            + self.per_kv_token_s * kv_tokens
        )
