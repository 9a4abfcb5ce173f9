"""Lines copied from a terminal, wrapped at its width, are whole again."""

from __future__ import annotations

import io

import pytest

from parsers.lines import Line
from parsers.sources.source import expand
from tests.dress import DRESSES
from tests.dressers import real_log

LOG = real_log()
NAMES = ["plain, journal cat", "docker logs -t", "journal short", "kubectl --prefix", "compose"]
NAMES += ["compose -t", "stern", "cri", "ci", "docker json-file", "loki logcli"]


def wrapped(data: bytes, width: int) -> list[str]:
    rows = []
    for line in data.decode().removesuffix("\n").split("\n"):
        rows += [line[at : at + width] for at in range(0, max(len(line), 1), width)]
    return rows


def read(rows: list[str]) -> list[Line]:
    source = expand(["-"], stdin=io.BytesIO("\n".join(rows).encode()))[0]
    return list(source.lines())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [80, 120, 160, 211])
def test_wrapped_log(name: str, width: int) -> None:
    rows = wrapped(DRESSES[name].dress(LOG), width)
    assert [line.text for line in read(rows)] == [s.text for s in LOG]


@pytest.mark.parametrize("name", ["plain, journal cat", "docker logs -t"])
def test_spaces_that_the_screen_dropped(name: str) -> None:
    texts = [f"INFO 05-09 00:49:33 [a.py:1] {' '.join(map(str, range(n, n * n)))}" for n in range(5, 25)]
    log = [s._replace(text=text) for s, text in zip(LOG, texts, strict=False)]
    rows = [row.rstrip(" ") for row in wrapped(DRESSES[name].dress(log), 80)]
    assert [line.text for line in read(rows)] == texts


def test_number_is_that_of_the_first_row() -> None:
    texts = ["INFO 05-09 00:49:33 [a.py:1] " + "x" * n for n in (100, 10, 300, 20, 171)]
    rows = wrapped("\n".join(texts).encode(), 100)
    assert [(line.number, len(line.text) - 29) for line in read(rows)] == [
        (1, 100),
        (3, 10),
        (4, 300),
        (8, 20),
        (9, 171),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        # a longest line that comes three times, with a traceback after it each time but once
        ["INFO 05-09 00:49:33 [a.py:1] " + "x" * 50, "INFO 05-09 00:49:33 [a.py:1] y"] * 3,
        # lines of one length that no record is among
        ["f" * 100] * 20,
        # two wrapped lines prove no width
        ["INFO 05-09 00:49:33 [a.py:1] " + "x" * 50, "rest", "INFO 05-09 00:49:33 [a.py:1] y"] * 2,
        # longer than any screen is wide
        ["INFO 05-09 00:49:33 [a.py:1] " + "x" * 500, "rest", "INFO 05-09 00:49:33 [a.py:1] y"] * 9,
    ],
)
def test_other_logs_are_left_alone(rows: list[str]) -> None:
    assert [line.text for line in read(rows)] == rows
