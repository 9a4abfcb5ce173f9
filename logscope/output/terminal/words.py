"""Words and figures for people: verdicts in a sentence, numbers with their unit, bars of a series."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from logscope.sanitize import stripped
from logscope.wording import LEDGER_LABELS

__all__ = ["VERDICTS", "bars", "bounds", "clean", "count_range", "duration", "number", "percent", "share_words"]

VERDICTS = {
    "kv-capacity": "requests wait for KV cache space, or are evicted from it",
    "seat-limit": "requests wait for a seat: max_num_seqs is the limit, not KV cache space",
    "prefill-interference": "other requests' prefill slows everybody down",
    "healthy": "nothing holds requests up: those that are slow are long",
    "overload": "more work is offered than this hardware does",
    "startup-kv-too-small": "the server did not start: its KV cache is too small for one full request",
    "startup-failed": "the server did not start",
    "runtime-oom": "the GPU ran out of memory while serving",
    "engine-crash": "the engine died while serving",
    "engine-stall": "the engine stopped moving with requests queued",
    "not-enough-evidence": "this log alone cannot tell",
}
_BLOCKS = "▁▂▃▄▅▆▇█"


def clean(text: str, width: int = 200) -> str:
    """Text from a log, harmless in a terminal: no control characters, no bidirectional overrides, of bounded length."""
    text = stripped(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def number(value: Any, digits: int = 0) -> str:
    """A number with thousands separators; `?` where it is not known."""
    return "?" if value is None else f"{value:,.{digits}f}"


def duration(value: float | None) -> str:
    """Seconds for people."""
    if value is None:
        return "?"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def percent(share: float) -> str:
    """A share as a whole percentage."""
    return f"{100 * share:.0f} %"


def count_range(low: float | None, value: float | None, high: float | None) -> str:
    """`62 (55 to 71)`, `at least 4`, `none`."""
    if value is None:
        return "not visible in this log"
    if high is None:
        return f"at least {number(low)}"
    if low == high:
        return number(value)
    return f"{number(value)} ({number(low)} to {number(high)})"


def bounds(low: float, high: float | None) -> str:
    """`51 to 100`, `at least 4`, `15`."""
    if high is None:
        return f"at least {number(low)}"
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def share_words(ledger: dict[str, float | None], top: int = 3) -> str:
    """`71 % queued for KV blocks, 18 % waiting after preemption`: the largest parts of a ledger (shares of its sum)."""
    parts = {k: float(v) for k, v in ledger.items() if v}
    total = sum(parts.values())
    if total <= 0:
        return ""
    largest = sorted(parts.items(), key=lambda kv: -kv[1])[:top]
    return ", ".join(f"{percent(v / total)} {LEDGER_LABELS.get(k, k)}" for k, v in largest if v / total >= 0.005)


def bars(values: Sequence[float | None], width: int = 48, top: float | None = None) -> str:
    """A series as block characters, at most `width` wide; of each stretch the highest value is shown."""
    known = [v for v in values if v is not None]
    if not known:
        return ""
    limit = top if top is not None else max(known)
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    stretches = [values[a : max(b, a + 1)] for a, b in itertools.pairwise(edges)]
    highest = [max((v for v in s if v is not None), default=None) for s in stretches]
    return "".join(
        " " if v is None else _BLOCKS[min(7, int(7.999 * max(0.0, v) / limit)) if limit > 0 else 0] for v in highest
    )
