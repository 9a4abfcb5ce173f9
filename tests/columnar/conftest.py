"""What several tests of reading in bulk need."""

from __future__ import annotations

import pytest

from parsers.reading import in_bulk
from parsers.reading.in_bulk import reader as reading


@pytest.fixture
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of a single line are read in bulk, too, and so are small sources."""
    monkeypatch.setattr(in_bulk, "_SMALL", 0)
    monkeypatch.setattr(reading, "_FEWEST", 1)
