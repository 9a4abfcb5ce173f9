"""Mooncake's trace format: JSON Lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

A hash id names 512 tokens together with everything before them, so two prompts share exactly as long as their ids agree.
"""

from __future__ import annotations

from typing import TextIO

from reference_engine.model.workload import Request
from reference_engine.traces.text_lines import json_rows
from reference_engine.traces.workload_file import Row, Workload, finish_workload

__all__ = ["HASH_TOKENS", "read_mooncake"]

HASH_TOKENS = 512


def read_mooncake(source: str, text: TextIO) -> Workload:
    """One request a row, numbered in the file's order; rows without `hash_ids` share nothing.

    An `output_length` of 0 counts as 1: a server gives at least one token.
    """
    return finish_workload(
        source,
        "mooncake",
        (_request(row, number) for number, row in enumerate(json_rows(source, text))),
    )


def _request(row: Row, number: int) -> Request:
    tokens = row.count("input_length")
    return Request(
        id=number,
        prompt_tokens=tokens,
        output_tokens=max(1, row.count("output_length", least=0)),
        arrival_s=row.number("timestamp") / 1000,
        prompt=_prompt(row, number, tokens),
    )


def _prompt(row: Row, number: int, tokens: int) -> tuple[tuple[str, int], ...] | None:
    ids = row.fields.get("hash_ids")
    if ids is None or ids == []:
        return None
    if not isinstance(ids, list) or not all(type(value) is int for value in ids):
        raise row.error("hash_ids is not a list of whole numbers")
    if (len(ids) - 1) * HASH_TOKENS >= tokens:
        raise row.error(
            f"{len(ids)} hash_ids are too many for {tokens} tokens of {HASH_TOKENS} each"
        )
    segments = []
    left = tokens
    for value in ids:
        segments.append((f"h{value}", min(HASH_TOKENS, left)))
        left -= HASH_TOKENS
    if left > 0:
        segments.append((f"own:{number}", left))
    return tuple(segments)
