"""One live request of the V0 scheduler."""

from __future__ import annotations

from reference_engine.model.request import RequestState
from reference_engine.model.workload import Request

__all__ = ["V0State"]


class V0State(RequestState):
    """A request with V0's own counters. Lengths in tokens.

    V0 keeps the stage of a request apart from its counters (vLLM 0.8.5, `sequence.py`): `in_prefill` holds until the
    computed tokens reach the known ones, and again after a recompute preemption. `seen` is what the block table
    holds. `cached` is the prefix-cache hit, looked up once and then frozen until the blocks are freed (None: not
    looked up yet). `last_access` is when the request was last scheduled. `admitted`: it has run before.
    `status` is "waiting", "running", "swapped" or "finished".
    """

    __slots__ = ("admitted", "cached", "in_prefill", "last_access", "seen")

    def __init__(self, request: Request, max_model_len: int) -> None:
        super().__init__(request, max_model_len)
        # V0 stops when a sequence is longer than the model's length, V1 when it has reached it
        self.limit = min(request.output_tokens, max(1, max_model_len + 1 - request.prompt_tokens))
        self.in_prefill = True
        self.seen = 0
        self.cached: int | None = None
        self.last_access: float | None = None
        self.admitted = False

    @property
    def uncomputed(self) -> int:
        """Tokens it wants to compute next: the rest in prefill, one in decode."""
        return self.prompt + self.output - self.computed if self.in_prefill else 1

    @property
    def rank(self) -> tuple[int, float]:
        """What the priority policy compares; the greater, the worse."""
        return (self.priority, self.arrival)

    def advance(self, tokens: int) -> None:
        """Count `tokens` as computed; prefill ends when nothing is left."""
        self.computed += tokens
        if self.computed == self.prompt + self.output:
            self.in_prefill = False

    def restart(self) -> None:
        """Go back to the start for a recompute; generated tokens are kept."""
        self.computed = 0
        self.in_prefill = True
        self.status = "waiting"
        self.cached = None
