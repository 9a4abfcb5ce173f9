"""The golden trace format: a first line with configuration and requests, then one line a step.

`config_of` and `request_of` read what the first line holds, `step_record` turns a turn of the loop into a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference_engine.model.config_part import EngineConfig
from reference_engine.model.errors import WorkloadError
from reference_engine.model.step import Iteration
from reference_engine.model.workload import Request

__all__ = ["config_of", "request_of", "step_record"]

_CONFIG_NAMES = {"async": "async_scheduling"}


def config_of(
    record: Mapping[str, Any], engine: str = "vllm-v1", version: str = "0.33.0"
) -> EngineConfig:
    """A `config` object of a trace as a configuration. Unknown keys are passed over, null means the default.

    Raises:
        WorkloadError: it is no object, or `num_blocks` is missing.
    """
    if not isinstance(record, Mapping):
        raise WorkloadError(f"the configuration is no object: {record!r}")
    fields = {_CONFIG_NAMES.get(key, key): value for key, value in record.items()}
    known = {
        key: value
        for key, value in fields.items()
        if key in EngineConfig.__dataclass_fields__ and value is not None
    }
    known.setdefault("engine", engine)
    known.setdefault("version", version)
    if "num_blocks" not in known:
        raise WorkloadError("the configuration does not say num_blocks")
    return EngineConfig(**known)


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
        )
    except (KeyError, TypeError, ValueError) as error:
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
            "hit": {str(key): tokens for key, tokens in step.hits.items()},
            "swapout": step.swapped_out,
            "swapin": step.swapped_in,
            "swapped": step.swapped,
            "ignored": step.ignored,
        }
        record.update({key: value for key, value in optional.items() if value})
        record.update(
            run=step.running, wait=step.waiting, nct=step.num_computed, free=step.free_blocks
        )
    record["tok"] = None if outcome is None else outcome.tokens
    if outcome is not None:
        if outcome.finished:
            record["fin"] = outcome.finished
        record["free_end"] = outcome.free_blocks
    return record
