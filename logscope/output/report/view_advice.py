"""The advice in words: each flag with the predicted effect on both sides of its trade.

The ledger in rows and bars: where the slow requests' time went, and where the typical ones' did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from logscope.diagnosis.advice import MIN_WORSE
from logscope.output.report.captions import is_withheld
from logscope.sanitize import visible
from logscope.wording import COSTS, LEDGER_LABELS, NOT_VISIBLE, change, duration, number, rate, setting

__all__ = [
    "Advised",
    "Bar",
    "Comparison",
    "Effect",
    "LedgerRow",
    "advice",
    "compared",
    "label_of",
    "ledger_bars",
    "ledger_rows",
]

# path in a whatif side, name, form, whether less is better, the least change worth a colour
MEASURES: tuple[tuple[str, str, Any, bool], ...] = (
    ("e2e_s.p99", "E2E p99", duration, True),
    ("e2e_s.p50", "E2E p50", duration, True),
    ("ttft_s.p99", "TTFT p99", duration, True),
    ("ttft_s.p50", "TTFT p50", duration, True),
    ("itl_s.p99", "ITL p99", duration, True),
    ("generation_tokens_per_s", "Throughput", rate, False),
    ("preemptions", "Preemptions", number, True),
    ("recomputed_tokens", "Recomputed", number, True),
)
SHOWN_S = 0.005  # less is printed as 0.00 s
SHOWN_TOTAL_S = 0.5  # and less than this as 0 s
SAME = MIN_WORSE  # a smaller change is within what two runs of the same thing differ by


@dataclass(frozen=True, slots=True)
class Effect:
    """One measure before and after. `sense`: better, worse or same. Of a figure that is withheld only the change is told: `after` is empty."""

    name: str
    before: str
    after: str
    change: str
    sense: str


@dataclass(frozen=True, slots=True)
class Advised:
    """One advice. `flag` is None where the detected version has no flag for it; `label` names it either way."""

    label: str
    flag: str | None
    cost: str
    why: str
    trade: str
    basis: str
    effects: Sequence[Effect]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All advice side by side: the measures' names, how they are now, and a row of effects for each advice."""

    names: Sequence[str]
    now: Sequence[str]
    rows: Sequence[tuple[Advised, Sequence[Effect | None]]]


def compared(advised: Sequence[Advised]) -> Comparison:
    """The advice as one table; a measure that one advice lacks is None there."""
    names = [n for _, n, _, _ in MEASURES if any(e.name == n for a in advised for e in a.effects)]
    by_name = [{e.name: e for e in a.effects} for a in advised]
    now = [next(m[n].before for m in by_name if n in m) for n in names]
    advised = [a for a in advised if a.effects]
    by_name = [m for m in by_name if m]
    rows = [(a, [m.get(n) for n in names]) for a, m in zip(advised, by_name, strict=True)]
    return Comparison(names, now, rows)


def advice(analysis: Mapping[str, Any]) -> list[Advised]:
    """The advice of an analysis in its order."""
    latency = analysis.get("latency") or {}
    withheld = {
        f"{name}.{point}"
        for name in ("ttft_s", "e2e_s")
        for point in ("p50", "p99")
        if is_withheld(latency, name, point)
    }
    return [_advised(a, withheld) for a in analysis.get("advice") or []]


def label_of(advised: Mapping[str, Any]) -> str:
    """The flag, or where there is none the settings: "--max-num-seqs 12", "replicas = 2"."""
    if advised.get("flag"):
        return visible(str(advised["flag"]))
    pairs = (advised.get("set") or {}).items()
    return visible(", ".join(f"{k} = {setting(v)}" for k, v in pairs)) or "no change"


def _advised(advised: Mapping[str, Any], withheld: Set[str]) -> Advised:
    before, after = advised.get("baseline") or {}, advised.get("scenario") or {}
    flag = advised.get("flag")
    return Advised(
        label=label_of(advised),
        flag=visible(str(flag)) if flag else None,
        cost=COSTS.get(str(advised.get("cost")), ""),
        why=visible(str(advised.get("why") or "")),
        trade=visible(str(advised.get("trade") or "")),
        basis=str(advised.get("basis") or ("replayed" if after else "rule")),
        effects=[
            replace(e, before="withheld", after="") if path in withheld else e
            for path, name, form, less in MEASURES
            if (e := _effect(before, after, path, name, form, less))
        ],
    )


def _at(side: Mapping[str, Any], path: str) -> float | None:
    value: Any = side
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def _effect(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str, name: str, form: Any, less_is_better: bool
) -> Effect | None:
    old, new = _at(before, path), _at(after, path)
    if old is None and new is None:
        return None
    sense = "same"
    if old is not None and new is not None and abs(new - old) > SAME * max(abs(old), 1e-9):
        sense = "better" if (new < old) == less_is_better else "worse"
    return Effect(name, form(old), form(new), change(old, new), sense)


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
        if any((side.get(label) or 0.0) >= SHOWN_S for side in (slow, typical))
        or (total.get(label) or 0.0) >= SHOWN_TOTAL_S
    ]


def _in_seconds(value: float | None, places: int) -> str:
    """One unit for a whole column, so that its numbers can be compared."""
    return NOT_VISIBLE if value is None else f"{value:,.{places}f} s"


def ledger_bars(ledger: Mapping[str, Any]) -> list[Bar]:
    """The slow and the typical requests as two bars of one scale; none without a replay."""
    sides = [("Slow requests", ledger.get("slow_s") or {}), ("Typical requests", ledger.get("typical_s") or {})]
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
                segments.append((label, round(at, 2), length, f"{words}: {duration(value)}"))
                at += length
        bars.append(Bar(name, duration(whole), segments))
    return bars
