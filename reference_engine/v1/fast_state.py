"""A request on the fast path of V1."""

from __future__ import annotations

from reference_engine.model.decoding import MEMBER_FIELDS, Member
from reference_engine.model.ledger import RequestRecord

__all__ = ["FastState"]


class FastState(Member):
    """A request that may be a bulk member; a tick of its bulk is a batch.

    `draining`: its last token is in flight (asynchronous only). `stamp` orders requests as the running list does.
    """

    __slots__ = (*MEMBER_FIELDS, "draining", "stamp")

    def __init__(self, record: RequestRecord, max_model_len: int) -> None:
        super().__init__(record, max_model_len)
        self.draining = False
        self.stamp = 0
