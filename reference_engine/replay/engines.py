"""The scheduler of a configuration: V1's or V0's."""

from __future__ import annotations

from reference_engine.model.config_part import EngineConfig
from reference_engine.model.errors import ConfigError
from reference_engine.model.step import Scheduler
from reference_engine.v1.scheduler import V1Scheduler

__all__ = ["make_scheduler"]


def make_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler class that `config.engine` names, for `config.version`.

    Raises:
        ConfigError: the engine is neither "vllm-v1" nor "vllm-v0".
    """
    if config.engine == "vllm-v1":
        return V1Scheduler(config)
    if config.engine == "vllm-v0":
        from reference_engine.v0.scheduler import V0Scheduler  # loaded only where it is asked for

        return V0Scheduler(config)
    raise ConfigError(f"engine {config.engine!r} is not known: vllm-v1 or vllm-v0")
