"""The words and number formats of an answer, shared by everything that talks to people.

`VERDICTS`, `LEDGER_LABELS`, `CAUSES` name things; `seconds`, `count`, `percent`, `tokens` … print numbers. What is
not known is printed as `NOT_VISIBLE`, never as 0.

The ledger's labels in words, and which of them speak for which verdict: one home for all that decide or talk.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = [
    "LEDGER_LABELS",
    "LOST_TO",
    "NOT_VISIBLE",
    "VERDICTS",
    "Verdict",
    "bounds",
    "change",
    "count",
    "moment",
    "percent",
    "period",
    "rate",
    "seconds",
    "setting",
]
LEDGER_LABELS: dict[str, str] = {
    "queued_for_kv": "queued for KV blocks",
    "preempted_wait": "waiting after preemption",
    "recompute": "recomputing lost tokens",
    "queued_for_seat": "queued for a seat",
    "queued_for_budget": "queued for token budget",
    "interference": "slowed by others' prefill",
    "prefill": "own prefill",
    "decode": "own decode",
}
"""In the order in which a ledger is shown: what a cause took first, a request's own work last."""

LOST_TO: dict[str, tuple[str, ...]] = {
    "kv-capacity": ("queued_for_kv", "preempted_wait", "recompute"),
    "seat-limit": ("queued_for_seat",),
    "prefill-interference": ("interference", "queued_for_budget"),
}
"""Which labels are delay of which cause."""

NOT_VISIBLE = "not visible in this log"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict in words. `tone`: critical, warning, good or open; `mark`: a sign that needs no colour."""

    title: str
    says: str
    tone: str
    mark: str


VERDICTS: dict[str, Verdict] = {
    "kv-capacity": Verdict(
        "KV-cache space is behind the slow requests",
        "Requests wait for blocks of the KV cache, or lose theirs and start over.",
        "critical",
        "!",
    ),
    "seat-limit": Verdict(
        "Requests wait for a seat, not for KV space",
        "As many requests run as max_num_seqs allows, while the KV cache still has room.",
        "warning",
        "!",
    ),
    "prefill-interference": Verdict(
        "Other requests' prompts slow the tail",
        "Long prompts share their steps with everybody else's tokens.",
        "warning",
        "!",
    ),
    "healthy": Verdict(
        "Healthy: the slow requests are just long",
        "Most of the slow requests' time is their own work; neither KV space nor seats hold them up.",
        "good",
        "✓",
    ),
    "startup-kv-too-small": Verdict(
        "The server did not start: its KV cache is too small",
        "One request of the full max_model_len does not fit into the KV cache.",
        "critical",
        "✕",
    ),
    "startup-failed": Verdict(
        "The server did not start", "It gave up before it could serve a request.", "critical", "✕"
    ),
    "runtime-oom": Verdict(
        "The accelerator ran out of memory while serving",
        "This is memory outside the KV cache: a larger KV cache would make it worse.",
        "critical",
        "✕",
    ),
    "engine-crash": Verdict("The engine died", "Requests that were running at that moment are lost.", "critical", "✕"),
    "engine-stall": Verdict(
        "The engine stood still with work in its queue", "The log falls silent while requests wait.", "critical", "✕"
    ),
    "not-enough-evidence": Verdict("This log cannot tell", "What it holds fits more than one cause.", "open", "?"),
}


def seconds(value: float | None) -> str:
    """A duration: 70 µs, 31 ms, 5.9 s, 154 s, 12.5 min."""
    if value is None:
        return NOT_VISIBLE
    size = abs(value)
    if size == 0:
        return "0\u00a0s"
    if size < 1e-3:
        return f"{value * 1e6:.0f}\u00a0µs"
    if size < 0.9995:
        return f"{value * 1e3:.0f}\u00a0ms" if size >= 0.00995 else f"{value * 1e3:.1f}\u00a0ms"
    if size < 99.95:
        return f"{value:.1f}\u00a0s"
    return f"{value:,.0f}\u00a0s" if size < 600 else f"{value / 60:,.1f}\u00a0min"


def count(value: float | None) -> str:
    """A number of things: 13,758."""
    return NOT_VISIBLE if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Tokens per second."""
    if value is None:
        return NOT_VISIBLE
    return f"{value:,.0f}\u00a0tok/s" if abs(value) >= 99.95 else f"{value:.1f}\u00a0tok/s"


def percent(ratio: float | None) -> str:
    """A ratio of 0..1 as a percentage without false precision: 0.034 → 3.4 %, 0.71 → 71 %."""
    if ratio is None:
        return NOT_VISIBLE
    points = ratio * 100
    return f"{points:.1f}\u00a0%" if 0 < abs(points) < 9.95 else f"{points:.0f}\u00a0%"


def bounds(low: float | None, high: float | None) -> str:
    """What low and high say together: "55 to 71", "at least 51", "exactly 3", or nothing."""
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least {count(low)}"
    if low is None:
        return f"at most {count(high)}"
    return f"exactly {count(low)}" if low == high else f"{count(low)} to {count(high)}"


def change(before: float | None, after: float | None) -> str:
    """The change from before to after in percent with its sign: −22 %. Empty where that says nothing."""
    if before is None or after is None or before == 0:
        return ""
    points = (after - before) / abs(before) * 100
    if abs(points) < 0.5:
        return "±0\u00a0%"
    if points > 900:
        return f"×{after / before:.0f}"
    return f"{'+' if points > 0 else '−'}{abs(points):.0f}\u00a0%"


def setting(value: object) -> str:
    """A configuration's value as its flag would say it."""
    if value is None:
        return NOT_VISIBLE
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def moment(iso: str | None) -> datetime | None:
    """The datetime of an ISO text; None for none, or for a text that is no time."""
    try:
        return datetime.fromisoformat(iso.replace("Z", "+00:00")) if iso else None
    except ValueError:
        return None


def period(start: str | None, end: str | None) -> str:
    """A span of time in words: "29 Nov 2026, 23:56:30 to 23:59:54 (3.4 min)"."""
    first, last = moment(start), moment(end)
    if first is None or last is None:
        return NOT_VISIBLE if first is None and last is None else _clock(first or last, None)
    length = seconds((last - first).total_seconds())
    return f"{_clock(first, None)} to {_clock(last, first)} ({length})"


def _clock(time: datetime | None, after: datetime | None) -> str:
    if time is None:
        return ""
    same_day = after is not None and after.date() == time.date()
    return f"{time:%H:%M:%S}" if same_day else f"{time.day} {time:%b %Y, %H:%M:%S}"
