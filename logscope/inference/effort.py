"""How an analysis is worked out, as one value that is handed on: `Effort`.

A `Mapper` maps a function over items and gives the results in their order, as `logscope.execution.executors` do; who does what does not
change a result. Function and items can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

__all__ = ["Effort", "Mapper", "serially"]

T = TypeVar("T")
R = TypeVar("R")


class Mapper(Protocol):
    """Maps a function over items."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results, in the order of `items`."""


def serially(function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
    """Each when it is asked for, here."""
    return map(function, items)


@dataclass(frozen=True, slots=True)
class Effort:
    """How one analysis is worked out: its chance, who is told of its progress, and who does what is independent of each other.

    `seed`: same input and seed, same answer; `progress` is called with the share that is done, 0 to 1; `map` does independent parts.
    """

    seed: int = 0
    progress: Callable[[float], None] | None = None
    map: Mapper = serially

    def report(self, share: float) -> None:
        """Tell the share that is done, where somebody listens."""
        if self.progress is not None:
            self.progress(share)

    def part(self, index: int, of: int) -> Effort:
        """The effort of one of several equal parts, whose progress is its share of the whole."""
        if self.progress is None:
            return self
        return replace(self, progress=lambda share: self.report((index + share) / of))
