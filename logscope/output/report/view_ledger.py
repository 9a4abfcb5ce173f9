"""The ledger in rows and bars: where the slow requests' time went, and where the typical ones' did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logscope.wording import LEDGER_LABELS, NOT_VISIBLE, seconds

__all__ = ["Bar", "LedgerRow", "ledger_bars", "ledger_rows"]


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One label of the ledger: means of the slow and the typical requests, and the sum over all."""

    label: str
    name: str
    lost: bool
    slow: str
    typical: str
    total: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A ledger as one bar: segments are (label, start, length, words) in thousandths of the longest bar."""

    name: str
    whole: str
    segments: Sequence[tuple[str, float, float, str]]


def ledger_rows(ledger: Mapping[str, Any]) -> list[LedgerRow]:
    """A row a label; none without a replay."""
    slow, typical, total = (ledger.get(k) or {} for k in ("slow_s", "typical_s", "total_s"))
    if not any(slow.get(k) is not None for k in LEDGER_LABELS):
        return []
    return [
        LedgerRow(
            label=label,
            name=name,
            lost=label not in ("prefill", "decode"),
            slow=_in_seconds(slow.get(label), 2),
            typical=_in_seconds(typical.get(label), 2),
            total=_in_seconds(total.get(label), 0),
        )
        for label, name in LEDGER_LABELS.items()
    ]


def _in_seconds(value: float | None, places: int) -> str:
    """One unit for a whole column, so that its numbers can be compared."""
    return NOT_VISIBLE if value is None else f"{value:,.{places}f} s"


def ledger_bars(ledger: Mapping[str, Any]) -> list[Bar]:
    """The slow and the typical requests as two bars of one scale; none without a replay."""
    sides = [
        ("Slow requests", ledger.get("slow_s") or {}),
        ("Typical requests", ledger.get("typical_s") or {}),
    ]
    wholes = [sum(side.get(k) or 0.0 for k in LEDGER_LABELS) for _, side in sides]
    longest = max(wholes)
    if not longest:
        return []
    bars = []
    for (name, side), whole in zip(sides, wholes, strict=True):
        segments, at = [], 0.0
        for label, words in LEDGER_LABELS.items():
            if value := side.get(label) or 0.0:
                length = round(value / longest * 1000, 2)
                segments.append((label, round(at, 2), length, f"{words}: {seconds(value)}"))
                at += length
        bars.append(Bar(name, seconds(whole), segments))
    return bars
