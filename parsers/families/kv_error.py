"""Errors at start that say the KV cache does not fit: needed and available memory in GiB, lengths in tokens.

They are raised, so each is the last line of a traceback, bare or under a record of the engine process.
"""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Format, Kind

__all__ = ["FORMATS", "SCHEMA"]

SCHEMA: dict[str, Kind] = {
    "max_model_len": Kind.WHOLE,
    "kv_cache_tokens": Kind.WHOLE,
    "needed_gib": Kind.NUMBER,
    "available_kv_cache_gib": Kind.NUMBER,
    "estimated_max_model_len": Kind.WHOLE,
    "free_gib": Kind.NUMBER,
    "total_gpu_gib": Kind.NUMBER,
    "gpu_memory_utilization": Kind.NUMBER,
    "requested_gib": Kind.NUMBER,
    "device": Kind.TEXT,
    "error": Kind.TEXT,
    "logged_as": Kind.TEXT,
}

_format = partial(Format, "kv_error")
_RAISED = "raise ValueError"
_ESTIMATE = (
    "[[ Based on the available memory,[[ the estimated maximum model length is {estimated_max_model_len:d}]]]]..."
)

FORMATS = (
    _format(
        "noavail",
        "V0",
        "0.1.1..0.10.2",
        _RAISED,
        "No available memory for the cache blocks. Try increasing 'gpu_memory_utilization' when initializing the engine.",
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        anchor="No available memory for the cache blocks",
    ),
    # 0.13.0 appends a link, 0.22.0 a word on CPU memory.
    _format(
        "noavail",
        "V1",
        "0.6.4..0.33.0",
        _RAISED,
        "No available memory for the cache blocks...",
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine (this flag also controls CPU memory reservation on the CPU backend, despite its name). See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
    ),
    _format(
        "maxseqlen",
        "V0",
        "0.2.7..0.10.2",
        _RAISED,
        "The model's max seq len ({max_model_len:d}) is larger than the maximum number of tokens that can be stored in KV cache ({kv_cache_tokens:d})...",
        "The model's max seq len (16384) is larger than the maximum number of tokens that can be stored in KV cache (11904). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
    ),
    _format(
        "maxseqlen",
        "V1",
        "0.6.4..0.6.6.post1",
        _RAISED,
        "The model's max seq len ({max_model_len:d}) is larger than the maximum number of tokens that can be stored in KV cache ({kv_cache_tokens:d})...",
        "The model's max seq len (16384) is larger than the maximum number of tokens that can be stored in KV cache (11904). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
    ),
    # "models's" until 0.21.0; the unit reads GB until 0.8.2 and means GiB; no estimate before 0.8.4, and 0.8.4 to
    # 0.9.0.1 cut it off before its number.
    _format(
        "toserve",
        "V1",
        "0.7.0..0.33.0",
        _RAISED,
        "To serve at least one request with the model{s|}'s max seq len ({max_model_len:d}), {(|}{needed_gib:gib} KV cache is needed, which is larger than the available KV cache memory ({available_kv_cache_gib:gib})[[.]]"
        + _ESTIMATE,
        "To serve at least one request with the models's max seq len (16384), (16.0 GiB KV cache is needed, which is larger than the available KV cache memory (9.37 GiB). Based on the available memory, the estimated maximum model length is 9584. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
    ),
    _format(
        "cannotfit",
        "V1",
        "0.14.0..0.33.0",
        _RAISED,
        "Cannot auto-fit max_model_len: not enough GPU memory available...",
        "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try increasing `gpu_memory_utilization`.",
    ),
    _format(
        "freestart",
        "V1",
        "0.9.1..0.13.0",
        _RAISED,
        "Free memory on device ({free_gib:f}/{total_gpu_gib:f} GiB) on startup is less than desired GPU memory utilization ({gpu_memory_utilization:f}, {requested_gib:f} GiB)...",
        "Free memory on device (78.61/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    _format(
        "freestart",
        "V1",
        "0.14.0..0.33.0",
        _RAISED,
        "Free memory on device {device} ({free_gib:f}/{total_gpu_gib:f} GiB) on startup is less than desired GPU memory utilization ({gpu_memory_utilization:f}, {requested_gib:f} GiB)...",
        "Free memory on device cuda:0 (78.61/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
)
