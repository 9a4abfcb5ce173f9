"""The ledger's labels in words, and which of them speak for which verdict: one home for all that decide or talk."""

from __future__ import annotations

__all__ = ["LEDGER_LABELS", "LOST_TO"]

LEDGER_LABELS: dict[str, str] = {
    "queued_for_kv": "queued for KV blocks",
    "preempted_wait": "waiting after preemption",
    "recompute": "recomputing lost tokens",
    "queued_for_seat": "queued for a seat",
    "queued_for_budget": "queued for token budget",
    "interference": "slowed by others' prefill",
    "prefill": "own prefill",
    "decode": "own decode",
}
"""In the order in which a ledger is shown: what a cause took first, a request's own work last."""

LOST_TO: dict[str, tuple[str, ...]] = {
    "kv-capacity": ("queued_for_kv", "preempted_wait", "recompute"),
    "seat-limit": ("queued_for_seat",),
    "prefill-interference": ("interference", "queued_for_budget"),
}
"""Which labels are delay of which cause."""
