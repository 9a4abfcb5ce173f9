"""A finding: one thing worth saying, with its evidence. What findings and verdicts there are stands in `docs/contract.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl

__all__ = ["SEVERITIES", "Evidence", "Finding", "by_severity", "evidence_of", "proof", "seconds"]

MAX_EVIDENCE = 5

SEVERITIES = ("critical", "warning", "info")
"""The contract's severities, worst first."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the log: `text` may be empty where the line holds what a client sent; `time` is the record's, on its own clock."""

    source: str
    line: int
    text: str
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """`id` and `severity` are the contract's; `proves` names the verdict that this finding settles by itself, if any."""

    id: str
    severity: str
    basis: str
    title: str
    start: datetime | None = None
    end: datetime | None = None
    evidence: tuple[Evidence, ...] = ()
    proves: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, else in their order; that a server is overloaded comes before what it is short of."""

    def key(finding: Finding) -> tuple[int, bool]:
        known = finding.severity in SEVERITIES
        return SEVERITIES.index(finding.severity) if known else len(SEVERITIES), finding.id != "overload"

    return sorted(findings, key=key)


def proof(
    verdict: str,
    title: str,
    span: tuple[datetime | None, datetime | None],
    evidence: tuple[Evidence, ...],
    facts: dict[str, Any] | None = None,
) -> Finding:
    """A critical finding that the log itself proves and that settles the verdict of the same name; `span` is its start and end."""
    start, end = span
    return Finding(verdict, "critical", "measured", title, start, end, evidence, verdict, facts or {})


def evidence_of(
    frame: pl.DataFrame, texts: Mapping[tuple[str, int], str], limit: int = MAX_EVIDENCE
) -> tuple[Evidence, ...]:
    """The first, the last and some rows in between, as evidence; `texts` holds the lines that were kept while reading."""
    clock = next((name for name in ("at", "time", "end") if name in frame.columns), None)
    rows = frame.select("source", "line", pl.col(clock) if clock else pl.lit(None)).rows()
    picked = (
        rows if len(rows) <= limit else [rows[round(i * (len(rows) - 1) / max(1, limit - 1))] for i in range(limit)]
    )
    return tuple(Evidence(s, n, texts.get((s, n), ""), t) for s, n, t in picked)


def seconds(times: Iterable[datetime | None]) -> tuple[datetime | None, datetime | None]:
    """The earliest and latest of some times."""
    known = [t for t in times if t is not None]
    return (min(known), max(known)) if known else (None, None)
