"""Blocks give what line by line gives: same numbers, texts and facts, in every envelope."""

from __future__ import annotations

import io
import random

import pytest

from parsers.lines import Line, TextBlock
from parsers.sources.source import expand
from tests.dress import DRESSES
from tests.dressers import Stamped, real_log

LOG = real_log()
IN_BLOCKS = ["plain, journal cat", "docker logs -t", "kubectl --prefix", "compose -t", "cri", "ci"]
IN_BLOCKS += ["journal short", "journal short-iso-precise", "kubectl --prefix --timestamps"]
BREAKERS = [
    "stderr F INFO 11-29 23:07:01 [a.py:1] looks like a further envelope",
    '{"log":"INFO 11-29 23:07:01 [a.py:1] in JSON\\n","stream":"stderr","time":"2026-11-29T23:07:01Z"}',
    "2026-11-29T23:07:01.5Z (APIServer pid=1) INFO 11-29 23:07:01 [a.py:1] stamped once more",
    "info INFO:     a viewer's word",
    "one\rtwo",
    "#033[0m octal",
    "",
]


def by_line(data: bytes) -> list[Line]:
    return list(expand(["-"], stdin=io.BytesIO(data))[0].lines())


def by_block(data: bytes) -> tuple[list[Line], bool]:
    pieces = list(expand(["-"], stdin=io.BytesIO(data))[0].pieces())
    lines = [line for p in pieces for line in (p.lines() if isinstance(p, TextBlock) else p)]
    return lines, any(isinstance(p, TextBlock) for p in pieces)


@pytest.mark.parametrize("name", DRESSES)
def test_blocks_equal_lines(name: str) -> None:
    data = DRESSES[name].dress(LOG)
    lines, in_blocks = by_block(data)
    assert lines == by_line(data)
    if name in IN_BLOCKS:
        assert in_blocks


@pytest.mark.parametrize("name", IN_BLOCKS)
@pytest.mark.parametrize("breaker", range(len(BREAKERS)))
def test_one_line_out_of_place(name: str, breaker: int) -> None:
    log = [*LOG[:100], Stamped(LOG[100].time_us, BREAKERS[breaker]), *LOG[100:200]]
    data = DRESSES[name].dress(log)
    assert by_block(data)[0] == by_line(data)
    bare = b"".join([DRESSES[name].dress(LOG[:50]), BREAKERS[breaker].encode(), b"\n", DRESSES[name].dress(LOG[50:99])])
    assert by_block(bare)[0] == by_line(bare)


def test_mixtures_of_lines() -> None:
    single = [n for n in IN_BLOCKS if n != "plain, journal cat"]
    for seed in range(20):
        pick = random.Random(seed)
        few = pick.sample(single, 2)
        names = [few[pick.random() < 0.02] for _ in LOG]
        data = b"".join(DRESSES[n].dress([s]) for n, s in zip(names, LOG, strict=True))
        assert by_block(data)[0] == by_line(data)


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_a_log_cut_within_a_line(name: str) -> None:
    """The last line may be half an envelope, an empty one, or hold half a record, and no line feed ends it."""
    records = [line for line in LOG if " INFO 11-29 " in line.text][:60]
    data = DRESSES[name].dress(records)
    assert by_block(data)[1]
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(data)):
        assert by_block(data[:end])[0] == by_line(data[:end]), data[last:end]
