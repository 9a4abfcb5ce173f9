"""What is known of each request after the steps were followed: its spans of steps, evictions, end."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["History", "Rules", "Span", "Track"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the scheduler was allowed to do. `usable` blocks without the null block, `watermark` of them kept free when a request is admitted; 0 for what is not known.

    `resumed_as_context`: the second model runner sends a resumed request as a new one. `exact_limits`: requests run to
    their limit although their lines would let them end before. `shared`: prompts share cached blocks, so that a
    request's blocks do not follow from its length.
    """

    budget: int
    seats: int
    usable: int
    block_size: int
    threshold: int
    caching: bool
    asynchronous: bool
    watermark: int = 0
    resumed_as_context: bool = False
    exact_limits: bool = False
    shared: bool = False
    priority: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive steps of one kind in a request's life: "prefill", "decode" or "recompute", both ends included."""

    kind: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class History:
    """One request through the steps. `request` is its place among the arrivals, -1 where the log has no line of it.

    `evicted`: the steps whose scheduling evicted it; `finished`: the step that delivered its last token; `outputs`:
    tokens delivered; `prompt`: its length in tokens, `sure` where single steps tell it, else a share of what several
    requests prefilled together; `redone`: tokens lost to evictions before the first token; `aborted`: the client went away.
    """

    request: int
    spans: tuple[Span, ...]
    evicted: tuple[int, ...]
    finished: int | None
    outputs: int
    prompt: float
    sure: bool
    redone: float
    aborted: bool
    before_log: bool

    @property
    def first_token(self) -> int | None:
        """The step that delivered the first token."""
        if self.before_log or not self.outputs:
            return None
        return next((s.last for s in reversed(self.spans) if s.kind == "prefill"), None)


@dataclass(frozen=True)
class Track:
    """All histories in order of admission, and how well the steps were explained.

    `cost`: how far from the rules the account had to go, summed over steps; `low`, `high`: evictions of the other accounts that are
    nearly as good; `blind_steps`: steps whose lines are missing.
    """

    histories: tuple[History, ...]
    cost: float = 0.0
    low: int = 0
    high: int = 0
    blind_steps: int = 0

    @property
    def evictions(self) -> list[tuple[int, int]]:
        """(step, place of the history) of each eviction, in order."""
        return sorted((k, i) for i, h in enumerate(self.histories) for k in h.evicted)
