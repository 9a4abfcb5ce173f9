"""A changed configuration: what `--set` means for the KV blocks, the scheduler and the time of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from logscope.server.engines import EngineFacts, engine_config
from logscope.server.flags import flag_for
from logscope.server.settings import SETTINGS, SettingError
from reference_engine.cost.hardware import ModelShape, Parallel, Placement, rescaled_num_blocks
from reference_engine.model import ConfigError
from reference_engine.model.config import EngineConfig, check_config
from reference_engine.model.kv_group import group_record

__all__ = ["Scenario", "StepScale", "flag_text", "scenario_of"]

GIB = 2**30
FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
# Splitting a layer over twice the devices does not halve its time: the ranks wait for each other. Basis: published scaling of dense
# models within one node, 75 to 90 % of linear.
TENSOR_EFFICIENCY = 0.8


@dataclass(frozen=True, slots=True)
class StepScale:
    """Factors on the parts of a step's time (base, a prefill token, a decode request, a KV token read)."""

    base: float = 1.0
    prefill: float = 1.0
    decode: float = 1.0
    kv: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A configuration to replay: the engine's, the factors of its step time, copies of the engine, and the load's factor.

    `changes` are the user's own settings, `notes` what was assumed.
    """

    config: EngineConfig
    changes: dict[str, Any]
    scale: StepScale = StepScale()
    replicas: int = 1
    arrival_scale: float = 1.0
    notes: tuple[str, ...] = ()


def scenario_of(facts: EngineFacts, changes: Mapping[str, Any]) -> Scenario:
    """Work out what `changes` (keys of `--set`) do to a server.

    Raises SettingError where the log lacks what the change depends on, and says what to give instead.
    """
    before = engine_config(facts)
    if before is None:
        raise SettingError(
            "the log does not show the size of the KV cache; give it with --set num_blocks=N --set block_size=N"
        )
    plain = {k: v for k, v in changes.items() if k in SETTINGS}
    if before.kv_groups and "block_size" in plain and "kv_groups" not in plain:
        raise SettingError(
            "this model has several KV-cache groups with blocks of their own: give them with --set kv_groups=[…]"
        )
    notes: list[str] = []
    _lengthen_blocks(facts, before, plain)
    if "num_blocks" not in plain:
        blocks = _blocks(facts, before, plain, notes)
        if blocks != before.num_blocks:
            plain["num_blocks"] = blocks
    _note_what_is_hidden(facts, plain, notes)
    config = engine_config(facts, plain)
    assert config is not None
    if config.num_blocks < 2:
        raise SettingError("this change leaves no KV blocks: the weights take all of the memory")
    try:
        check_config(config)
    except ConfigError as error:
        raise SettingError(f"no server can run with these settings: {error}") from None
    return Scenario(
        config,
        dict(changes),
        _scale(facts, changes, notes),
        int(changes.get("replicas") or 1),
        float(changes.get("arrival_scale") or 1.0),
        tuple(notes),
    )


def _lengthen_blocks(facts: EngineFacts, before: EngineConfig, changes: dict[str, Any]) -> None:
    """Another KV type with state layers: a block is as large as a state, so it holds more tokens, and there are as many blocks as before."""
    groups = before.kv_groups or ()
    scale = _placement(facts, {}).kv_scale / _placement(facts, changes).kv_scale
    if scale == 1.0 or "kv_groups" in changes or not any(g.is_state for g in groups):
        return
    longest = before.max_model_len
    changes["kv_groups"] = [
        group_record(
            g if g.is_state and g.mode == "none" else replace(g, block_size=min(round(g.block_size * scale), longest))
        )
        for g in groups
    ]
    changes.setdefault("num_blocks", before.num_blocks)
    changes.setdefault("block_size", round(before.block_size * scale))


def _note_what_is_hidden(facts: EngineFacts, changes: Mapping[str, Any], notes: list[str]) -> None:
    """Say where a setting works on something that a log does not show, so that the replay has nothing to go by."""
    if changes.get("policy") not in (None, facts.config.get("policy")):
        notes.append("all requests have the same priority (the log shows none), so the policy changes nothing here")
    if changes.get("enable_prefix_caching") and not facts.config.get("enable_prefix_caching"):
        notes.append("prompts share nothing (not visible while prefix caching is off), so caching changes nothing here")


def _blocks(facts: EngineFacts, before: EngineConfig, changes: Mapping[str, Any], notes: list[str]) -> int:
    """KV blocks under a change of memory share, parallel sizes, KV type or block size."""
    now, then = _placement(facts, {}), _placement(facts, changes)
    size = int(changes.get("block_size") or before.block_size)
    tokens = before.num_blocks * before.block_size
    if now == then:
        return max(1, tokens // size)
    if now.gpu_memory_utilization == then.gpu_memory_utilization and now.parallel == then.parallel:
        return int(tokens * now.kv_scale / then.kv_scale) // size
    memory, weights, kv_bytes = (_gib(facts, n) for n in ("total_gpu_gib", "weights_gib", "available_kv_cache_gib"))
    if memory is None or kv_bytes is None or (weights is None and now.parallel != then.parallel):
        if now.gpu_memory_utilization != then.gpu_memory_utilization:
            raise SettingError(
                "the log does not show the GPU's memory, so what gpu_memory_utilization changes is not known; give the result with --set num_blocks=N"
            )
        notes.append("KV blocks scale with the number of GPUs (the log shows neither weight size nor free memory)")
        return int(tokens * now.kv_scale / then.kv_scale * then.parallel.devices / now.parallel.devices) // size
    model = ModelShape(
        weight_bytes=max(1.0, (weights or 0.0) * now.parallel.devices),
        kv_bytes_per_token=kv_bytes / tokens / now.kv_scale * now.parallel.devices,
    )
    blocks = rescaled_num_blocks(before.num_blocks, before.block_size, memory, model, now, then)
    return blocks * before.block_size // size


def _gib(facts: EngineFacts, name: str) -> float | None:
    value = facts.more.get(name)
    if name == "available_kv_cache_gib" and value is None and facts.kv.bytes:
        return float(facts.kv.bytes)
    return float(value) * GIB if isinstance(value, (int, float)) and value > 0 else None


def _placement(facts: EngineFacts, changes: Mapping[str, Any]) -> Placement:
    value = {**facts.config, **changes}
    parallel = Parallel(value.get("tensor_parallel_size") or 1, value.get("pipeline_parallel_size") or 1)
    scale = 0.5 if str(value.get("kv_cache_dtype") or "auto").startswith(FP8) else 1.0
    return Placement(min(1.0, value.get("gpu_memory_utilization") or 0.9), parallel, scale)


def _scale(facts: EngineFacts, changes: Mapping[str, Any], notes: list[str]) -> StepScale:
    scale = StepScale()
    before = facts.config.get("tensor_parallel_size") or 1
    after = changes.get("tensor_parallel_size") or before
    if after != before:
        factor = (
            1 / (1 + (after / before - 1) * TENSOR_EFFICIENCY)
            if after > before
            else 1 + (before / after - 1) * TENSOR_EFFICIENCY
        )
        scale = StepScale(factor, factor, factor, factor)
        notes.append(f"with tensor_parallel_size {after} instead of {before} a step takes {factor:.2f}x as long")
    if changes.get("pipeline_parallel_size") not in (None, facts.config.get("pipeline_parallel_size")):
        notes.append("pipeline stages do not change the step time; bubbles are not modelled")
    now, then = _placement(facts, {}).kv_scale, _placement(facts, changes).kv_scale
    return replace(scale, kv=scale.kv * then / now)


def flag_text(facts: EngineFacts, changes: Mapping[str, Any]) -> str | None:
    """The change as flags of the detected version; None where one of its settings has no flag there."""
    parts = []
    for name, value in changes.items():
        spelling = flag_for(name, facts.version, engine=facts.engine)
        text = spelling.text(value) if spelling is not None else None
        if text is None:
            return None
        parts.append(text)
    return " ".join(parts) or None
