"""All findings that the log itself gives, as an explicit list of functions from a context to findings."""

from __future__ import annotations

from collections.abc import Callable

from logscope.diagnosis.findings.broken import engine_crash, engine_stall, failed_start, runtime_oom, worker_waits
from logscope.diagnosis.findings.pressure import kv_admission_wait, kv_leak, logged_preemption, seat_queue, two_limits
from logscope.diagnosis.findings.serving import (
    cache_reuse,
    compile_stall,
    deferred,
    endless_request,
    failed_requests,
    kv_filling,
    kv_transfer,
    prefill_bound,
    slow_steps,
    speculation,
)
from logscope.diagnosis.findings.visibility import config_risk, coverage, unsupported_features
from logscope.evidence.context import Context, context_of
from logscope.evidence.finding import Finding

__all__ = ["FINDINGS", "Context", "context_of", "find_all"]

FINDINGS: tuple[Callable[[Context], list[Finding]], ...] = (
    failed_start,
    runtime_oom,
    engine_crash,
    engine_stall,
    worker_waits,
    logged_preemption,
    kv_admission_wait,
    seat_queue,
    prefill_bound,
    deferred,
    slow_steps,
    kv_filling,
    compile_stall,
    endless_request,
    failed_requests,
    kv_leak,
    cache_reuse,
    speculation,
    kv_transfer,
    config_risk,
    unsupported_features,
    two_limits,
    coverage,
)


def find_all(context: Context) -> list[Finding]:
    """Run every finding over one engine's log."""
    return [finding for find in FINDINGS for finding in find(context)]
