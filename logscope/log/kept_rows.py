"""Representative rows, few for many: of a large family, those by which the findings tell what all its rows would tell them.

Kept are the first and last of each kind of row (whose it is, where it stands, what it shows of unsupported features), those with the
earliest and latest time, and those behind which no later time comes. Health probes are counted between statistics lines: the first
of them stays, and its `repeated` is their number (0 in rows that are kept for another reason).

The events that an analysis looks at, in bounded memory: a family with a row for each request or step is thinned once it is large.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from logscope.log.span import Wanted
from logscope.log.stored_rows import StoredRows, StoredWriter
from logscope.server.unsupported import GRAMMAR, POOLING_PATHS
from parsers.families.http import PROBE_PATHS, endpoint
from parsers.reading.events import Event
from parsers.reading.frames import CompactFrame, FrameBuilder

__all__ = ["LARGE_FAMILIES", "AnalysisRows", "RepresentativeRows", "representatives", "with_last_statistics"]
LARGE_FAMILIES = ("request", "http", "iteration")
"""The families with a row for each request or step; all others have few."""

MARK = "_mark"
_KIND = (
    *("server", "run", "engine_index", "source", "host", "unit", "pod", "container"),
    *("stream", "level", "variant"),
)
_UNUSED = {"http": ("client", "address", "event", "extra"), "request": ("prompt", "output", "extra")}
_BEAM, _POOLING = "BeamSearchParams(", "PoolingParams("

Orders = NDArray[np.int64]


def with_last_statistics(frame: pl.DataFrame, stats: Orders) -> pl.DataFrame:
    """The frame with the `order` of the last statistics line before each row, -1 where there is none (column `_mark`)."""
    orders = frame["order"].to_numpy()
    before = np.searchsorted(stats, orders, side="right") - 1
    marks = np.where(before >= 0, stats[np.maximum(before, 0)], -1) if len(stats) else before
    return frame.with_columns(pl.Series(MARK, marks, dtype=pl.Int64))


def representatives(family: str, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows that stand for a frame of a large family (of `http`: one that was `with_last_statistics`), in its order.

    Frames that were thinned and put together can be thinned again.
    """
    frame = frame.sort("order") if not frame["order"].is_sorted() else frame
    row = pl.int_range(pl.len(), dtype=pl.Int64).alias("_row")
    rows = frame.with_columns(row, *_signs(family))
    kept = _of_each_kind(rows, [*_KIND, *(n for n in rows.columns if n.startswith("_sign"))])
    kept |= _without_later(rows)
    if family == "http":
        return _with_counts(rows, kept, frame.columns)
    return _light(family, frame[sorted(kept)])


def _signs(family: str) -> list[pl.Expr]:
    """What `logscope.server.unsupported` looks for in single rows, and the device (`logscope.server.engines`)."""
    if family == "request":
        params = pl.col("params")
        signs = [
            pl.col("lora_request").is_not_null(),
            pl.col("n") > 1,
            params.str.starts_with(_BEAM),
            params.str.starts_with(_POOLING),
            params.str.contains(GRAMMAR),
        ]
    elif family == "http":
        signs = [(pl.col("status") == 200) & endpoint().is_in(POOLING_PATHS)]
    else:
        signs = [pl.col("device")]
    return [sign.alias(f"_sign{i}") for i, sign in enumerate(signs)]


def _of_each_kind(rows: pl.DataFrame, kind: list[str]) -> set[int]:
    row = pl.col("_row")
    empty = dict(zip(rows.columns, rows.null_count().row(0), strict=True))
    by = [name for name in kind if empty[name] < rows.height] or ["server"]
    picks = [row.first().alias("first"), row.last().alias("last")]
    for name in ("at", "outer_time"):
        if empty[name] < rows.height:
            picks.append(row.get(pl.col(name).arg_min()).alias(f"least_{name}"))
            picks.append(row.get(pl.col(name).arg_max()).alias(f"most_{name}"))
    found = rows.group_by(by).agg(picks).drop(by)
    return {int(i) for column in found.get_columns() for i in column.drop_nulls().to_list()}


def _without_later(rows: pl.DataFrame) -> set[int]:
    """The rows after which no time as late comes in the same start of a server."""
    if rows["time"].null_count() == rows.height:
        return set()
    latest = pl.col("time").reverse().cum_max().forward_fill().reverse().shift(-1)
    last = rows.select("_row", "time", later=latest.over("server", "run"))
    kept = last.filter(pl.col("time").is_not_null() & (pl.col("later").is_null() | (pl.col("time") > pl.col("later"))))
    return set(kept["_row"].to_list())


def _with_counts(rows: pl.DataFrame, kept: set[int], columns: list[str]) -> pl.DataFrame:
    is_probe = pl.col("path").is_in(PROBE_PATHS)
    counts = (
        rows.filter(is_probe)
        .group_by("server", "run", "path", MARK)
        .agg(pl.col("_row").first(), pl.col("repeated").sum().alias("_many"))
        .select("_row", "_many")
    )
    chosen = pl.concat((pl.Series("_row", sorted(kept), dtype=pl.Int64).to_frame(), counts.select("_row")))
    found = rows.join(chosen.unique(), on="_row", how="semi").join(counts, on="_row", how="left")
    many = pl.when(is_probe).then(pl.col("_many").fill_null(0)).otherwise(pl.col("repeated"))
    return _light("http", found.with_columns(many.cast(pl.Int32).alias("repeated")).select(columns))


def _light(family: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Without what no finding looks at, and with texts of its own: a row of a block's text would keep the whole block."""
    schema = frame.schema
    unused = [n for n in _UNUSED.get(family, ()) if n in schema]
    text = [n for n, dtype in schema.items() if dtype == pl.String() and n not in unused]
    return frame.with_columns(
        *(pl.lit(None, schema[name]).alias(name) for name in unused),
        *(pl.concat_str(pl.col(name), pl.lit("")).alias(name) for name in text),
    )


LARGE = 150_000
"""With so many rows a family is large."""
STEP = 50_000
"""So many more rows wait before they are thinned."""


class AnalysisRows(FrameBuilder):
    """Collects events as `FrameBuilder` does. Of a large family `frames` has the rows that stand for all of them (`logscope.log.kept_rows`).

    After `frames`, `stored` has all rows of the large families, unless they are only wanted for findings.
    """

    def __init__(self, wanted: Wanted = "replay") -> None:
        super().__init__()
        self._wanted = wanted
        self._large: dict[str, RepresentativeRows] = {}
        self._stats_orders: list[Orders] = []
        self._added = 0
        self.stored: dict[str, StoredRows] = {}

    def add(self, event: Event) -> None:
        """Take one event, in the order of the input."""
        if event.family == "stats":
            self._stats_orders.append(np.array([self._order]))
        super().add(event)
        self._added += 1
        if self._added % STEP == 0 and not self.awaits:
            for family in LARGE_FAMILIES:
                self._relieve(family)

    def add_frame(self, family: str, compact: CompactFrame) -> None:
        """Take numbered events of a family; later than any frame before."""
        if family == "stats":
            self._stats_orders.append(compact.frame["order"].to_numpy())
        super().add_frame(family, compact)
        if family in LARGE_FAMILIES:
            self._relieve(family)

    def taken(self, family: str) -> pl.DataFrame:
        """The events of a family, or those that stand for them; they are then no longer kept."""
        large = self._large.pop(family, None)
        if large is None:
            return super().taken(family)
        if self.waiting(family):
            large.take(super().taken(family), self._orders())
        if large.store is not None:
            self.stored[family] = large.store.rows()
        return large.frame()

    def _relieve(self, family: str) -> None:
        """Thin all but the newest frame: the statistics lines that stand between its rows may be still to come."""
        large = self._large.get(family)
        if self.waiting(family) < (LARGE if large is None else STEP):
            return
        *older, newest = self._done.get(family) or [pl.DataFrame()]
        if not older:
            return
        self._done[family] = [newest]
        if large is None:
            store = None
            if self._wanted != "findings":
                store = StoredWriter(family, whole=self._wanted == "frames")
            large = self._large[family] = RepresentativeRows(family, store)
        large.take(pl.concat(older), self._orders())

    def _orders(self) -> Orders:
        """The statistics lines' places so far."""
        if len(self._stats_orders) > 1:
            self._stats_orders = [np.concatenate(self._stats_orders)]
        return np.sort(self._stats_orders[0], kind="stable") if self._stats_orders else np.empty(0, np.int64)


class RepresentativeRows:
    """A large family: what stands for its rows, and the file that has all of them."""

    def __init__(self, family: str, store: StoredWriter | None = None) -> None:
        self.family, self.store = family, store
        self._thin: list[pl.DataFrame] = []
        self._least = 0

    def take(self, frame: pl.DataFrame, stats: Orders) -> None:
        """Take rows; `stats` are the places of all statistics lines between them."""
        if self.store is not None:
            self.store.append(frame)
        if self.family == "http":
            frame = with_last_statistics(frame, stats)
        self._thin.append(representatives(self.family, frame))
        if sum(map(len, self._thin)) > 2 * self._least + STEP:
            self._again()

    def frame(self) -> pl.DataFrame:
        """The rows that stand for all."""
        self._again()
        return self._thin[0].drop(MARK, strict=False)

    def _again(self) -> None:
        self._thin = [representatives(self.family, pl.concat(self._thin))]
        self._least = len(self._thin[0])
