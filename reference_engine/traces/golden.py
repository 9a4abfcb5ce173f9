"""The golden trace format: a first line with configuration and requests, then one line a step.

`config_of` and `request_of` read what the first line holds, `step_record` turns a turn of the loop into a line.

Golden traces: a first line with configuration and requests; the steps after it are not read.

Files of step decisions: one JSON line a step, in the form of the golden traces.

`step_file_name` says where the decisions for a workload file go, `write_steps` writes them as they are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from reference_engine.model import ConfigError, WorkloadError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Iteration
from reference_engine.traces.config_file import Setup, clock_of, finite_number, settings_of, short_repr
from reference_engine.traces.workload_file import Workload, lines_of, parse_json

__all__ = ["config_of", "is_golden_header", "read_golden", "request_of", "step_file_name", "step_record", "write_steps"]
_GROUPS_WERE_MADE_OF = ("layers", "mamba_cache_mode")
"""Keys that say what `kv_groups` was made of; the engine only needs the groups."""


def config_of(record: Mapping[str, Any], engine: str = "vllm-v1", version: str = "0.33.0") -> EngineConfig:
    """A `config` object of a trace as a configuration; null means the default.

    Raises:
        WorkloadError: it is no object, or `num_blocks` is missing.
        ConfigError: a key that the engine does not know, or a value of the wrong kind.
    """
    if not isinstance(record, Mapping):
        raise WorkloadError(f"the configuration is no object: {record!r}")
    document = {key: value for key, value in record.items() if key not in _GROUPS_WERE_MADE_OF}
    if document.get("retention_interval", 0) is None:
        document["retention_interval"] = "dense"
    settings = settings_of({"engine": engine, "version": version, **document})
    if "num_blocks" not in settings:
        raise WorkloadError("the configuration does not say num_blocks")
    return EngineConfig(**settings)


def request_of(record: Mapping[str, Any]) -> Request:
    """A `requests[]` object of a trace as a request.

    Raises:
        WorkloadError: a field is missing or of the wrong kind.
    """
    try:
        prompt = tuple((str(stream), int(length)) for stream, length in record["prompt"])
        return Request(
            id=record["id"],
            prompt_tokens=sum(length for _stream, length in prompt),
            output_tokens=int(record["max_tokens"]),
            arrival_step=record.get("arrival_step", 0),
            arrival_time=record.get("arrival_time"),
            priority=int(record.get("priority", 0)),
            prompt=prompt,
            accept=tuple(int(number) for number in record.get("accept") or ()),
            drafts=tuple(int(number) for number in record.get("drafts") or ()),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WorkloadError(f"a request of the trace cannot be read: {error!r}") from error


def step_record(iteration: Iteration) -> dict[str, Any]:
    """A turn of the loop as the object of a step line; empty lists and maps are left out where the format does."""
    step, outcome = iteration.step, iteration.outcome
    record: dict[str, Any] = {"s": iteration.number}
    if iteration.added:
        record["add"] = iteration.added
    if step is not None:
        record["n"] = {str(key): tokens for key, tokens in step.scheduled.items()}
        optional = {
            "pre": step.preempted,
            "new": step.new,
            "res": step.resumed,
            "spec": {str(key): drafts for key, drafts in step.drafts.items()},
            "hit": {str(key): tokens for key, tokens in step.hits.items()},
            "swapout": step.swapped_out,
            "swapin": step.swapped_in,
            "swapped": step.swapped,
            "ignored": step.ignored,
        }
        record.update({key: value for key, value in optional.items() if value})
        if step.group_blocks:
            record["gb"] = step.group_blocks
        record.update(run=step.running, wait=step.waiting, nct=step.num_computed_tokens, free=step.free_blocks)
    record["tok"] = None if outcome is None else outcome.tokens
    if outcome is not None:
        if outcome.accepted:
            record["acc"] = {str(key): accepted for key, accepted in outcome.accepted.items()}
        if outcome.delivered:
            record["got"] = {str(key): tokens for key, tokens in outcome.delivered.items()}
        if outcome.finished:
            record["fin"] = outcome.finished
        record["free_end"] = outcome.free_blocks
    return record


def is_golden_header(record: Any) -> bool:
    """Whether the first line is a header: configuration and requests in one object."""
    return isinstance(record, dict) and "config" in record and "requests" in record


def read_golden(source: str, text: TextIO) -> Workload:
    """Read the header. Requests arrive by `arrival_step`, or by seconds where all have `arrival_s` instead."""
    number, line = next(lines_of(text))
    header = parse_json(source, number, line)
    config, records = header["config"], header["requests"]
    if not isinstance(config, dict) or not isinstance(records, list):
        raise WorkloadError(f"{source}: line 1: config must be an object and requests a list")
    if not records:
        raise WorkloadError(f"{source}: no requests")
    try:
        engine = config_of(config, header.get("engine", "vllm-v1"), header.get("version", "0.33.0"))
        setup = Setup(engine, clock_of(config, engine.async_scheduling))
        requests = tuple(_request(position, record) for position, record in enumerate(records))
    except (ConfigError, WorkloadError) as error:
        raise WorkloadError(f"{source}: line 1: {error}") from None
    return Workload(source, "golden", requests, setup)


def _request(position: int, record: Any) -> Request:
    if not isinstance(record, dict):
        raise WorkloadError(f"requests[{position}] is not an object")
    request = request_of(record)
    arrival = record.get("arrival_s")
    if arrival is None or "arrival_step" in record:
        return request
    seconds = None if isinstance(arrival, str) else finite_number(arrival)
    if seconds is None or seconds < 0:
        raise WorkloadError(f"requests[{position}]: arrival_s is {short_repr(arrival)}, not a time")
    return replace(request, arrival_step=None, arrival_s=seconds)


_SUFFIXES = (".gz", ".jsonl", ".json", ".csv")
# Queues can be long and mostly stay as they are; readers carry the last one forward.
_WRITTEN_ON_CHANGE = ("run", "wait")


def step_file_name(workload: Path) -> str:
    """`<folder>__<name>.jsonl` for a workload file: its folder's name, and its own without `.jsonl.gz` and the like."""
    name = workload.name
    for suffix in _SUFFIXES:
        if len(name) > len(suffix):
            name = name.removesuffix(suffix)
    return f"{workload.absolute().parent.name}__{name}.jsonl"


def write_steps(out: TextIO, iterations: Iterable[Iteration]) -> Iterator[Iteration]:
    """Write each turn of the loop as a line and pass it on; `run` and `wait` only where they changed."""
    last: dict[str, Any] = {}
    for iteration in iterations:
        record = step_record(iteration)
        for key in _WRITTEN_ON_CHANGE:
            value = record.get(key)
            if value is None:
                continue
            if last.get(key) == value:
                del record[key]
            else:
                last[key] = list(value)
        out.write(json.dumps(record, separators=(",", ":")) + "\n")
        yield iteration
