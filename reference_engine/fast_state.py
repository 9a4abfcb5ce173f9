"""A request on the fast path: its scheduler state, its record, and what replaces them while it decodes in bulk."""

from __future__ import annotations

from .ledger import RequestRecord
from .state import RequestState

__all__ = ["FastState"]


class FastState(RequestState):
    """A request that may be a bulk member: then it gets one token in every batch and nothing of it is touched.

    While `bulk` is set, batch number j leaves it at `base + j` computed tokens and brings its output to
    `out_base + j` tokens; `first` is its first batch as a member and `finish` the batch of its last token. The plain
    fields are written again when it leaves the bulk. `draining`: its last token is in flight (asynchronous only).
    `stamp` orders requests as the running list does. `mark_time` and `mark_disturbed`: clock and disturbance total
    (ns) from which its decode time counts; `wait_from`: when it was evicted (ns); `queued`: queue totals at entry.
    """

    __slots__ = (
        "base",
        "bulk",
        "draining",
        "finish",
        "first",
        "mark_disturbed",
        "mark_time",
        "out_base",
        "queued",
        "record",
        "stamp",
        "wait_from",
    )

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record.request, max_model_len)
        self.record = record
        self.bulk = False
        self.draining = False
        self.stamp = 0
        self.base = self.out_base = self.first = self.finish = 0
        self.mark_time = self.mark_disturbed = self.wait_from = 0
        self.queued = (0, 0, 0)
