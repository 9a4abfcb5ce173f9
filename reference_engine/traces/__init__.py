"""Readers of workload files: golden traces, requests beside a configuration, public traces, vLLM's benchmark files.

`read_workload` finds the format by the content and gives a `Workload`; `write_requests` writes the format that is ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from reference_engine.model import WorkloadError
from reference_engine.traces.golden import is_golden_header, read_golden
from reference_engine.traces.public_traces import (
    csv_format_of,
    is_dataset_row,
    is_result,
    read_csv,
    read_dataset,
    read_result,
)
from reference_engine.traces.workload_file import (
    MOST_AT_ONCE,
    Row,
    Workload,
    json_rows,
    lines_of,
    open_text,
    parse_json,
    read_mooncake,
    read_requests,
    write_requests,
)

__all__ = ["Workload", "read_workload", "write_requests"]

_KNOWN = (
    "golden traces, requests as JSON Lines (prompt_tokens, output_tokens, arrival_s), Mooncake JSON Lines, "
    "Azure, Vidur and BurstGPT CSV, vLLM benchmark datasets and detailed results"
)


def read_workload(path: str | Path) -> Workload:
    """Read one workload file, `.gz` or not, of any known format.

    Raises `WorkloadError`: one sentence with the file, the line where there is one, and what is wrong.
    """
    source = str(path)
    with open_text(Path(path)) as text:
        first = next(lines_of(text), None)
    if first is None:
        raise WorkloadError(f"{source}: empty, no requests")
    read = _reader_of(source, *first)
    with open_text(Path(path)) as text:
        return read(source, text)


def _reader_of(source: str, number: int, line: str) -> Callable[[str, TextIO], Workload]:
    start = line.lstrip()[:1]
    if start == "{":
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            # One document over several lines, or one line that is broken: reading it whole tells which.
            return _read_document
        return _reader_of_object(source, number, record)
    if start == "[":
        return _read_document
    form = csv_format_of(line)
    if form is not None:
        return lambda name, text: read_csv(name, text, form)
    raise WorkloadError(f"{source}: line {number}: no known workload format; known: {_KNOWN}")


def _reader_of_object(source: str, number: int, record: Any) -> Callable[[str, TextIO], Workload]:
    if is_golden_header(record):
        return read_golden
    if is_result(record):
        return _read_document
    if "timestamp" in record and "input_length" in record:
        return read_mooncake
    if "arrival_s" in record or "arrival_step" in record or "request_id" in record:
        return read_requests
    if is_dataset_row(record):
        return lambda name, text: read_dataset(name, json_rows(name, text))
    if "prompt_tokens" in record:
        return read_requests
    raise WorkloadError(
        f"{source}: line {number}: an object with {_keys(record)} is no known workload row; known: {_KNOWN}"
    )


def _read_document(source: str, text: TextIO) -> Workload:
    """A file that is one JSON document: a benchmark result, or a list of dataset rows."""
    content = text.read(MOST_AT_ONCE + 1)
    if len(content) > MOST_AT_ONCE:
        raise WorkloadError(
            f"{source}: a JSON document of more than {MOST_AT_ONCE >> 20} MiB; give its requests as JSON Lines"
        )
    document = parse_json(source, 1, content)
    if is_result(document):
        return read_result(source, document)
    if isinstance(document, list) and all(is_dataset_row(record) for record in document):
        return read_dataset(source, _list_rows(source, document))
    raise WorkloadError(f"{source}: this JSON document is no known workload; known: {_KNOWN}")


def _list_rows(source: str, records: list[Any]) -> Iterator[Row]:
    # Lines of a pretty-printed list mean little, so the position in the list stands for them.
    for position, record in enumerate(records, start=1):
        yield Row(source, position, record)


def _keys(record: dict[str, Any]) -> str:
    return ", ".join(sorted(record)[:5]) or "no keys"
