"""Lines of numbers: the periodic statistics and the engine's steps. Each has few shapes, and only its numbers change."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from parsers.reading.in_bulk.block import Block, Hole, Mask, Rows, Shape, shape_of
from parsers.reading.in_bulk.parts import Column, Part

__all__ = ["KnownGauges", "gauges"]

_MOST_SHAPES = 64
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_WHOLE = "[0-9]{1,18}"
_STEP = (
    r"(?:Engine (?P<engine>[0-9]{1,9}): )?Iteration\("
    rf"(?P<iteration>{_WHOLE})\): (?P<context_requests>{_WHOLE}) context requests, "
    rf"(?P<context_tokens>{_WHOLE}) context tokens, (?P<generation_requests>{_WHOLE}) generation requests, "
    rf"(?P<generation_tokens>{_WHOLE}) generation tokens, iteration elapsed time: (?P<elapsed_ms>{_NUMBER}) ms"
    rf"(?P<dummy> \(dummy\))?(?:, (?P<device>[A-Za-z]{{1,20}}) KV cache usage: (?P<gpu_kv_cache_usage_pct>{_NUMBER})%"
    rf"(?:, encoder inputs: (?P<encoder_inputs>{_WHOLE}), encoder output embeddings: (?P<encoder_output_embeddings>{_WHOLE}))?)?"
)
_RATES = (
    rf"Avg prompt throughput: (?P<prompt_throughput>{_NUMBER}) tokens/s, "
    rf"Avg generation throughput: (?P<generation_throughput>{_NUMBER}) tokens/s, Running: (?P<running>{_WHOLE}) reqs, "
)
_V1_STATS = (
    rf"Engine (?P<engine>[0-9]{{1,9}}): {_RATES}Waiting: (?P<waiting>{_WHOLE}) reqs, "
    rf"(?:Deferred: (?P<deferred>{_WHOLE}) reqs, )?(?P<device>[A-Z]{{3}}) KV cache usage: (?P<gpu_kv_cache_usage_pct>{_NUMBER})%"
    rf"(?:, Prefix cache hit rate: (?P<prefix_cache_hit_rate_pct>{_NUMBER})%)?"
    rf"(?:, External prefix cache hit rate: (?P<external_prefix_cache_hit_rate_pct>{_NUMBER})%)?"
    rf"(?:, MM cache hit rate: (?P<mm_cache_hit_rate_pct>{_NUMBER})%)?\.?"
)
_V0_STATS = (
    rf"{_RATES}Swapped: (?P<swapped>{_WHOLE}) reqs, Pending: (?P<waiting>{_WHOLE}) reqs, "
    rf"GPU KV cache usage: (?P<gpu_kv_cache_usage_pct>{_NUMBER})%, CPU KV cache usage: (?P<cpu_kv_cache_usage_pct>{_NUMBER})%\.?"
)
_PATTERNS = {"iteration": (re.compile(_STEP),), "stats": (re.compile(_V1_STATS), re.compile(_V0_STATS))}


class _Gauge(NamedTuple):
    """One shape, and what is the same in all lines that have it."""

    shape: Shape
    columns: dict[str, Column]


@dataclass(slots=True)
class KnownGauges:
    """The shapes seen so far in a source, by family."""

    by_family: dict[str, list[_Gauge]] = field(default_factory=dict)


def gauges(block: Block, rows: Rows, message: int, family: str, known: KnownGauges) -> tuple[list[Part], Mask]:
    """The lines of numbers of a family (`stats`, `iteration`), and which rows were read."""
    places, ends = block.starts[rows] + message, block.ends[rows]
    parts: list[Part] = []
    left = np.arange(len(rows))

    def take(gauge: _Gauge) -> bool:
        nonlocal left
        found = gauge.shape.find(block, places[left], ends[left])
        if not len(found.which):
            return False
        values = {name: pl.Series(value) for name, value in found.values.items()}
        parts.append(Part(rows[left[found.which]], {**gauge.columns, **values}))
        left = np.delete(left, found.which)
        return True

    shapes = known.by_family.setdefault(family, [])
    for gauge in shapes:
        if len(left):
            take(gauge)
    while len(left) and len(shapes) < _MOST_SHAPES:
        at = int(left[0])
        seen = _gauge_of(block.stretch(int(places[at]), int(ends[at])), family)
        if seen is None or not take(seen):
            break
        shapes.append(seen)
    done = np.ones(len(rows), np.bool_)
    done[left] = False
    return parts, done


def _gauge_of(text: bytes, family: str) -> _Gauge | None:
    if not text.isascii():
        return None
    message = text.decode()
    found = next((f for p in _PATTERNS[family] if (f := p.fullmatch(message))), None)
    if found is None:
        return None
    holes = [
        Hole(name, *found.span(name), fraction="." in value)
        for name, value in found.groupdict().items()
        if value is not None and name not in ("engine", "device", "dummy")
    ]
    shape = shape_of(text, holes)
    if shape is None:
        return None
    said = found.groupdict()
    columns: dict[str, Column] = {"variant": _variant(said)}
    if said.get("engine") is not None:
        columns["engine"] = int(said["engine"])
    if said.get("device") is not None:
        columns["device"] = said["device"]
    if family == "iteration":
        columns["dummy"] = said["dummy"] is not None
    return _Gauge(shape, columns)


def _variant(said: dict[str, str | None]) -> str:
    if "iteration" in said:
        return "v1_iter_core" if said["engine"] is None else "v1_iter_logger"
    if "swapped" in said:
        return "v0_stats_line"
    marks = (
        ("deferred", "v1_multi.deferred"),
        ("external_prefix_cache_hit_rate_pct", "v1_multi.external"),
        ("mm_cache_hit_rate_pct", "v1_multi.mm"),
    )
    return next((name for mark, name in marks if said[mark] is not None), "v1_stats_engine")
