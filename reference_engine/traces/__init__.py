"""Readers of workload files: golden traces, requests beside a configuration, public traces, vLLM's benchmark files.

`read_workload` finds the format by the content and gives a `Workload`; `write_requests` writes the format that is ours.
"""

from __future__ import annotations

from reference_engine.traces.json_lines import write_requests
from reference_engine.traces.read import read_workload
from reference_engine.traces.workload_file import Workload

__all__ = ["Workload", "read_workload", "write_requests"]
