"""What this log cannot show, and what would show it; and settings that are a risk by themselves."""

from __future__ import annotations

import polars as pl

from logscope.evidence.context import Context
from logscope.evidence.finding import Finding, evidence_of
from logscope.evidence.pressure import MOST_AT_ONCE
from logscope.server.engines import EngineFacts, engine_config, impossible_setting
from logscope.wording import plural
from reference_engine.v1.profile import release_numbers

__all__ = ["config_risk", "coverage", "not_replayed", "unsupported_features"]

MIN_WINDOWS = 3


def coverage(context: Context) -> list[Finding]:
    """One finding for each thing that is not visible in this log."""
    log, said = context.log, []
    if not context.served:
        return []
    stats, facts = log.get("stats"), log.facts
    if stats is not None and any("stats_disabled" in variant for variant in set(stats["variant"].to_list())):
        text = "Statistics are off because the server has several API servers: start it with --api-server-count 1 to see the queues"
        return [Finding("coverage", "warning", "measured", text, evidence=evidence_of(stats, context.texts, 1))]
    if context.windows is None:
        said.append(
            "No periodic statistics in this log: running, waiting and KV usage are not visible (start without --disable-log-stats)"
        )
    elif stats is not None and "aggregated" in stats.columns and stats["aggregated"].any():
        said.append(
            "The statistics are averages over several engines, so a single full engine would not show (start without --aggregate-engine-logging)"
        )
    if facts.engine == "V1" and context.logged.low is None:
        said.append(
            "vLLM V1 does not log preemptions: any count here is an estimate from a replay. For the exact count, pass a /metrics scrape with --metrics (vllm:num_preemptions_total)"
        )
    key = release_numbers(facts.version) if facts.version else None
    if log.get("request") is None:
        said.append(
            f"No request lines: arrival times and lengths of single requests are not visible ({_more_lines(key, (0, 10, 1), '--enable-log-requests', 'start without --disable-log-requests')})"
        )
    if log.get("iteration") is None and (key is None or key >= (0, 14, 0)) and facts.engine != "V0":
        said.append(
            f"No per-iteration lines, so individual steps are not visible ({_more_lines(key, (0, 14, 0), '--enable-logging-iteration-details')})"
        )
    if _serves_by_priority(facts, key) and log.get("iteration") is None:
        said.append(
            "This server serves by priority, and a log shows no request's priority: the replay runs first come, first served. Counts and totals"
            " are approximately right, but which requests wait, and hence the tail, is unknown"
        )
    return [Finding("coverage", "info", "measured", text) for text in said]


def not_replayed(context: Context, *, asked: bool) -> list[Finding]:
    """Why nothing was replayed of a server that served, and what would allow it."""
    facts, windows = context.log.facts, context.windows
    if not context.served:
        return []
    if not asked and (windows is not None or context.log.get("iteration") is not None):
        why = "the replay was skipped (--no-replay); run without it for latencies, preemption counts and advice"
    elif (setting := impossible_setting(facts)) is not None:
        why = f"the log names a setting that no server can have: {setting}"
    elif engine_config(facts) is None:
        size = "" if facts.config.get("block_size") else " --set block_size=16"
        why = (
            "the size of the KV cache is not in this log. Include the server's start-up lines, or pass --set num_blocks=…"
            f"{size} (the printed cache size in tokens, divided by the block size)"
        )
    elif windows is None or windows.height < MIN_WINDOWS:
        lines = (
            "there are no statistics lines"
            if windows is None
            else f"there {'is' if windows.height == 1 else 'are'} only {plural(windows.height, 'statistics line')}"
        )
        why = f"{lines}; give a longer part of the log"
    elif (windows["running"] + windows["waiting"]).max() > MOST_AT_ONCE:
        why = f"more than {MOST_AT_ONCE:,} requests were there at once, more than an inference can hold"
    else:
        why = "no line shows when requests arrived (turn on request logging, or keep the access-log lines)"
    return [Finding("coverage", "info", "measured", f"Nothing was replayed: {why}", facts={"not_replayed": True})]


def _serves_by_priority(facts: EngineFacts, key: tuple[int, ...] | None) -> bool:
    """Whether the policy is obeyed: V0 does from 0.6.3 on, V1 from 0.9.2 on."""
    since = (0, 9, 2) if facts.engine == "V1" else (0, 6, 3)
    return facts.config.get("policy") == "priority" and (key is None or key >= since)


def _more_lines(version: tuple[int, ...] | None, since: tuple[int, ...], flag: str, before: str = "") -> str:
    """How to see more: a flag where the version has it, else what stands for it; both where the version is not known."""
    if version is None:
        older = f", older ones: {before}" if before else ""
        return f"vLLM {'.'.join(map(str, since))} and later: start with {flag}{older}"
    return f"start with {flag}" if version >= since else before


def unsupported_features(context: Context) -> list[Finding]:
    """What the reference engine does not model and this server uses."""
    facts = context.log.facts
    then = "so nothing was replayed" if facts.declined else "so the bounds are wider"
    return [
        Finding(
            "unsupported-feature",
            "warning",
            "measured",
            f"The replay does not model {name}, {then}",
            facts={"feature": name},
        )
        for name in facts.unsupported
    ]


def config_risk(context: Context) -> list[Finding]:
    """Settings that hurt by themselves in this version."""
    facts, found = context.log.facts, []
    key = release_numbers(facts.version) if facts.version else None
    if facts.config.get("policy") == "priority" and facts.engine == "V1" and key is not None:
        if key < (0, 9, 2):
            found.append(
                "--scheduling-policy priority is silently ignored by vLLM V1 before 0.9.2: requests run first come, first served"
            )
        elif key < (0, 11, 1):
            found.append(
                "--scheduling-policy priority is broken in vLLM V1 0.9.2 to 0.11.0 (the bookkeeping of preempted requests is not reset): upgrade to 0.11.1 or later"
            )
    risks = [Finding("config-risk", "warning", "measured", text) for text in found]
    return [*risks, *_pool_too_small(context)]


def _pool_too_small(context: Context) -> list[Finding]:
    """A request of the allowed length that would never fit into the cache, although the server started."""
    facts, sizing = context.log.facts, context.log.get("kv_sizing")
    length, tokens = facts.config.get("max_model_len"), facts.kv.tokens
    column = (
        sizing["max_concurrency"].drop_nulls() if sizing is not None and "max_concurrency" in sizing.columns else None
    )
    times = float(column[-1]) if column is not None and column.len() else None
    if not context.served or not length or not tokens or tokens >= length or (times is not None and times >= 1):
        return []
    said = f" ({times:g} of one)" if times is not None else ""
    title = (
        f"The KV cache holds {tokens:,} tokens, but max_model_len allows {length:,}{said}: a request of that length never fits and waits"
        f" or is preempted forever. Set --max-model-len to {tokens:,} or less, or make the KV cache larger"
    )
    rows = sizing.filter(pl.col("kv_cache_tokens").is_not_null()) if sizing is not None else None
    evidence = evidence_of(rows, context.texts, 2) if rows is not None else ()
    return [Finding("config-risk", "warning", "measured", title, evidence=evidence)]
