"""What is printed beside the statistics line: prefix cache, speculative decoding, transfers, MFU, CUDA graphs.

Rates of acceptance with `_pct` are 0..100; V0's `draft_acceptance_rate` and `system_efficiency` are 0..1. Throughputs are tokens
per second, `tflops` and `gbps` are per device.
"""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Fields, Format, assign, slug, split_pairs

__all__ = ["COMPANIONS", "LONGEST"]

LONGEST = 4000
"""In characters; the longest real line of this family has under 600."""

_SPEC_NAMES = {
    "Draft acceptance rate": "draft_acceptance_rate_pct",
    "Avg Draft acceptance rate": "draft_acceptance_rate_pct",
    "Accepted throughput": "accepted_throughput",
    "Drafted throughput": "drafted_throughput",
    "Accepted": "accepted_tokens",
    "Drafted": "drafted_tokens",
    "Per-position acceptance rate": "per_position_acceptance",
}
_V0_SPEC_NAMES = {
    "Draft acceptance rate": "draft_acceptance_rate",
    "System efficiency": "system_efficiency",
    "Number of speculative tokens": "num_spec_tokens",
    "Number of accepted tokens": "accepted_tokens",
    "Number of draft tokens": "draft_tokens",
    "Number of emitted tokens": "emitted_tokens",
}
_DIFFUSION_NAMES = {
    "Committed token throughput": "committed_throughput",
    "Mean denoising steps per canvas": "mean_denoising_steps",
    "Mean tokens committed per denoising step": "mean_committed_per_step",
    "Committed": "committed_tokens",
    "Denoising steps": "denoising_steps",
    "Canvas positions evaluated": "canvas_tokens",
}


def _named(names: dict[str, str]) -> partial[Fields | None]:
    return partial(_named_pairs, names)


def _named_pairs(names: dict[str, str], text: str) -> Fields | None:
    if len(text) > LONGEST:
        return None
    fields: Fields = {}
    # 0.4.1 to 0.9.2 print the word twice: "Number of draft tokens tokens".
    for key, value in split_pairs(text.partition(": ")[2]):
        assign(fields, key, value, names.get(key.replace("tokens tokens", "tokens")))
    return fields or None


def _prefix_hit(text: str) -> Fields | None:
    fields: Fields = {}
    for device, value in split_pairs(text.partition(": ")[2]):
        assign(fields, "", value, f"{slug(device)}_prefix_cache_hit_rate_pct")
    return fields or None


def _transfer(text: str) -> Fields | None:
    metrics = text.partition(": ")[2].strip()
    fields: Fields = {"metrics": metrics}
    for part in metrics.split(", "):
        key, equals, value = part.partition("=")
        if equals and slug(key) not in ("metrics", ""):
            assign(fields, key, value, slug(key))
    return fields


def _cudagraph(text: str) -> Fields | None:
    rows: list[Fields] = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.lstrip().startswith("|") and len(cells) == 5 and cells[0].isdecimal():
            unpadded, padded, paddings, mode, count = cells
            numbers = {"unpadded": unpadded, "padded": padded, "paddings": paddings, "count": count}
            if all(number.isdecimal() and len(number) < 19 for number in numbers.values()):
                rows.append({**{name: int(n) for name, n in numbers.items()}, "mode": mode})
    return {"rows": rows}


_format = partial(Format, "stats")
_IDLE = "INFO (DEBUG when idle)"

COMPANIONS: tuple[Format, ...] = (
    _format(
        "v0_prefix_hit",
        "V0",
        "0.5.5..0.10.2",
        _IDLE,
        "Prefix cache hit rate: GPU: {gpu_prefix_cache_hit_rate_pct:f}%, CPU: {cpu_prefix_cache_hit_rate_pct:f}%",
        "Prefix cache hit rate: GPU: 41.27%, CPU: 0.00%",
        read=_prefix_hit,
    ),
    _format(
        "v0_specdecode",
        "V0",
        "0.4.1..0.9.2",
        "INFO",
        "Speculative metrics: Draft acceptance rate: {draft_acceptance_rate:f}, System efficiency: {system_efficiency:f}, Number of speculative tokens: {num_spec_tokens:d}, Number of accepted tokens: {accepted_tokens:d}, Number of draft tokens: {draft_tokens:d}[[ tokens]], Number of emitted tokens: {emitted_tokens:d}[[ tokens]]",
        "Speculative metrics: Draft acceptance rate: 0.612, System efficiency: 0.471, Number of speculative tokens: 5, Number of accepted tokens: 3062, Number of draft tokens: 5000, Number of emitted tokens: 2826.",
        read=_named(_V0_SPEC_NAMES),
        anchor="Speculative metrics: ",
    ),
    _format(
        "v1_specdecode",
        "V1",
        "0.8.3..0.10.1.1",
        _IDLE,
        "SpecDecoding metrics: Draft acceptance rate: {draft_acceptance_rate_pct:f}%[[, Mean acceptance length: {mean_acceptance_length:f}]], Accepted: {accepted_tokens:d} tokens, Drafted: {drafted_tokens:d} tokens[[, Per-position acceptance rate: {per_position_acceptance:s}]]",
        "SpecDecoding metrics: Draft acceptance rate: 63.5%, Mean acceptance length: 2.27, Accepted: 5401 tokens, Drafted: 8505 tokens, Per-position acceptance rate: 0.812, 0.455",
        read=lambda text: None if "Accepted throughput" in text else _named_pairs(_SPEC_NAMES, text),
        anchor="SpecDecoding metrics: ",
    ),
    _format(
        "v1_specdecode",
        "V1",
        "0.10.2..0.33.0",
        _IDLE,
        "SpecDecoding metrics: Mean acceptance length: {mean_acceptance_length:f}, Accepted throughput: {accepted_throughput:f} tokens/s, Drafted throughput: {drafted_throughput:f} tokens/s, Accepted: {accepted_tokens:d} tokens, Drafted: {drafted_tokens:d} tokens, Per-position acceptance rate: {per_position_acceptance:s}, Avg Draft acceptance rate: {draft_acceptance_rate_pct:f}%",
        "SpecDecoding metrics: Mean acceptance length: 2.27, Accepted throughput: 540.10 tokens/s, Drafted throughput: 850.50 tokens/s, Accepted: 5401 tokens, Drafted: 8505 tokens, Per-position acceptance rate: 0.812, 0.455, Avg Draft acceptance rate: 63.5%",
        read=_named(_SPEC_NAMES),
        anchor="SpecDecoding metrics: ",
    ),
    _format(
        "v1_diffusion",
        "V1",
        "0.24.0..0.33.0",
        _IDLE,
        "DiffusionDecoding metrics: Committed token throughput: {committed_throughput:f} tokens/s, Mean denoising steps per canvas: {mean_denoising_steps:f}, Mean tokens committed per denoising step: {mean_committed_per_step:f}, Committed: {committed_tokens:d} tokens, Denoising steps: {denoising_steps:d}, Canvas positions evaluated: {canvas_tokens:d}",
        "DiffusionDecoding metrics: Committed token throughput: 911.25 tokens/s, Mean denoising steps per canvas: 7.40, Mean tokens committed per denoising step: 4.31, Committed: 9112 tokens, Denoising steps: 2114, Canvas positions evaluated: 67648",
        read=_named(_DIFFUSION_NAMES),
        anchor="DiffusionDecoding metrics: ",
    ),
    _format(
        "v1_cacheinfo",
        "V1",
        "0.9.0..0.33.0",
        "INFO, DEBUG",
        "vllm cache_config_info with initialization after num_gpu_blocks is: {num_gpu_blocks:d}",
        "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 27412",
    ),
    _format(
        "v1_cudagraph",
        "V1",
        "0.13.0..0.33.0",
        _IDLE,
        "**CUDAGraph Config Settings:**...",
        "**CUDAGraph Config Settings:**\n\n- Mode: FULL_AND_PIECEWISE\n- Capture sizes: [1, 2, 4, 8, 64]\n\n**CUDAGraph Stats:**\n\n| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |\n|-----------------|---------------|--------------|--------------|-------|\n| 61              | 64            | 3            | FULL         | 40    |\n",
        read=_cudagraph,
        anchor="**CUDAGraph ",
    ),
    _format(
        "v1_kvtransfer",
        "V1",
        "0.11.0..0.33.0",
        _IDLE,
        "KV Transfer metrics: {metrics:s}",
        "KV Transfer metrics: Num successful transfers=12, Avg xfer time (ms)=3.412, Throughput (MB/s)=14067.9",
        read=_transfer,
    ),
    _format(
        "v1_ectransfer",
        "V1",
        "0.31.0..0.33.0",
        _IDLE,
        "EC Transfer metrics: {metrics:s}",
        "EC Transfer metrics: Num successful transfers=12, Avg xfer time (ms)=3.412, Throughput (MB/s)=14067.9",
        read=_transfer,
    ),
    _format(
        "v1_mfu",
        "V1",
        "0.14.0..0.29.0",
        _IDLE,
        "{log_prefix}MFU: {tflops:f} TF/s/GPU {gbps:f} GB/s/GPU",
        "Engine 000: MFU: 211.6 TF/s/GPU 1320.4 GB/s/GPU",
    ),
    _format(
        "v1_mfu",
        "V1",
        "0.30.0..0.33.0",
        _IDLE,
        "{log_prefix}MFU: {tflops:f} TF/s/device {gbps:f} GB/s/device",
        "Engine 000: MFU: 211.6 TF/s/device 1320.4 GB/s/device",
    ),
    _format(
        "v1_stats_disabled",
        "V1",
        "0.10.2..0.33.0",
        "WARNING",
        "AsyncLLM created with api_server_count more than 1; disabling stats logging...",
        "AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid incomplete stats.",
    ),
)
