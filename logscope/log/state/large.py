"""Large families of a state folder: they are thinned out of their segments, without being in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from logscope.log import analysis_rows
from logscope.log.analysis_rows import ThinRows
from logscope.log.kept_rows import LARGE_FAMILIES
from logscope.log.stored_rows import Numbers

__all__ = ["Place", "large_families", "places_in", "places_of", "thin_frames"]

_ROWS = 50_000

Place = tuple[int, str, int]
"""A server, a source in which it speaks, and the first `order` there."""


def large_families(folder: Path, segments: Sequence[str]) -> dict[str, list[Path]]:
    """The families whose segments together have too many rows for the memory, with those segments."""
    found: dict[str, list[Path]] = {}
    for name in segments:
        family = name.split(".")[-2]
        if family in LARGE_FAMILIES:
            found.setdefault(family, []).append(folder / name)
    return {f: files for f, files in found.items() if sum(map(_rows, files)) >= analysis_rows.LARGE}


def places_in(rows: pl.LazyFrame) -> list[Place]:
    """Who speaks where, and from when on."""
    by = rows.group_by("server", "source").agg(pl.col("order").min())
    return list(by.collect(engine="streaming").iter_rows())


def places_of(large: Mapping[str, Sequence[Path]]) -> Iterator[Place]:
    """`places_in` of all segments."""
    for files in large.values():
        for file in files:
            yield from places_in(pl.scan_parquet(file))


def thin_frames(
    large: Mapping[str, Sequence[Path]], numbers: Numbers, stats: pl.DataFrame | None
) -> dict[str, pl.DataFrame]:
    """The rows that stand for all, by family (see `logscope.log.kept_rows`)."""
    orders = np.empty(0, np.int64) if stats is None else stats["order"].to_numpy()
    found = {}
    for family, files in large.items():
        thin = ThinRows(family)
        for file in files:
            rows = numbers.of(pl.scan_parquet(file))
            for at in range(0, _rows(file), _ROWS):
                thin.take(rows.slice(at, _ROWS).collect(), orders)
        found[family] = thin.frame()
    return found


def _rows(file: Path) -> int:
    return int(pl.scan_parquet(file).select(pl.len()).collect().item())
