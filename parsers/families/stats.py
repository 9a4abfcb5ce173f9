"""The periodic statistics line and its companions (prefix cache, speculative decoding, transfers, MFU, CUDA graphs).

Throughputs are tokens per second over the interval; `running`, `waiting`, `swapped`, `deferred` are gauges at the time of
the line; `…_usage_pct` is 0..100 of the KV blocks in use; `preemptions` (patched V1 builds only) and `corrupted` count the
interval. `waiting` is V0's `Pending`; in V1 it holds preempted requests, and from 0.20.0 the deferred ones too.
`engine` is the data-parallel rank; with `aggregated` the gauges are sums over `num_engines` and usage is their mean.
"""

from __future__ import annotations

from functools import partial

import polars as pl
import regex

from parsers.families.formats import Fields, Format
from parsers.families.keyvalue import assign, slug, split_pairs

__all__ = ["FORMATS", "SCHEMA"]

SCHEMA: dict[str, pl.DataType] = {
    "engine": pl.Int64(),
    "num_engines": pl.Int64(),
    "aggregated": pl.Boolean(),
    "prompt_throughput": pl.Float64(),
    "generation_throughput": pl.Float64(),
    "total_throughput": pl.Float64(),
    "running": pl.Int64(),
    "waiting": pl.Int64(),
    "swapped": pl.Int64(),
    "deferred": pl.Int64(),
    "preemptions": pl.Int64(),
    "corrupted": pl.Int64(),
    "kv_fetch_waiting": pl.Int64(),
    "kv_fetch_in_progress": pl.Int64(),
    "kv_fetch_completed": pl.Int64(),
    "device": pl.String(),
    "gpu_kv_cache_usage_pct": pl.Float64(),
    "cpu_kv_cache_usage_pct": pl.Float64(),
    "prefix_cache_hit_rate_pct": pl.Float64(),
    "external_prefix_cache_hit_rate_pct": pl.Float64(),
    "mm_cache_hit_rate_pct": pl.Float64(),
    "gpu_prefix_cache_hit_rate_pct": pl.Float64(),
    "cpu_prefix_cache_hit_rate_pct": pl.Float64(),
    "num_gpu_blocks": pl.Int64(),
    "draft_acceptance_rate_pct": pl.Float64(),
    "mean_acceptance_length": pl.Float64(),
    "accepted_tokens": pl.Int64(),
    "drafted_tokens": pl.Int64(),
    "metrics": pl.String(),
    "tflops": pl.Float64(),
    "gbps": pl.Float64(),
}

_NAMES = {
    "Avg prompt throughput": "prompt_throughput",
    "Avg generation throughput": "generation_throughput",
    "Throughput": "total_throughput",
    "Running": "running",
    "Waiting": "waiting",
    "Pending": "waiting",
    "Swapped": "swapped",
    "Deferred": "deferred",
    "Preemptions": "preemptions",
    "Preempted": "preemptions",
    "Corrupted": "corrupted",
    "Prefix cache hit rate": "prefix_cache_hit_rate_pct",
    "External prefix cache hit rate": "external_prefix_cache_hit_rate_pct",
    "MM cache hit rate": "mm_cache_hit_rate_pct",
}
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
_USAGE = " KV cache usage"
_FETCH = regex.compile(r"(\d{1,18}) (waiting|in progress|completed)")
_GAUGE = regex.compile(r"Running: \d{1,18} reqs")
_LONGEST_VALUE = 40
_LONGEST = 4000  # characters; the longest real line of this kind has under 600


def _usage(fields: Fields, device: str, value: str) -> None:
    if not _is_whole("usage_pct", value):
        return
    # V0 prints GPU and CPU side by side; V1 one figure, for the device that it names (0.30.0 on).
    if device == "CPU" and "gpu_kv_cache_usage_pct" in fields:
        assign(fields, "", value, "cpu_kv_cache_usage_pct")
        return
    if "swapped" not in fields:
        fields["device"] = device or None
    assign(fields, "", value, "gpu_kv_cache_usage_pct")


def _stats(text: str) -> Fields | None:
    if len(text) > _LONGEST:
        return None
    if "\n" in text:  # wrapped at a terminal's width: between words, or inside one
        joined = text.replace("\n", " ")
        text = joined if _GAUGE.search(joined) else text.replace("\n", "")
    if not _GAUGE.search(text):
        return None
    fields: Fields = {}
    for key, value in split_pairs(text):
        if key == "KV fetch":
            for count, what in _FETCH.findall(value):
                fields[f"kv_fetch_{slug(what)}"] = int(count)
        elif key.endswith(_USAGE):
            _usage(fields, key.removesuffix(_USAGE), value)
        elif (name := _NAMES.get(key)) is None:
            assign(fields, key, value)
        elif _is_whole(name, value):
            assign(fields, key, value, name)
        else:
            fields[name] = None
    return fields


def _is_whole(name: str, value: str) -> bool:
    """Whether a known field has its number and unit: the last one of a cut record has not, and `Waiting: 1` may be 17."""
    if name in ("preemptions", "corrupted"):
        return value[:1].isdecimal()
    unit = "%" if name.endswith("_pct") else "tokens/s" if "throughput" in name else "reqs"
    return value.rstrip(".").endswith(unit) and len(value) < _LONGEST_VALUE


def _named(names: dict[str, str]) -> partial[Fields | None]:
    return partial(_named_pairs, names)


def _named_pairs(names: dict[str, str], text: str) -> Fields | None:
    if len(text) > _LONGEST:
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


def _holding(part: str) -> partial[Fields | None]:
    return partial(_stats_holding, part)


def _stats_holding(part: str, text: str) -> Fields | None:
    return _stats(text) if part in text else None


_format = partial(Format, "stats")
_RATES = "Avg prompt throughput: {prompt_throughput:f} tokens/s, Avg generation throughput: {generation_throughput:f} tokens/s, Running: {running:d} reqs, "
_V0_GAUGES = "Swapped: {swapped:d} reqs, Pending: {waiting:d} reqs, GPU KV cache usage: {gpu_kv_cache_usage_pct:f}%, CPU KV cache usage: {cpu_kv_cache_usage_pct:f}%"
_USED = "GPU KV cache usage: {gpu_kv_cache_usage_pct:f}%"
_HITS = ", Prefix cache hit rate: {prefix_cache_hit_rate_pct:f}%"
_SEEN = "Avg prompt throughput: 4093.2 tokens/s, Avg generation throughput: 1187.6 tokens/s, Running: 64 reqs, "
_IDLE = "INFO (DEBUG when idle)"

# The parts of a V1 line came one by one; each is a variant of its own, newest first, so that the variant tells the
# least version. All are read by key, so an unknown part is kept and breaks nothing.
_V1_PARTS = (
    (
        "v1_multi.kv_fetch",
        "0.32.0..0.33.0",
        "KV fetch: ",
        "Waiting: {waiting:d} reqs, Deferred: {deferred:d} reqs, KV fetch: {kv_fetch_waiting:d} waiting to start, {kv_fetch_in_progress:d} in progress, {kv_fetch_completed:d} completed waiting, "
        + _USED
        + _HITS,
        "Engine 000: "
        + _SEEN
        + "Waiting: 22 reqs, Deferred: 5 reqs, KV fetch: 1 waiting to start, 3 in progress, 1 completed waiting, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%",
    ),
    (
        "v1_multi.deferred",
        "0.20.0..0.33.0",
        "Deferred: ",
        "Waiting: {waiting:d} reqs, Deferred: {deferred:d} reqs, " + _USED + _HITS,
        "Engine 000: "
        + _SEEN
        + "Waiting: 22 reqs, Deferred: 5 reqs, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%",
    ),
    (
        "v1_multi.preemptions",
        "0.11.1..0.33.0",
        "Preemptions: ",
        "Waiting: {waiting:d} reqs, Preemptions: {preemptions:d}, " + _USED + _HITS,
        "Engine 000: "
        + _SEEN
        + "Waiting: 17 reqs, Preemptions: 7, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%",
    ),
    (
        "v1_multi.corrupted",
        "0.11.1..0.33.0",
        "Corrupted: ",
        "Waiting: {waiting:d} reqs, " + _USED + _HITS + ", Corrupted: {corrupted:d} reqs",
        "Engine 000: "
        + _SEEN
        + "Waiting: 17 reqs, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%, Corrupted: 0 reqs",
    ),
    (
        "v1_multi.external",
        "0.11.1..0.33.0",
        "External prefix cache hit rate: ",
        "Waiting: {waiting:d} reqs, "
        + _USED
        + _HITS
        + ", External prefix cache hit rate: {external_prefix_cache_hit_rate_pct:f}%",
        "Engine 000: "
        + _SEEN
        + "Waiting: 17 reqs, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%, External prefix cache hit rate: 21.5%, MM cache hit rate: 88.9%",
    ),
    (
        "v1_multi.mm",
        "0.11.1..0.33.0",
        "MM cache hit rate: ",
        "Waiting: {waiting:d} reqs, "
        + _USED
        + _HITS
        + ", MM cache hit rate: {mm_cache_hit_rate_pct:f}%",
        "Engine 000: "
        + _SEEN
        + "Waiting: 17 reqs, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%, MM cache hit rate: 88.9%",
    ),
    (
        "v1_stats_engine",
        "0.8.3..0.33.0",
        "Waiting: ",
        "Waiting: {waiting:d} reqs, {device} KV cache usage: {gpu_kv_cache_usage_pct:f}%[[, Prefix cache hit rate: {prefix_cache_hit_rate_pct:f}%]]",
        "Engine 000: "
        + _SEEN
        + "Waiting: 17 reqs, CPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%",
    ),
)

FORMATS = (
    _format(
        "v0_stats_line",
        "V0",
        "0.1.3..0.10.2",
        _IDLE,
        _RATES + _V0_GAUGES,
        _SEEN
        + "Swapped: 2 reqs, Pending: 17 reqs, GPU KV cache usage: 97.4%, CPU KV cache usage: 12.5%.",
        read=_holding("Pending: "),
        anchor=" reqs",
    ),
    _format(
        "v0_throughput_line",
        "V0",
        "0.1.0..0.1.2",
        "INFO",
        "Throughput: {total_throughput:f} tokens/s, Running: {running:d} reqs, " + _V0_GAUGES,
        "Throughput: 2311.4 tokens/s, Running: 64 reqs, Swapped: 2 reqs, Pending: 17 reqs, GPU KV cache usage: 97.4%, CPU KV cache usage: 12.5%",
        read=_stats,
        anchor=" reqs",
    ),
    _format(
        "v1_stats_min",
        "V1",
        "0.7.0",
        "INFO",
        "Running: {running:d} reqs, Waiting: {waiting:d} reqs",
        "Running: 64 reqs, Waiting: 17 reqs ",
        read=_stats,
        anchor=" reqs",
    ),
    *(
        _format(
            variant,
            "V1",
            versions,
            _IDLE,
            _RATES + template,
            example,
            _holding(part),
            " reqs",
            True,
        )
        for variant, versions, part, template, example in _V1_PARTS
    ),
    _format(
        "v1_stats_line",
        "V1",
        "0.7.3..0.8.2",
        "INFO",
        _RATES + "Waiting: {waiting:d} reqs, " + _USED + _HITS,
        _SEEN + "Waiting: 17 reqs, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%",
        read=_holding("Prefix cache hit rate: "),
        anchor=" reqs",
    ),
    _format(
        "v1_stats_line",
        "V1",
        "0.7.1..0.7.2",
        "INFO",
        _RATES + "Waiting: {waiting:d} reqs GPU KV cache usage: {gpu_kv_cache_usage_pct:f}%",
        _SEEN + "Waiting: 17 reqs GPU KV cache usage: 97.4%.",
        read=_stats,
        anchor=" reqs",
    ),
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
        read=lambda text: (
            None if "Accepted throughput" in text else _named_pairs(_SPEC_NAMES, text)
        ),
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
