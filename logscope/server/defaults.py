"""The default of a setting in a vLLM version: declared ones from the table, effective ones by vLLM's rules.

From 0.6.5 on many defaults are decided at start, from the engine, the device and its memory; the rules below are those of
vLLM's engine arguments (0.1.0 to 0.33.0). What cannot be decided without a fact that is missing is None.

Fills the settings that a log does not name with the defaults of its vLLM version.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from logscope.server.flags import ALIASES, declared_default, release_of, since
from logscope.server.settings import SETTINGS, Configuration

__all__ = ["Deployment", "default_for", "fill_defaults"]
_HOPPER = ("H100", "H200")
_SERVER_BUDGETS = {2048: False, 8192: True}


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a default may depend on. `device_gib`: memory of one device, GiB; `offline`: the `LLM` class, not the API server.

    `chosen_budget`: the token budget that an API server chose by itself, where its log prints it: it tells the kind of device.
    """

    engine: str = "V1"
    device: str = "cuda"
    device_gib: float | None = None
    device_name: str | None = None
    world_size: int = 1
    offline: bool = False
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool | None = None
    chosen_budget: int | None = None
    throughput_mode: bool = False

    @property
    def is_cpu(self) -> bool:
        """Whether the model runs on the CPU backend."""
        return self.device.lower() == "cpu"


def default_for(setting: str, version: str, on: Deployment | None = None) -> object:
    """The value that a setting takes when nobody gives it, or None where the version lacks it or it cannot be told."""
    on = on or Deployment()
    release = release_of(version)
    if release is None:
        return None
    setting = ALIASES.get(setting, setting)
    rule = _RULES.get(setting)
    if rule is not None:
        return rule(release, on)
    return _literal(declared_default(setting, release))


def _literal(text: str | None) -> object:
    if text is None:
        return None
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return value


def _is_large(release: str, on: Deployment) -> bool | None:
    """Whether a device counts as large (V1): Hopper until 0.8.4, then 70 GiB, an A100 excepted from 0.9.0 on."""
    if on.chosen_budget in _SERVER_BUDGETS:
        return _SERVER_BUDGETS[on.chosen_budget]
    name = (on.device_name or "").upper()
    if not since(release, "0.8.5"):
        return any(hopper in name for hopper in _HOPPER) if name else None
    if on.device_gib is None:
        return None
    if since(release, "0.28.0") and on.device_gib >= 160:
        return True
    excepted = (since(release, "0.9.0") and "A100" in name) or (since(release, "0.33.0") and "GB10" in name)
    return on.device_gib >= 70 and not excepted


def _max_num_seqs(release: str, on: Deployment) -> int | None:
    seats: int | None = None
    if on.engine == "V0":
        seats = 256
    elif not since(release, "0.8.0"):
        return None
    elif on.is_cpu and since(release, "0.9.2"):
        seats = (256 if on.offline else 128) * on.world_size if since(release, "0.10.0") else 32
    elif not since(release, "0.8.4"):
        seats = 1024
    else:
        large = _is_large(release, on)
        seats = None if large is None else 1024 if large else 256
    if seats is not None and on.max_num_batched_tokens and since(release, "0.10.1"):
        return min(seats, on.max_num_batched_tokens)
    return seats


def _max_num_batched_tokens(release: str, on: Deployment) -> int | None:
    if on.engine == "V0":
        return _v0_budget(release, on)
    if not since(release, "0.8.0"):
        return None
    if on.is_cpu and since(release, "0.10.0"):
        budget = (4096 if on.offline else 2048) * on.world_size
    else:
        large = _is_large(release, on)
        if large is None:
            return None
        huge = since(release, "0.28.0") and (on.device_gib or 0) >= 160
        sizes = (16384, 16384 if huge else 8192) if large else (8192, 2048)
        budget = sizes[0] if on.offline else sizes[1]
    if on.throughput_mode and since(release, "0.17.0"):
        budget *= 2
    if since(release, "0.11.1") and on.max_model_len:
        if on.enable_chunked_prefill is False:
            budget = max(budget, on.max_model_len)
        if on.max_num_seqs:
            budget = min(budget, on.max_num_seqs * on.max_model_len)
    return budget


def _v0_budget(release: str, on: Deployment) -> int | None:
    if not since(release, "0.2.0"):
        return 2560
    chunked = on.enable_chunked_prefill
    if chunked is None:
        chunked = _chunked_prefill(release, on)
    if chunked and since(release, "0.4.1"):
        return 2048 if since(release, "0.6.5") else 512
    if on.max_model_len is None or chunked is None:
        return None
    return max(on.max_model_len, 2048)


def _chunked_prefill(release: str, on: Deployment) -> bool | None:
    if on.engine == "V1":
        return True if since(release, "0.8.0") else None
    if not since(release, "0.5.3"):
        return False
    return None if on.max_model_len is None else on.max_model_len > 32768


def _prefix_caching(release: str, on: Deployment) -> bool | None:
    if on.engine == "V0":
        return False
    return True if since(release, "0.8.0") else None


def _async_scheduling(release: str, on: Deployment) -> bool:
    return on.engine == "V1" and since(release, "0.14.0")


def _block_size(release: str, on: Deployment) -> int | None:
    if on.is_cpu and on.engine == "V1":
        return 128 if since(release, "0.10.0") else 16
    return 16


def _watermark(release: str, on: Deployment) -> float:
    # V0 keeps 1 % of its blocks free, which nobody can set; V1 has none before 0.24.0, and 0 as its default.
    return 0.01 if on.engine == "V0" else 0.0


def _reserve_full_isl(release: str, on: Deployment) -> bool:
    return on.engine == "V1" and since(release, "0.19.0")


def _swap_space(release: str, on: Deployment) -> float | None:
    return 4.0 if on.engine == "V0" else None


def _always(value: object) -> Callable[[str, Deployment], object]:
    return lambda release, on: value


_RULES: dict[str, Callable[[str, Deployment], object]] = {
    "max_num_seqs": _max_num_seqs,
    "max_num_batched_tokens": _max_num_batched_tokens,
    "enable_chunked_prefill": _chunked_prefill,
    "enable_prefix_caching": _prefix_caching,
    "async_scheduling": _async_scheduling,
    "block_size": _block_size,
    "watermark": _watermark,
    "scheduler_reserve_full_isl": _reserve_full_isl,
    "swap_space": _swap_space,
    # Before their flags came, the engine behaved as their defaults say.
    "scheduling_policy": _always("fcfs"),
    "long_prefill_token_threshold": _always(0),
    "kv_cache_dtype": _always("auto"),
    "data_parallel_size": _always(1),
}

# A default may depend on those before it.
_ORDER = ("enable_chunked_prefill", "max_num_seqs", "max_num_batched_tokens")
_LATEST = {"V0": "0.8.5", "V1": "0.33.0"}
_NOT_A_DEFAULT = ("num_blocks", "max_model_len")


def fill_defaults(configuration: Configuration, engine: str | None, version: str | None, device: str | None) -> None:
    """Set what is unknown to the version's default, basis `default`; without a version the latest one of the engine is taken.

    Nothing is filled where neither engine nor version is known, nor what depends on a fact that the log lacks.
    """
    if engine is None and version is None:
        return
    release = version or _LATEST[engine or "V1"]
    others = [name for name in SETTINGS if name not in _ORDER and name not in _NOT_A_DEFAULT]
    on = _deployment(configuration, engine, device)
    for name in (*others, *_ORDER):
        if configuration.values.get(name) is None:
            value = default_for(name, release, on)
            if value is not None:
                configuration.set(name, value, "default")
                on = _deployment(configuration, engine, device)


def _deployment(configuration: Configuration, engine: str | None, device: str | None) -> Deployment:
    values, more = configuration.values, configuration.more
    memory = more.get("total_gpu_gib")
    return Deployment(
        engine=engine or "V1",
        device=(device or "cuda").lower(),
        device_gib=float(memory) if isinstance(memory, (int, float)) else None,
        world_size=(values.get("tensor_parallel_size") or 1) * (values.get("pipeline_parallel_size") or 1),
        max_model_len=values.get("max_model_len"),
        max_num_seqs=values.get("max_num_seqs"),
        max_num_batched_tokens=values.get("max_num_batched_tokens"),
        enable_chunked_prefill=values.get("enable_chunked_prefill"),
        chosen_budget=more.get("chosen_budget"),
    )
