"""What several fuzz tests need."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that fails must fail the test; how long it searches has no part in what is promised."""
    monkeypatch.setenv("LOGSCOPE_DEBUG", "1")
    monkeypatch.setattr("logscope.inference.windows.estimate._SECONDS", 0.2)
