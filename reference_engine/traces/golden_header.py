"""Golden traces: a first line with configuration and requests; the steps after it are not read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TextIO

from reference_engine.model.errors import ConfigError, WorkloadError
from reference_engine.model.workload import Request
from reference_engine.traces.config_file import Setup, clock_of
from reference_engine.traces.golden import config_of, request_of
from reference_engine.traces.text_lines import lines_of, parse_json
from reference_engine.traces.workload_file import Workload

__all__ = ["is_golden_header", "read_golden"]


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
    if isinstance(arrival, bool) or not isinstance(arrival, (int, float)):
        raise WorkloadError(f"requests[{position}]: arrival_s is {arrival!r}, not a number")
    if not (math.isfinite(arrival) and arrival >= 0):
        raise WorkloadError(f"requests[{position}]: arrival_s is {arrival!r}, not a time")
    return replace(request, arrival_step=None, arrival_s=float(arrival))
