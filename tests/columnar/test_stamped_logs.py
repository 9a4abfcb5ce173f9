"""Logs in the envelopes of containers and journals: in bulk they give what they give line by line."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parsers.reading.in_bulk import reader as reading
from tests.columnar.test_same_as_line_by_line import (
    ORDINARY,
    SAMPLES,
    UNUSUAL,
    Blocks,
    assert_same,
    record,
    request_lines,
)
from tests.logs import access

pytestmark = pytest.mark.usefixtures("short_stretches")

START = datetime(2026, 5, 9, 0, 49, 30, tzinfo=timezone.utc)
Wrap = Callable[[datetime, int, str], str]


def _iso(at: datetime, digits: int = 9) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "789"[: digits - 6]


WRAPPINGS: dict[str, Wrap] = {
    "docker logs -t": lambda at, i, line: f"{_iso(at)}Z " + line,
    "a zone": lambda at, i, line: f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}+05:30 " + line,
    "seconds": lambda at, i, line: f"{at:%Y-%m-%dT%H:%M:%S}Z " + line,
    "nothing": lambda at, i, line: "" + line,
    "cri": lambda at, i, line: f"{_iso(at)}Z {'stderr' if i % 3 else 'stdout'} F " + line,
    "journal short": lambda at, i, line: f"{at:%b %d %H:%M:%S} gpu-1 vllm[4217]: " + line,
    "journal short-iso-precise": lambda at, i, line: f"{_iso(at, 6)}+00:00 gpu-1 vllm[4217]: " + line,
    "kubectl --prefix --timestamps": lambda at, i, line: f"[pod/vllm-0/server] {_iso(at)}Z " + line,
    "kubectl --prefix": lambda at, i, line: "[pod/vllm-0/server] " + line,
    "two pods": lambda at, i, line: f"[pod/vllm-{i % 2}/server] {_iso(at)}Z " + line,
    "docker json": lambda at, i, line: json.dumps(
        {"log": line + "\n", "stream": "stderr" if i % 3 else "stdout", "time": _iso(at) + "Z"},
        ensure_ascii=bool(i % 2),
    ),
    "docker json as Go writes it": lambda at, i, line: (
        json.dumps({"log": line + "\n", "stream": "stdout", "time": _iso(at) + "Z"}, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
    ),
    "docker json with short fractions": lambda at, i, line: json.dumps(
        {
            "log": line + "\n",
            "stream": "stdout",
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{i % 1000:03}".rstrip("0").rstrip(".") + "Z",
        }
    ),
    "journal json": lambda at, i, line: json.dumps(
        {
            "__CURSOR": f"s=8f2;i={i:x};b=77",
            "__REALTIME_TIMESTAMP": str(int(at.timestamp() * 1e6)),
            "_PID": "77",
            "PRIORITY": str(6 - i % 2),
            "MESSAGE": line,
            "_HOSTNAME": "gpu-1",
            "_SYSTEMD_UNIT": "vllm.service",
        }
    ),
    "fluent-bit": lambda at, i, line: json.dumps(
        {
            "date": round(at.timestamp(), 6),
            "kubernetes": {"pod_name": "vllm-0", "container_name": "server", "labels": {"pod-index": str(i)}},
            "log": line,
            "stream": "stderr",
        }
    ),
    "seconds since the epoch": lambda at, i, line: json.dumps({"ts": int(at.timestamp()), "host": "a", "msg": line}),
    "compose -t": lambda at, i, line: f"vllm-1  | {_iso(at)}Z " + line,
}
IN_BULK = sorted(set(WRAPPINGS) - {"two pods", "kubectl --prefix", "nothing"})


def coloured(line: str) -> str:
    """As vLLM 0.10 and 0.11 colour the process, and later ones the level, the clock and the place."""
    line = re.sub(r"^(\(\w+ pid=\d+\))", "\x1b[1;36m\\1\x1b[0;0m", line)
    return re.sub(
        r"\b(INFO|WARNING|ERROR) (\d\d-\d\d \S+) (\[\S+\])",
        "\x1b[32m\\1\x1b[0m \x1b[90m\\2\x1b[0m \x1b[90m\\3\x1b[0m",
        line,
    )


def wrapped(lines: list[str], wrap: Wrap, step: timedelta = timedelta(seconds=0.37), at: datetime = START) -> bytes:
    text = (wrap(at + i * step, i, line) for i, line in enumerate(lines))
    return "\n".join([*text, ""]).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("name", WRAPPINGS)
@pytest.mark.parametrize("sample", ["v1-under-pressure.log", "v0-with-warnings.log.gz"])
def test_real_logs(name: str, sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 1)
    data = (SAMPLES / sample).read_bytes()
    data = gzip.decompress(data) if sample.endswith(".gz") else data
    data = wrapped(data.decode().split("\n")[:600], WRAPPINGS[name])
    assert assert_same([Blocks(data, [1 << 23])], [Blocks(data, [1 << 23])], year=None)
    assert_same([Blocks(data, [9000])], [Blocks(data, [9000])], year=None)


@pytest.mark.parametrize("name", WRAPPINGS)
@pytest.mark.parametrize("before", [0, 3])
def test_blank_lines(name: str, before: int) -> None:
    lines = [*ORDINARY[:before], *[""] * 300, *ORDINARY, *["", " "] * 100, *ORDINARY]
    data = wrapped(lines, WRAPPINGS[name])
    assert_same([Blocks(data, [4000])], [Blocks(data, [4000])], year=None)


@pytest.mark.parametrize("minute", ["59", "60", "99"])
def test_a_minute_that_no_clock_shows(minute: str) -> None:
    lines = [
        f"2026-05-09T00:{minute if i % 7 == 3 else '41'}:30.5Z stdout F {line}" for i, line in enumerate(ORDINARY * 9)
    ]
    data = "\n".join([*lines, ""]).encode()
    assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])], year=None)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(WRAPPINGS)),
    st.lists(st.one_of(st.sampled_from(ORDINARY), st.sampled_from(ORDINARY), st.sampled_from(UNUSUAL)), max_size=60),
    st.lists(st.integers(200, 6000), min_size=1, max_size=8),
    st.sampled_from([None, None, 2025]),
    st.sampled_from([0.0, 0.04, 1.0, 61.7, 3e5]),
    st.sampled_from([False, False, True]),
)
def test_any_lines_in_any_order(
    name: str, lines: list[str], sizes: list[int], year: int | None, step: float, colours: bool
) -> None:
    lines = [coloured(line) for line in lines] if colours else lines
    data = wrapped(lines, WRAPPINGS[name], timedelta(seconds=step))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", 1)
        assert_same([Blocks(data, sizes)], [Blocks(data, sizes)], year=year)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(WRAPPINGS)),
    st.lists(st.sampled_from([*ORDINARY, *UNUSUAL]), min_size=1, max_size=20),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4), st.integers(0, 40)), max_size=4),
    st.lists(st.integers(200, 3000), min_size=1, max_size=4),
)
def test_any_damage(name: str, lines: list[str], wounds: list[tuple[float, bytes, int]], sizes: list[int]) -> None:
    data = wrapped(lines, WRAPPINGS[name])
    for where, what, gone in wounds:
        at = int(where * len(data))
        data = data[:at] + what + data[at + gone :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", 1)
        assert_same([Blocks(data, sizes)], [Blocks(data, sizes)], year=None)


@pytest.mark.parametrize("name", IN_BULK)
def test_what_is_common_is_read_in_bulk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for i in range(600) for line in request_lines(f"cmpl-{i}")]
    data = wrapped(lines, WRAPPINGS[name])
    one_by_one: list[int] = []
    feed = reading.SourceInBulk._feed
    monkeypatch.setattr(
        reading.SourceInBulk, "_feed", lambda self, line: (one_by_one.append(line.number), feed(self, line))[1]
    )
    frames = assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])], year=None)
    assert len(frames["request"]) == 1200
    assert frames["request"]["outer_time"].null_count() == 0
    assert len(one_by_one) < 20


def test_an_access_line_soon_after_a_record_has_its_time() -> None:
    lines = [record("Added request cmpl-a."), *[access()] * 12, record("Added request cmpl-b.")]
    frames = assert_same(
        [Blocks(wrapped(lines, WRAPPINGS["cri"]), [1 << 20])],
        [Blocks(wrapped(lines, WRAPPINGS["cri"]), [1 << 20])],
        year=None,
    )
    assert frames["http"]["outer_time"].n_unique() == 5


@pytest.mark.parametrize("step", [0.4, 60 * 60 * 24 * 11.3])
def test_the_year_is_that_of_the_envelope(step: float) -> None:
    begin = datetime(2024, 1, 3, tzinfo=timezone.utc)
    moments = [begin + timedelta(seconds=step * i) for i in range(120)]
    lines = [record(f"Added request c{i}.", f"{m:%m-%d %H:%M:%S}") for i, m in enumerate(moments)]
    data = wrapped(lines, WRAPPINGS["docker logs -t"], timedelta(seconds=step), begin)
    frames = assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])], year=None)
    assert frames["request"]["time"].dt.year().to_list() == [m.year for m in moments]
