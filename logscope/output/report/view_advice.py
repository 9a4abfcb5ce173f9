"""The advice in words: each flag with the predicted effect on both sides of its trade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logscope.safe import visible
from logscope.wording import change, count, rate, seconds, setting

__all__ = ["Advised", "Comparison", "Effect", "advice", "compared", "label_of"]

COST = {"free": "no more hardware", "gpu": "needs more GPUs"}

# path in a whatif side, name, form, whether less is better, the least change worth a colour
MEASURES: tuple[tuple[str, str, Any, bool], ...] = (
    ("e2e_s.p99", "E2E p99", seconds, True),
    ("e2e_s.p50", "E2E p50", seconds, True),
    ("ttft_s.p99", "TTFT p99", seconds, True),
    ("ttft_s.p50", "TTFT p50", seconds, True),
    ("itl_s.p99", "ITL p99", seconds, True),
    ("generation_tokens_per_s", "Throughput", rate, False),
    ("preemptions", "Preemptions", count, True),
    ("recomputed_tokens", "Recomputed", count, True),
)
SAME = 0.03  # a change below this is within what two runs of the same thing differ by


@dataclass(frozen=True, slots=True)
class Effect:
    """One measure before and after. `sense`: better, worse or same."""

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
    rows = [(a, [m.get(n) for n in names]) for a, m in zip(advised, by_name, strict=True)]
    return Comparison(names, now, rows)


def advice(analysis: Mapping[str, Any]) -> list[Advised]:
    """The advice of an analysis in its order."""
    return [_advised(a) for a in analysis.get("advice") or []]


def label_of(advised: Mapping[str, Any]) -> str:
    """The flag, or where there is none the settings: "--max-num-seqs 12", "replicas = 2"."""
    if advised.get("flag"):
        return visible(str(advised["flag"]))
    pairs = (advised.get("set") or {}).items()
    return visible(", ".join(f"{k} = {setting(v)}" for k, v in pairs)) or "no change"


def _advised(advised: Mapping[str, Any]) -> Advised:
    before, after = advised.get("baseline") or {}, advised.get("scenario") or {}
    flag = advised.get("flag")
    return Advised(
        label=label_of(advised),
        flag=visible(str(flag)) if flag else None,
        cost=COST.get(str(advised.get("cost")), ""),
        why=visible(str(advised.get("why") or "")),
        trade=visible(str(advised.get("trade") or "")),
        effects=[
            e
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
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    path: str,
    name: str,
    form: Any,
    less_is_better: bool,
) -> Effect | None:
    old, new = _at(before, path), _at(after, path)
    if old is None and new is None:
        return None
    sense = "same"
    if old is not None and new is not None and abs(new - old) > SAME * max(abs(old), 1e-9):
        sense = "better" if (new < old) == less_is_better else "worse"
    return Effect(name, form(old), form(new), change(old, new), sense)
