"""Requests as JSON Lines beside a configuration file: the format that is ours, read and written.

Mooncake's trace format: JSON Lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

A hash id names 512 tokens together with everything before them, so two prompts share exactly as long as their ids agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TextIO

from reference_engine.model.request import Request
from reference_engine.traces.workload_file import Row, Workload, finish_workload, json_rows

__all__ = ["HASH_TOKENS", "read_mooncake", "read_requests", "write_requests"]


def read_requests(source: str, text: TextIO) -> Workload:
    """Rows of `request_id` (default: the row's position), `arrival_s` or `arrival_step`, `prompt_tokens`,
    `output_tokens`, and optionally `priority`, `abort_s`, `prefix_id` with `prefix_tokens`: the prompt begins with that
    many tokens which all requests with the same `prefix_id` share.
    """
    seen: dict[int | str, int] = {}
    requests = []
    for position, row in enumerate(json_rows(source, text)):
        request = _request(row, position)
        if request.id in seen:
            raise row.error(f"request_id {request.id!r} was used before, on line {seen[request.id]}")
        seen[request.id] = row.line
        requests.append(request)
    if any(request.arrival_step is not None for request in requests):
        requests.sort(key=lambda request: request.arrival_step or 0)
    return finish_workload(source, "requests", requests)


def _request(row: Row, position: int) -> Request:
    request_id = row.fields.get("request_id", position)
    if isinstance(request_id, bool) or not isinstance(request_id, (int, str)):
        raise row.error("request_id is neither text nor a whole number")
    tokens = row.count("prompt_tokens")
    step = row.fields.get("arrival_step")
    return Request(
        id=request_id,
        prompt_tokens=tokens,
        output_tokens=row.count("output_tokens"),
        arrival_s=row.number("arrival_s") if step is None else 0.0,
        arrival_step=None if step is None else row.count("arrival_step", least=0),
        priority=row.whole("priority", 0),
        prompt=_prompt(row, request_id, tokens),
        abort_s=None if row.fields.get("abort_s") is None else row.number("abort_s"),
    )


def _prompt(row: Row, request_id: int | str, tokens: int) -> tuple[tuple[str, int], ...] | None:
    prefix = row.fields.get("prefix_id")
    if prefix is None:
        return None
    if isinstance(prefix, (dict, list, bool)):
        raise row.error("prefix_id is neither text nor a number")
    shared = row.count("prefix_tokens", least=0)
    if shared > tokens:
        raise row.error(f"prefix_tokens is {shared}, more than prompt_tokens ({tokens})")
    parts = ((f"prefix:{prefix}", shared), (f"own:{request_id!r}", tokens - shared))
    return tuple(part for part in parts if part[1] > 0)


def write_requests(out: TextIO, requests: Iterable[Request]) -> None:
    """Write requests so that `read_requests` gives them back. Of a shared prompt only the first stream is kept."""
    for request in requests:
        prefix = request.prompt[0] if request.prompt else None
        shared = prefix is not None and prefix[0].startswith("prefix:")
        row = {
            "request_id": request.id,
            "arrival_s": request.arrival_s,
            "arrival_step": request.arrival_step,
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "priority": request.priority,
            "prefix_id": prefix[0].removeprefix("prefix:") if prefix and shared else None,
            "prefix_tokens": prefix[1] if prefix and shared else 0,
            "abort_s": request.abort_s,
        }
        if request.arrival_step is None:
            del row["arrival_step"]
        out.write(json.dumps(row, allow_nan=False) + "\n")


HASH_TOKENS = 512


def read_mooncake(source: str, text: TextIO) -> Workload:
    """One request a row, numbered in the file's order; rows without `hash_ids` share nothing.

    An `output_length` of 0 counts as 1: a server gives at least one token.
    """
    return finish_workload(
        source, "mooncake", (_mooncake_request(row, number) for number, row in enumerate(json_rows(source, text)))
    )


def _mooncake_request(row: Row, number: int) -> Request:
    tokens = row.count("input_length")
    return Request(
        id=number,
        prompt_tokens=tokens,
        output_tokens=max(1, row.count("output_length", least=0)),
        arrival_s=row.number("timestamp") / 1000,
        prompt=_mooncake_prompt(row, number, tokens),
    )


def _mooncake_prompt(row: Row, number: int, tokens: int) -> tuple[tuple[str, int], ...] | None:
    ids = row.fields.get("hash_ids")
    if ids is None or ids == []:
        return None
    if not isinstance(ids, list) or not all(type(value) is int for value in ids):
        raise row.error("hash_ids is not a list of whole numbers")
    if (len(ids) - 1) * HASH_TOKENS >= tokens:
        raise row.error(f"{len(ids)} hash_ids are too many for {tokens} tokens of {HASH_TOKENS} each")
    segments = []
    left = tokens
    for value in ids:
        segments.append((f"h{value}", min(HASH_TOKENS, left)))
        left -= HASH_TOKENS
    if left > 0:
        segments.append((f"own:{number}", left))
    return tuple(segments)
