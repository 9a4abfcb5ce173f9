"""The periodic statistics line; what is printed beside it stands in `stats_companions`.

Throughputs are tokens per second over the interval; `running`, `waiting`, `swapped`, `deferred` are gauges at the time of
the line; `…_usage_pct` is 0..100 of the KV blocks in use; `preemptions` (patched V1 builds only) and `corrupted` count the
interval. `waiting` is V0's `Pending`; in V1 it holds preempted requests, and from 0.20.0 the deferred ones too.
`engine` is the data-parallel rank; with `aggregated` the gauges are sums over `num_engines` and usage is their mean.
"""

from __future__ import annotations

from functools import partial

from parsers.families.formats import Fields, Format, Kind, assign, slug, split_pairs
from parsers.families.stats_companions import COMPANIONS, LONGEST
from parsers.lines import later_regex

__all__ = ["FORMATS", "MOST_SAID", "SCHEMA", "is_believed"]

SCHEMA: dict[str, Kind] = {
    "engine": Kind.WHOLE,
    "num_engines": Kind.WHOLE,
    "aggregated": Kind.FLAG,
    "prompt_throughput": Kind.NUMBER,
    "generation_throughput": Kind.NUMBER,
    "total_throughput": Kind.NUMBER,
    "running": Kind.WHOLE,
    "waiting": Kind.WHOLE,
    "swapped": Kind.WHOLE,
    "deferred": Kind.WHOLE,
    "preemptions": Kind.WHOLE,
    "corrupted": Kind.WHOLE,
    "kv_fetch_waiting": Kind.WHOLE,
    "kv_fetch_in_progress": Kind.WHOLE,
    "kv_fetch_completed": Kind.WHOLE,
    "device": Kind.TEXT,
    "gpu_kv_cache_usage_pct": Kind.NUMBER,
    "cpu_kv_cache_usage_pct": Kind.NUMBER,
    "prefix_cache_hit_rate_pct": Kind.NUMBER,
    "external_prefix_cache_hit_rate_pct": Kind.NUMBER,
    "mm_cache_hit_rate_pct": Kind.NUMBER,
    "gpu_prefix_cache_hit_rate_pct": Kind.NUMBER,
    "cpu_prefix_cache_hit_rate_pct": Kind.NUMBER,
    "num_gpu_blocks": Kind.WHOLE,
    "draft_acceptance_rate_pct": Kind.NUMBER,
    "mean_acceptance_length": Kind.NUMBER,
    "accepted_tokens": Kind.WHOLE,
    "drafted_tokens": Kind.WHOLE,
    "metrics": Kind.TEXT,
    "tflops": Kind.NUMBER,
    "gbps": Kind.NUMBER,
}

# Requests, preemptions, tokens per second, percent of the KV cache.
MOST_SAID: dict[str, float] = {
    **dict.fromkeys(("running", "waiting", "swapped", "deferred", "preemptions"), 10_000_000),
    **dict.fromkeys(("prompt_throughput", "generation_throughput"), 1e9),
    **dict.fromkeys(("gpu_kv_cache_usage_pct", "cpu_kv_cache_usage_pct"), 101.0),
}
"""What a statistics line can say at the most; nobody can have measured more, or less than nothing."""


def is_believed(fields: Fields) -> bool:
    """Whether all that a statistics line says can have been measured."""
    said = ((fields.get(name), most) for name, most in MOST_SAID.items())
    return all(value is None or (isinstance(value, (int, float)) and 0 <= value <= most) for value, most in said)


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
_USAGE = " KV cache usage"
_FETCH = later_regex(r"(\d{1,18}) (waiting|in progress|completed)")
_GAUGE = later_regex(r"Running: \d{1,18} reqs")
_LONGEST_VALUE = 40


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
    if len(text) > LONGEST:
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
    """Whether a known field has its number and unit: the last one of a cut record has not, and `Waiting: 1` may be 17.

    More digits than any number has are kept as they are: no column takes them, which is counted.
    """
    if value[:_LONGEST_VALUE].isdecimal() and len(value) > _LONGEST_VALUE:
        return True
    if name in ("preemptions", "corrupted"):
        return value[:1].isdecimal()
    unit = "%" if name.endswith("_pct") else "tokens/s" if "throughput" in name else "reqs"
    return value.rstrip(".").endswith(unit) and len(value) < _LONGEST_VALUE


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
        "Waiting: {waiting:d} reqs, " + _USED + _HITS + ", MM cache hit rate: {mm_cache_hit_rate_pct:f}%",
        "Engine 000: "
        + _SEEN
        + "Waiting: 17 reqs, GPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%, MM cache hit rate: 88.9%",
    ),
    (
        "v1_stats_engine",
        "0.8.3..0.33.0",
        "Waiting: ",
        "Waiting: {waiting:d} reqs, {device} KV cache usage: {gpu_kv_cache_usage_pct:f}%[[, Prefix cache hit rate: {prefix_cache_hit_rate_pct:f}%]]",
        "Engine 000: " + _SEEN + "Waiting: 17 reqs, CPU KV cache usage: 97.4%, Prefix cache hit rate: 38.2%",
    ),
)

FORMATS = (
    _format(
        "v0_stats_line",
        "V0",
        "0.1.3..0.10.2",
        _IDLE,
        _RATES + _V0_GAUGES,
        _SEEN + "Swapped: 2 reqs, Pending: 17 reqs, GPU KV cache usage: 97.4%, CPU KV cache usage: 12.5%.",
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
        _format(variant, "V1", versions, _IDLE, _RATES + template, example, _holding(part), " reqs", True)
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
    *COMPANIONS,
)
