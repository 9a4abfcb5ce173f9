"""Workloads in other tools' formats: CSV traces, and what vLLM's own benchmark reads and writes.

CSV: Azure LLM inference, Vidur, BurstGPT, told apart by their column names. Benchmark: dataset rows (custom, Spec-Bench,
ShareGPT), which hold text and no times, so that lengths are estimated and a note of the workload says so; and results of
`vllm bench serve --save-result --save-detailed` with the true lengths and, since 0.11, each request's start (vLLM:
vllm/benchmarks/datasets, vllm/benchmarks/serve.py; before 0.10 benchmarks/benchmark_serving.py).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TextIO

from reference_engine.model import WorkloadError
from reference_engine.model.request import Request
from reference_engine.traces.config_file import finite_number
from reference_engine.traces.workload_file import Row, Workload, finish_workload

__all__ = [
    "CSV_FORMATS",
    "CsvFormat",
    "csv_format_of",
    "is_dataset_row",
    "is_result",
    "read_csv",
    "read_dataset",
    "read_result",
]

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


# English text in the usual byte-pair vocabularies of 32,000 to 150,000 entries: about four characters a token.
_CHARACTERS_PER_TOKEN = 4
# Default of --custom-output-len and --spec-bench-output-len.
_DEFAULT_OUTPUT_TOKENS = 256
_AT_ONCE = "no arrival times: all requests arrive at once (request rate inf, the benchmark's default)"
_ESTIMATED = f"lengths are estimated from the text, {_CHARACTERS_PER_TOKEN} characters a token"


def is_dataset_row(record: Any) -> bool:
    """Whether an object is a row of a benchmark dataset."""
    return isinstance(record, dict) and any(key in record for key in ("prompt", "turns", "conversations", "prompt_len"))


def is_result(record: Any) -> bool:
    """Whether an object is the benchmark's result file (detailed or not)."""
    return isinstance(record, dict) and "total_input_tokens" in record and "duration" in record


def read_dataset(source: str, rows: Iterable[Row]) -> Workload:
    """One request a row: `prompt_len` and `output_len` where they are given (or `prompt_tokens`, `output_tokens`), else
    the lengths of `prompt`, `turns[0]` or the first two `conversations`. ShareGPT entries with fewer than two turns are
    passed over as the benchmark does.
    """
    requests: list[Request] = []
    notes: dict[str, None] = {_AT_ONCE: None}
    for row in rows:
        lengths = _row_lengths(row, notes)
        if lengths is not None:
            prompt, output = lengths
            requests.append(Request(id=len(requests), prompt_tokens=prompt, output_tokens=output))
    return finish_workload(source, "benchmark-dataset", requests, tuple(notes))


def _row_lengths(row: Row, notes: dict[str, None]) -> tuple[int, int] | None:
    fields = row.fields
    texts: tuple[Any, Any]
    if "conversations" in fields:
        turns = fields["conversations"]
        if not isinstance(turns, list):
            raise row.error("conversations is not a list")
        if len(turns) < 2:
            return None
        texts = (_turn_text(row, turns[0]), _turn_text(row, turns[1]))
    elif "turns" in fields:
        turns = fields["turns"]
        if not isinstance(turns, list) or not turns:
            raise row.error("turns is not a list of texts")
        texts = (turns[0], None)
    else:
        texts = (fields.get("prompt"), fields.get("completion"))
    prompt = _length(row, ("prompt_len", "prompt_tokens", "input_length"), texts[0], notes)
    output = _length(row, ("output_len", "output_tokens", "expected_output_len"), texts[1], notes)
    if prompt is None:
        raise row.error("neither a prompt nor its length")
    if output is None:
        notes[f"no output lengths: {_DEFAULT_OUTPUT_TOKENS} tokens each, the benchmark's default"] = None
        output = _DEFAULT_OUTPUT_TOKENS
    return prompt, output


def _turn_text(row: Row, turn: Any) -> Any:
    if isinstance(turn, dict):
        return turn.get("value", turn.get("content"))
    raise row.error("a turn of conversations is not an object")


def _length(row: Row, keys: tuple[str, ...], text: Any, notes: dict[str, None]) -> int | None:
    for key in keys:
        if row.fields.get(key) is not None:
            return row.count(key)
    if isinstance(text, list):  # a prompt of token ids
        return max(1, len(text))
    if text is None:
        return None
    if not isinstance(text, str):
        raise row.error("the prompt or the answer is not text")
    notes[_ESTIMATED] = None
    return max(1, math.ceil(len(text) / _CHARACTERS_PER_TOKEN))


def read_result(source: str, record: Mapping[str, Any]) -> Workload:
    """The requests that a benchmark run sent; failed ones (no output) are left out.

    Arrivals are the recorded starts, or evenly spaced at the run's request rate, or all at once.
    """
    prompts, outputs = record.get("input_lens"), record.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(outputs, list):
        raise WorkloadError(
            f"{source}: the result has no input_lens and output_lens: run the benchmark with --save-detailed"
        )
    if len(prompts) != len(outputs):
        raise WorkloadError(f"{source}: {len(prompts)} input_lens but {len(outputs)} output_lens")
    arrivals, note = _arrivals(source, record, len(prompts))
    requests = []
    failed = 0
    for position, (prompt, output, arrival) in enumerate(zip(prompts, outputs, arrivals, strict=True)):
        row = Row(source, 1, {"input_lens": prompt, "output_lens": output, "start_times": arrival})
        if row.count("output_lens", least=0) == 0:
            failed += 1
            continue
        requests.append(
            Request(
                id=position,
                prompt_tokens=row.count("input_lens"),
                output_tokens=row.count("output_lens"),
                arrival_s=row.number("start_times"),
            )
        )
    notes = [note] if note else []
    if failed:
        notes.append(f"{failed} failed requests (no output tokens) are left out")
    return finish_workload(source, "benchmark-result", requests, tuple(notes))


def _arrivals(source: str, record: Mapping[str, Any], count: int) -> tuple[list[float], str | None]:
    starts = record.get("start_times")
    if isinstance(starts, list) and len(starts) == count and count:
        times = [number for start in starts if (number := finite_number(start)) is not None]
        if len(times) < count:
            raise WorkloadError(f"{source}: start_times holds something that is no time")
        first = min(times)
        return [start - first for start in times], None
    rate = finite_number(record.get("request_rate")) or 0.0
    if rate > 0:
        return [
            number / rate for number in range(count)
        ], f"no start times: arrivals are spaced evenly at the run's {rate:g} requests a second"
    return [0.0] * count, _AT_ONCE
