"""Metric samples, collected as series: what every form in which metrics come is read into."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["WANTED", "Labels", "Point", "Samples", "plain_name"]

Labels = tuple[tuple[str, str], ...]
Point = tuple["float | None", float]
"""Time (seconds since the epoch, UTC; None where the source has none) and value."""

_HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "vllm:request_queue_time_seconds",
)
WANTED = frozenset(
    (
        "vllm:num_preemptions_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum", "count")),
    )
)
"""The metrics that are kept, by their newest names."""

# Names of earlier versions (V0, and V1 before 0.11), and of exporters that lose the colon or put a word before it.
_OLDER = {
    "vllm:num_preemptions": "vllm:num_preemptions_total",
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
}
_VLLM = re.compile(r"(?:ray_)?vllm[:_](?P<rest>[A-Za-z0-9_]+)$")


def plain_name(name: str) -> str | None:
    """The newest name of a vLLM metric, None for another's."""
    found = _VLLM.match(name)
    if found is None:
        return None
    plain = f"vllm:{found['rest']}"
    return _OLDER.get(plain, plain)


@dataclass(slots=True)
class Samples:
    """Series of the wanted metrics in the order in which they came; `vllm` counts all of vLLM's samples, `bad` what could not be read."""

    series: dict[tuple[str, Labels], list[Point]] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    vllm: int = 0
    bad: int = 0

    def add(self, name: str, labels: Mapping[str, str], time: float | None, value: float) -> None:
        """Take one sample; what is no vLLM metric is passed over, what is no number counted."""
        plain = plain_name(name)
        if plain is None:
            return
        if not math.isfinite(value):
            self.bad += 1
            return
        self.vllm += 1
        if plain in WANTED:
            key = (plain, tuple(sorted(labels.items())))
            self.series.setdefault(key, []).append((time, value))

    def of(self, name: str) -> list[tuple[dict[str, str], list[Point]]]:
        """The series of a metric, each in the order of time where all its times are known."""
        found = []
        for (known, labels), points in self.series.items():
            if known == name:
                if all(time is not None for time, _ in points):
                    points = sorted(points, key=lambda p: p[0] or 0.0)
                found.append((dict(labels), points))
        return found
