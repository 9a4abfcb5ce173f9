"""An envelope's clock: its year, its zone, its units, and logs that run backwards."""

from __future__ import annotations

import io
from datetime import datetime, timezone

import pytest

from parsers.envelopes import Clock, unwrap
from parsers.sources.source import expand
from tests.dress import DRESSES
from tests.sources.reading import LOG

CLOCKS = [
    # stamp, zone, reference, UTC
    ("Dec 31 23:59:59", None, "2027-01-02", "2026-12-31T23:59:59"),
    ("Jan  1 00:00:01", None, "2027-01-02", "2027-01-01T00:00:01"),
    ("Jan  2 23:00:00", None, "2027-01-02", "2027-01-02T23:00:00"),
    ("Feb 29 12:00:00", None, "2027-01-02", "2024-02-29T12:00:00"),
    ("Sep 22 23:46:42", "Europe/Berlin", "2026-10-01", "2026-09-22T21:46:42"),
    ("Sep 22 23:46:42", "+08:00", "2026-10-01", "2026-09-22T15:46:42"),
]


@pytest.mark.parametrize(("stamp", "zone", "reference", "utc"), CLOCKS)
def test_year_and_zone_of_stamps_without(stamp: str, zone: str | None, reference: str, utc: str) -> None:
    clock = Clock(zone, clock_us(f"{reference}T00:00:00"))
    [line] = unwrap([(1, f"{stamp} host-a vllm[1]: INFO 09-22 23:46:42 [a.py:1] x")], clock)
    assert line.outer is not None
    assert line.outer.time_us == clock_us(utc)


def clock_us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (1778262423, 1778262423000000),
        (1778262423.5, 1778262423500000),
        ("1778262423.906123", 1778262423906123),
        (1778262423906, 1778262423906000),
        ("1778262423906123", 1778262423906123),
        ("1778262423906123456", 1778262423906123),
        ("2026-05-08T17:47:03.906123456Z", 1778262423906123),
        ("2026-05-08 19:47:03,906 +0200", 1778262423906000),
        ("2026-05-08 17:47:03 UTC", 1778262423000000),
        ("2026-13-08 17:47:03", None),
        ("yesterday", None),
        (True, None),
        (float("nan"), None),
        (10**30, None),
    ],
)
def test_stamps_in_json(value: object, us: int | None) -> None:
    assert Clock().any(value) == us


def test_unknown_zone() -> None:
    with pytest.raises(ValueError, match="unknown time zone 'Mars/Olympus'"):
        Clock("Mars/Olympus")


def test_newest_first_keeps_numbers_and_is_flagged() -> None:
    data = DRESSES["web viewer, newest first"].dress(LOG)
    source = expand(["-"], stdin=io.BytesIO(data))[0]
    numbers = [line.number for line in source.lines()]
    assert source.newest_first
    assert numbers == list(range(len(LOG), 0, -1))


def test_a_restart_is_not_newest_first() -> None:
    source = expand(["-"], stdin=io.BytesIO(DRESSES["docker logs -t"].dress(LOG[300:] + LOG[:300])))[0]
    assert [line.number for line in source.lines()] == list(range(1, len(LOG) + 1))
    assert not source.newest_first
