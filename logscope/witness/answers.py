"""Metrics as JSON: an answer of Prometheus' HTTP API (`query_range`, `query`), or one scrape a line with its time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from logscope.witness.samples_part import Samples

__all__ = ["read_json"]

# vllm:request_success_total[length], or with labels in braces as Prometheus writes them
_KEY = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\[(?P<word>[^\]]*)\]|\{(?P<labels>[^}]*)\})?$"
)
_LABEL = re.compile(r'(?<![a-zA-Z0-9_])([a-zA-Z_][a-zA-Z0-9_]{0,199})="([^"]*)"')
_TIMES = ("ts", "time", "timestamp")


def read_json(text: str, samples: Samples) -> None:
    """Add the samples of one JSON document, or of one document a line; what is none of the forms is counted in `samples.bad`."""
    try:
        documents: Iterable[Any] = [json.loads(text)]
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
            yield json.loads(line)
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
        samples.add(name, labels, float(time), float(value))
    except (TypeError, ValueError):
        return False
    return True


def _scrape(scrape: dict[str, Any], samples: Samples) -> None:
    time = next((scrape[k] for k in _TIMES if isinstance(scrape.get(k), (int, float))), None)
    nested = scrape.get("metrics")
    for key, value in (nested if isinstance(nested, dict) else scrape).items():
        found = _KEY.match(key)
        if found is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            samples.bad += key not in _TIMES
            continue
        labels = dict(_LABEL.findall(found["labels"] or ""))
        if found["word"]:
            labels["label"] = found["word"]
        samples.add(found["name"], labels, time, float(value))
