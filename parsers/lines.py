"""What an envelope hands on: a payload line, and the facts of the envelope around it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Line", "Outer"]


@dataclass(frozen=True, slots=True)
class Outer:
    """The facts that an envelope (journal, container runtime, log shipper) gives about a line.

    `time_us` is UTC in microseconds since the epoch; a naive outer clock without zone is taken as UTC.
    """

    envelope: str
    time_us: int | None = None
    host: str | None = None
    unit: str | None = None
    pod: str | None = None
    container: str | None = None
    stream: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One payload line: `text` without its line end, `number` the physical line (from 1) at which it starts."""

    number: int
    text: str
    outer: Outer | None = None
