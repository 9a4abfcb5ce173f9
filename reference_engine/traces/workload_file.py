"""What a reader hands on, and how a bad row is named: `Workload`, `Row`, `bad_row`.

The lines of a workload file, unpacked by content (gzip) and decoded; the only place that opens files.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from reference_engine.model.errors import WorkloadError
from reference_engine.model.request import Request
from reference_engine.traces.config_file import Setup, finite_number, short_repr

__all__ = ["Row", "Workload", "finish_workload", "json_rows", "lines_of", "open_text", "parse_json"]


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
        number = finite_number(value)
        if number is None:
            raise self.error(f"{key} is {short_repr(value)}, not a finite number")
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
            raise self.error(f"{key} is {short_repr(value)}, not a whole number")
        return value

    def _value(self, key: str, default: float | None) -> Any:
        value = self.fields.get(key)
        if value is None or value == "":
            if default is None:
                raise self.error(f"no {key}")
            return default
        return value


def finish_workload(source: str, name: str, requests: Iterable[Request], notes: tuple[str, ...] = ()) -> Workload:
    """A workload in order of arrival (equal times keep the file's order). Raises when it holds no request."""
    ordered = tuple(sorted(requests, key=lambda request: request.arrival_s))
    if not ordered:
        raise WorkloadError(f"{source}: no requests")
    return Workload(source, name, ordered, notes=notes)


_GZIP = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as text (UTF-8, byte-order mark dropped).

    Raises `WorkloadError` for a file that is missing, no file, cut short, or not text.
    """
    name = str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise WorkloadError(f"{name}: a pipe or a device; copy it to a file first")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as raw:
            begin = raw.read(2)
            if begin is None:  # a file of the kernel's that gives nothing now
                raise WorkloadError(f"{name}: gives nothing to read")
            packed = begin == _GZIP
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(stream, encoding="utf-8-sig", newline=None) as text:
                yield text
    except FileNotFoundError:
        raise WorkloadError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise WorkloadError(f"{name}: is a folder; name the files in it") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{name}: not text (UTF-8), so no workload file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise WorkloadError(f"{name}: the compressed file is damaged or cut short") from None
    except OSError as error:
        raise WorkloadError(f"{name}: {error.strerror or error}") from None


def lines_of(text: TextIO) -> Iterator[tuple[int, str]]:
    """Numbered lines (from 1) that are not blank."""
    for number, line in enumerate(text, start=1):
        if line.strip():
            yield number, line


def parse_json(source: str, number: int, text: str) -> Any:
    """One JSON document; the error names the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = number + error.lineno - 1
        raise WorkloadError(f"{source}: line {at}: not JSON ({error.msg})") from None
    except ValueError:
        raise WorkloadError(f"{source}: line {number}: a number of thousands of digits") from None
    except RecursionError:
        raise WorkloadError(f"{source}: line {number}: nested too deep") from None


def json_rows(source: str, text: TextIO) -> Iterator[Row]:
    """The objects of a JSON Lines file."""
    for number, line in lines_of(text):
        record = parse_json(source, number, line.strip())
        if not isinstance(record, dict):
            raise WorkloadError(f"{source}: line {number}: not a JSON object")
        yield Row(source, number, record)
