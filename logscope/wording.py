"""The words and number formats of an answer, shared by everything that talks to people.

`VERDICTS`, `PRESSURE`, `LEDGER_LABELS`, `BASES` name things; `duration`, `number`, `percent`, `rate`, `bounds`, `estimate` … print
numbers; `bars` draws a series in block characters. What is not known is printed as `NOT_VISIBLE`, never as 0. All of it is
plain text with ordinary spaces; a page or a terminal keeps a number and its unit together by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

__all__ = [
    "BASES",
    "BINDING",
    "COSTS",
    "LEDGER_LABELS",
    "LOST_TO",
    "NOT_VISIBLE",
    "PRESSURE",
    "VERDICTS",
    "Verdict",
    "bars",
    "between",
    "bounds",
    "change",
    "duration",
    "estimate",
    "moment",
    "number",
    "per_second",
    "percent",
    "period",
    "plural",
    "rate",
    "setting",
    "shares",
    "stretch",
]

LEDGER_LABELS: dict[str, str] = {
    "queued_for_kv": "queued for KV blocks",
    "preempted_wait": "waiting after preemption",
    "recompute": "recomputing lost tokens",
    "queued_for_seat": "queued behind max_num_seqs",
    "queued_for_budget": "queued behind max_num_batched_tokens",
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

BASES = {
    "measured": "in the log or its metrics",
    "inferred": "estimated from the log, with low and high bounds",
    "replayed": "from the replay of the inferred load",
    "default": "the default of this version",
    "given": "given with --set",
    "rule": "a rule of thumb, not replayed",
}
"""What a number rests on."""

COSTS = {"free": "no extra hardware", "gpu": "needs more GPUs"}
"""What a change needs."""

BINDING = {
    "kv": "KV-cache space",
    "seats": "max_num_seqs",
    "budget": "max_num_batched_tokens",
    "compute": "the GPU's own speed",
    "arrivals": "no queue",
}
"""What holds an engine back."""

PRESSURE = {
    "thrash": "Thrashing: requests keep preempting one another.",
    "saturated": "The KV cache is full and requests queue, with little or no preemption.",
    "none": "The KV cache is not under pressure.",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict in words. `title` heads a page, `brief` follows the verdict's id on a terminal, `says` is one sentence more.

    `tone`: critical, warning, good or open; `mark`: a sign that needs no colour.
    """

    title: str
    brief: str
    says: str
    tone: str
    mark: str


VERDICTS: dict[str, Verdict] = {
    "kv-capacity": Verdict(
        "KV-cache space is behind the slow requests",
        "requests are queuing for KV-cache space or being preempted",
        "Requests queue for KV-cache blocks, or are preempted and start over.",
        "critical",
        "!",
    ),
    "seat-limit": Verdict(
        "max_num_seqs is the bottleneck, not KV-cache space",
        "requests are queuing because max_num_seqs is reached; KV-cache space is not the limit",
        "As many requests run as max_num_seqs allows, while the KV cache still has room.",
        "warning",
        "!",
    ),
    "prefill-interference": Verdict(
        "Long prefills are slowing the tail",
        "long prefills from other requests are slowing everyone's decode",
        "Long prompts share their steps with every other request's tokens.",
        "warning",
        "!",
    ),
    "healthy": Verdict(
        "Healthy: the slow requests are simply long",
        "nothing is holding requests up; the slow ones are simply long",
        "Most of the slow requests' time is their own work; neither KV-cache space nor max_num_seqs holds them up.",
        "good",
        "✓",
    ),
    "overload": Verdict(
        "Overloaded: requests arrive faster than this server can finish them",
        "offered load exceeds what this server can serve",
        "The backlog grows whichever setting is used.",
        "critical",
        "!",
    ),
    "startup-kv-too-small": Verdict(
        "The server did not start: its KV cache is too small",
        "the server did not start: its KV cache is too small for one full request",
        "One request of the full max_model_len does not fit into the KV cache.",
        "critical",
        "✕",
    ),
    "startup-failed": Verdict(
        "The server did not start",
        "the server did not start",
        "It gave up before it could serve a request.",
        "critical",
        "✕",
    ),
    "runtime-oom": Verdict(
        "The GPU ran out of memory while serving",
        "the GPU ran out of memory while serving",
        "This is memory outside the KV cache: a larger KV cache would make it worse.",
        "critical",
        "✕",
    ),
    "engine-crash": Verdict(
        "The engine died",
        "the engine died while serving",
        "Requests that were running at that moment are lost.",
        "critical",
        "✕",
    ),
    "engine-stall": Verdict(
        "The engine stalled with requests in it",
        "the engine stalled while it held requests",
        "No tokens come while requests run or wait.",
        "critical",
        "✕",
    ),
    "not-enough-evidence": Verdict(
        "Not enough evidence",
        "this log does not show what holds requests up",
        "What this log shows does not point to one cause.",
        "open",
        "?",
    ),
}

_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(value: float | None, unknown: str = NOT_VISIBLE) -> str:
    """A duration: 70 µs, 31 ms, 5.9 s, 154 s, 12.5 min, 3.2 h, 4.1 days; `unknown` where there is none."""
    if value is None:
        return unknown
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if size < 0.9995:
        return f"{value * 1e3:.0f} ms" if size >= 0.00995 else f"{value * 1e3:.1f} ms"
    if size < 99.95:
        return f"{value:.1f} s"
    if size < 600:
        return f"{value:.0f} s"
    if size < 2 * 3600:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h" if size < 48 * 3600 else f"{value / 86400:,.1f} days"


def stretch(length: float) -> str:
    """A stretch of a log's time, whose stamps have whole seconds: 63 s, 12.5 min."""
    return f"{length:.0f} s" if length < 600 else duration(length)


def number(value: float | None, unknown: str = NOT_VISIBLE) -> str:
    """A number of things: 13,758; `unknown` where there is none."""
    return unknown if value is None else f"{value:,.0f}"


def per_second(value: float | None, unknown: str = NOT_VISIBLE) -> str:
    """Requests a second, with three digits that say something: 1.74/s, 0.045/s, 120/s."""
    if value is None:
        return unknown
    return f"{value:,.0f}/s" if value >= 100 else f"{float(f'{value:.3g}'):g}/s"


def plural(value: float, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 spike", "12 spikes"."""
    return f"{number(value)} {one if round(value) == 1 else many or one + 's'}"


def rate(value: float | None, unknown: str = NOT_VISIBLE) -> str:
    """Tokens per second: 277 tok/s."""
    if value is None:
        return unknown
    return f"{value:,.0f} tok/s" if abs(value) >= 99.95 else f"{value:.1f} tok/s"


def percent(ratio: float | None, unknown: str = NOT_VISIBLE) -> str:
    """A ratio of 0..1 as a percentage without false precision: 0.034 → 3.4 %, 0.71 → 71 %."""
    if ratio is None:
        return unknown
    points = ratio * 100
    return f"{points:.1f} %" if 0.05 <= abs(points) < 9.95 else f"{points:.0f} %"


def bounds(low: float | None, high: float | None) -> str:
    """What low and high say together: "55 to 71", "at least 51", "exactly 3", or nothing."""
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least {number(low)}"
    if low is None:
        return f"at most {number(high)}"
    return f"exactly {number(low)}" if number(low) == number(high) else f"{number(low)} to {number(high)}"


def estimate(low: float | None, value: float | None, high: float | None) -> str:
    """A number with its bounds: "62 (55 to 71)", "at least 4" where only bounds are known, "15" where they agree."""
    if value is None:
        said = bounds(low, high)
        return said.removeprefix("exactly ") if said else NOT_VISIBLE
    if high is None:
        return f"at least {number(value if low is None else low)}"
    return number(value) if low is None or number(low) == number(high) else f"{number(value)} ({bounds(low, high)})"


def between(low: float | None, high: float | None) -> str:
    """The bounds of a duration in seconds: "27 s to 36 s", "at least 4.1 s", or nothing."""
    if low is None and high is None:
        return ""
    if low is None or high is None:
        return f"at most {duration(high)}" if low is None else f"at least {duration(low)}"
    first, last = duration(low), duration(high)
    if first == last:
        return first
    same = first.rpartition(" ")[2] == last.rpartition(" ")[2]
    return f"{first.rpartition(' ')[0] if same else first} to {last}"


def shares(ledger: Mapping[str, float | None], top: int = 3) -> str:
    """`71 % queued for KV blocks, 18 % waiting after preemption`: the largest parts of a ledger (shares of its sum)."""
    parts = {k: float(v) for k, v in ledger.items() if v}
    total = sum(parts.values())
    if total <= 0:
        return ""
    largest = sorted(parts.items(), key=lambda kv: -kv[1])[:top]
    return ", ".join(f"{percent(v / total)} {LEDGER_LABELS.get(k, k)}" for k, v in largest if v / total >= 0.005)


def change(before: float | None, after: float | None) -> str:
    """The change from before to after in percent with its sign: −22 %. Empty where that says nothing."""
    if before is None or after is None or before == 0:
        return ""
    points = (after - before) / abs(before) * 100
    if abs(points) < 0.5:
        return "±0 %"
    if points > 900:
        return f"×{after / before:.0f}"
    if after and -100 < points <= -99.5:  # something is left
        return f"−{min(99.9, -points):.1f} %"
    return f"{'+' if points > 0 else '−'}{abs(points):.0f} %"


def setting(value: object) -> str:
    """A configuration's value as its flag would say it."""
    if value is None:
        return NOT_VISIBLE
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):  # a KV-cache group
        return ", ".join(f"{key} {setting(part)}" for key, part in value.items() if part is not None)
    if isinstance(value, (list, tuple)):
        parts = [(text, len(list(same))) for text, same in itertools.groupby(map(setting, value))]
        return "; ".join(f"{many} x {text}" if many > 1 else text for text, many in parts)
    return f"{value:g}" if isinstance(value, float) else str(value)


def moment(iso: str | None) -> datetime | None:
    """The datetime of an ISO text; None for none, or for a text that is no time."""
    try:
        return datetime.fromisoformat(iso.replace("Z", "+00:00")) if iso else None
    except ValueError:
        return None


def period(start: str | None, end: str | None) -> str:
    """A span of time in words: "29 Nov 2026, 23:56:30 to 23:59:54 (3.4 min)"; an instant is one time."""
    first, last = moment(start), moment(end)
    if first is None or last is None:
        return NOT_VISIBLE if first is None and last is None else _clock(first or last, None)
    if first == last:
        return _clock(first, None)
    length = duration((last - first).total_seconds())
    return f"{_clock(first, None)} to {_clock(last, first)} ({length})"


def _clock(time: datetime | None, after: datetime | None) -> str:
    if time is None:
        return ""
    same_day = after is not None and after.date() == time.date()
    return f"{time:%H:%M:%S}" if same_day else f"{time.day} {time:%b %Y, %H:%M:%S}"


def bars(values: Sequence[float | None], width: int = 48, top: float | None = None) -> str:
    """A series as block characters, at most `width` wide; of each stretch the highest value is shown."""
    known = [v for v in values if v is not None]
    if not known:
        return ""
    limit = top if top is not None else max(known)
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    stretches = [values[a : max(b, a + 1)] for a, b in itertools.pairwise(edges)]
    highest = [max((v for v in s if v is not None), default=None) for s in stretches]
    return "".join(
        " " if v is None else _BLOCKS[min(7, int(7.999 * max(0.0, v) / limit)) if limit > 0 else 0] for v in highest
    )
