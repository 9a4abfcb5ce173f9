"""The log of a replay's steps: one list a column, turned into a frame at the end."""

from __future__ import annotations

__all__ = ["STEP_COLUMNS", "StepLog"]

STEP_COLUMNS = (
    "start",
    "end",
    "prefill_tokens",
    "decode_requests",
    "kv_tokens",
    "free_blocks",
    "free_end",
    "running",
    "waiting",
    "preempted",
    "tokens",
    "finished",
)


class StepLog:
    """Rows of `STEP_COLUMNS`; times in nanoseconds, the rest are counts."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def append(self, *row: int) -> None:
        """One completed step."""
        self.rows.append(row)
