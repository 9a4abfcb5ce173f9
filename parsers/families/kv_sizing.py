"""How much KV space an engine has: blocks, tokens, GiB of memory at each stage of its start.

`…_gib` is GiB (2^30 bytes) even where vLLM prints `GB` (weights before 0.8.3); `capacity_gb` of CPU offload is GB as
printed. `kv_cache_tokens` is the capacity in tokens; `max_concurrency` is that over `max_model_len`. `num_gpu_blocks` counts the
blocks of `device` (on a CPU-only V0 build they are CPU blocks).

The texts about KV and memory sizing: variant, engine, versions, level, template, example.
"""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Fields, Format, Kind, compile_template

__all__ = ["FORMATS", "ROWS", "SCHEMA", "SUGGESTIONS"]
_INFO = "INFO"
_ONCE = "INFO (once)"
_DEBUG = "DEBUG"

# fmt: off
ROWS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("attention_free", "V1", "0.14.0..0.33.0", _ONCE,
     "Auto-fit max_model_len: attention-free model, using derived max_model_len={max_model_len:d}",
     "Auto-fit max_model_len: attention-free model, using derived max_model_len=131072"),
    ("autofit", "V1", "0.14.0..0.31.0", _ONCE,
     "Auto-fit max_model_len: full model context length {max_model_len:d} fits in available GPU memory",
     "Auto-fit max_model_len: full model context length 131072 fits in available GPU memory"),
    ("autofit", "V1", "0.14.0..0.31.0", _ONCE,
     "Auto-fit max_model_len: reduced from {max_model_len:d} to {auto_fit_max_model_len:d} to fit in available GPU memory ({available_kv_cache_gib:f} GiB available for KV cache)",
     "Auto-fit max_model_len: reduced from 131072 to 98304 to fit in available GPU memory (12.25 GiB available for KV cache)"),
    ("autofit", "V1", "0.32.0..0.33.0", _ONCE,
     "Auto-fit max_model_len: full model context length {max_model_len:d} fits in available KV cache memory ({kv_cache_memory:s})",
     "Auto-fit max_model_len: full model context length 131072 fits in available KV cache memory (12.25 GiB)"),
    ("autofit", "V1", "0.32.0..0.33.0", _ONCE,
     "Auto-fit max_model_len: reduced from {max_model_len:d} to {auto_fit_max_model_len:d} to fit in available KV cache memory ({kv_cache_memory:s})",
     "Auto-fit max_model_len: reduced from 131072 to 98304 to fit in available KV cache memory (12.25 GiB)"),
    ("avail", "V1", "0.9.1..0.33.0", _ONCE,
     "Available KV cache memory: {available_kv_cache_gib:gib}",
     "Available KV cache memory: 53.53 GiB"),
    ("cgest", "V1", "0.18.0..0.33.0", _INFO,
     "Estimated CUDA graph memory: {cudagraph_est_gib:gib} total",
     "Estimated CUDA graph memory: 0.66 GiB total"),
    ("cgmem", "V1", "0.18.0..0.19.1", _INFO,
     "CUDA graph memory profiling is enabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1). This will become the default in v0.19. The current --gpu-memory-utilization={gpu_memory_utilization:f} is equivalent to --gpu-memory-utilization={equivalent_util:f} without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to {suggested_util:f}...",
     "CUDA graph memory profiling is enabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1). This will become the default in v0.19. The current --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8917 without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.9083."),
    ("cgmem", "V1", "0.20.0..0.33.0", _INFO,
     "CUDA graph memory profiling is enabled (default since {since}). The current --gpu-memory-utilization={gpu_memory_utilization:f} is equivalent to --gpu-memory-utilization={equivalent_util:f} without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to {suggested_util:f}...",
     "CUDA graph memory profiling is enabled (default since v0.21.0). The current --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8917 without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase --gpu-memory-utilization to 0.9083. To disable, set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0."),
    ("cgmem", "V1", "0.20.0..0.33.0", "WARNING",
     "CUDA graph memory profiling is disabled ({setting:s}increasing --gpu-memory-utilization from {gpu_memory_utilization:f} to {suggested_util:f}...",
     "CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0). Without it, CUDA graph memory is not accounted for during KV cache allocation, which may require lowering --gpu-memory-utilization to avoid OOM. Consider re-enabling it (the default as of v0.21.0) and increasing --gpu-memory-utilization from 0.9000 to 0.9083."),
    ("cgmem", "V1", "0.18.0..0.33.0", _INFO,
     "CUDA graph pool memory: {cudagraph_gib:gib} (actual), {cudagraph_est_gib:gib} (estimated), difference: {diff_gib:gib} ({diff_pct:f}%)",
     "CUDA graph pool memory: 0.61 GiB (actual), 0.66 GiB (estimated), difference: 0.05 GiB (8.2%)."),
    ("v019note", "V1", "0.18.0..0.19.1", _INFO,
     "In v0.19, CUDA graph memory profiling will be enabled by default ({setting:s}increase --gpu-memory-utilization from {gpu_memory_utilization:f} to {suggested_util:f}...",
     "In v0.19, CUDA graph memory profiling will be enabled by default (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1), which more accurately accounts for CUDA graph memory during KV cache allocation. To try it now, set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1 and increase --gpu-memory-utilization from 0.9000 to 0.9083 to maintain the same effective KV cache size."),
    ("gpu_cpu_blocks", "V0", "0.1.0..0.10.2", _INFO,
     "# {device} blocks: {num_gpu_blocks:d}, # CPU blocks: {num_cpu_blocks:d}",
     "# GPU blocks: 27412, # CPU blocks: 2048"),
    ("cpu_blocks_only", "V0", "0.4.1..0.6.6.post1", _INFO,
     "# CPU blocks: {num_gpu_blocks:d}",
     "# CPU blocks: 27412"),
    ("gpu_blocks_v1", "V1", "0.6.4..0.7.3", _INFO,
     "# {device} blocks: {num_gpu_blocks:d}",
     "# GPU blocks: 27412"),
    ("freeafter_dbg", "V1", "0.10.1..0.33.0", _DEBUG,
     "Free memory after profiling: {free_after_profiling_gib:f} GiB (total), {free_within_requested_gib:f} GiB (within requested)",
     "Free memory after profiling: 61.05 GiB (total), 53.1 GiB (within requested)"),
    ("graph", "V0", "0.2.6..0.10.2", _INFO,
     "Graph capturing finished in {seconds:f} secs[[, took {graph_gib:gib}]]",
     "Graph capturing finished in 21 secs."),
    ("graph", "V1", "0.6.4..0.33.0", _ONCE,
     "Graph capturing finished in {seconds:f} secs, took {graph_gib:gib}",
     "Graph capturing finished in 21 secs, took 0.61 GiB"),
    ("initfree_dbg", "V1", "0.9.1..0.10.0", _DEBUG,
     "Initial free memory: {free_gib:f} GiB, free memory: {free_after_profiling_gib:f} GiB, requested GPU memory: {requested_gib:f} GiB",
     "Initial free memory: 78.61 GiB, free memory: 61.05 GiB, requested GPU memory: 71.20 GiB"),
    ("initfree_dbg", "V1", "0.10.1..0.33.0", _DEBUG,
     "Initial free memory: {free_gib:f} GiB; Requested memory: {gpu_memory_utilization:f} (util), {requested_gib:f} GiB",
     "Initial free memory: 78.61 GiB; Requested memory: 0.900000 (util), 71.2 GiB"),
    ("initfree_reserved", "V1", "0.10.2..0.33.0", _INFO,
     "Initial free memory {free_gib:f} GiB, reserved {kv_cache_gib:gib} memory for KV Cache...",
     "Initial free memory 78.61 GiB, reserved 40.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling."),
    # Two lines until 0.27.1, one from 0.28.0 on; 0.30.0 names the device, 0.32.0 also "GPU + host".
    ("kv_size", "V1", "0.8.0..0.27.1", _ONCE,
     "GPU KV cache size: {kv_cache_tokens:d} tokens",
     "GPU KV cache size: 438,592 tokens"),
    ("kv_size", "V1", "0.28.0..0.33.0", _ONCE,
     "{device:dev} KV cache size: {kv_cache_tokens:d} tokens, Maximum concurrency for {max_model_len:d} tokens per request: {max_concurrency:f}x",
     "GPU KV cache size: 438,592 tokens, Maximum concurrency for 16,384 tokens per request: 26.77x"),
    ("kv_size", "V1", "0.30.0..0.33.0", _ONCE,
     "{device:dev} KV cache size: {kv_cache_tokens:d} tokens...",
     "CPU KV cache size: 438,592 tokens"),
    # Models of several kinds of layers; the versions are those of public logs that show these texts.
    ("mamba_block", "V1", "0.10.1..0.33.0", _INFO,
     "Setting attention block size to {block_size:d} tokens to ensure that attention page size is >= mamba page size...",
     "Setting attention block size to 1056 tokens to ensure that attention page size is >= mamba page size."),
    ("mamba_block", "V1", "0.10.1..0.33.0", _INFO,
     "Padding mamba page size by {padding_pct:f}% to ensure that mamba page size and attention page size are exactly equal...",
     "Padding mamba page size by 0.76% to ensure that mamba page size and attention page size are exactly equal."),
    ("kv_groups", "V1", "0.10.1..0.33.0", "WARNING",
     "Add {num_padding_layers:d} padding layers, may waste at most {waste_pct:f}% KV cache memory",
     "Add 2 padding layers, may waste at most 9.09% KV cache memory"),
    ("kv_group_sizes", "V1", "0.30.0..0.33.0", _INFO,
     "kv cache group sizes {kv_group_sizes:s}",
     "kv cache group sizes [784, 784, 784, 784]"),
    ("kv_group_sizes", "V1", "0.30.0..0.33.0", _INFO,
     "kv lcm block sizes {kv_lcm_block_size:d}",
     "kv lcm block sizes 784"),
    ("maxconc", "V0", "0.6.3..0.10.2", _INFO,
     "Maximum concurrency for {max_model_len:d} tokens per request: {max_concurrency:f}x",
     "Maximum concurrency for 16384 tokens per request: 26.77x"),
    ("maxconc", "V1", "0.7.1..0.27.1", _ONCE,
     "Maximum concurrency for {max_model_len:d} tokens per request: {max_concurrency:f}x",
     "Maximum concurrency for 16,384 tokens per request: 26.77x"),
    ("memprof", "V0", "0.6.5..0.10.2", _INFO,
     "Memory profiling takes {profile_seconds:f} seconds[[ the current vLLM instance can use total_gpu_memory ({total_gpu_gib:gib}) x gpu_memory_utilization ({gpu_memory_utilization:f}) = {requested_gib:gib}]][[ model weights take {weights_gib:gib}; non_torch_memory takes {non_torch_gib:gib}; PyTorch activation peak memory takes {activation_gib:gib}; the rest of the memory reserved for KV Cache is {available_kv_cache_gib:gib}]]...",
     "Memory profiling takes 6.31 seconds\nthe current vLLM instance can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.90) = 71.20GiB\nmodel weights take 16.46GiB; non_torch_memory takes 0.12GiB; PyTorch activation peak memory takes 1.33GiB; the rest of the memory reserved for KV Cache is 53.53GiB."),
    ("memprof_results", "V0", "0.6.4..0.6.4.post1", _INFO,
     "Memory profiling results: total_gpu_memory={total_gpu_gib:gib} initial_memory_usage={initial_usage_gib:gib} peak_torch_memory={peak_torch_gib:gib} memory_usage_post_profile={post_profile_gib:gib} non_torch_memory={non_torch_gib:gib} kv_cache_size={available_kv_cache_gib:gib} gpu_memory_utilization={gpu_memory_utilization:f}",
     "Memory profiling results: total_gpu_memory=79.11GiB initial_memory_usage=0.52GiB peak_torch_memory=17.80GiB memory_usage_post_profile=16.90Gib non_torch_memory=0.12GiB kv_cache_size=53.53GiB gpu_memory_utilization=0.90"),
    ("mult", "V1", "0.10.2..0.11.2", _INFO,
     "Multiplying the GPU KV cache size by the dcp_world_size {decode_context_parallel_size:d}",
     "Multiplying the GPU KV cache size by the dcp_world_size 2."),
    ("mult", "V1", "0.12.0..0.20.0", _INFO,
     "Multiplying the GPU KV cache size by the cp_world_size {cp_world_size:d} (pcp_world_size {pcp_world_size:d} * dcp_world_size {dcp_world_size:d})",
     "Multiplying the GPU KV cache size by the cp_world_size 2 (pcp_world_size 1 * dcp_world_size 2)."),
    ("override", "V0", "0.4.0", _INFO,
     "Replacing profiled num_gpu_blocks={num_gpu_blocks:d} with forced_num_gpu_blocks={num_gpu_blocks_override:d}",
     "Replacing profiled num_gpu_blocks=27412 with forced_num_gpu_blocks=4096"),
    ("override", "V0", "0.4.1..0.10.2", _INFO,
     "Overriding num_gpu_blocks={num_gpu_blocks:d} with num_gpu_blocks_override={num_gpu_blocks_override:d}",
     "Overriding num_gpu_blocks=27412 with num_gpu_blocks_override=4096"),
    ("override", "V1", "0.6.4..0.33.0", _INFO,
     "Overriding num_gpu_blocks={num_gpu_blocks:d} with num_gpu_blocks_override={num_gpu_blocks_override:d}",
     "Overriding num_gpu_blocks=27412 with num_gpu_blocks_override=4096"),
    ("simple_offload", "V1", "0.19.0..0.27.1", _INFO,
     "SimpleCPUOffloadScheduler: Allocating {num_cpu_blocks:d} CPU blocks ({capacity_gb:f} GB, mode={mode})",
     "SimpleCPUOffloadScheduler: Allocating 2048 CPU blocks (32.00 GB, mode=eager)"),
    ("simple_offload", "V1", "0.28.0..0.33.0", _INFO,
     "SimpleCPUOffloadScheduler: Allocating {num_cpu_blocks:d} offload blocks ({capacity_gb:f} GB, mode={mode}, backend={backend})",
     "SimpleCPUOffloadScheduler: Allocating 2048 offload blocks (32.00 GB, mode=eager, backend=cpu)"),
    ("simple_offload", "V1", "0.19.0..0.27.1", _INFO,
     "SimpleCPUOffloadWorker: {num_tensors:d} unique GPU KV tensors, allocating {num_cpu_blocks:d} CPU blocks ({capacity_gb:f} GB)",
     "SimpleCPUOffloadWorker: 32 unique GPU KV tensors, allocating 2048 CPU blocks (32.00 GB)"),
    ("simple_offload", "V1", "0.28.0..0.33.0", _INFO,
     "SimpleCPUOffloadWorker [CPU]: {num_tensors:d} tensors, {num_cpu_blocks:d} CPU blocks ({capacity_gb:f} GB)",
     "SimpleCPUOffloadWorker [CPU]: 32 tensors, 2048 CPU blocks (32.00 GB)"),
    ("simple_offload", "V1", "0.28.0..0.33.0", _INFO,
     "SimpleCPUOffloadWorker [DISK]: {num_tensors:d} tensors, {disk_slots:d} disk slots ({capacity_gb:f} GB)",
     "SimpleCPUOffloadWorker [DISK]: 32 tensors, 4096 disk slots (32.00 GB)"),
    ("simple_offload", "V1", "0.22.0..0.33.0", "WARNING",
     "SimpleCPUOffloadScheduler: update_state_after_alloc called for req_id={request_id} with no external tokens...",
     "SimpleCPUOffloadScheduler: update_state_after_alloc called for req_id=chatcmpl-5f0c7d9e with no external tokens but get_num_new_matched_tokens() unexpectedly recorded a pending CPU hit; releasing the stale pin."),
    ("simple_offload", "V1", "0.22.0..0.33.0", "WARNING",
     "SimpleCPUOffloadScheduler: update_state_after_alloc called for req_id={request_id} with num_external_tokens={num_external_tokens:d}...",
     "SimpleCPUOffloadScheduler: update_state_after_alloc called for req_id=chatcmpl-5f0c7d9e with num_external_tokens=0 but no pending CPU hit from get_num_new_matched_tokens(); skipping load."),
    ("startup_plan", "V1", "0.26.0..0.33.0", _INFO,
     "Applying persisted startup plan (fingerprint {fingerprint}): kv_cache_memory_bytes={kv_cache_memory_bytes:d} ({kv_cache_gib:f} GiB), recorded free-memory baseline {baseline_gib:f} GiB, current {free_gib:f} GiB...",
     "Applying persisted startup plan (fingerprint 9f3c2a1b): kv_cache_memory_bytes=42949672960 (40.00 GiB), recorded free-memory baseline 78.60 GiB, current 70.25 GiB. Memory profiling will be skipped."),
    ("startup_plan", "V1", "0.26.0..0.33.0", _INFO,
     "Startup plan not applied: current free memory ({free_gib:f} GiB) is below the recorded baseline ({baseline_gib:f} GiB)...",
     "Startup plan not applied: current free memory (70.25 GiB) is below the recorded baseline (78.60 GiB); falling back to full memory profiling."),
    ("weights", "V0", "0.4.0..0.7.3", _INFO,
     "Loading model weights took {weights_gib:gib}",
     "Loading model weights took 16.4606 GB"),
    ("weights", "V1", "0.6.4..0.7.3", _INFO,
     "Loading model weights took {weights_gib:gib}",
     "Loading model weights took 16.4606 GB"),
    ("weights", "V0", "0.8.0..0.10.2", _INFO,
     "Model loading took {weights_gib:gib} and {load_seconds:f} seconds",
     "Model loading took 16.4606 GB and 9.812345 seconds"),
    ("weights", "V1", "0.8.0..0.33.0", _INFO,
     "Model loading took {weights_gib:gib}[[ memory]] and {load_seconds:f} seconds",
     "Model loading took 16.46 GiB memory and 9.812345 seconds"),
)

_DESIRED = "Free memory on device ({free_gib:f}/{total_gpu_gib:f} GiB) on startup. Desired GPU memory utilization is ({gpu_memory_utilization:f}, {requested_gib:f} GiB). Actual usage is "
_REPLACE = ". Replace gpu_memory_utilization config with '--kv-cache-memory={kv_cache_memory_to_requested_bytes:d}'[[ ({a_gib:f} GiB)]] to fit into requested memory, or '--kv-cache-memory={kv_cache_memory_to_full_bytes:d}'[[ ({b_gib:f} GiB)]] to fully utilize gpu memory..."
_SEEN = "Free memory on device (78.61/79.11 GiB) on startup. Desired GPU memory utilization is (0.9, 71.2 GiB). Actual usage is "
_SEEN_END = " and 0.61 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=57471631360` (53.52 GiB) to fit into requested memory, or `--kv-cache-memory=65490000000` (60.99 GiB) to fully utilize gpu memory. Current kv cache memory in use is 53.53 GiB."

# The hint after a start. Never to be relied on between 0.11.0 and 0.25.1, where it is DEBUG.
SUGGESTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("0.10.2..0.26.0", "DEBUG, INFO (0.10.2, 0.26.0)",
     _DESIRED + "{weights_gib:f} GiB for weight, {activation_gib:f} GiB for peak activation, {non_torch_gib:f} GiB for non-torch memory, and {cudagraph_gib:f} GiB for CUDAGraph memory" + _REPLACE,
     _SEEN + "16.46 GiB for weight, 1.33 GiB for peak activation, 0.12 GiB for non-torch memory," + _SEEN_END),
    ("0.27.0..0.33.0", _INFO,
     _DESIRED + "{consumed_gib:f} GiB for consumed memory (weights + non-torch), {activation_gib:f} GiB for peak activation, and {cudagraph_gib:f} GiB for CUDAGraph memory" + _REPLACE,
     _SEEN + "17.02 GiB for consumed memory (weights + non-torch), 1.33 GiB for peak activation," + _SEEN_END),
)
# fmt: on

_GIB = (
    *("available_kv_cache_gib", "total_gpu_gib", "requested_gib", "free_gib", "free_after_profiling_gib"),
    *("free_within_requested_gib", "weights_gib", "activation_gib", "non_torch_gib", "consumed_gib"),
    *("cudagraph_gib", "cudagraph_est_gib", "graph_gib", "kv_cache_gib", "baseline_gib"),
)
_COUNTS = (
    *("num_gpu_blocks", "num_cpu_blocks", "num_gpu_blocks_override", "kv_cache_tokens", "max_model_len"),
    *("auto_fit_max_model_len", "kv_cache_memory_bytes", "kv_cache_memory_to_requested_bytes"),
    *("kv_cache_memory_to_full_bytes", "decode_context_parallel_size", "cp_world_size"),
)

SCHEMA: dict[str, Kind] = {
    **dict.fromkeys(_COUNTS, Kind.WHOLE),
    **dict.fromkeys(_GIB, Kind.NUMBER),
    "device": Kind.TEXT,
    "max_concurrency": Kind.NUMBER,
    "gpu_memory_utilization": Kind.NUMBER,
    "load_seconds": Kind.NUMBER,
    "seconds": Kind.NUMBER,
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
