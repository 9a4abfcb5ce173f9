"""JSON around a log line: Docker's json-file, log shippers and stores, and JSON formatters.

Docker json-file (`log`, `stream`, `time`), journalctl -o json, fluentd and Fluent Bit, Loki (jsonl, query
answers, Grafana's download), CloudWatch (events, Logs Insights), Google Cloud entries, Elasticsearch hits,
Splunk, stern -o json; and what a JSON formatter in the process wrote: vLLM's own (0.32 on, keys `asctime
levelname name processName process message`) or python-json-logger's under a logging configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime

from parsers.envelopes.form import Clock, Unwrapped, looks_like_record
from parsers.envelopes.system_log import journal_entry
from parsers.lines import JsonRecord, Outer, json_without_lone_surrogates, later

__all__ = ["entries", "from_line", "parse"]

_TEXT_KEYS = ("log", "message", "msg", "MESSAGE", "textPayload", "@message", "line", "_raw", "Body", "body")
_TIME_KEYS = ("time", "timestamp", "@timestamp", "ts", "_time", "date", "Timestamp", "observedTimestamp")
_RECORD_TIMES = ("asctime", "time", "timestamp", "@timestamp", "ts", "datetime", "created", "date")
_LOGGER_KEYS = ("name", "logger", "logger_name", "loggerName")
_LEVELS = {"DEBUG": "DEBUG", "INFO": "INFO", "WARN": "WARNING", "WARNING": "WARNING", "ERR": "ERROR"}
_LEVELS |= {"ERROR": "ERROR", "CRITICAL": "CRITICAL", "FATAL": "CRITICAL"}
_NESTED_TEXT = ("jsonPayload", "attributes", "_source", "result", "content", "fields", "structured")
_FACT_PLACES = ("kubernetes", "labels", "stream", "attributes", "resource", "metadata", "logStream")
_DOCKER_KEYS = frozenset({"log", "stream", "time", "attrs"})
_NAIVE = later(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_DEPTH = 6

_Json = Mapping[str, object]


def parse(text: str) -> object:
    """The JSON value of a text, or None when it is none (or nested too deeply)."""
    try:
        return json.loads(json_without_lone_surrogates(text))
    except (ValueError, RecursionError):
        return None


def from_line(text: str, clock: Clock) -> list[Unwrapped]:
    """The entries in one line of JSON (also with the marks of json-sse and json-seq); empty when there is none."""
    if text[0] == "\x1e":
        text = text[1:]
    elif text.startswith("data: {"):
        text = text[6:]
    value = parse(text.rstrip().rstrip(","))
    return list(entries(value, clock)) if isinstance(value, (dict, list)) else []


def entries(value: object, clock: Clock, depth: int = 0) -> Iterator[Unwrapped]:
    """The log entries in a JSON value, in its order: an object that is one, or a document that holds several."""
    if depth > _DEPTH:
        return
    if isinstance(value, dict):
        entry = _entry(value, clock)
        if entry is not None:
            yield entry
            return
        if isinstance(value.get("values"), list):
            yield from _loki_stream(value, clock)
            return
        for inner in value.values():
            if isinstance(inner, (dict, list)):
                yield from entries(inner, clock, depth + 1)
    elif isinstance(value, list):
        row = _insights_row(value)
        if row is not None:
            yield from entries(row, clock, depth + 1)
            return
        for inner in value:
            if isinstance(inner, (dict, list)):
                yield from entries(inner, clock, depth + 1)


def _loki_stream(value: _Json, clock: Clock) -> Iterator[Unwrapped]:
    """`{"stream": {labels}, "values": [["1778262423906000000", "line"], ...]}` of a Loki query's answer."""
    rows = value["values"]
    facts = _facts(value)
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) >= 2 and isinstance(row[1], str):
            yield Unwrapped(Outer("loki", clock.any(row[0]), *facts), row[1])


def _insights_row(value: list[object]) -> dict[str, object] | None:
    """`[{"field": "@message", "value": "..."}, ...]` of CloudWatch Logs Insights as one object."""
    row: dict[str, object] = {}
    for cell in value:
        if not isinstance(cell, dict) or not isinstance(cell.get("field"), str) or "value" not in cell:
            return None
        row[cell["field"]] = cell["value"]
    return row or None


def _entry(value: _Json, clock: Clock, depth: int = 0) -> Unwrapped | None:
    """The entry that an object is, or None."""
    if "MESSAGE" in value and any(key.startswith("_") for key in value):
        return journal_entry(value, clock, "journal-json")
    log = value.get("log")
    if isinstance(log, str) and _DOCKER_KEYS.issuperset(value) and len(value) > 1:
        outer = Outer("docker-json", clock.any(value.get("time")), stream=_text(value.get("stream")))
        return Unwrapped(outer, log, partial=not log.endswith("\n"))
    record = _formatter_record(value, clock)
    if record is not None:
        return record
    return _shipped(value, clock, depth)


def _shipped(value: _Json, clock: Clock, depth: int) -> Unwrapped | None:
    text = next((t for key in _TEXT_KEYS if (t := _plain(value.get(key))) is not None), None)
    if text is None:
        for key in _NESTED_TEXT:
            nested = value.get(key)
            if isinstance(nested, dict) and depth < _DEPTH:
                peeled = _entry(nested, clock, depth + 1)
                if peeled is not None:
                    return _with_facts(peeled, value, clock)
        return None
    return Unwrapped(Outer(_shipper(value), _time(value, clock), *_facts(value)), text)


def _with_facts(peeled: Unwrapped, value: _Json, clock: Clock) -> Unwrapped:
    """An entry nested in another object, with that object's time and names where it has none itself."""
    own = peeled.outer
    time_us = _time(value, clock)
    outer = Outer(_shipper(value), time_us if own.time_us is None else own.time_us, *_facts(value))
    return peeled._replace(outer=outer.completed(own))


def _time(value: _Json, clock: Clock) -> int | None:
    return next((t for key in _TIME_KEYS if (t := clock.any(value.get(key))) is not None), None)


def _plain(value: object) -> str | None:
    """A text, also as OpenTelemetry writes it."""
    if isinstance(value, dict):
        value = value.get("stringValue")
    return value if isinstance(value, str) else None


def _shipper(value: _Json) -> str:
    if "textPayload" in value or "jsonPayload" in value or "logName" in value:
        return "gcp"
    if "line" in value and "labels" in value:
        return "loki"
    if "@message" in value or "ingestionTime" in value or "logStreamName" in value:
        return "cloudwatch"
    if "podName" in value:
        return "stern"
    return "ndjson"


_Facts = tuple["str | None", "str | None", "str | None", "str | None", "str | None"]


def _facts(value: _Json) -> _Facts:
    """Host, unit, pod, container, stream, wherever a shipper puts them."""
    places: list[_Json] = [value]
    for key in _FACT_PLACES:
        place = value.get(key)
        if isinstance(place, dict):
            places.append(place)
            inner = place.get("labels")
            if isinstance(inner, dict):
                places.append(inner)

    def first(*keys: str) -> str | None:
        return next((t for place in places for key in keys if (t := _text(place.get(key)))), None)

    return (
        first("_HOSTNAME", "host", "hostname", "nodeName", "node_name"),
        first("_SYSTEMD_UNIT", "unit", "systemd_unit"),
        first("pod_name", "podName", "pod", "k8s.pod.name"),
        first("container_name", "containerName", "container", "k8s.container.name", "logStreamName", "@logStream"),
        first("stream", "log.iostream"),
    )


def _text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("name")
    return value if isinstance(value, str) and value else None


def _formatter_record(value: _Json, clock: Clock) -> Unwrapped | None:
    """What a JSON formatter inside the server wrote: it has a level and a logger's name."""
    level = next((t for k in ("levelname", "level", "severity") if (t := _text(value.get(k)))), None)
    logger = next((t for key in _LOGGER_KEYS if (t := _text(value.get(key)))), None)
    message = next((m for k in ("message", "msg", "event") if isinstance(m := value.get(k), str)), None)
    if message is None or level is None or level.upper() not in _LEVELS:
        return None
    if logger is None and "levelname" not in value:
        return None
    if looks_like_record(message):
        return None
    stamp = next((value[key] for key in _RECORD_TIMES if value.get(key) is not None), None)
    for key in ("exc_info", "stack_info"):
        if isinstance(more := value.get(key), str) and more:
            message += "\n" + more
    pid = next(
        (p for k in ("process", "pid", "process_id") if isinstance(p := value.get(k), int) and 0 <= p < 1 << 40), None
    )
    record = JsonRecord(
        _LEVELS[level.upper()],
        _naive(stamp, clock),
        logger,
        next((t for k in ("processName", "process_name") if (t := _text(value.get(k)))), None),
        pid,
        message,
    )
    zoned = isinstance(stamp, (int, float)) or (isinstance(stamp, str) and bool(_ZONE.search(stamp)))
    outer = Outer("vllm-json", clock.any(stamp) if zoned else None, *_facts(value))
    return Unwrapped(outer, message, record=record)


_ZONE = later(r"\d(?: ?Z|[+-]\d\d:?\d\d| UTC)\Z")


def _naive(stamp: object, clock: Clock) -> datetime | None:
    """A record's own clock without its zone."""
    try:
        if isinstance(stamp, str) and (found := _NAIVE.match(stamp)):
            year, month, day, hour, minute, second, fraction = found.groups()
            micros = int((fraction or "0").ljust(6, "0")[:6])
            moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), micros)
            return moment if 1 < moment.year < 9999 else None
        micros_since = clock.any(stamp)
        if micros_since is None:
            return None
        whole, micros = divmod(micros_since, 1_000_000)
        return datetime.fromtimestamp(whole, clock.zone).replace(microsecond=micros, tzinfo=None)
    except (ValueError, OverflowError, OSError):
        return None
