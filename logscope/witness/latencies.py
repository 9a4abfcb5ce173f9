"""Latencies that clients measured: vLLM's `bench serve` result, guidellm's report, or rows of sent, first token and finished.

All times in seconds. Rows are CSV with a head (`sent,first_token,finished`, also with `_s` after them, and if there is one
`max_gap`: the longest gap between two tokens), or JSON Lines with the same names.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from logscope.sanitize import believed_number, json_document
from logscope.witness.metrics import WitnessError, text_of
from parsers.sources.object_stores import without_secrets

__all__ = ["ClientRequest", "LatencyWitness", "read_latencies"]

_LONG_GAP = 20.0
"""A gap of so many usual gaps (and of half a second) is that of a request which stood still."""
LEAST_GAP_S = 0.5


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One request that finished, in seconds: time to its first token, its whole time, the gaps between its tokens."""

    ttft_s: float | None
    e2e_s: float | None
    gaps_s: tuple[float, ...] = ()
    longest_gap_s: float | None = None


@dataclass(frozen=True, slots=True)
class LatencyWitness:
    """What clients measured; `latency` has the contract's percentiles, None where they are not told."""

    source: str
    form: str
    requests: int
    failed: int
    latency: Mapping[str, Mapping[str, float | None]]
    longest_gap_s: Mapping[str, float | None]
    stood_still: int | None = None

    def document(self) -> dict[str, Any]:
        """A block of `analyze --json`."""
        return {
            "source": self.source,
            "form": self.form,
            "requests": self.requests,
            "failed": self.failed,
            "longest_gap_s": dict(self.longest_gap_s),
            "stood_still": self.stood_still,
        }


def read_latencies(name: str) -> LatencyWitness:
    """Read a file of client-side results. Raises WitnessError where it is none that is known, or holds no finished request."""
    text, name = text_of(name), without_secrets(name)
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json_document(text)
        except ValueError:
            document = None
        if isinstance(document, dict) and isinstance(document.get("benchmarks"), list):
            found = _of_requests(name, "guidellm", *_guidellm(document))
        elif isinstance(document, dict) and ("ttfts" in document or "median_ttft_ms" in document):
            found = _bench(name, document)
        else:
            rows = document if isinstance(document, list) else _json_lines(text)
            found = _of_requests(name, "jsonl", *_rows(rows))
    else:
        try:
            found = _of_requests(name, "csv", *_rows(csv.DictReader(io.StringIO(text))))
        except csv.Error as error:  # a field without end; a NUL on Python 3.10
            raise WitnessError(f"{name}: no CSV that can be read: {error}") from error
    if not found.requests:
        raise WitnessError(
            f"{name}: no finished request in it; give a result of `vllm bench serve --save-result`, of guidellm, or a CSV with sent,first_token,finished"
        )
    return found


def _of_requests(name: str, form: str, requests: list[ClientRequest], failed: int) -> LatencyWitness:
    gaps = [g for r in requests for g in r.gaps_s]
    longest = [
        gap
        for r in requests
        if (gap := r.longest_gap_s if r.longest_gap_s is not None else max(r.gaps_s, default=None)) is not None
    ]
    latency = {
        "ttft_s": _percentiles([r.ttft_s for r in requests], 50, 90, 99),
        "e2e_s": _percentiles([r.e2e_s for r in requests], 50, 90, 99),
        "itl_s": _percentiles(gaps, 50, 99),
    }
    limit = max(LEAST_GAP_S, _LONG_GAP * (latency["itl_s"]["p50"] or 0.0))
    return LatencyWitness(
        name,
        form,
        len(requests),
        failed,
        latency,
        {**_percentiles(longest, 50, 99), "max": max(longest) if longest else None},
        sum(g >= limit for g in longest) if longest else None,
    )


def _percentiles(values: Iterable[float | None], *points: int) -> dict[str, float | None]:
    known = [v for v in values if v is not None]
    if not known:
        return {f"p{p}": None for p in points}
    return {f"p{p}": float(np.percentile(known, p)) for p in points}


def _bench(name: str, document: Mapping[str, Any]) -> LatencyWitness:
    """`--save-detailed` gives each request's TTFT and gaps; without it only what the summary has."""
    ttfts, itls = document.get("ttfts"), document.get("itls")
    if isinstance(ttfts, list) and isinstance(itls, list) and len(ttfts) == len(itls):
        errors = document.get("errors")
        requests, failed = [], 0
        for i, (ttft, gaps) in enumerate(zip(ttfts, itls, strict=True)):
            error = errors[i] if isinstance(errors, list) and i < len(errors) else ""
            parts = [believed_number(g) for g in gaps] if isinstance(gaps, list) else [None]
            first = believed_number(ttft)
            if error or first is None or None in parts or (first == 0 and not parts):
                failed += 1
                continue
            known = tuple(g for g in parts if g is not None)
            requests.append(ClientRequest(first, first + sum(known), known))
        return _of_requests(name, "vllm bench serve", requests, failed)

    def told(metric: str, *points: int) -> dict[str, float | None]:
        found = {}
        for p in points:
            keys = [f"p{p}_{metric}_ms", *([f"median_{metric}_ms"] if p == 50 else [])]
            value = next((v for k in keys if (v := believed_number(document.get(k))) is not None), None)
            found[f"p{p}"] = value / 1000 if value is not None else None
        return found

    return LatencyWitness(
        name,
        "vllm bench serve",
        int(believed_number(document.get("completed")) or 0),
        int(believed_number(document.get("failed")) or 0),
        {"ttft_s": told("ttft", 50, 90, 99), "e2e_s": told("e2el", 50, 90, 99), "itl_s": told("itl", 50, 99)},
        {"p50": None, "p99": None, "max": None},
    )


def _guidellm(document: Mapping[str, Any]) -> tuple[list[ClientRequest], int]:
    """Each benchmark's finished requests; its `inter_token_latency_ms` is a request's mean and no gap, so that it is left out."""
    requests, failed = [], 0
    for benchmark in document["benchmarks"]:
        parts = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if not isinstance(parts, dict):
            continue
        failed += len(_list(parts.get("errored"))) + len(_list(parts.get("incomplete")))
        for request in _list(parts.get("successful")):
            if not isinstance(request, dict):
                continue
            ttft = believed_number(request.get("time_to_first_token_ms"))
            e2e = believed_number(request.get("request_latency"))
            if ttft is None and e2e is None:
                failed += 1
                continue
            requests.append(ClientRequest(ttft / 1000 if ttft is not None else None, e2e))
    return requests, failed


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json_lines(text: str) -> Iterator[Any]:
    for line in text.split("\n"):
        if line.strip():
            try:
                yield json_document(line)
            except ValueError:
                yield None


def _rows(rows: Iterable[Any]) -> tuple[list[ClientRequest], int]:
    requests, failed = [], 0
    for row in rows:
        request = _row(row) if isinstance(row, Mapping) else None
        if request is None:
            failed += 1
        else:
            requests.append(request)
    return requests, failed


def _row(row: Mapping[Any, Any]) -> ClientRequest | None:
    def at(name: str) -> float | None:
        return believed_number(next((row[k] for k in (name, f"{name}_s") if row.get(k) not in (None, "")), None))

    sent, first, done = at("sent"), at("first_token"), at("finished")
    if sent is None or done is None or done < sent or (first is not None and first < sent):
        return None
    gap = at("max_gap")
    longest = gap if gap is not None else at("longest_gap")
    return ClientRequest(first - sent if first is not None else None, done - sent, (), longest)
