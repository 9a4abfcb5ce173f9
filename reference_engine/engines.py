"""The scheduler of a configuration: V1's or V0's."""

from __future__ import annotations

from .config import EngineConfig
from .errors import ConfigError
from .steps import Scheduler
from .v1 import V1Scheduler

__all__ = ["make_scheduler"]


def make_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler class that `config.engine` names, for `config.version`.

    Raises:
        ConfigError: the engine is neither "vllm-v1" nor "vllm-v0".
    """
    if config.engine == "vllm-v1":
        return V1Scheduler(config)
    if config.engine == "vllm-v0":
        from .v0 import V0Scheduler  # loaded only where it is asked for

        return V0Scheduler(config)
    raise ConfigError(f"engine {config.engine!r} is not known: vllm-v1 or vllm-v0")
