"""Each target of the fuzz driver for a few cases that are the same each time, and the cases that once failed."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from tests.fuzz.cases import loaded
from tests.fuzz.drive import TARGETS
from tests.fuzz.mutations import KEPT

pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'logscope[remote]')")

pytestmark = pytest.mark.usefixtures("no_net")

CASES = 12
MORE = {"bytes": 72, "client": 60}  # many places and parts, and quick


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_target_keeps_its_promises(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for number in range(MORE.get(name, CASES)):
            folder = tmp_path / str(number)
            folder.mkdir()
            TARGETS[name].check(TARGETS[name].make(chance), folder)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json.gz")), ids=lambda path: path.name[:-8])
def test_a_case_that_once_failed(path: Path, tmp_path: Path) -> None:
    name, case = loaded(path)
    TARGETS[name].check(case, tmp_path)
