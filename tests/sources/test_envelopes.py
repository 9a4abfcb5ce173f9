"""Every envelope gives back the same lines of the same real log, with its own facts beside them."""

from __future__ import annotations

import io

import pytest
from dress import DRESSES, Dress, Stamped, real_log

from parsers.lines import Line
from parsers.sources import expand

LOG = real_log()
START_US = LOG[0].time_us
BARE = {"plain, journal cat", "loki raw, newest first"}
ODD = [
    "(EngineCore pid=7) ERROR 11-29 23:07:01 [core.py:1] Traceback (most recent call last):",
    '  File "/vllm/core.py", line 3, in step',
    "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 11-29 23:07:01 [loggers.py:1] Engine 000: ünïcode 100%|██████|",
    "[2025-08-21 07:17:09,753] LMCache INFO: Reqid: 1, stored 256 tokens (cache.py:1050:lmcache)",
    "2025-05-14 17:45:10.901 1647689 kserve.trace requestId: 1, preprocess_ms: 0.01",
    "",
    "INFO 11-29 23:07:01 [logger.py:40] Received request cmpl-1: prompt: '"
    + "x" * 40_000
    + "', params: None",
    "(APIServer pid=1) INFO 11-29 23:07:02 [loggers.py:1] Engine 000: the end",
]


def read(data: bytes) -> list[Line]:
    source = expand(["-"], stdin=io.BytesIO(data))[0]
    lines = list(source.lines())
    assert source.problem is None
    assert source.loss.problem is None
    return lines


def stamped(texts: list[str]) -> list[Stamped]:
    return [Stamped(START_US + i * 1_000_000, text) for i, text in enumerate(texts)]


@pytest.mark.parametrize("name", DRESSES)
def test_same_log_in_every_envelope(name: str) -> None:
    dress: Dress = DRESSES[name]
    lines = read(dress.dress(LOG))
    if name not in BARE:  # the brackets around a JSON document are bare lines
        lines = [line for line in lines if line.outer is not None]
    assert [line.text for line in lines] == [s.text for s in LOG]
    outer = [line.outer for line in lines]
    if dress.clock_us:
        assert [o and o.time_us and o.time_us // dress.clock_us for o in outer] == [
            s.time_us // dress.clock_us for s in LOG
        ]
    for fact, value in dress.facts.items():
        assert {getattr(o, fact) for o in outer} == {value}
