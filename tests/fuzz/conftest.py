"""What several fuzz tests need."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that fails must fail the test."""
    monkeypatch.setenv("LOGSCOPE_DEBUG", "1")
