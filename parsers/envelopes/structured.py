"""JSON around a log line: Docker's json-file, log shippers and stores, and JSON formatters.

Docker json-file (`log`, `stream`, `time`), journalctl -o json, fluentd and Fluent Bit, Loki (jsonl, query
answers, Grafana's download), CloudWatch (events, Logs Insights), Google Cloud entries, Elasticsearch hits,
Splunk, stern -o json; and what a JSON formatter in the process wrote: vLLM's own (0.32 on, keys `asctime
levelname name processName process message`) or python-json-logger's under a logging configuration.

In bulk: JSON around the lines of a block is learnt from one line, then found in all others by one pattern. Which of its texts is
the log line is tried, and which others say something (time, stream, pod); the rest (cursors, counters) may be anything of their kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parsers.envelopes.form import Clock, Peeled, looks_like_record
from parsers.envelopes.system_log import journal_entry
from parsers.lines import Heads, JsonRecord, Outer, json_without_lone_surrogates

__all__ = ["JsonForm", "TakenOff", "entries", "from_line", "json_form", "parse"]

_TEXT_KEYS = ("log", "message", "msg", "MESSAGE", "textPayload", "@message", "line", "_raw", "Body", "body")
_TIME_KEYS = ("time", "timestamp", "@timestamp", "ts", "_time", "date", "Timestamp", "observedTimestamp")
_RECORD_TIMES = ("asctime", "time", "timestamp", "@timestamp", "ts", "datetime", "created", "date")
_LOGGER_KEYS = ("name", "logger", "logger_name", "loggerName")
_LEVELS = {"DEBUG": "DEBUG", "INFO": "INFO", "WARN": "WARNING", "WARNING": "WARNING", "ERR": "ERROR"}
_LEVELS |= {"ERROR": "ERROR", "CRITICAL": "CRITICAL", "FATAL": "CRITICAL"}
_NESTED_TEXT = ("jsonPayload", "attributes", "_source", "result", "content", "fields", "structured")
_FACT_PLACES = ("kubernetes", "labels", "stream", "attributes", "resource", "metadata", "logStream")
_DOCKER_KEYS = frozenset({"log", "stream", "time", "attrs"})
_NAIVE = re.compile(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_DEPTH = 6

_Json = Mapping[str, object]


def parse(text: str) -> object:
    """The JSON value of a text, or None when it is none (or nested too deeply)."""
    try:
        return json.loads(json_without_lone_surrogates(text))
    except (ValueError, RecursionError):
        return None


def from_line(text: str, clock: Clock) -> list[Peeled]:
    """The entries in one line of JSON (also with the marks of json-sse and json-seq); empty when there is none."""
    if text[0] == "\x1e":
        text = text[1:]
    elif text.startswith("data: {"):
        text = text[6:]
    value = parse(text.rstrip().rstrip(","))
    return list(entries(value, clock)) if isinstance(value, (dict, list)) else []


def entries(value: object, clock: Clock, depth: int = 0) -> Iterator[Peeled]:
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


def _loki_stream(value: _Json, clock: Clock) -> Iterator[Peeled]:
    """`{"stream": {labels}, "values": [["1778262423906000000", "line"], ...]}` of a Loki query's answer."""
    rows = value["values"]
    facts = _facts(value)
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) >= 2 and isinstance(row[1], str):
            yield Peeled(Outer("loki", clock.any(row[0]), *facts), row[1])


def _insights_row(value: list[object]) -> dict[str, object] | None:
    """`[{"field": "@message", "value": "..."}, ...]` of CloudWatch Logs Insights as one object."""
    row: dict[str, object] = {}
    for cell in value:
        if not isinstance(cell, dict) or not isinstance(cell.get("field"), str) or "value" not in cell:
            return None
        row[cell["field"]] = cell["value"]
    return row or None


def _entry(value: _Json, clock: Clock, depth: int = 0) -> Peeled | None:
    """The entry that an object is, or None."""
    if "MESSAGE" in value and any(key.startswith("_") for key in value):
        return journal_entry(value, clock, "journal-json")
    log = value.get("log")
    if isinstance(log, str) and _DOCKER_KEYS.issuperset(value) and len(value) > 1:
        outer = Outer("docker-json", clock.any(value.get("time")), stream=_text(value.get("stream")))
        return Peeled(outer, log, partial=not log.endswith("\n"))
    record = _formatter_record(value, clock)
    if record is not None:
        return record
    return _shipped(value, clock, depth)


def _shipped(value: _Json, clock: Clock, depth: int) -> Peeled | None:
    text = next((t for key in _TEXT_KEYS if (t := _plain(value.get(key))) is not None), None)
    if text is None:
        for key in _NESTED_TEXT:
            nested = value.get(key)
            if isinstance(nested, dict) and depth < _DEPTH:
                peeled = _entry(nested, clock, depth + 1)
                if peeled is not None:
                    return _with_facts(peeled, value, clock)
        return None
    return Peeled(Outer(_shipper(value), _time(value, clock), *_facts(value)), text)


def _with_facts(peeled: Peeled, value: _Json, clock: Clock) -> Peeled:
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


def _formatter_record(value: _Json, clock: Clock) -> Peeled | None:
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
    return Peeled(outer, message, record=record)


_ZONE = re.compile(r"\d(?: ?Z|[+-]\d\d:?\d\d| UTC)\Z")


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


_STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*"'
_TOKENS = re.compile(_STRING + rb"|-?\d[0-9.eE+-]*|true|false|null|[{}\[\]:,]|[ \t]+")
_INNER = rb'([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)'
_COUNTER = rb'"[0-9A-Za-z=;:.,+/_ -]*+"'
_NUMBER = rb"-?\d[0-9.]*"
_DIGIT = re.compile(rb"\d")
_MASK = bytes.maketrans(b"0123456789", b"0" * 10)
_MOST_KINDS = 1 << 12
_ESCAPE = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|([/t]))")
_NO_LINE = frozenset(map(chr, (*range(9), *range(10, 27), *range(28, 32))))  # a line break, or what needs a look


class TakenOff(NamedTuple):
    """The lines out of their envelopes, what of these tells the facts (`heads`), and which lines are to be looked at by themselves."""

    data: bytes
    heads: Heads
    odd: NDArray[np.int64]


class JsonForm:
    """The envelopes of lines that have the same keys in the same order, spaced alike."""

    def __init__(self, name: str, pattern: re.Pattern[bytes], payload: int) -> None:
        self.name, self._pattern, self._payload = name, pattern, payload
        self.text = pattern.pattern.decode("latin-1")
        self._kinds: dict[bytes, bool] = {}

    def taken_off(self, data: bytes, count: int, clock: Clock) -> TakenOff | None:
        """Take the envelopes off `count` lines; None where not all have this form."""
        data = data if data.endswith(b"\n") else data + b"\n"
        found = self._pattern.findall(data)
        if len(found) != count:
            return None
        groups = list(zip(*found, strict=True))
        payloads = groups.pop(self._payload)
        heads = list(groups[0]) if len(groups) == 1 else list(map(b"\0".join, zip(*groups, strict=True)))
        text, odd = _unescaped(b"\n".join(payloads) + b"\n")
        kinds = [head.translate(_MASK) for head in heads]
        for kind in set(kinds).difference(self._kinds):
            if len(self._kinds) >= _MOST_KINDS:
                return None
            self._kinds[kind] = self._is_one_line(data, kinds.index(kind), clock)
        if not all(self._kinds.values()):
            odd |= {row for row, kind in enumerate(kinds) if not self._kinds[kind]}
        sizes = np.fromiter(map(len, heads), np.int64, count)
        return TakenOff(text, Heads(b"".join(heads), np.cumsum(sizes) - sizes, sizes), np.array(sorted(odd), np.int64))

    def _is_one_line(self, data: bytes, row: int, clock: Clock) -> bool:
        line = data.split(b"\n", row + 1)[row]
        found = self._pattern.match(line + b"\n")
        payload = _decoded(found[self._payload + 1]) if found is not None else None
        peeled = _only(line.decode("utf-8", "replace"), clock)
        return peeled is not None and payload == peeled.text.removesuffix("\n")

    def with_head(self, line: bytes, head: bytes) -> bytes:
        """The line with another head of the same size."""
        found = self._pattern.match(line + b"\n")
        assert found is not None
        spans = [
            span
            for place in range(1, len(found.groups()) + 1)
            if place != self._payload + 1
            for span in [found.span(place)]
        ]
        at = 0
        for start, end in spans:
            line = line[:start] + head[at : at + end - start] + line[end:]
            at += end - start + 1
        return line


def json_form(line: bytes, clock: Clock) -> JsonForm | None:
    """The form of a line's envelope; None where it has none that lines in great number have."""
    text = line.decode("utf-8", "replace")
    peeled = _only(text, clock)
    tokens = list(_tokens(line))
    if peeled is None or b"".join(tokens) != line:
        return None
    pattern, groups, payload = [b"^"], 0, -1
    keys = set()
    for place, token in enumerate(tokens):
        if token[:1] == b'"' and _is_key(tokens, place):
            if token in keys:
                return None
            keys.add(token)
            pattern.append(re.escape(token))
        elif payload < 0 and token[:1] == b'"' and _decoded(token[1:-1]) == peeled.text and peeled.text:
            payload, groups = groups, groups + 1
            end = rb'\\n"' if peeled.text.endswith("\n") else b'"'
            pattern.append(
                b'"' + (_INNER.replace(b"*+)*+)", b"*+)*?)") if peeled.text.endswith("\n") else _INNER) + end
            )
        elif token[:1] not in b'"-0123456789' or token[:1] == b"" or b"\\" in token:
            pattern.append(re.escape(token))
        elif _DIGIT.search(token) and _says_nothing(tokens, place, peeled, clock):
            pattern.append(_COUNTER if token[:1] == b'"' else _NUMBER)
        else:
            groups += 1
            pattern.append(rb'"([^"\\\x00-\x1f]*+)"' if token[:1] == b'"' else b"(" + _NUMBER + b")")
    if payload < 0 or groups < 2:
        return None
    return JsonForm(peeled.outer.envelope, re.compile(b"".join(pattern) + rb"\n", re.M), payload)


def _tokens(line: bytes) -> Iterator[bytes]:
    return (found[0] for found in _TOKENS.finditer(line))


def _is_key(tokens: list[bytes], place: int) -> bool:
    after = next((token for token in tokens[place + 1 :] if token.strip()), b"")
    return after == b":"


def _says_nothing(tokens: list[bytes], place: int, peeled: Peeled, clock: Clock) -> bool:
    """Whether the digits of a text may be others, and the entry is the same: it is tried."""
    for digit in (b"7", b"3"):
        tried = [*tokens[:place], _DIGIT.sub(digit, tokens[place]), *tokens[place + 1 :]]
        if _only(b"".join(tried).decode("utf-8", "replace"), clock) != peeled:
            return False
    return True


def _only(text: str, clock: Clock) -> Peeled | None:
    """The entry of a line that holds one whole one."""
    found = from_line(text, clock)
    return found[0] if len(found) == 1 and not found[0].partial and found[0].record is None else None


def _decoded(raw: bytes) -> str | None:
    value = parse('"' + raw.decode("utf-8", "replace") + '"')
    return value if isinstance(value, str) else None


def _unescaped(data: bytes) -> tuple[bytes, set[int]]:
    """The texts of JSON strings as lines, and which of them are none."""
    odd: set[int] = set()
    if b"\\" not in data:
        return data, odd
    data = data.replace(b"\\\\", b"\0").replace(b'\\"', b'"')
    if b"\\" in data:
        data = _ESCAPE.sub(_character, data)
        if b"\\" in data:
            odd = {row for row, line in enumerate(data.split(b"\n")) if b"\\" in line}
    return data.replace(b"\0", b"\\"), odd


def _character(found: re.Match[bytes]) -> bytes:
    if found[2]:
        return b"\t" if found[2] == b"t" else b"/"
    character = chr(int(found[1], 16))
    if character in _NO_LINE or "\ud800" <= character <= "\udfff":
        return found[0]
    return b"\0" if character == "\\" else character.encode()
