"""The record's clock: the year that vLLM does not print, and clocks that step back."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.records.dates import RecordClock, from_epoch_us


def us(*args: int) -> int:
    return int(datetime(*args, tzinfo=timezone.utc).timestamp() * 1e6)  # type: ignore[misc]


def test_the_year_is_that_of_the_file() -> None:
    clock = RecordClock(modified_us=us(2026, 5, 9, 12))
    assert clock.resolve((5, 9, 0, 49, 33)) == datetime(2026, 5, 9, 0, 49, 33)


def test_a_december_in_a_file_of_january_is_last_year_and_rolls_over() -> None:
    clock = RecordClock(modified_us=us(2026, 1, 2))
    assert clock.resolve((12, 31, 23, 59, 58)) == datetime(2025, 12, 31, 23, 59, 58)
    assert clock.resolve((1, 1, 0, 0, 3)) == datetime(2026, 1, 1, 0, 0, 3)
    assert clock.backwards == 0


def test_the_outer_clock_decides_over_the_file() -> None:
    clock = RecordClock(modified_us=us(2030, 5, 9))
    assert clock.resolve((12, 31, 17, 0, 0), us(2026, 1, 1, 0, 0, 0)) == datetime(2025, 12, 31, 17, 0, 0)


def test_a_given_year_is_the_first_records() -> None:
    clock = RecordClock(2021, us(2026, 5, 9))
    assert clock.resolve((12, 31, 0, 0, 0)) == datetime(2021, 12, 31)
    assert clock.resolve((1, 1, 0, 0, 0)) == datetime(2022, 1, 1)


def test_a_clock_that_steps_back_is_counted_and_kept() -> None:
    clock = RecordClock(2026)
    clock.resolve((10, 25, 2, 59, 59))
    assert clock.resolve((10, 25, 2, 0, 0)) == datetime(2026, 10, 25, 2, 0, 0)
    assert clock.backwards == 1


@pytest.mark.parametrize("stamp", [(2, 30, 0, 0, 0), (6, 31, 0, 0, 0)])
def test_a_date_that_is_none_has_no_time(stamp: tuple[int, int, int, int, int]) -> None:
    assert RecordClock(2026).resolve(stamp) is None


def test_a_leap_second_is_the_last_of_its_minute() -> None:
    assert RecordClock(2026).resolve((6, 30, 23, 59, 60)) == datetime(2026, 6, 30, 23, 59, 59)


@given(st.integers(1, 12), st.integers(1, 28), st.integers(0, 23))
def test_the_first_date_is_never_after_the_file(month: int, day: int, hour: int) -> None:
    modified = us(2026, 5, 9)
    found = RecordClock(modified_us=modified).resolve((month, day, hour, 0, 0))
    assert found is not None
    assert (from_epoch_us(modified).replace(tzinfo=None) - found).days >= -1
