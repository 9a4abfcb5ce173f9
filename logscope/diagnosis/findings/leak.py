"""KV blocks that stay taken while no request is there: a leak, which only a restart ends."""

from __future__ import annotations

import polars as pl

from logscope.evidence.context import Context
from logscope.evidence.finding import Finding, evidence_of, seconds

__all__ = ["kv_leak"]

MIN_LINES = 3
LEAST_PCT = 1.0
FEW_BLOCKS = 3
"""V1's null block counted as used until 0.10.2, and usage is printed rounded: so few blocks of a small cache are no leak."""


def kv_leak(context: Context) -> list[Finding]:
    """Usage stays above zero in every line without a request, from some line on to the end.

    A cached prefix is no use of a block: vLLM counts it as free. Newer releases print such a line only once for each pause, so it is the
    lines that count and not their time; any single one at zero says that the blocks came back.
    """
    windows = context.windows
    if windows is None or windows["aggregated"].any():
        return []
    nobody = pl.col("running") + pl.col("waiting") + pl.col("swapped").fill_null(0) == 0
    empty = windows.filter(nobody & pl.col("kv_pct").is_not_null())
    returned = empty.select((pl.col("kv_pct") < _least(context)).arg_true().max()).item()
    held = empty if returned is None else empty[returned + 1 :]
    if held.height < MIN_LINES:
        return []
    start, end = seconds(held["end"].to_list())
    least, last = min(held["kv_pct"].to_list()), held["kv_pct"][-1]
    title = (
        f"KV usage stays at {least:.1f} % or more with no request running or waiting ({held.height} lines, {last:.1f} % in the last):"
        f" blocks are not given back{_suspect(context)}"
    )
    return [
        Finding(
            "kv-leak", "warning", "measured", title, start, end, evidence_of(held, context.texts)
        )
    ]


def _least(context: Context) -> float:
    """The usage (percent) from which on blocks count as held."""
    blocks = context.log.facts.kv.num_blocks
    return max(LEAST_PCT, 100.0 * FEW_BLOCKS / blocks) if blocks else LEAST_PCT


def _suspect(context: Context) -> str:
    if "KV connectors" in context.log.facts.unsupported:
        return "; a KV connector keeps those of finished requests until they are fetched, so look there first"
    return "; a restart frees them, a newer release may have the fix"
