"""`analyze` as a whole survives what is done to real logs, and keeps its contract: a short, repeatable run of tests/fuzz/drive.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import CHANGES, KEPT, Change, changed, seeds
from tests.fuzz.whole import check_log

CHANGE: st.SearchStrategy[Change] = st.tuples(
    st.sampled_from(sorted(CHANGES)), st.floats(0, 0.999), st.floats(0, 0.999), st.integers(0, 1 << 16)
)
pytestmark = pytest.mark.usefixtures("no_net")

ONCE = settings(
    deadline=None,
    derandomize=True,  # the same cases each time: chance is for the driver
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def stretch(name: str, at: float, size: int) -> list[bytes]:
    """A start and some of what follows it."""
    lines = seeds()[name]
    first = 30 + int(at * max(0, len(lines) - 30 - size))
    return [*lines[:30], *lines[first : first + size]]


@given(st.sampled_from(sorted(seeds())), st.floats(0, 1), st.lists(CHANGE, min_size=1, max_size=8))
@settings(ONCE, max_examples=60)
def test_any_damage_to_a_log_gives_an_answer_by_contract(
    tmp_path: Path, name: str, at: float, changes: list[Change]
) -> None:
    check_log(changed(stretch(name, at, 60), changes), tmp_path, replay=False)


@given(
    st.sampled_from([n for n in sorted(seeds()) if n.startswith("samples/v1")]),
    st.lists(CHANGE, min_size=1, max_size=3),
)
@settings(ONCE, max_examples=4)
def test_so_does_the_replay(tmp_path: Path, name: str, changes: list[Change]) -> None:
    check_log(changed(stretch(name, 0.5, 80), changes), tmp_path, replay=True)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.log")), ids=lambda path: path.stem)
def test_what_once_failed(path: Path, tmp_path: Path) -> None:
    check_log(path.read_bytes().split(b"\n"), tmp_path, replay=True)
