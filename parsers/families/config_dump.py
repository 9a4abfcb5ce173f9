"""The settings in vLLM's configuration dumps, under one name each, whatever the version calls them."""

from __future__ import annotations

from parsers.families.formats import Fields
from parsers.families.literals import end_of_call, iter_pairs, parse_literal
from parsers.lines import later_regex

__all__ = ["SETTINGS", "args_settings", "engine_settings"]

# A setting's name in a dump, where it is not ours.
_RENAMED = {
    "max_seq_len": "max_model_len",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "device_config": "device",
    "forced_num_gpu_blocks": "num_gpu_blocks_override",
    "scheduler_policy": "scheduling_policy",
}

# What is lifted out of the command line's arguments into fields of its own.
SETTINGS = frozenset(
    {
        *("model", "model_tag", "served_model_name", "dtype", "seed", "max_model_len", "max_num_seqs"),
        *("max_num_batched_tokens", "num_gpu_blocks_override", "block_size", "gpu_memory_utilization"),
        *("kv_cache_memory_bytes", "kv_cache_dtype", "swap_space", "preemption_mode", "cpu_offload_gb"),
        *("watermark", "scheduling_policy", "scheduler_reserve_full_isl", "enable_chunked_prefill"),
        *("enable_prefix_caching", "long_prefill_token_threshold", "max_num_partial_prefills"),
        *("max_long_partial_prefills", "async_scheduling", "num_scheduler_steps", "scheduler_delay_factor"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
        *("decode_context_parallel_size", "prefill_context_parallel_size", "api_server_count"),
        *("speculative_config", "speculative_model", "num_speculative_tokens", "quantization", "enforce_eager"),
        *("enable_lora", "max_loras", "kv_transfer_config", "disable_hybrid_kv_cache_manager", "runner"),
        *("task", "enable_log_requests", "disable_log_requests", "disable_log_stats"),
        *("enable_logging_iteration_details", "aggregate_engine_logging", "max_log_len", "kv_offloading_size"),
        *("load_format", "device", "max_num_queued_reqs", "max_num_queued_tokens", "disable_sliding_window"),
        *("use_v2_block_manager", "num_lookahead_slots", "distributed_executor_backend"),
    }
)

# 0.6.3.post1 and 0.6.4 forget a comma: "chunked_prefill_enabled=True multi_step_stream_outputs=True".
_GLUED = later_regex(r"([\w.]++) ([a-z]\w*+)=([\w.]++)\Z")
_CALL = later_regex(r"\s*+[A-Za-z_][\w.]*+\(")


def engine_settings(text: str) -> Fields:
    """Every `key=value` of an engine's start line; values that are no plain literal stay text."""
    fields: Fields = {}
    for key, value in iter_pairs(text.rstrip(" ,")):
        glued = _GLUED.match(value)
        if glued is not None:
            fields[_RENAMED.get(glued[2], glued[2])] = parse_literal(glued[3])
            value = glued[1]
        # Until 0.6.4 the line closes a bracket that it never opened.
        if value.endswith(")") and value.count("(") < value.count(")"):
            value = value[:-1]
        fields[_RENAMED.get(key, key)] = parse_literal(value)
    return fields


def args_settings(text: str) -> Fields:
    """`args` (a dict, or the text of a `Namespace(…)`) and the known settings among them."""
    text = text.strip()
    pairs: dict[str, object]
    call = _CALL.match(text)
    if call is not None:
        inner = text[call.end() : end_of_call(text, 0) - 1]
        pairs = {key: parse_literal(value) for key, value in iter_pairs(inner)}
        fields: Fields = {"args": text}
    else:
        args = parse_literal(text)
        pairs = args if isinstance(args, dict) else {}
        fields = {"args": args}
    for key, value in pairs.items():
        name = _RENAMED.get(key, key)
        if name in SETTINGS:
            fields[name] = value if isinstance(value, str | int | float | None) else str(value)
    return fields
