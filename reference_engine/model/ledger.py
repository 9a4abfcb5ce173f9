"""Where each moment of a request's life went: the latency ledger, in whole nanoseconds so that its parts add up.

`LABELS` are the ledger's parts, `RequestRecord` what a replay remembers of one request, `chunk_kind` what a scheduled
chunk of tokens is.
"""

from __future__ import annotations

from reference_engine.model.request import Request

__all__ = [
    "BUDGET",
    "DECODE",
    "INTERFERENCE",
    "KV",
    "LABELS",
    "PREEMPTED_WAIT",
    "PREFILL",
    "QUEUED",
    "RECOMPUTE",
    "SEAT",
    "RequestRecord",
    "chunk_kind",
    "nanoseconds",
]

LABELS = (
    "queued_for_kv",
    "queued_for_seat",
    "queued_for_budget",
    "prefill",
    "decode",
    "interference",
    "preempted_wait",
    "recompute",
)
KV, SEAT, BUDGET, PREFILL, DECODE, INTERFERENCE, PREEMPTED_WAIT, RECOMPUTE = range(8)

QUEUED = {"kv": KV, "seat": SEAT, "budget": BUDGET, None: BUDGET}


def nanoseconds(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * 1e9)


def chunk_kind(start: int, prompt: int, reached: int) -> int:
    """The label of a chunk that starts at a position: RECOMPUTE, PREFILL or DECODE.

    Args:
        start: first position that the chunk computes, in tokens.
        prompt: prompt length in tokens.
        reached: positions that the request had computed at its best, before a preemption took them.
    """
    if start < reached:
        return RECOMPUTE
    return PREFILL if start < prompt else DECODE


class RequestRecord:
    """One request's story. Times are nanoseconds on the replay's clock, None where it did not come to that.

    `status`: "waiting" (also: arrived, still running), "finished", "aborted" or "ignored" (V0: too long to ever run).
    `end`: when it left the engine. `cached`: prompt tokens found in the prefix cache at the first admission.
    `recomputed`: tokens that were computed again. `reached`: highest computed position so far. `ledger` is parallel to
    `LABELS`.
    """

    __slots__ = (
        "arrival",
        "cached",
        "end",
        "first_token",
        "last_token",
        "ledger",
        "output",
        "preemptions",
        "reached",
        "recomputed",
        "request",
        "started",
        "status",
    )

    def __init__(self, request: Request, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.status = "waiting"
        self.started = False
        self.first_token: int | None = None
        self.last_token = 0
        self.end: int | None = None
        self.output = 0
        self.preemptions = 0
        self.recomputed = 0
        self.cached = 0
        self.reached = 0
        self.ledger = [0] * len(LABELS)
