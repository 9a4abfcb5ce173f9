"""What the statistics say of a server's features: prefix caching, speculative decoding, KV transfers."""

from __future__ import annotations

import re

import polars as pl

from logscope.evidence.context import Context
from logscope.evidence.finding import Finding, evidence_of, seconds
from logscope.wording import number, percent

__all__ = ["cache_reuse", "kv_transfer", "speculation"]

MIN_LINES = 5
NO_REUSE_PCT = 1.0
FALLEN_FROM_PCT = 20.0
FALLEN = 0.5


def cache_reuse(context: Context) -> list[Finding]:
    """How much of the prompts the prefix cache gave back, local and external: nothing at all, or less than before."""
    stats = context.log.get("stats")
    if stats is None:
        return []
    found = []
    sources = (
        ("prefix_cache_hit_rate_pct", "Prefix cache"),
        ("external_prefix_cache_hit_rate_pct", "External prefix cache"),
    )
    for column, name in sources:
        rows = (
            stats.filter(pl.col(column).is_not_null() & (pl.col("prompt_throughput") > 0))
            if column in stats.columns
            else stats.clear()
        )
        if rows.height < MIN_LINES:
            continue
        rates = rows[column].to_list()
        first, most, last = rates[0], max(rates), rates[-1]
        if most >= FALLEN_FROM_PCT and last <= FALLEN * most:
            title = (
                f"{name} reuse fell from {most:.0f} % of the prompt tokens to {last:.0f} %: other prompts than before, or a cache too full to"
                " keep them"
            )
        elif most < NO_REUSE_PCT and _caching(context, column):
            title = f"{name} gives nothing back ({most:.1f} % of the prompt tokens at most): these prompts share no beginning, or each starts with something of its own"
        elif most >= NO_REUSE_PCT:
            title = f"{name} serves {last:.0f} % of the prompt tokens ({first:.0f} % at first, {most:.0f} % at most)"
        else:
            continue
        start, end = seconds(rows["at"].to_list())
        found.append(Finding("cache-reuse", "info", "measured", title, start, end, evidence_of(rows, context.texts, 2)))
    return found


def _caching(context: Context, column: str) -> bool:
    """Whether the cache is known to be on: a rate of 0 is printed without it, too."""
    return column.startswith("external") or context.log.facts.config.get("enable_prefix_caching") is True


LOW_ACCEPTANCE = 0.3


def speculation(context: Context) -> list[Finding]:
    """How many drafted tokens were accepted, and whether that pays."""
    stats = context.log.get("stats")
    names = ("accepted_tokens", "drafted_tokens", "mean_acceptance_length")
    if stats is None or any(name not in stats.columns for name in names):
        return []
    rows = stats.filter(pl.col("drafted_tokens") > 0)
    if rows.height == 0:
        return []
    accepted, drafted = int(rows["accepted_tokens"].sum()), int(rows["drafted_tokens"].sum())
    share = accepted / drafted
    lengths = rows.filter(pl.col("mean_acceptance_length").is_not_null())
    weight = pl.col("drafted_tokens")
    weighted = lengths.select((pl.col("mean_acceptance_length") * weight).sum() / weight.sum()).item()
    each = f"; a step yields {weighted:.2f} tokens a request" if lengths.height else ""
    verdict = (
        "so most of the drafting is wasted: fewer speculative tokens, or none, may be faster"
        if share < LOW_ACCEPTANCE
        else "so drafting pays"
    )
    title = f"Speculative decoding: {number(accepted)} of {number(drafted)} drafted tokens were accepted ({percent(share)}){each}, {verdict}"
    start, end = seconds(rows["at"].to_list())
    return [Finding("speculation", "info", "measured", title, start, end, evidence_of(rows, context.texts, 2))]


_COUNT = re.compile(r"Num (successful|failed) transfers=(\d{1,12})\b")
_MEAN_MS = re.compile(r"Avg xfer time \(ms\)=([\d.]{1,20})")


def kv_transfer(context: Context) -> list[Finding]:
    """KV caches moved between servers: how many, how long each took, and those that failed."""
    stats = context.log.get("stats")
    if stats is None or "metrics" not in stats.columns:
        return []
    rows = stats.filter(pl.col("metrics").is_not_null() & pl.col("variant").str.contains("transfer"))
    done, failed, spent = 0, 0, 0.0
    for text in rows["metrics"].to_list():
        counts = {kind: int(n) for kind, n in _COUNT.findall(text[:4000])}
        mean = _MEAN_MS.search(text[:4000])
        done += counts.get("successful", 0)
        failed += counts.get("failed", 0)
        spent += counts.get("successful", 0) * float(mean[1].strip(".") or 0) if mean else 0.0
    if not done and not failed:
        return []
    each = f", {spent / done:.1f} ms each on average" if done and spent else ""
    title = f"KV transfers: {number(done)} done{each}" + (
        f", {number(failed)} failed: those prompts are computed again" if failed else ""
    )
    start, end = seconds(rows["at"].to_list())
    severity = "warning" if failed else "info"
    return [Finding("kv-transfer", severity, "measured", title, start, end, evidence_of(rows, context.texts, 2))]
