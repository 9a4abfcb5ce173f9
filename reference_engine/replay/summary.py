"""The figures of a replay: latencies, throughput, preemptions, and the ledger summed over requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reference_engine.model.ledger import LABELS, RequestRecord

__all__ = ["Summary", "summarise", "weighted_percentile"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies in seconds by percentile ("p50", …; None when nothing finished), tokens, and ledger totals in seconds.

    TTFT and E2E cover finished requests and count from arrival; ITL is over all gaps between tokens of all requests.
    `duration_s`: first arrival to last finish. `generation_tokens_per_s`: output tokens over that time.
    """

    requests: int
    finished: int
    preemptions: int
    recomputed_tokens: int
    ttft_s: dict[str, float | None]
    e2e_s: dict[str, float | None]
    itl_s: dict[str, float | None]
    generation_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    duration_s: float | None
    ledger_s: dict[str, float]


def weighted_percentile(weights: Mapping[int, int], percent: float) -> float | None:
    """The percentile of values that occur `weights[value]` times, with linear interpolation; None for no values."""
    if not weights:
        return None
    values = sorted(weights)
    ends = np.cumsum([weights[value] for value in values])
    position = (int(ends[-1]) - 1) * percent / 100.0
    below = int(position)
    low = values[int(np.searchsorted(ends, below, side="right"))]
    high = values[int(np.searchsorted(ends, min(below + 1, int(ends[-1]) - 1), side="right"))]
    return low + (high - low) * (position - below)


def _percentiles(values: Sequence[int], percents: tuple[int, ...]) -> dict[str, float | None]:
    if not values:
        return {f"p{p}": None for p in percents}
    found = np.percentile(np.asarray(values, dtype=np.float64), percents)
    return {f"p{p}": float(value) / 1e9 for p, value in zip(percents, found, strict=True)}


def summarise(records: Sequence[RequestRecord], gaps: Mapping[int, int]) -> Summary:
    """Sum up a replay. `gaps`: {nanoseconds between two tokens of a request: how often}."""
    done = [r for r in records if r.status == "finished"]
    ends = [r.end - r.arrival for r in done if r.end is not None]
    firsts = [r.first_token - r.arrival for r in done if r.first_token is not None]
    duration = None
    if done:
        first = min(r.arrival for r in records)
        duration = (max(r.end for r in done if r.end is not None) - first) / 1e9
    itl = {f"p{p}": weighted_percentile(gaps, p) for p in (50, 99)}
    totals = [sum(parts) / 1e9 for parts in zip(*(r.ledger for r in records), strict=True)]
    return Summary(
        requests=len(records),
        finished=len(done),
        preemptions=sum(r.preemptions for r in records),
        recomputed_tokens=sum(r.recomputed for r in records),
        ttft_s=_percentiles(firsts, (50, 90, 99)),
        e2e_s=_percentiles(ends, (50, 90, 99)),
        itl_s={key: None if gap is None else gap / 1e9 for key, gap in itl.items()},
        generation_tokens_per_s=sum(r.output for r in done) / duration if duration else None,
        prompt_tokens_per_s=(
            sum(r.request.prompt_tokens for r in done) / duration if duration else None
        ),
        duration_s=duration,
        ledger_s=dict(zip(LABELS, totals or [0.0] * len(LABELS), strict=True)),
    )
