"""The defaults of a vLLM version for settings that the log does not name.

Facts of the releases (config classes and engine arguments, 0.1.0 to 0.33.0); where a default depends on the GPU's memory and the log
does not tell it, the value for smaller GPUs is taken, or the setting stays unknown.
"""

from __future__ import annotations

from typing import Any

from logscope.configuration import Configuration
from reference_engine.profile import version_key

__all__ = ["fill_defaults"]


def fill_defaults(
    configuration: Configuration, engine: str | None, version: str | None, device: str | None
) -> None:
    """Fill what is unknown with the version's defaults, basis `default`; nothing is filled where neither engine nor version is known."""
    if engine is None and version is None:
        return
    key = (version_key(version) if version else None) or (
        (0, 33, 0) if engine == "V1" else (0, 8, 5)
    )
    values = _v0(key, configuration) if engine == "V0" else _v1(key, configuration, device)
    for name, value in values.items():
        if configuration.values.get(name) is None and value is not None:
            configuration.set(name, value, "default")


def _v1(
    key: tuple[int, int, int], configuration: Configuration, device: str | None
) -> dict[str, Any]:
    cpu = device == "CPU"
    world = (configuration.values.get("tensor_parallel_size") or 1) * (
        configuration.values.get("pipeline_parallel_size") or 1
    )
    seats = 128 * world if cpu and key >= (0, 10, 0) else 256
    budget = 2048 * world if cpu and key >= (0, 10, 0) else 2048
    return {
        "max_num_seqs": seats,
        "max_num_batched_tokens": budget,
        "block_size": 128 if cpu else 16,
        "policy": "fcfs",
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "long_prefill_token_threshold": 0,
        "watermark": 0.0 if key >= (0, 24, 0) else None,
        "gpu_memory_utilization": 0.92 if key >= (0, 20, 0) else 0.9,
        "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
    }


def _v0(key: tuple[int, int, int], configuration: Configuration) -> dict[str, Any]:
    length = configuration.values.get("max_model_len") or 2048
    chunked = configuration.values.get("enable_chunked_prefill")
    if chunked is None:
        chunked = False
    budget = (2048 if key >= (0, 6, 5) else 512) if chunked else max(length, 2048)
    return {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2560 if key < (0, 2, 0) else budget,
        "block_size": 16,
        "policy": "fcfs",
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": False,
        "long_prefill_token_threshold": 0,
        "gpu_memory_utilization": 0.9,
        "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
    }
