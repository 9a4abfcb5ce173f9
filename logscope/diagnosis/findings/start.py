"""Starts that failed: KV space that is too small for one request, and every other reason that the log names."""

from __future__ import annotations

from typing import Any

import polars as pl

from logscope.evidence.context import Context
from logscope.evidence.finding import Evidence, Finding, evidence_of, proof, seconds

__all__ = ["failed_start"]

PRINTED_GIB = 0.01
_SPACE = ("toserve", "maxseqlen", "noavail", "cannotfit")


def failed_start(context: Context) -> list[Finding]:
    """A start whose engine never served, with the error's own numbers. Nothing where the server came up."""
    log = context.log
    if context.served:
        return []
    errors = log.get("kv_error")
    if errors is not None:
        space = errors.filter(pl.col("variant").str.contains_any(list(_SPACE)))
        if space.height:
            return [_space_finding(context, space)]
    reason, evidence = _reason(context, errors)
    if reason is None:
        return []
    span = log.facts.start, log.facts.end
    return [proof("startup-failed", f"The server did not start: {reason}", span, evidence)]


def _space_finding(context: Context, errors: pl.DataFrame) -> Finding:
    rows = errors.rows(named=True)
    told = max(rows, key=lambda r: sum(v is not None for v in r.values()))
    fits = _fits(told, context.log.facts.config.get("block_size") or 16)
    title = _space_sentence(told, fits)
    facts: dict[str, Any] = {
        "max_model_len": told.get("max_model_len"),
        "largest_max_model_len": fits,
        "needed_gib": told.get("needed_gib"),
        "available_gib": told.get("available_kv_cache_gib"),
    }
    span = seconds(r["at"] for r in rows)
    return proof("startup-kv-too-small", title, span, evidence_of(errors, context.texts), facts)


def _fits(row: dict[str, Any], block_size: int) -> int | None:
    """The largest max_model_len that fits: what vLLM estimated, else the cache's tokens, else by proportion of the bytes.

    The bytes are rounded as printed (before 0.9.1 there is nothing else), and a request takes whole blocks: both count against it.
    """
    if row.get("estimated_max_model_len"):
        return int(row["estimated_max_model_len"])
    if row.get("kv_cache_tokens"):
        return int(row["kv_cache_tokens"])
    needed, free, length = (
        row.get("needed_gib"),
        row.get("available_kv_cache_gib"),
        row.get("max_model_len"),
    )
    if needed and free is not None and length:
        tokens = length * max(0.0, free - PRINTED_GIB / 2) / (needed + PRINTED_GIB / 2)
        return int(tokens // block_size) * block_size
    return None


def _space_sentence(row: dict[str, Any], fits: int | None) -> str:
    length, needed, free = (
        row.get("max_model_len"),
        row.get("needed_gib"),
        row.get("available_kv_cache_gib"),
    )
    end = f"; the largest max_model_len that fits is {fits:,}" if fits else ""
    if length and needed is not None and free is not None:
        return f"One request of max_model_len {length:,} tokens needs {needed:g} GiB of KV cache and {free:g} GiB is there{end}"
    if length and row.get("kv_cache_tokens"):
        return f"max_model_len is {length:,} tokens and the KV cache holds {row['kv_cache_tokens']:,}{end}"
    return "No memory is left for the KV cache after weights and activations: raise gpu_memory_utilization, free the GPU, or take a smaller model"


def _reason(
    context: Context, errors: pl.DataFrame | None
) -> tuple[str | None, tuple[Evidence, ...]]:
    """The cause that the log names, best first: a memory error, an out-of-memory error, the last exception, a process that died."""
    if errors is not None and errors.height:
        row = errors.rows(named=True)[-1]
        if row.get("free_gib") is not None and row.get("requested_gib") is not None:
            text = (
                f"{row['free_gib']:g} of {row['total_gpu_gib']:g} GiB of GPU memory are free and gpu_memory_utilization wants {row['requested_gib']:g} GiB;"
                " another process holds memory, or the utilization is too high"
            )
            return text, evidence_of(errors, context.texts)
        return "its memory settings were refused", evidence_of(errors, context.texts)
    runtime = context.log.get("runtime")
    if runtime is not None:
        memory = runtime.filter(pl.col("variant").str.contains("oom"))
        if memory.height:
            return "out of GPU memory while it started", evidence_of(memory, context.texts)
    if context.exceptions:
        last = context.exceptions[-1]
        return _plain(last.text), tuple(context.exceptions[-3:])
    if runtime is not None:
        died = runtime.filter(pl.col("variant").str.contains("dead|died|fatal|worker_exc"))
        if died.height:
            return "an engine process died; the log does not say why", evidence_of(
                died, context.texts
            )
    return None, ()


def _plain(text: str) -> str:
    """An exception's last line without pydantic's wrapping."""
    return text.strip().removeprefix("Value error, ").split(" [type=")[0]
