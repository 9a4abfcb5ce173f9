"""What a server uses that the reference engine does not model, as its log shows it: the replay's bounds widen, or nothing is replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import polars as pl

from logscope.server.settings import Configuration
from parsers.families.http import endpoint

__all__ = [
    "DECLINED",
    "GRAMMAR",
    "POOLING_PATHS",
    "SPECULATIVE",
    "uncounted_feature",
    "unsupported_features",
    "widened",
]

POOLING = "embeddings and other pooling"
STATE_LAYERS = "several KV-cache groups (layers with a state instead of a KV cache)"
WINDOW_LAYERS = "several KV-cache groups (sliding-window layers)"
DIFFUSION = "decoding by diffusion"
SPECULATIVE = "speculative decoding"

DECLINED = (POOLING, STATE_LAYERS, DIFFUSION)
"""With one of these the cache or the steps are of another kind: a replay would answer for a machine that is not there."""

_POOLING_TASKS = frozenset(("embed", "embedding", "classify", "score", "reward", "pooling"))
POOLING_PATHS = ("embeddings", "pooling", "score", "rerank", "classify", "embed")
# Beginnings of architectures' names.
# fmt: off
_STATE = (
    "Bamba", "FalconH", "GraniteMoeHybrid", "Jamba", "KimiLinear", "Lfm2", "Mamba", "FalconMamba",
    "MiniMaxM1", "MiniMaxText01", "NemotronH", "Phi4Flash", "Plamo2", "Qwen3Next", "Qwen3_5", "Zamba",
)
_WINDOW = (
    "Cohere2", "Exaone4", "Gemma2", "Gemma3", "Gemma4", "GptOss", "Llama4", "MiMoV2", "Olmo3",
)
# fmt: on
# A grammar of the request itself, not the words inside a stop string.
GRAMMAR = r"[ ,(](?:guided_decoding=GuidedDecodingParams|structured_outputs=StructuredOutputsParams)\("

MIN_SPREAD = 0.25
MIN_COUNT = 3.0


def widened(low: float, value: float, high: float) -> tuple[float, float, float]:
    """Bounds of a count for a server that the replay models in part: twice as wide, and a quarter of the value (or three) at least."""
    spread = max(MIN_SPREAD * value, MIN_COUNT)
    down, up = max(2 * (value - low), spread), max(2 * (high - value), spread)
    return max(0.0, value - down), value, value + up


def unsupported_features(configuration: Configuration, frames: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    """The features' names, in a user's words; those of `DECLINED` first. Frames are those of one engine."""
    rows = _variants(frames)
    return (
        *_other_machines(configuration, frames, rows),
        *_cache(configuration, frames, rows),
        *_scheduling(configuration, frames, rows),
    )


def uncounted_feature(more: Mapping[str, Any], variants: Set[str], *, groups_known: bool = False) -> str | None:
    """A feature by which a token in the cache is not a token of a request, so that evictions cannot be reckoned from the gauges.

    As far as a start's settings and the kinds of the lines tell; `unsupported_features` knows more, from whole frames. With
    `groups_known` the blocks of several KV-cache groups can be reckoned with.
    """
    if _pooling_is_set(more):
        return POOLING
    layers = None if groups_known else _layers(more, variants)
    if layers is not None:
        return layers
    if "v1_diffusion" in variants:
        return DIFFUSION
    return SPECULATIVE if "v0_specdecode" in variants else None


def _other_machines(
    configuration: Configuration, frames: Mapping[str, pl.DataFrame], variants: frozenset[str]
) -> Iterable[str]:
    more = configuration.more
    if _is_pooling(more, frames):
        yield POOLING
    layers = _layers(more, variants)
    if layers is None and not _given(more, "disable_hybrid_kv_cache_manager"):
        layers = WINDOW_LAYERS if _concurrency_differs(configuration, frames) else None
    if layers is not None and not _groups_are_known(configuration):
        yield layers
    if "v1_diffusion" in variants:
        yield DIFFUSION


def _groups_are_known(configuration: Configuration) -> bool:
    """Whether the groups and the blocks of the pool are known, so that the replay models them."""
    return bool(configuration.values.get("kv_groups") and configuration.values.get("num_blocks"))


def _drafts_are_known(configuration: Configuration, variants: Set[str]) -> bool:
    """Whether it is known how many drafts there are and how many are accepted, so that the replay models them (not V0's)."""
    values = configuration.values
    return (
        bool(values.get("num_spec_tokens")) and values.get("acceptance") is not None and "v0_specdecode" not in variants
    )


def _layers(more: Mapping[str, Any], variants: Set[str]) -> str | None:
    architecture = str(more.get("architecture") or "")
    if "mamba_block" in variants or "attention_free" in variants or architecture.startswith(_STATE):
        return STATE_LAYERS
    if _given(more, "disable_hybrid_kv_cache_manager"):
        return None
    if "kv_groups" in variants or architecture.startswith(_WINDOW):
        return WINDOW_LAYERS
    return None


def _speculates(more: Mapping[str, Any], variants: Set[str]) -> bool:
    return (
        _given(more, "speculative_config")
        or _given(more, "speculative_model")
        or bool(variants & {"v0_specdecode", "v1_specdecode"})
    )


def _cache(configuration: Configuration, frames: Mapping[str, pl.DataFrame], variants: frozenset[str]) -> Iterable[str]:
    more = configuration.more
    offload = more.get("kv_offloading_size")
    if (
        _given(more, "kv_transfer_config")
        or (isinstance(offload, (int, float)) and offload > 0)
        or variants & {"v1_kvtransfer", "simple_offload", "v1_kv_load_recovered"}
    ):
        yield "KV connectors"
    if "v1_ectransfer" in variants:
        yield "encoder-cache connectors"
    if any((more.get(f"{kind}_context_parallel_size") or 1) > 1 for kind in ("decode", "prefill")):
        yield "context parallelism"
    if _any_above_zero(frames, "mm_cache_hit_rate_pct"):
        yield "multimodal inputs (the encoder's budget)"


def _scheduling(
    configuration: Configuration, frames: Mapping[str, pl.DataFrame], variants: frozenset[str]
) -> Iterable[str]:
    more, requests = configuration.more, frames.get("request")
    if _speculates(more, variants) and not _drafts_are_known(configuration, variants):
        yield SPECULATIVE
    if more.get("enable_lora") is True or _requests(requests, pl.col("lora_request").is_not_null()):
        yield "LoRA limits"
    if (configuration.values.get("pipeline_parallel_size") or 1) > 1:
        yield "pipeline bubbles"
    if (more.get("num_scheduler_steps") or 1) > 1:
        yield "multi-step scheduling"
    if _requests(requests, pl.col("params").str.contains(GRAMMAR)):
        yield "structured output"
    elif _any_above_zero(frames, "deferred"):
        yield "deferred requests (structured output, transfers or LoRA limits)"
    if _requests(requests, (pl.col("n") > 1) | pl.col("params").str.starts_with("BeamSearchParams(")):
        yield "several outputs a request"


def _variants(frames: Mapping[str, pl.DataFrame]) -> frozenset[str]:
    names = ("stats", "kv_sizing", "preemption")
    found = (frames[name]["variant"].to_list() for name in names if name in frames)
    return frozenset(variant for variants in found for variant in variants)


def _given(more: Mapping[str, Any], name: str) -> bool:
    return more.get(name) not in (None, "None", "", False, "False")


def _requests(requests: pl.DataFrame | None, condition: pl.Expr) -> bool:
    return requests is not None and requests.filter(condition).height > 0


def _any_above_zero(frames: Mapping[str, pl.DataFrame], column: str) -> bool:
    stats = frames.get("stats")
    if stats is None or column not in stats.columns:
        return False
    highest = stats[column].max()
    return isinstance(highest, (int, float)) and highest > 0


def _is_pooling(more: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> bool:
    """Named by the start, by a request's parameters, or by access lines with no generation beside them."""
    set_so = _pooling_is_set(more)
    if set_so is not None:
        return set_so
    if _requests(frames.get("request"), pl.col("params").str.starts_with("PoolingParams(")):
        return True
    http = frames.get("http")
    if http is None or "path" not in http.columns or _any_above_zero(frames, "generation_throughput"):
        return False
    return http.filter((pl.col("status") == 200) & endpoint().is_in(POOLING_PATHS)).height > 0


def _pooling_is_set(more: Mapping[str, Any]) -> bool | None:
    """None where the settings do not tell."""
    tasks = str(more.get("supported_tasks") or "")
    if "generate" in tasks:
        return False
    if more.get("task") in _POOLING_TASKS or more.get("runner") == "pooling" or tasks:
        return "transcription" not in tasks
    return True if _given(more, "pooler_config") else None


def _concurrency_differs(configuration: Configuration, frames: Mapping[str, pl.DataFrame]) -> bool:
    """Where full-length requests fit more or less often than the cache's tokens say, a token does not cost the same in each layer.

    Until 0.20.0 vLLM computes the two independently; after that it derives one from the other, and they agree.
    """
    sizing = frames.get("kv_sizing")
    if sizing is None or (configuration.more.get("decode_context_parallel_size") or 1) > 1:
        return False
    told = sizing.filter(pl.col("max_concurrency").is_not_null() & (pl.col("max_model_len") > 0))
    tokens = sizing["kv_cache_tokens"].min()
    if told.height == 0 or not isinstance(tokens, int):
        return False
    row = told.sort("max_concurrency").row(0, named=True)
    length, seen = row["max_model_len"], row["max_concurrency"]
    block = configuration.values.get("block_size") or 16
    expected = tokens / length
    return bool(abs(seen - expected) > expected * (0.01 + block / length) + 0.01)
