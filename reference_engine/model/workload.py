"""Requests as the engine sees them, and the rules that a workload must obey."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Lengths in tokens, times in seconds on the replay's clock.

    `prompt` is the concatenation of stream prefixes: ("u0", 40) stands for tokens 0..39 of stream u0, and two tokens are
    equal when stream and index are equal; None means a prompt that shares nothing with any other. Output token k is token k
    of the stream `o<id>`. `output_tokens` is what the request will generate if nothing stops it.
    `arrival_step` (golden traces) adds the request before that step; otherwise it is added before the first step that
    starts at or after `arrival_s`. `arrival_time` is what the priority policy compares (default: `arrival_s`).
    """

    id: int | str
    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    arrival_step: int | None = None
    arrival_time: float | None = None
    priority: int = 0
    prompt: tuple[tuple[str, int], ...] | None = None
    abort_s: float | None = None
