"""One line an engine step (`--enable-logging-iteration-details`, V1 from 0.14.0).

`context_…` is prefill, `generation_…` decode, of this step; `elapsed_ms` is the step's wall time in milliseconds;
`gpu_kv_cache_usage_pct` (0.26.0 on, after the step) is 0..100; `dummy` marks a data-parallel rank without work.
"""

from __future__ import annotations

from functools import partial

import regex

from parsers.families.formats import Fields, Format, Kind, assign, split_pairs
from parsers.lines import later_regex

__all__ = ["FORMATS", "SCHEMA"]

SCHEMA: dict[str, Kind] = {
    "engine": Kind.WHOLE,
    "iteration": Kind.WHOLE,
    "context_requests": Kind.WHOLE,
    "context_tokens": Kind.WHOLE,
    "generation_requests": Kind.WHOLE,
    "generation_tokens": Kind.WHOLE,
    "elapsed_ms": Kind.NUMBER,
    "dummy": Kind.FLAG,
    "device": Kind.TEXT,
    "gpu_kv_cache_usage_pct": Kind.NUMBER,
    "encoder_inputs": Kind.WHOLE,
    "encoder_output_embeddings": Kind.WHOLE,
}

_STEP = later_regex(
    r"""\s*+Iteration\((?P<iteration>\d{1,18})\):\s
    (?P<context_requests>\d{1,18})\ context\ requests,\s
    (?P<context_tokens>\d{1,18})\ context\ tokens,\s
    (?P<generation_requests>\d{1,18})\ generation\ requests,\s
    (?P<generation_tokens>\d{1,18})\ generation\ tokens,\s
    iteration\ elapsed\ time:\ (?P<elapsed_ms>\d{1,18}(?:\.\d{1,18})?+)\ ms
    (?P<dummy>\ \(dummy\))?+
    (?:,\ (?P<device>[^,:\n]{1,40}?)\ KV\ cache\ usage:\ (?P<usage>\d{1,18}(?:\.\d{1,18})?+)%)?""",
    regex.VERBOSE,
)
_COUNTS = ("iteration", "context_requests", "context_tokens", "generation_requests", "generation_tokens")


def _step(text: str) -> Fields | None:
    text = text.replace("\n", " ") if "\n" in text[:1000] else text
    found = _STEP.match(text)
    if found is None:
        return None
    fields: Fields = {name: int(found[name]) for name in _COUNTS}
    fields["elapsed_ms"] = float(found["elapsed_ms"])
    fields["dummy"] = found["dummy"] is not None
    if found["device"] is not None:
        fields["device"] = found["device"]
        fields["gpu_kv_cache_usage_pct"] = float(found["usage"])
    rest = text[found.end() : found.end() + 1000].removeprefix(", ")
    for key, value in split_pairs(rest) if rest else ():
        assign(fields, key, value)
    return fields


_format = partial(Format, "iteration")
_COMMON = "Iteration({iteration:d}): {context_requests:d} context requests, {context_tokens:d} context tokens, {generation_requests:d} generation requests, {generation_tokens:d} generation tokens, iteration elapsed time: {elapsed_ms:f} ms[[ (dummy)]]"
_SEEN = "Iteration(412): 3 context requests, 2048 context tokens, 61 generation requests, 61 generation tokens, iteration elapsed time: 34.12 ms"

FORMATS = (
    _format(
        "v1_iter_core",
        "V1",
        "0.14.0..0.25.1",
        "INFO",
        _COMMON,
        _SEEN,
        read=_step,
        anchor="Iteration(",
        per_engine=False,
    ),
    _format(
        "v1_iter_logger",
        "V1",
        "0.26.0..0.33.0",
        "INFO",
        _COMMON
        + ", {device} KV cache usage: {gpu_kv_cache_usage_pct:f}%[[, encoder inputs: {encoder_inputs:d}, encoder output embeddings: {encoder_output_embeddings:d}]]",
        "Engine 000: " + _SEEN + ", GPU KV cache usage: 97.4%, encoder inputs: 2, encoder output embeddings: 1152",
        read=_step,
        anchor="Iteration(",
        per_engine=True,
    ),
)
