"""Workload files: opened (the only place that does), unpacked (gzip), decoded, each bad row named.

Read and written here: requests as JSON Lines beside a configuration file, the format that is ours. Read here: Mooncake's JSON Lines
(`timestamp` in ms, `input_length`, `output_length`, `hash_ids`). A hash id names 512 tokens together with everything before them, so
two prompts share exactly as long as their ids agree.
"""

from __future__ import annotations

import errno
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

from reference_engine.model import WorkloadError
from reference_engine.model.request import Request
from reference_engine.traces.config_file import Setup, finite_number, short_repr

__all__ = [
    "HASH_TOKENS",
    "MOST_AT_ONCE",
    "Row",
    "Workload",
    "finish_workload",
    "json_rows",
    "lines_of",
    "open_text",
    "parse_json",
    "read_mooncake",
    "read_requests",
    "write_requests",
]


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
MOST_AT_ONCE = 1 << 28
"""Bytes of a line, and characters of a document: no workload has longer ones, and a decompression bomb takes no more memory."""


class _Bounded(io.BufferedIOBase):
    """A stream without endless lines. Raises OSError at the first."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._unended = stream, 0

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        found: bytes = self._stream.read1(size)
        end = found.rfind(b"\n")
        self._unended = len(found) - end - 1 if end >= 0 else self._unended + len(found)
        if self._unended > MOST_AT_ONCE:
            raise OSError(errno.EFBIG, f"a line of more than {MOST_AT_ONCE >> 20} MiB; this is no workload file")
        return found


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
            stream: Any = _Bounded(gzip.GzipFile(fileobj=raw) if packed else raw)
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


def read_requests(source: str, text: TextIO) -> Workload:
    """Rows of `request_id` (default: the row's position), `arrival_s` or `arrival_step`, `prompt_tokens`,
    `output_tokens`, and optionally `priority`, `abort_s`, `prefix_id` with `prefix_tokens`: the prompt begins with that
    many tokens which all requests with the same `prefix_id` share.
    """
    seen: dict[int | str, int] = {}
    requests = []
    for position, row in enumerate(json_rows(source, text)):
        request = _request(row, position)
        if request.id in seen:
            raise row.error(f"request_id {request.id!r} was used before, on line {seen[request.id]}")
        seen[request.id] = row.line
        requests.append(request)
    if any(request.arrival_step is not None for request in requests):
        requests.sort(key=lambda request: request.arrival_step or 0)
    return finish_workload(source, "requests", requests)


def _request(row: Row, position: int) -> Request:
    request_id = row.fields.get("request_id", position)
    if isinstance(request_id, bool) or not isinstance(request_id, (int, str)):
        raise row.error("request_id is neither text nor a whole number")
    tokens = row.count("prompt_tokens")
    step = row.fields.get("arrival_step")
    return Request(
        id=request_id,
        prompt_tokens=tokens,
        output_tokens=row.count("output_tokens"),
        arrival_s=row.number("arrival_s") if step is None else 0.0,
        arrival_step=None if step is None else row.count("arrival_step", least=0),
        priority=row.whole("priority", 0),
        prompt=_prompt(row, request_id, tokens),
        abort_s=None if row.fields.get("abort_s") is None else row.number("abort_s"),
    )


def _prompt(row: Row, request_id: int | str, tokens: int) -> tuple[tuple[str, int], ...] | None:
    prefix = row.fields.get("prefix_id")
    if prefix is None:
        return None
    if isinstance(prefix, (dict, list, bool)):
        raise row.error("prefix_id is neither text nor a number")
    shared = row.count("prefix_tokens", least=0)
    if shared > tokens:
        raise row.error(f"prefix_tokens is {shared}, more than prompt_tokens ({tokens})")
    parts = ((f"prefix:{prefix}", shared), (f"own:{request_id!r}", tokens - shared))
    return tuple(part for part in parts if part[1] > 0)


def write_requests(out: TextIO, requests: Iterable[Request]) -> None:
    """Write requests so that `read_requests` gives them back. Of a shared prompt only the first stream is kept."""
    for request in requests:
        prefix = request.prompt[0] if request.prompt else None
        shared = prefix is not None and prefix[0].startswith("prefix:")
        row = {
            "request_id": request.id,
            "arrival_s": request.arrival_s,
            "arrival_step": request.arrival_step,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "priority": request.priority,
            "prefix_id": prefix[0].removeprefix("prefix:") if prefix and shared else None,
            "prefix_tokens": prefix[1] if prefix and shared else 0,
            "abort_s": request.abort_s,
        }
        if request.arrival_step is None:
            del row["arrival_step"]
        out.write(json.dumps(row, allow_nan=False) + "\n")


HASH_TOKENS = 512


def read_mooncake(source: str, text: TextIO) -> Workload:
    """One request a row, numbered in the file's order; rows without `hash_ids` share nothing.

    An `output_length` of 0 counts as 1: a server gives at least one token.
    """
    return finish_workload(
        source, "mooncake", (_mooncake_request(row, number) for number, row in enumerate(json_rows(source, text)))
    )


def _mooncake_request(row: Row, number: int) -> Request:
    tokens = row.count("input_length")
    return Request(
        id=number,
        prompt_tokens=tokens,
        output_tokens=max(1, row.count("output_length", least=0)),
        arrival_s=row.number("timestamp") / 1000,
        prompt=_mooncake_prompt(row, number, tokens),
    )


def _mooncake_prompt(row: Row, number: int, tokens: int) -> tuple[tuple[str, int], ...] | None:
    ids = row.fields.get("hash_ids")
    if ids is None or ids == []:
        return None
    if not isinstance(ids, list) or not all(type(value) is int for value in ids):
        raise row.error("hash_ids is not a list of whole numbers")
    if (len(ids) - 1) * HASH_TOKENS >= tokens:
        raise row.error(f"{len(ids)} hash_ids are too many for {tokens} tokens of {HASH_TOKENS} each")
    segments = []
    left = tokens
    for value in ids:
        segments.append((f"h{value}", min(HASH_TOKENS, left)))
        left -= HASH_TOKENS
    if left > 0:
        segments.append((f"own:{number}", left))
    return tuple(segments)
