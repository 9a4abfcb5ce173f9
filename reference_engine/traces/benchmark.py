"""What vLLM's own benchmark reads and writes: dataset rows (custom, Spec-Bench, ShareGPT) and detailed results.

Dataset rows hold text and no times; lengths are then estimated, which a note of the workload says. Results of
`vllm bench serve --save-result --save-detailed` hold the true lengths and, since 0.11, each request's start.
(vLLM: vllm/benchmarks/datasets, vllm/benchmarks/serve.py; before 0.10 benchmarks/benchmark_serving.py.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from reference_engine.model.errors import WorkloadError
from reference_engine.model.request import Request
from reference_engine.traces.config_file import finite_number
from reference_engine.traces.workload_file import Row, Workload, finish_workload

__all__ = ["is_dataset_row", "is_result", "read_dataset", "read_result"]

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
