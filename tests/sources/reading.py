"""A real log to dress, and lines read back from bytes."""

from __future__ import annotations

import io

from parsers.lines import Line
from parsers.sources.source import expand
from tests.dressers import Stamped, real_log

LOG = real_log()


START_US = LOG[0].time_us


def read(data: bytes) -> list[Line]:
    source = expand(["-"], stdin=io.BytesIO(data))[0]
    lines = list(source.lines())
    assert source.problem is None
    assert source.loss.problem is None
    return lines


def stamped(texts: list[str]) -> list[Stamped]:
    return [Stamped(START_US + i * 1_000_000, text) for i, text in enumerate(texts)]
