"""How many preemptions: what the log proves and what the replay infers, brought together.

V0's warnings say how many there were up to the last one, the replay how many came after it: its own count up to the
last warning tells how far it is off, and corrects the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from logscope.evidence.preemptions import Logged, Stretch

__all__ = ["Preemptions", "combine"]

MOST_CORRECTION = 3.0
RELATIVE_SPREAD = 0.25
_Z = 1.645  # 5th to 95th percentile


@dataclass(frozen=True, slots=True)
class Preemptions:
    """The count with its bounds; all None where the log shows nothing and no replay tells.

    Where a second witness counted, `inferred` (low, value, high) and `inferred_tokens` keep what the replay says.
    """

    logged: Logged
    low: float | None = None
    value: float | None = None
    high: float | None = None
    basis: str | None = None
    recomputed_tokens: float | None = None
    timeline: tuple[Stretch, ...] = ()
    inferred: tuple[float, float, float] | None = None
    inferred_tokens: float | None = None


def combine(
    logged: Logged,
    inferred: tuple[float, float, float] | None,
    timeline: Sequence[Stretch] = (),
    recomputed_tokens: float | None = None,
) -> Preemptions:
    """Bring both together. `inferred` is low, value, high of the replay and `timeline` when they happened in it."""
    if inferred is None:
        if logged.low is None:
            return Preemptions(logged)
        middle = logged.low if logged.high is None else (logged.low + logged.high) / 2
        return Preemptions(
            logged, logged.low, middle, logged.high, "measured", None, logged.timeline
        )
    low, value, high = inferred
    found = Preemptions(logged, low, value, high, "inferred", recomputed_tokens, tuple(timeline))
    if logged.low is None:
        return found
    if logged.exact:
        exact = float(logged.low)
        return replace(
            found, low=exact, value=exact, high=exact, basis="measured", timeline=logged.timeline
        )
    return _after_the_last_warning(found, logged)


def _after_the_last_warning(found: Preemptions, logged: Logged) -> Preemptions:
    assert logged.low is not None
    assert found.value is not None
    last = max((s.end for s in logged.timeline), default=None)
    before = sum(_until(s, last) for s in found.timeline) if last is not None else 0.0
    after = max(0.0, sum(s.value for s in found.timeline) - before)
    scale = logged.low / before if before >= 1 else 1.0
    scale = min(MOST_CORRECTION, max(1 / MOST_CORRECTION, scale))
    rest = after * scale
    most = math.inf if logged.high is None else float(logged.high)
    value = min(logged.low + rest, most)
    spread = _Z * math.sqrt(rest + (RELATIVE_SPREAD * rest) ** 2 + 1.0)
    tokens = found.recomputed_tokens
    if tokens is not None and found.value > 0:
        tokens = tokens * value / found.value
    return replace(
        found,
        low=float(max(logged.low, math.floor(value - spread))),
        value=float(round(value)),
        high=float(min(most, math.ceil(value + spread))),
        recomputed_tokens=tokens if tokens is None else round(tokens),
        timeline=_scaled(found.timeline, scale),
    )


def _until(stretch: Stretch, moment: datetime) -> float:
    """The part of a stretch's count that lies before a moment."""
    length = (stretch.end - stretch.start).total_seconds()
    if length <= 0:
        return stretch.value if stretch.end <= moment else 0.0
    share = (moment - stretch.start).total_seconds() / length
    return stretch.value * min(1.0, max(0.0, share))


def _scaled(timeline: Sequence[Stretch], scale: float) -> tuple[Stretch, ...]:
    return tuple(replace(s, value=s.value * scale) for s in timeline)
