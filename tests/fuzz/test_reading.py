"""Whatever bytes a source holds: it is read to its end, in order, and every line is counted once."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logscope.output.events import event_object, to_json
from parsers.lines import Line, json_without_lone_surrogates, without_lone_surrogates
from parsers.reading.by_line import Keep, read_events, read_lines
from parsers.reading.events import Coverage
from parsers.reading.frames import frames_of
from parsers.sources.compression import DamagedError, compression_of, decoded
from parsers.sources.source import Source
from tests.fuzz.mutations import HOSTILE, NUMBERS, seeds

KEYS = (
    "log",
    "stream",
    "time",
    "message",
    "MESSAGE",
    "levelname",
    "name",
    "process",
    "asctime",
    "textPayload",
    "values",
    "labels",
    "kubernetes",
    "line",
    "exc_info",
    "_PID",
    "__REALTIME_TIMESTAMP",
    "hits",
    "_source",
)
LINES = [ln.decode("utf-8", "replace") for ln in seeds()["forms"][:400]]
TEXTS = st.sampled_from(LINES) | st.text(max_size=40)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | TEXTS
    | st.sampled_from(["\ud800", "2026-11-29T23:56:30Z", "1778262423906000000", "9" * 400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=10,
)


def events_of(data: bytes) -> tuple[list[Any], Coverage]:
    coverage = Coverage()
    source = Source("-", stream=io.BytesIO(data))
    found = list(read_events([source], coverage, keep=Keep(other=True, exceptions=True)))
    for event in found:
        to_json(event_object(event)).encode("utf-8")
    frames_of([e for e in found if e.family not in ("other", "exception")])
    return found, coverage


@given(st.lists(VALUES, max_size=6), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_json_is_read(values: list[Any], one_document: bool) -> None:
    texts = [json.dumps(values)] if one_document else [json.dumps(v) for v in values]
    events_of("\n".join(texts).encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"MESSAGE": ' + "[" * 900 + '"x"' + "]" * 900 + ', "_PID": "1"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"log": "x", "time": ' + "9" * 5000 + "}",
        '{"message": "x", "level": "INFO", "name": "a", "process": ' + "9" * 40 + ', "asctime": 1e308}',
        '{"log": "\\ud800\\udc00 \\ud800 \\\\ud800\\n", "stream": "stderr", "time": "2026-05-09T00:00:00Z"}',
    ],
    ids=["nested message", "brackets", "braces", "digits", "a process of 40 digits", "half a pair"],
)
def test_json_made_to_break_a_reader(text: str) -> None:
    events_of(text.encode() + b"\n" + LINES[0].encode())


@given(
    st.lists(TEXTS | st.sampled_from([h.decode("utf-8", "replace") for h in HOSTILE[:40]]), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r\r\n", "\r"]),
)
@settings(max_examples=150, deadline=None)
def test_each_line_counts_once_and_events_keep_its_number(parts: list[str], end: str) -> None:
    data = end.join(parts).encode("utf-8", "replace")
    found, coverage = events_of(data)
    physical = data.rstrip(b"\r").count(b"\n") + (not data.endswith(b"\n") and bool(data.rstrip(b"\r")))
    assert coverage.lines <= physical
    assert all(1 <= event.line <= max(1, physical) for event in found)


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=6), st.sampled_from(NUMBERS), st.integers(0, 30))
@settings(max_examples=200, deadline=None)
def test_any_number_in_a_known_line_is_read(lines: list[str], number: bytes, which: int) -> None:
    hostile = number.decode()
    now = []
    for line in lines:
        places = list(re.finditer(r"\d[\d,.]*", line))
        if places:
            place = places[which % len(places)]
            line = line[: place.start()] + hostile + line[place.end() :]
        now.append(line)
    events_of("\n".join(now).encode())


@given(st.sampled_from([b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh9"]), st.binary(max_size=300))
def test_any_bytes_behind_a_compressions_mark(magic: bytes, rest: bytes) -> None:
    kind = compression_of(magic)
    assert kind is not None
    stream = io.BytesIO(magic + rest)
    with contextlib.suppress(DamagedError):
        for block in decoded(kind, lambda: stream.read(64)):
            assert len(block) <= 1 << 20


@given(
    st.recursive(
        st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    )
)
def test_half_pairs_are_taken_out_of_json_and_nothing_else(value: Any) -> None:
    def clean(inner: Any) -> Any:
        if isinstance(inner, str):
            return without_lone_surrogates(inner)
        if isinstance(inner, list):
            return [clean(i) for i in inner]
        return {clean(k): clean(v) for k, v in inner.items()}

    assert json.loads(json_without_lone_surrogates(json.dumps(value))) == clean(value)


def test_half_pairs_in_any_spelling() -> None:
    for text, read in (
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\ud83d"', "\ufffd"),
        ('"\\uDE00\\ud83d"', "\ufffd\ufffd"),
        ('"\\\\ud83d"', "\\ud83d"),
        ('"\\\\\\ud83d"', "\\\ufffd"),
        ('"\\ud83d\\ud83d\\ude00"', "\ufffd😀"),
    ):
        assert json.loads(json_without_lone_surrogates(text)) == read


def test_a_live_stream_takes_any_pauses() -> None:
    def lines() -> Iterator[Line | None]:
        for number, text in enumerate(LINES[:200], 1):
            yield Line(number, text)
            if number % 3 == 0:
                yield None

    coverage = Coverage()
    assert list(read_lines(lines(), coverage))
    assert coverage.lines == 200
