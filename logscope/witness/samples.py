"""Prometheus' text exposition and OpenMetrics: one scrape, or several one after the other.

A sample that comes again is the next scrape's, so that `while sleep 10; do date -Is; curl …/metrics; done > file` needs nothing more.
A line that is a time alone (ISO 8601 or seconds since the epoch) is that of the samples after it.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from logscope.witness.samples_part import Samples

__all__ = ["looks_like_exposition", "read_exposition"]

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
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return when.timestamp()
