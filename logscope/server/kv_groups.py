"""KV-cache groups off a log's start lines: which groups a model has, and how many blocks there are.

A known architecture gives the pattern of its layers, the lines give block sizes and capacity; the arithmetic is that of
vLLM's own lines (`v1/core/kv_cache_utils.py`), turned round. What no line tells stays unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from logscope.server.flags import parsed_version
from reference_engine.model.kv_group import KvGroup, groups_from_records, sequence_blocks

__all__ = ["CacheLayout", "blocks_per_request", "blocks_range", "layout_of"]

# Beginnings of architectures' names -> the groups beside the first one of full attention: how many, kind, window or chunk.
# Where the number of layers matters, the model's name decides (Gemma 3: 8 + 40 layers at 12B, else five or six to one).
_PATTERNS: tuple[tuple[str, str, int, str, int], ...] = (
    ("GptOss", "", 1, "sliding", 128),
    ("Gemma2", "", 1, "sliding", 4096),
    ("Gemma3", r"(?i)\b12b\b", 5, "sliding", 1024),
    ("Gemma3", r"(?i)\b(?:1b|270m)\b", 6, "sliding", 512),
    ("Gemma3", r"(?i)\b(?:4b|27b)\b", 6, "sliding", 1024),
    ("Llama4", "", 3, "chunked_local", 8192),
    ("Olmo3", "", 3, "sliding", 4096),
    ("Cohere2", "", 3, "sliding", 4096),
    ("Exaone4", r"(?i)\b32b\b", 3, "sliding", 4096),
    ("Qwen3Next", "", 3, "mamba", 0),
    ("Qwen3_5", "", 3, "mamba", 0),
    ("KimiLinear", "", 3, "mamba", 0),
    ("FalconH1", "", 1, "mamba", 0),  # attention and a state in every layer
    ("GraniteMoeHybrid", r"(?i)4\.0-h-(?:micro|tiny|small)\b", 9, "mamba", 0),  # 4 of 40 layers attend
    ("Bamba", r"(?i)\b9b\b", 10, "mamba", 0),  # 3 of 32
    ("Jamba", r"(?i)jamba-v0\.1\b", 7, "mamba", 0),  # 4 of 32
    ("Lfm2", r"(?i)lfm2(?:\.5)?-(?:350m|700m|1\.2b)\b", 2, "mamba", 0),  # 6 of 16
    ("Lfm2Moe", r"(?i)lfm2(?:\.5)?-24b", 3, "mamba", 0),  # 10 of 40
    ("NemotronH", r"(?i)nano-30b", 4, "mamba", 0),
    ("NemotronH", r"(?i)nano-9b|nano-12b", 7, "mamba", 0),
    ("NemotronH", r"(?i)\b8b\b", 6, "mamba", 0),
)
_MAMBA2 = ("NemotronH", "Bamba", "FalconH", "GraniteMoeHybrid", "Zamba2")
_NUMBER = re.compile(r"\d{1,9}")
_OLDEST_BY_MODE = "0.19.0"
_DERIVED_SINCE = "0.20.1"
"""The first release whose tokens are derived from the concurrency."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a server and the blocks of its pool (the null block included).

    `num_blocks` is None where the lines leave more than one group's worth of doubt; `basis` says how the groups are known.
    """

    groups: tuple[KvGroup, ...]
    num_blocks: int | None
    basis: str


def _since(version: str | None, first: str) -> bool:
    if version is None:
        return True
    try:
        return parsed_version(version) >= parsed_version(first)
    except ValueError:
        return True


def blocks_per_request(
    groups: Sequence[KvGroup], version: str | None, max_model_len: int, max_num_batched_tokens: int, batches: int = 1
) -> int:
    """Blocks over all groups that vLLM plans for one request of `max_model_len` tokens.

    Args:
        groups: the groups.
        version: the release; the newest rules where it is None.
        max_model_len: tokens.
        max_num_batched_tokens: token budget of a step.
        batches: batches in flight (2 with asynchronous scheduling, else the pipeline's stages); counts since 0.28.0.
    """
    in_flight = max_num_batched_tokens * (batches if _since(version, "0.28.0") else 1)
    states = "checkpoint" if _since(version, "0.32.0") else "all+k" if _since(version, "0.28.0") else "capped"
    if not _since(version, _OLDEST_BY_MODE):
        states = "each" if _since(version, "0.11.0") else "one"
    return sum(sequence_blocks(group, max_model_len, in_flight, states=states) for group in groups)


def blocks_range(
    groups: Sequence[KvGroup],
    version: str | None,
    per_request: int,
    max_model_len: int,
    tokens: int | None,
    concurrency: float | None,
) -> tuple[int, int] | None:
    """The lowest and the highest number of blocks that the printed capacity leaves; None where it fits none.

    Args:
        groups: the groups.
        version: the release that printed it.
        per_request: see `blocks_per_request`.
        max_model_len: tokens.
        tokens: "KV cache size: N tokens".
        concurrency: "Maximum concurrency for … tokens per request: X".
    """
    low, high = 1, 1 << 62
    if tokens is not None and _since(version, _DERIVED_SINCE):
        low = -(-tokens * per_request // max_model_len)
        high = max(low, -(-(tokens + 1) * per_request // max_model_len) - 1)
    elif tokens is not None:
        size = min(group.block_size for group in groups)
        low = -(-len(groups) * tokens // size)
        high = low + len(groups) - 1
    if concurrency is not None:
        low = max(low, math.ceil((concurrency - 0.005) * per_request - 1e-6))
        high = min(high, math.floor((concurrency + 0.005) * per_request + 1e-6))
    return (low, high) if low <= high < 1 << 62 else None


def layout_of(
    values: Mapping[str, Any],
    more: Mapping[str, Any],
    version: str | None,
    tokens: int | None,
    concurrency: float | None,
) -> CacheLayout | None:
    """The groups and blocks of a server, None where it has one group of full attention or the log cannot tell.

    Args:
        values: the settings of `--set`; `num_blocks` only where the log or the user says it.
        more: facts beside them (architecture, model, the lines of state layers and of groups).
        version: the release.
        tokens: printed capacity in tokens.
        concurrency: printed number of requests of full length.
    """
    given = values.get("kv_groups")
    groups, basis = (groups_from_records(given) if given else None), "given"
    length, budget = values.get("max_model_len"), values.get("max_num_batched_tokens")
    batches = 2 if _asynchronous(more, version) else values.get("pipeline_parallel_size") or 1
    said = values.get("num_blocks")
    if groups is None:
        basis = "inferred"
        groups = _named(values, more) or _listed(values, more)
    if groups is None:
        return None
    if any(group.kind == "sliding" and not group.window for group in groups):
        groups = _with_window(groups, version, length, budget, batches, tokens, said)
        if groups is None:
            return None
    blocks = said
    if blocks is None and length and budget:
        per_request = blocks_per_request(groups, version, length, budget, batches)
        found = blocks_range(groups, version, per_request, length, tokens, concurrency)
        if found is not None and found[1] - found[0] < max(len(groups), 2):
            blocks = found[0]
    return CacheLayout(groups, blocks, basis)


def _asynchronous(more: Mapping[str, Any], version: str | None) -> bool:
    """Whether two batches are in flight: as the start says, else by the release's default."""
    said = more.get("async_scheduling")
    return _since(version, "0.14.0") if said is None else said in (True, "enabled")


def _named(values: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[KvGroup, ...] | None:
    """The groups of a known architecture."""
    if more.get("disable_hybrid_kv_cache_manager") not in (None, "None", "", False, "False"):
        return None
    architecture, model = str(more.get("architecture") or ""), str(more.get("model") or "")
    listed = _sizes(more)
    for prefix, name, others, kind, window in _PATTERNS:
        if architecture.startswith(prefix) and (not name or re.search(name, model)):
            if listed is not None and len(listed) != others + 1:
                return None
            return _built(kind, window, listed or [_block_size(values)] * (others + 1), values, more)
    return None


def _listed(values: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[KvGroup, ...] | None:
    """Groups of which only the list of block sizes is printed: states where the start speaks of them, else windows."""
    sizes = _sizes(more)
    if sizes is None or len(sizes) < 2:
        return None
    return _built("mamba" if more.get("padding_pct") is not None else "sliding", 0, sizes, values, more)


def _built(
    kind: str, window: int, sizes: Sequence[int], values: Mapping[str, Any], more: Mapping[str, Any]
) -> tuple[KvGroup, ...]:
    first = KvGroup("full", sizes[0])
    if kind != "mamba":
        return (first, *(KvGroup(kind, size, window=window) for size in sizes[1:]))
    mode = _state_mode(values, more)
    drafts = int(values.get("num_spec_tokens") or 0)
    whole = values.get("max_model_len") if mode == "none" else None
    checkpoint = mode == "align" and str(more.get("architecture") or "").startswith(_MAMBA2)
    state = KvGroup("mamba", sizes[0], mode=mode, spec_blocks=drafts, checkpoint=checkpoint)
    return (first, *(replace(state, block_size=int(whole or size)) for size in sizes[1:]))


def _state_mode(values: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    said = str(more.get("mamba_cache_mode") or "")
    if said in ("align", "all", "none"):
        return said
    return "align" if values.get("enable_prefix_caching") else "none"


def _sizes(more: Mapping[str, Any]) -> list[int] | None:
    """The block sizes of `kv cache group sizes [784, 784, 784, 784]`."""
    found = [int(number) for number in _NUMBER.findall(str(more.get("kv_group_sizes") or ""))]
    return found if found and all(found) else None


def _block_size(values: Mapping[str, Any]) -> int:
    return int(values.get("block_size") or 16)


def _with_window(
    groups: tuple[KvGroup, ...],
    version: str | None,
    length: int | None,
    budget: int | None,
    batches: int,
    tokens: int | None,
    blocks: int | None,
) -> tuple[KvGroup, ...] | None:
    """The window from what one request costs, where blocks and tokens are both printed: the roundest that fits."""
    if not (length and budget and tokens and blocks) or not _since(version, _DERIVED_SINCE):
        return None
    fitting = []
    for window in sorted({*range(16, length + 1, 16)}, key=lambda w: (-(w & -w), w)):
        tried = tuple(replace(g, window=window) if g.kind == "sliding" else g for g in groups)
        if int(blocks * length / blocks_per_request(tried, version, length, budget, batches)) == tokens:
            fitting.append(tried)
            break
    return fitting[0] if fitting else None
