"""Hands what a monitor says to a screen and to a stream of JSON lines, and tells the monitor of the time that passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TextIO

from logscope.live.monitor import Monitor, Notice
from logscope.output.events import to_json

__all__ = ["Publisher", "Screen"]

REDRAW_S = 0.25


class Screen(Protocol):
    """What shows notices to people."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def tell(self, notices: Sequence[Notice]) -> None:
        """Show notices."""

    def refresh(self) -> None:
        """Draw the state as it is now."""


class Publisher:
    """Hands notices to the screen and to the JSON stream, and the time that passes to the monitor."""

    def __init__(
        self,
        monitor: Monitor,
        screen: Screen,
        out: TextIO | None,
        *,
        told: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor, self._screen, self._out, self._told = monitor, screen, out, told
        self._clock = clock
        self._drawn = 0.0

    def timed(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        """The chunks, with the pauses between them told to the monitor."""
        before = self._clock()
        for chunk in chunks:
            now = self._clock()
            if chunk is None:
                self.tell(self._monitor.quiet(now - before))
                self._told = True  # what was there when it began is read
            before = now
            if now - self._drawn >= REDRAW_S:
                self._drawn = now
                self._screen.refresh()
            yield chunk

    def tell(self, notices: list[Notice]) -> None:
        """Tell some notices, unless only what is new is wanted and this is not."""
        if not self._told or not notices:
            return
        self._screen.tell(notices)
        if self._out is not None:
            for notice in notices:
                self._out.write(to_json(notice.document()) + "\n")
            self._out.flush()

    def finish(self, *, told: bool) -> None:
        """The summary."""
        self._told = told
        self.tell(self._monitor.finish())
