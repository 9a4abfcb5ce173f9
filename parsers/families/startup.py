"""How a server was started: version, engine, model and settings.

An engine's start line holds `key=value` pairs that change with nearly every version: they are read by key and all kept.
`max_model_len` is in tokens (printed as `max_seq_len`). It never holds gpu_memory_utilization, max_num_seqs, swap_space or
block_size: these come from the API server's `args`. In `non-default args` (0.9.0 on) an absent setting has the version's default;
`args: Namespace(…)` names them all. A setting has one name here, whatever the version calls it.
"""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Fields, Format, Kind, compile_template
from parsers.families.literals import end_of_call, iter_pairs, parse_literal
from parsers.lines import later_regex

__all__ = ["FORMATS", "SCHEMA"]

# A setting's name in a dump, where it is not ours.
_RENAMED = {
    "max_seq_len": "max_model_len",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "device_config": "device",
    "forced_num_gpu_blocks": "num_gpu_blocks_override",
    "scheduler_policy": "scheduling_policy",
}

# What is lifted out of the command line's arguments into fields of its own.
_SETTINGS = frozenset(
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


def _engine_settings(text: str) -> Fields:
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


def _args_settings(text: str) -> Fields:
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
        if name in _SETTINGS:
            fields[name] = value if isinstance(value, str | int | float | None) else str(value)
    return fields


SCHEMA: dict[str, Kind] = {
    "version": Kind.TEXT,
    "engine": Kind.TEXT,
    "model": Kind.TEXT,
    "served_model_name": Kind.TEXT,
    "dtype": Kind.TEXT,
    "quantization": Kind.TEXT,
    "kv_cache_dtype": Kind.TEXT,
    "device": Kind.TEXT,
    "platform": Kind.TEXT,
    "max_model_len": Kind.WHOLE,
    "max_num_seqs": Kind.WHOLE,
    "max_num_batched_tokens": Kind.WHOLE,
    "num_gpu_blocks_override": Kind.WHOLE,
    "block_size": Kind.WHOLE,
    "gpu_memory_utilization": Kind.NUMBER,
    "tensor_parallel_size": Kind.WHOLE,
    "pipeline_parallel_size": Kind.WHOLE,
    "data_parallel_size": Kind.WHOLE,
    "num_scheduler_steps": Kind.WHOLE,
    "long_prefill_token_threshold": Kind.WHOLE,
    "enable_prefix_caching": Kind.FLAG,
    "enable_chunked_prefill": Kind.FLAG,
    "enforce_eager": Kind.FLAG,
    "scheduling_policy": Kind.TEXT,
    "preemption_mode": Kind.TEXT,
    "swap_space": Kind.NUMBER,
    "watermark": Kind.NUMBER,
    "async_scheduling": Kind.TEXT,
    "speculative_config": Kind.TEXT,
    "feature": Kind.TEXT,
    "address": Kind.TEXT,
    "host": Kind.TEXT,
    "port": Kind.WHOLE,
    "server_index": Kind.WHOLE,
    "seed": Kind.WHOLE,
}

_ENGINE = later_regex(
    r"\s*+Initializing an? (?:(?P<engine>V\d) )?LLM engine(?: \(v(?P<version>[^)\s]++)\))? with config: "
)
_LOGO_VERSION = later_regex(r"\bversion\s++(\S++)")
_LOGO_MODEL = later_regex(r"\bmodel\s++(\S++)")
_LOGO_CHARS = 4000


def _engine(text: str) -> Fields | None:
    found = _ENGINE.match(text)
    if found is None:
        return None
    line = text[found.end() :].partition("\n")[0]
    return {**_engine_settings(line), "version": found["version"], "engine": found["engine"]}


def _args(text: str) -> Fields:
    return _args_settings(text.partition("args: ")[2])


def _logo(text: str) -> Fields | None:
    """The banner of block characters (0.15.0 on), whole or the one row with the version."""
    version = _LOGO_VERSION.search(text[:_LOGO_CHARS])
    if version is None:
        return None
    model = _LOGO_MODEL.search(text[:_LOGO_CHARS])
    return {"version": version[1], "model": model[1] if model else None}


def _fallback(template: str, text: str) -> Fields | None:
    fields = compile_template(template).read(text)
    return None if fields is None else {**fields, "engine": "V0"}


_format = partial(Format, "startup")
_INFO = "INFO"
_CONFIG = "model={model}, …, dtype={dtype}, max_seq_len={max_model_len:d}, …, tensor_parallel_size={tensor_parallel_size:d}, …, kv_cache_dtype={kv_cache_dtype}, …"
_CONFIG_SEEN = "model='acme/llama-9b-instruct', dtype=torch.bfloat16, max_seq_len=16384, tensor_parallel_size=2, quantization=None, enforce_eager=False, kv_cache_dtype=auto, seed=0, enable_prefix_caching=True, chunked_prefill_enabled=True"
_ARGS_SEEN = "Namespace(host='0.0.0.0', port=8000, model='acme/llama-9b-instruct', tensor_parallel_size=2, gpu_memory_utilization=0.85, max_model_len=16384, max_num_seqs=128, swap_space=4)"

# engine, versions, what stands between "Initializing " and the settings, the same filled in
_ENGINE_FORMS = (
    ("V0", "0.1.0..0.3.3", "an LLM engine with config: ", "an LLM engine with config: "),
    ("V0", "0.4.0..0.7.0", "an LLM engine (v{version}) with config: ", "an LLM engine (v0.6.3) with config: "),
    ("V1", "0.6.4..0.7.0", "an LLM engine (v{version}) with config: ", "an LLM engine (v0.6.5) with config: "),
    ("V0", "0.7.1..0.10.2", "a V0 LLM engine (v{version}) with config: ", "a V0 LLM engine (v0.8.5) with config: "),
    ("V1", "0.7.1..0.33.0", "a V1 LLM engine (v{version}) with config: ", "a V1 LLM engine (v0.14.0) with config: "),
)

# variant, engine, versions, level, template, example (None: the template itself)
_ROWS: tuple[tuple[str, str, str, str, str, str | None], ...] = (
    (
        "api_version",
        "any",
        "0.4.0..0.14.1",
        _INFO,
        "vLLM API server version {version}",
        "vLLM API server version 0.5.0",
    ),
    (
        "version_model",
        "any",
        "0.15.0..0.33.0",
        _INFO,
        "vLLM server version {version}, serving model {model}",
        "vLLM server version 0.24.0, serving model acme/llama-9b-instruct",
    ),
    (
        "async_sched",
        "any",
        "0.10.0..0.10.2",
        _INFO,
        "Using mp-based distributed executor backend for async scheduling.",
        None,
    ),
    (
        "async_sched",
        "any",
        "0.11.0",
        _INFO,
        "Defaulting to mp-based distributed executor backend for async scheduling.",
        None,
    ),
    (
        "async_sched",
        "any",
        "0.11.1..0.33.0",
        "WARNING",
        "Async scheduling will be disabled because it is not supported with the '{backend}' distributed executor backend...",
        "Async scheduling will be disabled because it is not supported with the 'ray' distributed executor backend.",
    ),
    (
        "async_sched",
        "any",
        "0.14.0..0.26.0",
        "INFO (once)",
        "Asynchronous scheduling is {async_scheduling}.",
        "Asynchronous scheduling is enabled.",
    ),
    (
        "chunked",
        "any",
        "0.5.3..0.33.0",
        "INFO (once)",
        "Chunked prefill is enabled with max_num_batched_tokens={max_num_batched_tokens:d}...",
        "Chunked prefill is enabled with max_num_batched_tokens=8192.",
    ),
    ("chunked", "any", "0.4.1..0.5.2", _INFO, "Chunked prefill is enabled (EXPERIMENTAL).", None),
    (
        "chunked",
        "any",
        "0.5.3..0.10.2",
        "WARNING",
        "Chunked prefill is enabled by default for models with max_model_len > 32K...",
        "Chunked prefill is enabled by default for models with max_model_len > 32K.",
    ),
    (
        "defaults_dbg",
        "any",
        "0.6.5..0.11.0",
        "DEBUG, WARNING",
        "Setting max_num_batched_tokens to {max_num_batched_tokens:d} for {usage_context} usage context.",
        "Setting max_num_batched_tokens to 8192 for OPENAI_API_SERVER usage context.",
    ),
    (
        "defaults_dbg",
        "any",
        "0.8.0..0.11.0",
        "DEBUG",
        "Setting max_num_seqs to {max_num_seqs:d} for {usage_context} usage context.",
        "Setting max_num_seqs to 256 for OPENAI_API_SERVER usage context.",
    ),
    (
        "defaults_dbg",
        "any",
        "0.11.1..0.33.0",
        "DEBUG",
        "Defaulting max_num_batched_tokens to {max_num_batched_tokens:d} for {usage_context} usage context.",
        "Defaulting max_num_batched_tokens to 8192 for OPENAI_API_SERVER usage context.",
    ),
    (
        "defaults_dbg",
        "any",
        "0.11.1..0.33.0",
        "DEBUG",
        "Defaulting max_num_seqs to {max_num_seqs:d} for {usage_context} usage context.",
        "Defaulting max_num_seqs to 256 for OPENAI_API_SERVER usage context.",
    ),
    ("tasks", "any", "0.10.0..0.11.0", _INFO, "Supported_tasks: {supported_tasks:s}", "Supported_tasks: ['generate']"),
    ("tasks", "any", "0.11.1..0.33.0", _INFO, "Supported tasks: {supported_tasks:s}", "Supported tasks: ['generate']"),
    (
        "architecture",
        "any",
        "0.10.0..0.33.0",
        _INFO,
        "Resolved architecture: {architecture:s}",
        "Resolved architecture: LlamaForCausalLM",
    ),
    (
        "mamba_cache_mode",
        "any",
        "0.14.0..0.33.0",
        _INFO,
        "Mamba cache mode is set to '{mamba_cache_mode}' for {architecture} by default when prefix caching is enabled",
        "Mamba cache mode is set to 'align' for Qwen3NextForCausalLM by default when prefix caching is enabled",
    ),
    (
        "kvdtype",
        "any",
        "0.3.0..0.33.0",
        _INFO,
        "Using {kv_cache_dtype} data type to store kv cache...",
        "Using fp8_e4m3 data type to store kv cache. It reduces the GPU memory footprint and boosts the performance. Meanwhile, it may cause accuracy drop without a proper scaling factor",
    ),
    ("maxlen", "any", "0.9.2..0.33.0", _INFO, "Using max model len {max_model_len:d}", "Using max model len 16384"),
    (
        "platform",
        "any",
        "0.7.0..0.33.0",
        "DEBUG, INFO",
        "Automatically detected platform {platform}.",
        "Automatically detected platform cuda.",
    ),
    ("routes", "any", "0.5.2..0.33.0", _INFO, "Available routes are:", None),
    (
        "server_start",
        "any",
        "0.7.3..0.9.0.1",
        _INFO,
        "Starting vLLM API server on http{s|}://{host}:{port:d}",
        "Starting vLLM API server on http://0.0.0.0:8000",
    ),
    (
        "server_start",
        "any",
        "0.9.1..0.17.1",
        _INFO,
        "Starting vLLM API server {server_index:d} on {address}",
        "Starting vLLM API server 0 on http://0.0.0.0:8000",
    ),
    (
        "server_start",
        "any",
        "0.18.0..0.33.0",
        _INFO,
        "Starting vLLM server on {address}",
        "Starting vLLM server on http://0.0.0.0:8000",
    ),
)

_FALLBACKS = (
    (
        "{feature:s} is not supported by the V1 Engine. Falling back to V0...",
        "--preemption-mode is not supported by the V1 Engine. Falling back to V0. We recommend to remove --preemption-mode from your config in favor of the V1 Engine.",
    ),
    (
        "{feature:s} is experimental on VLLM_USE_V1=1. Falling back to V0 Engine...",
        "Pipeline Parallelism without Ray is experimental on VLLM_USE_V1=1. Falling back to V0 Engine.",
    ),
)

FORMATS = (
    *(
        _format(
            "init_cfg",
            engine,
            versions,
            _INFO,
            f"Initializing {head}{_CONFIG}",
            f"Initializing {seen}{_CONFIG_SEEN}",
            read=_engine,
            anchor="LLM engine",
        )
        for engine, versions, head, seen in _ENGINE_FORMS
    ),
    _format(
        "api_version", "any", "0.1.0..0.33.0", _INFO, "args: {args}", f"args: {_ARGS_SEEN}", read=_args, anchor="args: "
    ),
    _format(
        "api_version",
        "any",
        "0.9.0..0.33.0",
        _INFO,
        "non-default args: {args}",
        "non-default args: {'model': 'acme/llama-9b-instruct', 'max_model_len': 16384, 'gpu_memory_utilization': 0.85, 'max_num_seqs': 128}",
        read=_args,
        anchor="args: ",
    ),
    *(
        _format(variant, engine, versions, level, template, example or template)
        for variant, engine, versions, level, template, example in _ROWS
    ),
    *(
        _format(
            "v0_fallback", "any", "0.8.0..0.10.2", "WARNING, INFO", template, example, read=partial(_fallback, template)
        )
        for template, example in _FALLBACKS
    ),
    # Its rows begin with different characters: the whole banner, or the row of the version alone.
    *(
        _format(
            "version_model",
            "any",
            "0.15.0..0.33.0",
            _INFO,
            f"{row} version {{version}} … model {{model}}",
            f"{row}  version 0.24.0\n  █▄█▀ █     █     █     █  model   acme/llama-9b-instruct",
            read=_logo,
            anchor="█",
        )
        for row in ("█     █     █▄   ▄█", "▄▄ ▄█ █     █     █ ▀▄▀ █")
    ),
)
