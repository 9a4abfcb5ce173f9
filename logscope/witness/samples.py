"""Prometheus' text exposition and OpenMetrics: one scrape, or several one after the other.

A sample that comes again is the next scrape's, so that `while sleep 10; do date -Is; curl …/metrics; done > file` needs nothing more.
A line that is a time alone (ISO 8601 or seconds since the epoch) is that of the samples after it.

Metric samples, collected as series: what every form in which metrics come is read into.

Metrics as JSON: an answer of Prometheus' HTTP API (`query_range`, `query`), or one scrape a line with its time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from logscope.sanitize import LAST_SECOND, believed_number, json_document

__all__ = [
    "WANTED",
    "Labels",
    "Point",
    "Samples",
    "looks_like_exposition",
    "plain_name",
    "read_exposition",
    "read_json",
]
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
_OLDER = {"vllm:num_preemptions": "vllm:num_preemptions_total", "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc"}
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

    def add(self, name: str, labels: Mapping[str, str], time: Any, value: Any) -> None:
        """Take one sample; what is no vLLM metric is passed over, a value or a time that cannot be believed is counted in `bad`."""
        plain = plain_name(name)
        if plain is None:
            return
        number, at = believed_number(value), None if time is None else believed_number(time, most=LAST_SECOND)
        if number is None or (at is None and time is not None):
            self.bad += 1
            return
        self.vllm += 1
        if plain in WANTED:
            key = (plain, tuple(sorted(labels.items())))
            self.series.setdefault(key, []).append((at, number))

    def of(self, name: str) -> list[tuple[dict[str, str], list[Point]]]:
        """The series of a metric, each in the order of time where all its times are known."""
        found = []
        for (known, labels), points in self.series.items():
            if known == name:
                if all(time is not None for time, _ in points):
                    points = sorted(points, key=lambda p: p[0] or 0.0)
                found.append((dict(labels), points))
        return found


# vllm:num_preemptions_total{engine="0",model_name="m"} 12.0 1795993597141
_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[^\s{}]+)(?:\s+(?P<time>-?[\d.]+))?\s*$"
)
_LABEL = re.compile(r'\s*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_LONGEST = 16_384
_EPOCHS = (1e9, 1e11)  # seconds since the epoch of 2001 to 5138; larger ones are milliseconds


def looks_like_exposition(text: str) -> bool:
    """Whether the first lines are metrics."""
    lines = [x for x in text[:100_000].split("\n")[:2000] if x.strip()]
    return any(x.startswith(("# HELP ", "# TYPE ")) or _SAMPLE.match(x) for x in lines[:200])


def read_exposition(text: str, samples: Samples) -> None:
    """Add the samples of a text; lines that are none are counted in `samples.bad`."""
    at: float | None = None
    for line in text.split("\n"):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if (time := _time_alone(line)) is not None:
            at = time
            continue
        if not _sample(line, at, samples):
            samples.bad += 1


def _sample(line: str, at: float | None, samples: Samples) -> bool:
    if len(line) > _LONGEST:
        return False
    line = _without_exemplar(line)
    found = _SAMPLE.match(line)
    if found is None:
        return False
    labels = _labels(found["labels"] or "")
    value = _number(found["value"])
    if labels is None or value is None:
        return False
    time = _number(found["time"]) if found["time"] else None
    samples.add(found["name"], labels, at if time is None else _seconds(time), value)
    return True


def _without_exemplar(line: str) -> str:
    """OpenMetrics may append ` # {trace_id="…"} 0.5`; a `#` in a label stands within quotes, before the brace closes."""
    at = line.rfind(" # {")
    return line[:at] if at > line.find("}") >= 0 or (at > 0 and "{" not in line[:at]) else line


def _labels(text: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip()):
        label = _LABEL.match(text, at)
        if label is None:
            return None
        found[label["name"]] = _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], label["value"])
        at = label.end()
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(time: float) -> float:
    """Prometheus writes milliseconds, OpenMetrics seconds."""
    return time / 1000 if abs(time) > _EPOCHS[1] else time


def _time_alone(line: str) -> float | None:
    number = _number(line)
    if number is not None:
        return _seconds(number) if number >= _EPOCHS[0] else None
    if len(line) > 40 or not line[:4].isdecimal():
        return None
    try:
        when = datetime.fromisoformat(line.replace("Z", "+00:00"))
        return (when if when.tzinfo is not None else when.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


# vllm:request_success_total[length], or with labels in braces as Prometheus writes them
_KEY = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\[(?P<word>[^\]]*)\]|\{(?P<labels>[^}]*)\})?$")
_ANSWERS_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]{0,199})="([^"]*)"')
_TIMES = ("ts", "time", "timestamp")


def read_json(text: str, samples: Samples) -> None:
    """Add the samples of one JSON document, or of one document a line; what is none of the forms is counted in `samples.bad`."""
    try:
        documents: Iterable[Any] = [json_document(text)]
    except ValueError:
        documents = _by_line(text, samples)
    for document in documents:
        for part in document if isinstance(document, list) else [document]:
            if not isinstance(part, dict):
                samples.bad += 1
            elif "data" in part and isinstance(part["data"], dict):
                _answer(part["data"], samples)
            elif "resultType" in part:
                _answer(part, samples)
            else:
                _scrape(part, samples)


def _by_line(text: str, samples: Samples) -> Iterable[Any]:
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            yield json_document(line)
        except ValueError:
            samples.bad += 1


def _answer(data: dict[str, Any], samples: Samples) -> None:
    """`matrix` has `values`, `vector` one `value`; a result without a name came of an expression and is passed over."""
    result = data.get("result")
    for series in result if isinstance(result, list) else []:
        metric = series.get("metric") if isinstance(series, dict) else None
        if not isinstance(metric, dict):
            samples.bad += 1
            continue
        labels = {str(k): str(v) for k, v in metric.items()}
        name = labels.pop("__name__", None)
        points = series.get("values", [series.get("value")])
        if name is None or not isinstance(points, list):
            samples.bad += 1
            continue
        for point in points:
            if not _point(name, labels, point, samples):
                samples.bad += 1


def _point(name: str, labels: dict[str, str], point: Any, samples: Samples) -> bool:
    try:
        time, value = point
    except (TypeError, ValueError):
        return False
    if time is None:
        return False
    samples.add(name, labels, time, value)
    return True


def _scrape(scrape: dict[str, Any], samples: Samples) -> None:
    time = next((scrape[k] for k in _TIMES if isinstance(scrape.get(k), (int, float))), None)
    nested = scrape.get("metrics")
    for key, value in (nested if isinstance(nested, dict) else scrape).items():
        found = _KEY.match(key)
        if found is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            samples.bad += key not in _TIMES
            continue
        labels = dict(_ANSWERS_LABEL.findall(found["labels"] or ""))
        if found["word"]:
            labels["label"] = found["word"]
        samples.add(found["name"], labels, time, value)
