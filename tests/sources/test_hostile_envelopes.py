"""Whatever stands where an envelope is looked for: nothing breaks, nothing is lost, and time stays linear."""

from __future__ import annotations

import io
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.sources.source import expand
from tests.sources.reading import read

WORDS = st.sampled_from(
    [
        "{",
        "}",
        '{"log":"',
        '{"MESSAGE":[1,2',
        "[pod/a/b] ",
        "2026-05-08T17:47:03Z ",
        "stderr P ",
        "stderr F ",
        "\n",
        "\r\n",
        "\0",
        "---",
        "Sep 22 23:46:42 h v[1]: ",
        "<134>1 ",
        "__CURSOR=a",
        "MESSAGE\n",
        "a-b c ",
        "x  | ",
        "  | ",
        "> - ",
        "[",
        "]",
        "insertId: ",
        "INFO 05-09 00:49:33 ",
        "\x1e",
        "data: ",
        '"events": [',
        "    MESSAGE=",
        "timestamp: ",
        "textPayload: |-",
        "\x1b[36m",
        "\ufffd",
    ]
)


@given(st.lists(WORDS | st.text(max_size=5), max_size=40).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_survived_and_nothing_but_envelopes_is_lost(text: str) -> None:
    text = "INFO 05-09 00:49:33 [a.py:1] x\n" * 60 + text  # enough text to be no binary file
    physical = text.replace("\r\n", "\n").split("\n")
    physical = physical[:-1] if not physical[-1] else physical
    lines = read(text.encode("utf-8", "replace"))
    assert all(1 <= line.number <= len(physical) for line in lines)
    plain = [line for line in lines if line.outer is None]
    assert all(line.text == physical[line.number - 1].rstrip("\r") for line in plain if not line.record)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_survived(data: bytes) -> None:
    source = expand(["-"], stdin=io.BytesIO(b"INFO 05-09 00:49:33 [a.py:1] x\n" * 60 + data))[0]
    lines = list(source.lines())
    assert source.problem is None
    assert len({line.number for line in lines}) <= 60 + data.count(b"\n") + 1
    assert [line.text for line in lines][:60] == ["INFO 05-09 00:49:33 [a.py:1] x"] * 60


HOSTILE = [
    "{" * 100_000,
    '{"a":' * 50_000,
    "[" * 100_000,
    "[pod/" + "a" * 100_000,
    "<134>1 2026-05-08T17:47:03Z h u p m [" + 'a b="' * 50_000,
    "<134>1 2026-05-08T17:47:03Z h u p m " + '[a b="c"]' * 50_000,
    "2026-05-08T17:47:03Z {" + '"' * 100_000,
    "2026-05-08T17:47:03Z " * 20_000,
    "a-" * 100_000 + " b ",
    "\x1b[0m" * 50_000,
    " " * 200_000 + "|",
    "x" + " " * 200_000 + "|",
    "> " * 100_000,
    "#015" * 50_000,
    "\r" * 500_000,
    '{"log":"' + "\\u0000" * 30_000 + '"}',
    '{"timestamp":1' + "0" * 100_000 + ',"message":"x"}',
    '{"result":' * 400 + "{}" + "}" * 400,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_cost_linear_time(text: str) -> None:
    started = time.process_time()
    lines = read(("INFO 05-09 00:49:33 [a.py:1] x\n" + (text + "\n") * 3).encode())
    assert lines
    assert time.process_time() - started < 2


def test_many_opened_braces_cost_linear_time() -> None:
    started = time.process_time()
    lines = read(b"{\n" * 60_000)
    assert [line.text for line in lines] == ["{"] * 60_000
    assert time.process_time() - started < 5
