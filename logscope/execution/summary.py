"""Several servers side by side: which of them suffer, and one analysis for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from logscope.analysis import Analysis, EngineResult, worst_of
from logscope.diagnosis.verdict import RANK

__all__ = ["server_rows", "servers_of"]


def server_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """One row a server, the worst first: what its worst engine says, and preemptions summed over its engines and starts.

    Keys: server, names (its sources), verdict, pressure, engines, imbalance (the finding's title or None), preemptions (value),
    p99_e2e_s, p99_ttft_s, worst_engine (index into `engines[]` of the document).
    """
    rows = [_row(analysis, server, part) for server, part in _by_server(analysis).items()]
    return sorted(rows, key=_badness)


def servers_of(analysis: Analysis) -> dict[int, Analysis]:
    """The analysis of each server alone, by number; the counts of what was read stay those of all."""
    found = {}
    for server, part in _by_server(analysis).items():
        frames = {
            family: own
            for family, frame in analysis.data.frames.items()
            if (own := frame.filter(pl.col("server") == server)).height
        }
        results = tuple(result for _, result in part)
        found[server] = replace(
            analysis,
            data=replace(analysis.data, frames=frames),
            engines=results,
            worst=worst_of(results),
            total_preemptions=None,
            latency=None,
        )
    return found


def _by_server(analysis: Analysis) -> dict[int, list[tuple[int, EngineResult]]]:
    found: dict[int, list[tuple[int, EngineResult]]] = {}
    for index, result in enumerate(analysis.engines):
        found.setdefault(result.log.facts.server, []).append((index, result))
    return found


def _row(
    analysis: Analysis, server: int, part: Sequence[tuple[int, EngineResult]]
) -> dict[str, Any]:
    worst = worst_of([result for _, result in part]) or 0
    index, result = part[worst]
    answer = result.answer
    latency = (result.latency or (answer.latency if answer is not None else None)) or {}
    counts = [r.preemptions.value for _, r in part if r.preemptions.value is not None]
    uneven = [f.title for _, r in part for f in r.findings if f.id == "engine-imbalance"]
    return {
        "server": server,
        "names": _names(analysis, server),
        "verdict": result.verdict,
        "pressure": result.pressure,
        "engines": len(part),
        "imbalance": uneven[0] if uneven else None,
        "preemptions": sum(counts) if counts else None,
        "p99_e2e_s": (latency.get("e2e_s") or {}).get("p99"),
        "p99_ttft_s": (latency.get("ttft_s") or {}).get("p99"),
        "worst_engine": index,
    }


def _names(analysis: Analysis, server: int) -> list[str]:
    """The sources in which the server speaks, in the order of the input; pod or unit where an envelope names it."""
    own: set[str] = set()
    places: set[str] = set()
    for frame in analysis.data.frames.values():
        part = frame.filter(pl.col("server") == server)
        own |= set(part["source"].unique().to_list())
        for name in ("pod", "unit", "container"):
            places |= set(part[name].drop_nulls().unique().to_list())
    return sorted(places) or [s for s in analysis.data.coverage.sources if s in own]


def _badness(row: Mapping[str, Any]) -> tuple[int, float, float, int]:
    rank = RANK.index(row["verdict"]) if row["verdict"] in RANK else len(RANK)
    return rank, -(row["p99_e2e_s"] or 0.0), -(row["preemptions"] or 0.0), row["server"]
