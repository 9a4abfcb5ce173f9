"""Fills the settings that a log does not name with the defaults of its vLLM version."""

from __future__ import annotations

from logscope.server.defaults import Deployment, default_for
from logscope.server.settings import SETTINGS, Configuration

__all__ = ["fill_defaults"]

# A default may depend on those before it.
_ORDER = ("enable_chunked_prefill", "max_num_seqs", "max_num_batched_tokens")
_LATEST = {"V0": "0.8.5", "V1": "0.33.0"}
_NOT_A_DEFAULT = ("num_blocks", "max_model_len")


def fill_defaults(
    configuration: Configuration, engine: str | None, version: str | None, device: str | None
) -> None:
    """Set what is unknown to the version's default, basis `default`; without a version the latest one of the engine is taken.

    Nothing is filled where neither engine nor version is known, nor what depends on a fact that the log lacks.
    """
    if engine is None and version is None:
        return
    release = version or _LATEST[engine or "V1"]
    others = [name for name in SETTINGS if name not in _ORDER and name not in _NOT_A_DEFAULT]
    for name in (*others, *_ORDER):
        if configuration.values.get(name) is None:
            value = default_for(name, release, _deployment(configuration, engine, device))
            if value is not None:
                configuration.set(name, value, "default")


def _deployment(configuration: Configuration, engine: str | None, device: str | None) -> Deployment:
    values, more = configuration.values, configuration.more
    memory = more.get("total_gpu_gib")
    return Deployment(
        engine=engine or "V1",
        device=(device or "cuda").lower(),
        device_gib=float(memory) if isinstance(memory, (int, float)) else None,
        world_size=(values.get("tensor_parallel_size") or 1)
        * (values.get("pipeline_parallel_size") or 1),
        max_model_len=values.get("max_model_len"),
        max_num_seqs=values.get("max_num_seqs"),
        max_num_batched_tokens=values.get("max_num_batched_tokens"),
        enable_chunked_prefill=values.get("enable_chunked_prefill"),
        chosen_budget=more.get("chosen_budget"),
    )
