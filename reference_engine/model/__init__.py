"""What every scheduler and replay speaks of: requests, steps, configuration, the latency ledger.

At its door stand the errors of a replay: narrow exceptions, each with one sentence for the user.
"""

from __future__ import annotations

__all__ = ["ConfigError", "EngineError", "NoProgressError", "SchedulerFailedError", "WorkloadError"]


class EngineError(Exception):
    """Base of all errors of the reference engine."""


class ConfigError(EngineError, ValueError):
    """The configuration describes an engine that the real one would refuse to start."""


class WorkloadError(EngineError, ValueError):
    """The workload breaks a rule: a duplicate id, a time that is not a number, a prompt without a token."""


class SchedulerFailedError(EngineError, RuntimeError):
    """The real scheduler of this version raises here; the sentence says what and where."""


class NoProgressError(EngineError, RuntimeError):
    """The run cannot progress any more; the sentence names the request that blocks it."""
