"""The events that an analysis looks at, in bounded memory: a family with a row for each request or step is thinned once it is large."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from logscope.log.kept_rows import LARGE_FAMILIES, MARK, Orders, marked, thinned
from logscope.log.stored_rows import StoredRows, StoredWriter
from parsers.reading.columns import Lean
from parsers.reading.events import Event
from parsers.reading.frames import FrameBuilder

__all__ = ["AnalysisRows", "ThinRows", "Wanted"]

Wanted = Literal["findings", "replay", "frames"]
"""What is to be done with the rows: `findings` need those that stand for all, a `replay` some columns of any span, `frames` everything."""

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
        self._large: dict[str, ThinRows] = {}
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

    def add_frame(self, family: str, lean: Lean) -> None:
        """Take numbered events of a family; later than any frame before."""
        if family == "stats":
            self._stats_orders.append(lean.frame["order"].to_numpy())
        super().add_frame(family, lean)
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
            large = self._large[family] = ThinRows(family, store)
        large.take(pl.concat(older), self._orders())

    def _orders(self) -> Orders:
        """The statistics lines' places so far."""
        if len(self._stats_orders) > 1:
            self._stats_orders = [np.concatenate(self._stats_orders)]
        return (
            np.sort(self._stats_orders[0], kind="stable")
            if self._stats_orders
            else np.empty(0, np.int64)
        )


class ThinRows:
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
            frame = marked(frame, stats)
        self._thin.append(thinned(self.family, frame))
        if sum(map(len, self._thin)) > 2 * self._least + STEP:
            self._again()

    def frame(self) -> pl.DataFrame:
        """The rows that stand for all."""
        self._again()
        return self._thin[0].drop(MARK, strict=False)

    def _again(self) -> None:
        self._thin = [thinned(self.family, pl.concat(self._thin))]
        self._least = len(self._thin[0])
