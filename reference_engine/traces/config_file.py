"""The configuration of a replay as a document: the engine's settings and the clock, from JSON keys.

`Setup`, `setup_from_document`, `nominal_setup` (what stands in where nothing is given).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reference_engine.cost.hardware import Gpu, ModelShape, Parallel, Placement, find_gpu, kv_capacity
from reference_engine.cost.step_time import LinearStepTime, RooflineStepTime, StepTime
from reference_engine.model import ConfigError
from reference_engine.model.config import EngineConfig
from reference_engine.model.kv_group import groups_from_records, several_groups

__all__ = [
    "CLOCK_KEYS",
    "Setup",
    "clock_of",
    "finite_number",
    "nominal_clock",
    "nominal_setup",
    "settings_of",
    "setup_from_document",
    "short_repr",
]

_RENAMED = {"async": "async_scheduling"}
_SETTINGS = {field.name: field for field in dataclasses.fields(EngineConfig)}
CLOCK_KEYS = ("step_time", "hardware", "model", "gpu_memory_utilization")
_STEP_TIME_KEYS = tuple(field.name for field in dataclasses.fields(LinearStepTime))
_SPLIT_KEYS = ("tensor_parallel_size", "pipeline_parallel_size")
_SHAPE_KEYS = tuple(field.name for field in dataclasses.fields(ModelShape))
_ENGINES = ("vllm-v1", "vllm-v0")
_POLICIES = ("fcfs", "priority")
_MODES = ("recompute", "swap")


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine and its clock; `clock` is None where the document gives none (arrivals by step need none)."""

    config: EngineConfig
    clock: StepTime | None = None


def setup_from_document(document: Mapping[str, Any]) -> Setup:
    """Read a configuration document.

    Keys: the fields of `EngineConfig` (`async` for `async_scheduling`), and for the clock either `step_time` with the
    fields of `LinearStepTime`, or `hardware` (a name of the GPU table) with `model` (fields of `ModelShape`,
    `tensor_parallel_size`, `pipeline_parallel_size`). `num_blocks` may be left out where hardware and model are given;
    `gpu_memory_utilization` (default 0.9) then sizes the KV cache. Raises `ConfigError` for what is unknown or impossible.
    """
    values = settings_of(document)
    hardware = _hardware(document)
    if values.get("num_blocks") is None:
        if hardware is None:
            raise ConfigError("num_blocks is missing (or hardware and model, to compute it from)")
        values["num_blocks"] = _sized_blocks(hardware, document, values.get("block_size", 16))
    config = EngineConfig(**values)
    return Setup(config, clock_of(document, config.async_scheduling))


def settings_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `EngineConfig` that a document names, each with its type; null is the default.

    Raises `ConfigError` for a key that the engine does not know: it is never replayed as something simpler.
    """
    settings = {_RENAMED.get(key, key): value for key, value in document.items()}
    unknown = [key for key in settings if key not in _SETTINGS and key not in CLOCK_KEYS]
    if unknown:
        raise ConfigError(_unknown_key(unknown[0], [*_SETTINGS, "async", *CLOCK_KEYS]))
    values = {
        key: _checked(key, value)
        for key, value in settings.items()
        if key in _SETTINGS and not (value is None and _SETTINGS[key].default is not None)
    }
    if settings.get("kv_groups"):
        values["block_size"] = groups_from_records(settings["kv_groups"])[0].block_size
    return values


def nominal_clock(async_scheduling: bool = False) -> StepTime:
    """Step times of an 8-billion-parameter model in bf16 on one H100: the stand-in where a file gives no clock."""
    return RooflineStepTime(_NOMINAL_GPU, _NOMINAL_MODEL, async_scheduling=async_scheduling)


def nominal_setup() -> Setup:
    """The stand-in where a file gives no configuration: that model and device under vLLM's defaults.

    An API server on a device of at least 70 GiB has 1,024 seats, a budget of 8,192 tokens, prefix caching and, since
    0.14, asynchronous scheduling; 0.9 of the memory is used.
    """
    capacity = kv_capacity(_NOMINAL_GPU, _NOMINAL_MODEL, Placement(0.9))
    config = EngineConfig(
        num_blocks=capacity.num_blocks,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=131072,
        async_scheduling=True,
    )
    return Setup(config, nominal_clock(async_scheduling=True))


_NOMINAL_GPU = find_gpu("H100")
_NOMINAL_MODEL = ModelShape(
    weight_bytes=16.06e9, kv_bytes_per_token=131072, num_layers=32, hidden_size=4096, num_kv_heads=8
)


def clock_of(document: Mapping[str, Any], async_scheduling: bool) -> StepTime | None:
    """The clock that a configuration document describes, None where it describes none. Raises `ConfigError`."""
    coefficients = document.get("step_time")
    if coefficients is not None:
        return _linear(coefficients)
    hardware = _hardware(document)
    if hardware is None:
        return None
    gpu, model, parallel = hardware
    return RooflineStepTime(gpu, model, parallel, async_scheduling=async_scheduling)


def _linear(coefficients: Any) -> LinearStepTime:
    values = _object("step_time", coefficients, _STEP_TIME_KEYS)
    missing = [key for key in _STEP_TIME_KEYS if key not in values]
    if missing:
        raise ConfigError(f"step_time.{missing[0]} is missing")
    numbers = {key: _positive(f"step_time.{key}", values[key], 0.0, 3600.0) for key in _STEP_TIME_KEYS}
    if not any(numbers.values()):
        raise ConfigError("step_time is zero in every part: time would stand still")
    return LinearStepTime(**numbers)


def _hardware(document: Mapping[str, Any]) -> tuple[Gpu, ModelShape, Parallel] | None:
    name, model = document.get("hardware"), document.get("model")
    if name is None and model is None:
        return None
    if name is None or model is None:
        raise ConfigError("hardware and model belong together: one of them is missing")
    if not isinstance(name, str):
        raise ConfigError(f"hardware is {short_repr(name)}: it must be a name of the GPU table")
    values = _object("model", model, (*_SHAPE_KEYS, *_SPLIT_KEYS))
    for key in ("weight_bytes", "kv_bytes_per_token"):
        if values.get(key) is None:
            raise ConfigError(f"model.{key} is missing")
    split = [int(_positive(f"model.{key}", values.get(key) or 1, 1)) for key in _SPLIT_KEYS]
    shape = {key: value for key, value in values.items() if key in _SHAPE_KEYS}
    for key, value in shape.items():
        if key != "fp8_compute" and value is not None:
            _positive(f"model.{key}", value, 0.0)
    return find_gpu(name), ModelShape(**shape), Parallel(*split)


def _sized_blocks(hardware: tuple[Gpu, ModelShape, Parallel], document: Mapping[str, Any], block_size: int) -> int:
    gpu, model, parallel = hardware
    share = document.get("gpu_memory_utilization")
    used = _positive("gpu_memory_utilization", 0.9 if share is None else share, 0.0)
    blocks = kv_capacity(gpu, model, Placement(used, parallel), block_size).num_blocks
    if blocks == 0:
        raise ConfigError(
            f"the model leaves no room for KV blocks on {parallel.devices} x {gpu.name}: "
            "raise gpu_memory_utilization or a parallel size"
        )
    return blocks


def _checked(key: str, value: Any) -> Any:
    """One setting of the engine with the type that its field has."""
    if key == "engine" and value not in _ENGINES:
        raise ConfigError(f"engine is {short_repr(value)}: known are {', '.join(_ENGINES)}")
    if key == "policy" and value not in _POLICIES:
        raise ConfigError(f"policy is {short_repr(value)}: known are {', '.join(_POLICIES)}")
    if key == "preemption_mode" and value not in (None, *_MODES):
        raise ConfigError(f"preemption_mode is {short_repr(value)}: known are {', '.join(_MODES)}")
    if key == "kv_groups":
        return None if value is None else several_groups(groups_from_records(value))
    if key == "retention_interval":
        return value if value in (None, "dense") else _whole(key, value)
    kind = str(_SETTINGS[key].type)
    if value is None and "None" in kind:
        return None
    if kind.startswith("bool"):
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {short_repr(value)}: it must be true or false")
        return value
    if kind.startswith("str"):
        if not isinstance(value, str):
            raise ConfigError(f"{key} is {short_repr(value)}: it must be text")
        return value
    number = _positive(key, value, 0.0)
    if kind.startswith("float"):
        return number
    return _whole(key, number)


def _whole(key: str, value: Any) -> int:
    number = _positive(key, value, 0.0)
    if number != int(number):
        raise ConfigError(f"{key} is {short_repr(value)}: it must be a whole number")
    return int(number)


def _positive(key: str, value: Any, least: float, most: float = 1e18) -> float:
    shown = short_repr(value)
    number = None if isinstance(value, str) else finite_number(value)
    if number is None:
        raise ConfigError(f"{key} is {shown}: it must be a finite number")
    if number < least:
        raise ConfigError(f"{key} is {shown}: it must be at least {least:g}")
    if number > most:
        raise ConfigError(f"{key} is {shown}: it must be at most {most:g}")
    return number


def finite_number(value: Any) -> float | None:
    """A number, or a text that is one, as a finite float; None for all else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def short_repr(value: Any) -> str:
    """A value as an error quotes it, cut after 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _object(name: str, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {short_repr(value)}: it must be an object with {', '.join(known)}")
    for key in value:
        if key not in known:
            raise ConfigError(f"{name}: {_unknown_key(key, known)}")
    return value


def _unknown_key(key: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key {short_repr(key)}; {hint}known: {', '.join(known)}"
