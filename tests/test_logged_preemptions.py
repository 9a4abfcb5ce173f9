"""What V0's warnings prove: a counter at 1, 51, 101 … is a bound, lines are never the count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logscope.evidence.preemptions import count_counters

CASES = [
    ("one warning", [1], [1], True, (1, 50)),
    ("three", [1, 51, 101], [1, 1, 1], True, (101, 150)),
    ("a restart between", [1, 51, 101, 1, 51], [1] * 5, True, (152, 250)),
    ("no counter", [None], [1], True, (1, None)),
    ("no counter, folded", [None], [3], True, (3, None)),
    ("the log begins in the middle", [101, 151], [1, 1], False, (51, 149)),
    ("folded by Ray", [1], [2], True, (2, 150)),
    ("none", [], [], True, (0, 0)),
]


@pytest.mark.parametrize(("what", "counters", "repeated", "from_start", "bounds"), CASES)
def test_bounds(
    what: str, counters: list[int | None], repeated: list[int], from_start: bool, bounds: tuple[int, int | None]
) -> None:
    assert count_counters(counters, repeated, from_start=from_start) == bounds, what


@given(st.lists(st.integers(51, 400), max_size=4), st.integers(1, 400))
def test_the_truth_lies_within(before: list[int], last: int) -> None:
    """Each life of a process prints at its 1st and every 50th preemption after; lives of 51 and more end in a counter that goes back."""
    lives = [*before, last]
    counters: list[int | None] = [n for life in lives for n in range(1, life + 1) if n % 50 == 1]
    low, high = count_counters(counters, [1] * len(counters), from_start=True)
    assert high is not None
    assert low <= sum(lives) <= high
    assert high - low == 49 * len(lives)
