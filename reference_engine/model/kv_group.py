"""KV-cache groups: layers whose block tables can be the same, and what one request may hold of the pool in each.

A model with one kind of attention has one group. Sliding windows, chunked-local attention and state layers (Mamba,
linear attention) make further ones; all of them draw their blocks from one pool (vLLM: `v1/kv_cache_interface.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reference_engine.model import ConfigError

__all__ = [
    "GROUP_KINDS",
    "KvGroup",
    "alignment_of",
    "group_record",
    "groups_from_records",
    "next_blocks",
    "next_change",
    "sequence_blocks",
    "several_groups",
]

GROUP_KINDS = ("full", "sliding", "chunked_local", "mamba")
_MODES = ("none", "align", "all")
_KEYS = ("kind", "block_size", "layers", "window", "chunk", "mode", "spec_blocks", "checkpoint", "eagle")
_FOLLOWS = ("admission_cap", "page_bytes", "blocks_per_request")
MOST_GROUPS = 256
"""More groups than any model has layers of different kinds; a longer list is a mistake."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """One group. `block_size` and `window` (a chunked-local group's chunk) in tokens, `layers` of one block.

    `mode` is vLLM's `mamba_cache_mode`: "none" (one state for ever), "align" (a state at the ends of blocks), "all" (a
    state for each block). `spec_blocks`: blocks beside the state for drafts. `checkpoint`: the kernel can also export
    the state at the last block end inside a chunk (Mamba-2). `eagle`: the drafting head's layers are in this group.
    """

    kind: str = "full"
    block_size: int = 16
    layers: int = 1
    window: int = 0
    mode: str = "none"
    spec_blocks: int = 0
    checkpoint: bool = False
    eagle: bool = False

    @property
    def is_state(self) -> bool:
        """Whether it holds states instead of keys and values."""
        return self.kind == "mamba"


def sequence_blocks(
    group: KvGroup, max_model_len: int, in_flight_tokens: int, *, states: str = "capped", retained: int = 0
) -> int:
    """Blocks that one request of `max_model_len` tokens holds at most in a group, as vLLM plans for it.

    Args:
        group: the group.
        max_model_len: tokens.
        in_flight_tokens: tokens that the batches in flight may bring at once.
        states: how the release counts state layers: "one" (0.9.2, 0.10.2), "each" (0.11.2, 0.14.1: one a block),
            "capped" (0.19 on: by mode), "checkpoint" (0.32 on: the exported state is one more), and "all+k" (0.28 on,
            mode "all" with drafts; includes what "capped" says).
        retained: tokens that several MTP modules keep below a sliding window.
    """
    size = group.block_size
    whole = -(-max_model_len // size)
    if group.kind == "sliding":
        return -(-min(group.window - 1 + retained + in_flight_tokens, max_model_len) // size) + 1
    if group.kind == "chunked_local":
        return -(-min(group.window + in_flight_tokens, max_model_len) // size)
    if not group.is_state:
        return whole
    if states in ("one", "each"):
        return 1 if states == "one" else whole
    if group.mode == "none":
        return 1 + group.spec_blocks
    if group.mode == "align":
        return 2 + group.spec_blocks + (group.checkpoint and states == "checkpoint")
    return whole + (group.spec_blocks if states != "capped" else 0)


def alignment_of(groups: Sequence[KvGroup]) -> int:
    """Tokens on whose multiples the blocks of all groups end, and so prefix hits do."""
    return math.lcm(*(group.block_size for group in groups))


def several_groups(groups: tuple[KvGroup, ...]) -> tuple[KvGroup, ...] | None:
    """The groups, or None for one group of full attention, which an engine takes without being told."""
    return groups if len(groups) > 1 or groups[0].kind != "full" else None


def next_blocks(groups: Sequence[KvGroup]) -> int:
    """Blocks that a running request takes at once when it comes to the end of its blocks.

    A state that is kept at the ends of blocks (mode "align") moves on to a new block before its last one is given back.
    """
    shortest = min(group.block_size for group in groups)
    return sum((group.mode != "none" if group.is_state else group.block_size == shortest) for group in groups)


def next_change(group: KvGroup, computed: int) -> int:
    """Computed tokens (from `computed` on) at which a decode next takes or gives back a block of the group."""
    size = group.block_size
    if group.is_state and group.mode == "none":
        return 1 << 60
    taken = -(-computed // size) * size
    if group.kind == "sliding":
        over = max(0, computed - group.window) // size  # as the step before left it
        return min(taken, (over + 1) * size + group.window - 1)
    if group.kind == "chunked_local":
        return min(taken, -(-computed // group.window) * group.window)
    if group.is_state and (computed - 1) % size == 0:
        return computed  # the state before goes back
    return taken


def groups_from_records(records: Any) -> tuple[KvGroup, ...]:
    """The groups of a `kv_groups` list of a configuration, each an object with `kind` and `block_size`.

    Raises:
        ConfigError: what is wrong with which group; a key that nobody knows is refused.
    """
    if not isinstance(records, Sequence) or isinstance(records, str) or not records:
        raise ConfigError('kv_groups must be a list like [{"kind": "full", "block_size": 16}]')
    if len(records) > MOST_GROUPS:
        raise ConfigError(f"kv_groups has {len(records)} groups, more than any model")
    return tuple(_group(number, record) for number, record in enumerate(records))


def _group(number: int, record: Any) -> KvGroup:
    where = f"kv_groups[{number}]"
    if not isinstance(record, Mapping):
        raise ConfigError(f"{where} is not an object with {', '.join(_KEYS)}")
    unknown = [str(key) for key in record if key not in _KEYS + _FOLLOWS]
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    kind = record.get("kind")
    if kind not in GROUP_KINDS:
        raise ConfigError(f"{where}: kind is {kind!r}: known are {', '.join(GROUP_KINDS)}")
    mode = record.get("mode") or "none"
    if mode not in _MODES:
        raise ConfigError(f"{where}: mode is {mode!r}: known are {', '.join(_MODES)}")
    width = {"sliding": "window", "chunked_local": "chunk"}.get(kind)
    window = 0
    if width is not None:
        window = _count(where, width, record.get(width, record.get("window")), 1)
    return KvGroup(
        kind=kind,
        block_size=_count(where, "block_size", record.get("block_size"), 1),
        layers=_count(where, "layers", record.get("layers", 1), 1),
        window=window,
        mode=mode,
        spec_blocks=_count(where, "spec_blocks", record.get("spec_blocks") or 0, 0),
        checkpoint=bool(record.get("checkpoint")),
        eagle=bool(record.get("eagle")),
    )


def _count(where: str, key: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 40:
        raise ConfigError(f"{where}: {key} is {value!r}: it must be a whole number from {least}")
    return value


def group_record(group: KvGroup) -> dict[str, Any]:
    """A group as the JSON object that names it; `window` is null where the group has none."""
    record: dict[str, Any] = {
        "kind": group.kind,
        "block_size": group.block_size,
        "window": group.window or None,
        "layers": group.layers,
    }
    if group.is_state:
        record["mode"] = group.mode
        record["spec_blocks"] = group.spec_blocks
        record["checkpoint"] = group.checkpoint
    return record
