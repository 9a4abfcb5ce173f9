"""The lines of a workload file, unpacked by content (gzip) and decoded; the only place that opens files."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from reference_engine.model.errors import WorkloadError
from reference_engine.traces.workload_file import Row

__all__ = ["json_rows", "lines_of", "open_text", "parse_json"]

_GZIP = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as text (UTF-8, byte-order mark dropped).

    Raises `WorkloadError` for a file that is missing, no file, cut short, or not text.
    """
    name = str(path)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
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
