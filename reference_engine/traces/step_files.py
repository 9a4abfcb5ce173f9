"""Files of step decisions: one JSON line a step, in the form of the golden traces.

`step_file_name` says where the decisions for a workload file go, `write_steps` writes them as they are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from reference_engine.model.step import Iteration
from reference_engine.traces.golden import step_record

__all__ = ["step_file_name", "write_steps"]

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
