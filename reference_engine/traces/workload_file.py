"""What a reader hands on, and how a bad row is named: `Workload`, `Row`, `bad_row`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reference_engine.model.errors import WorkloadError
from reference_engine.model.workload import Request
from reference_engine.traces.config_file import Setup

__all__ = ["Row", "Workload", "finish_workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of one file. `setup` is None where the file holds no configuration.

    `format` names the reader; `notes` are sentences on what the file does not say and what was taken instead.
    """

    source: str
    format: str
    requests: tuple[Request, ...]
    setup: Setup | None = None
    notes: tuple[str, ...] = ()

    @property
    def by_step(self) -> bool:
        """Whether arrivals are given in steps, so that the replay needs no clock."""
        return all(request.arrival_step is not None for request in self.requests)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file with typed, checked access; every error is a `WorkloadError` that names source and line."""

    source: str
    line: int
    fields: Mapping[str, Any]

    def error(self, what: str) -> WorkloadError:
        """The error to raise for this row."""
        return WorkloadError(f"{self.source}: line {self.line}: {what}")

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self._value(key, default)
        number = _number(value)
        if number is None:
            raise self.error(f"{key} is {_shown(value)}, not a number")
        if not math.isfinite(number):
            raise self.error(f"{key} is {number}, not a finite number")
        if number < 0:
            raise self.error(f"{key} is {number:g}, it must not be negative")
        return number

    def count(self, key: str, least: int = 1, default: int | None = None) -> int:
        """A whole number of at least `least`."""
        value = self.number(key, default)
        if value != int(value):
            raise self.error(f"{key} is {value:g}, not a whole number")
        if value < least:
            raise self.error(f"{key} is {value:g}, it must be at least {least}")
        return int(value)

    def whole(self, key: str, default: int) -> int:
        """A whole number of either sign (priorities)."""
        value = self.fields.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key} is {_shown(value)}, not a whole number")
        return value

    def _value(self, key: str, default: float | None) -> Any:
        value = self.fields.get(key)
        if value is None or value == "":
            if default is None:
                raise self.error(f"no {key}")
            return default
        return value


def finish_workload(
    source: str, name: str, requests: Iterable[Request], notes: tuple[str, ...] = ()
) -> Workload:
    """A workload in order of arrival (equal times keep the file's order). Raises when it holds no request."""
    ordered = tuple(sorted(requests, key=lambda request: request.arrival_s))
    if not ordered:
        raise WorkloadError(f"{source}: no requests")
    return Workload(source, name, ordered, notes=notes)


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float, str)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
