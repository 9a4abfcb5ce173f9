"""Traces of lengths and times as CSV: Azure LLM inference, Vidur, BurstGPT; told apart by their column names."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TextIO

from reference_engine.model.errors import WorkloadError
from reference_engine.model.request import Request
from reference_engine.traces.workload_file import Row, Workload, finish_workload

__all__ = ["CSV_FORMATS", "CsvFormat", "csv_format_of", "read_csv"]

# 2023-11-16 18:15:46.6805900 or 2024-05-10T00:00:00.009930+00:00: up to nine decimals, zone optional.
_TIMESTAMP = re.compile(
    r"""(?x)
    (?P<day>\d{4}-\d\d-\d\d) [ T] (?P<time>\d\d:\d\d:\d\d)
    (?: \. (?P<decimals>\d{1,9}) )?
    (?: Z | (?P<zone>[+-]\d\d:\d\d) )?
    """
)


def _clock_time(row: Row, key: str) -> float:
    """A date and time as seconds; the zone matters, the absolute value does not."""
    value = str(row.fields.get(key) or "")
    found = _TIMESTAMP.fullmatch(value.strip())
    if found is None:
        raise row.error(f"{key} is {value[:40]!r}, not a date and time")
    try:
        moment = datetime.fromisoformat(f"{found['day']}T{found['time']}{found['zone'] or '+00:00'}")
    except ValueError:
        raise row.error(f"{key} is {value[:40]!r}, which no calendar has") from None
    since = moment - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return since / timedelta(seconds=1) + float(f"0.{found['decimals'] or 0}")


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """One format: the columns of arrival, prompt tokens and output tokens, and how the arrival is written."""

    name: str
    arrival: str
    prompt: str
    output: str
    read_arrival: Callable[[Row, str], float]
    from_first: bool


# Azure/AzurePublicDataset (2023, 2024), microsoft/vidur, HPMLL/BurstGPT.
CSV_FORMATS: tuple[CsvFormat, ...] = (
    CsvFormat("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _clock_time, True),
    CsvFormat("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens", Row.number, False),
    CsvFormat("burstgpt", "Timestamp", "Request tokens", "Response tokens", Row.number, True),
)


def csv_format_of(header: str) -> CsvFormat | None:
    """The format whose columns are all in a CSV header line."""
    try:
        columns = {name.strip() for name in next(csv.reader([header]), [])}
    except csv.Error:  # Python 3.10 refuses NULs
        return None
    for form in CSV_FORMATS:
        if {form.arrival, form.prompt, form.output} <= columns:
            return form
    return None


def read_csv(source: str, text: TextIO, form: CsvFormat) -> Workload:
    """One request a row. Requests without output tokens that BurstGPT keeps are failed ones and left out; elsewhere no
    output counts as one token, because a server gives at least one.
    """
    requests: list[Request] = []
    failed = 0
    for row in _rows(source, text):
        output = row.count(form.output, least=0)
        if output == 0 and form.name == "burstgpt":
            failed += 1
            continue
        requests.append(
            Request(
                id=len(requests),
                prompt_tokens=row.count(form.prompt),
                output_tokens=max(1, output),
                arrival_s=form.read_arrival(row, form.arrival),
            )
        )
    if form.from_first and requests:
        first = min(request.arrival_s for request in requests)
        # Rounded to the resolution of the sources: seconds since 1970 leave no exact microseconds in a float.
        requests = [replace(r, arrival_s=round(r.arrival_s - first, 6)) for r in requests]
    notes = (f"{failed} failed requests (no response tokens) are left out",) if failed else ()
    return finish_workload(source, form.name, requests, notes)


def _rows(source: str, text: TextIO) -> Iterator[Row]:
    reader = csv.reader(text)
    columns: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if columns is None:
                columns = [cell.strip() for cell in cells]
            elif len(cells) != len(columns):
                raise WorkloadError(
                    f"{source}: line {reader.line_num}: {len(cells)} cells where the header has {len(columns)}"
                )
            else:
                yield Row(source, reader.line_num, dict(zip(columns, cells, strict=True)))
    except csv.Error as error:
        raise WorkloadError(f"{source}: line {reader.line_num}: no CSV ({error})") from None
