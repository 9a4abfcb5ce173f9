"""The count: what warnings prove and what a replay infers, together."""

from __future__ import annotations

from datetime import datetime, timedelta

from logscope.evidence.preemptions import Logged, Stretch, combine

START = datetime(2026, 5, 9)


def stretch(a: float, b: float, value: float) -> Stretch:
    return Stretch(START + timedelta(seconds=a), START + timedelta(seconds=b), value)


def test_nothing_is_nothing_and_not_zero() -> None:
    found = combine(Logged(), None)
    assert (found.low, found.value, found.high, found.basis) == (None, None, None, None)


def test_warnings_alone_are_their_bounds() -> None:
    found = combine(Logged(51, 100), None)
    assert (found.low, found.value, found.high, found.basis) == (51, None, 100, "measured")  # bounds, no count


def test_without_an_upper_bound_there_is_none() -> None:
    assert combine(Logged(3, None), None).high is None


def test_an_exact_count_overrules_the_replay() -> None:
    found = combine(Logged(15, 15), (2.0, 4.0, 6.0))
    assert (found.low, found.value, found.high, found.basis) == (15, 15, 15, "measured")


def test_the_replay_counts_on_from_the_last_warning_at_its_corrected_rate() -> None:
    """51 up to the last warning where the replay had 34, then 8 more of the replay's: 12 of the real ones."""
    logged = Logged(51, 100, (stretch(0, 0, 1), stretch(0, 100, 50)))
    found = combine(logged, (30.0, 42.0, 55.0), (stretch(0, 100, 34), stretch(100, 120, 8)), 1000.0)
    assert found.value == 63
    assert found.low is not None
    assert found.high is not None
    assert 51 <= found.low <= 58
    assert 68 <= found.high <= 76
    assert found.recomputed_tokens == 1500


def test_the_bounds_of_the_log_hold_whatever_the_replay_says() -> None:
    logged = Logged(1, 50, (stretch(0, 0, 1),))
    found = combine(logged, (300.0, 400.0, 500.0), (stretch(0, 100, 400),))
    assert found.low is not None
    assert found.high is not None
    assert 1 <= found.low <= found.high <= 50
