"""Two readings of the same logs, compared."""

from __future__ import annotations

from polars.testing import assert_frame_equal

from logscope.log.frames import LogFrames

__all__ = ["assert_same"]


def assert_same(found: LogFrames, expected: LogFrames) -> None:
    """Two readings told the same."""
    assert found.frames.keys() == expected.frames.keys()
    for family, frame in expected.frames.items():
        assert_frame_equal(found.frames[family], frame)
    assert found.texts == expected.texts
    assert found.exceptions == expected.exceptions
    assert found.coverage == expected.coverage
