"""How much KV space an engine has: blocks, tokens, GiB of memory at each stage of its start.

`…_gib` is GiB (2^30 bytes) even where vLLM prints `GB` (weights before 0.8.3); `capacity_gb` of CPU offload is GB as
printed. `kv_cache_tokens` is the capacity in tokens; `max_concurrency` is that over `max_model_len`. `num_gpu_blocks` counts the
blocks of `device` (on a CPU-only V0 build they are CPU blocks).
"""

from __future__ import annotations

from functools import partial

import polars as pl

from parsers.families.formats import compile_template
from parsers.families.formats_part import Fields, Format
from parsers.families.kv_sizing_tables import ROWS, SUGGESTIONS

__all__ = ["FORMATS", "SCHEMA"]

_GIB = (
    "available_kv_cache_gib",
    "total_gpu_gib",
    "requested_gib",
    "free_gib",
    "free_after_profiling_gib",
    "free_within_requested_gib",
    "weights_gib",
    "activation_gib",
    "non_torch_gib",
    "consumed_gib",
    "cudagraph_gib",
    "cudagraph_est_gib",
    "graph_gib",
    "kv_cache_gib",
    "baseline_gib",
)
_COUNTS = (
    "num_gpu_blocks",
    "num_cpu_blocks",
    "num_gpu_blocks_override",
    "kv_cache_tokens",
    "max_model_len",
    "auto_fit_max_model_len",
    "kv_cache_memory_bytes",
    "kv_cache_memory_to_requested_bytes",
    "kv_cache_memory_to_full_bytes",
    "decode_context_parallel_size",
    "cp_world_size",
)

SCHEMA: dict[str, pl.DataType] = {
    **{name: pl.Int64() for name in _COUNTS},
    **{name: pl.Float64() for name in _GIB},
    "device": pl.String(),
    "max_concurrency": pl.Float64(),
    "gpu_memory_utilization": pl.Float64(),
    "load_seconds": pl.Float64(),
    "seconds": pl.Float64(),
}

_SUGGEST_BYTES = "Current kv cache memory in use is {available_kv_cache_gib:f}{ GiB| bytes}"


def _suggestion(template: str, text: str) -> Fields | None:
    """The long hint at the end of a start; the memory in use reads `bytes` or `GiB`, and is GiB in the fields."""
    fields = compile_template(template).read(text)
    if fields is None:
        return None
    del fields["a_gib"], fields["b_gib"]
    at = text.find("Current kv cache memory in use is ")
    if at >= 0:
        used = compile_template(_SUGGEST_BYTES).read(text[at:])
        if used is not None:
            value = used["available_kv_cache_gib"]
            if isinstance(value, float) and value > 1 << 20:  # bytes indeed
                value /= 1 << 30
            fields["available_kv_cache_gib"] = value
    return fields


_format = partial(Format, "kv_sizing")

FORMATS = (
    *(
        _format(variant, engine, versions, level, template, example)
        for variant, engine, versions, level, template, example in ROWS
    ),
    *(
        _format(
            "freedev_suggest",
            "V1",
            versions,
            level,
            template,
            example,
            read=partial(_suggestion, template),
            anchor="Desired GPU memory utilization is (",
        )
        for versions, level, template, example in SUGGESTIONS
    ),
)
