"""How the independent parts of one piece of work are done: one after the other, or by several at the same time.

A `Spread` maps a function over items and gives the results in their order, as `logscope.execution.executors` do; who does what does not
change a result. Function and items can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

__all__ = ["Spread", "in_turn"]

T = TypeVar("T")
R = TypeVar("R")


class Spread(Protocol):
    """Maps a function over items."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """The results, in the order of `items`."""


def in_turn(function: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
    """Each when it is asked for, here."""
    return map(function, items)
