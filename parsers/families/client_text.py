"""Which parts of a message a client can write: prompts and outputs, request ids, paths, the texts of errors.

The table is the one home of that knowledge: what is glued behind such a message is never read as a record, docs/threat-model.md shows it,
and a fuzz target puts hostile text into each part. All other formats are the server's own words, numbers and settings. A message that no
family knows may hold anything.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CLIENT_TEXT", "ClientText", "is_servers_own"]


class ClientText(NamedTuple):
    """`parts` are fields of the family's `variants` that a client can write; `printed` says how they come into the line."""

    family: str
    variants: tuple[str, ...]
    parts: tuple[str, ...]
    printed: str


_RAW = "as it was sent"
_REPR = "as a Python repr, line breaks escaped"
_LIVES = ("added", "aborted", "finished", "req_aborted", "req_failed", "queue_full")

CLIENT_TEXT = (
    ClientText("request", ("received", "details", "generated", *_LIVES), ("request_id",), _RAW),
    ClientText("request", ("aborted",), ("request_ids",), _RAW),
    ClientText("request", ("received", "details"), ("prompt",), _REPR),
    ClientText("request", ("received",), ("params", "lora_request"), _REPR),
    ClientText("request", ("generated",), ("output",), _REPR),
    ClientText("request", ("req_failed",), ("error",), _RAW),
    ClientText("preemption", ("v0_preempt_warning",), ("request_id",), _RAW),
    ClientText("shutdown", ("httpstop",), ("request_id",), _RAW),
    ClientText("kv_sizing", ("simple_offload",), ("request_id",), _RAW),
    ClientText("http", ("access",), ("path",), "percent-encoded, without blanks"),
    ClientText("runtime", ("worker_exc", "coredied", "output_handler", "dead"), ("error",), "the text of an exception"),
    ClientText("runtime", ("dump",), ("scheduler_output",), "the repr of what the step was given, request ids in it"),
)
_OPEN = frozenset((row.family, variant) for row in CLIENT_TEXT for variant in row.variants)


def is_servers_own(family: str, variant: str) -> bool:
    """Whether no client can write into messages of this format."""
    return (family, variant) not in _OPEN
