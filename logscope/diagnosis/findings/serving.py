"""What a running server shows beside KV space and seats: crawling steps, a filling cache, failing requests, how its features do.

Thresholds are named; each finding looks at the statistics windows and at the lines that count requests.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from logscope.evidence.context import Context
from logscope.evidence.finding import Evidence, Finding, evidence_of, seconds
from logscope.evidence.pressure import bound_by
from logscope.wording import duration, number, percent, plural, stretch

__all__ = [
    "cache_reuse",
    "compile_stall",
    "deferred",
    "endless_request",
    "failed_requests",
    "kv_filling",
    "kv_transfer",
    "prefill_bound",
    "slow_steps",
    "speculation",
]
MIN_WINDOWS = 3
Row = Mapping[str, Any]
SLOW_TOKENS_PER_S = 2.0
"""Tokens a second of one running request, under which steps crawl."""
PREFILL_TOKENS_PER_S = 100.0
"""Prompt tokens a second that a slow GPU computes."""
FLAT_PCT = 0.5
"""KV usage (points) by which a cache may change while it does nothing but decode a handful of tokens."""


def slow_steps(context: Context) -> list[Finding]:
    """Requests run, no prompt is computed, and each gets less than a token a second."""
    found = []
    for run in _runs(context, _crawls):
        usage = [r["kv_pct"] for r in run if r["kv_pct"] is not None]
        if usage and max(usage) - min(usage) > FLAT_PCT:
            continue  # blocks are taken: a long prompt is under way
        if _prompts_after(context, run) >= PREFILL_TOKENS_PER_S * (run[-1]["end"] - run[0]["start"]).total_seconds():
            continue  # V1 counts a prompt when its last chunk is computed
        each = sum(r["generation_tps"] / r["running"] for r in run) / len(run)
        start, end = run[0]["end"], run[-1]["end"]
        together = sum(r["generation_tps"] for r in run) / len(run)
        title = (
            f"Engine steps are very slow: for {_span(start, end)}, {plural(run[-1]['running'], 'running request')} generated only"
            f" {_rate(together)} tokens/s{' between them' if run[-1]['running'] > 1 else ''} (each request: one token every {duration(1 / each)}), with"
            f" {_waiting(run)} and KV usage at most {max(usage, default=0):.1f} %. The steps themselves are slow: check the GPU, its clocks and"
            " drivers, and the workers"
        )
        found.append(Finding("slow-steps", "warning", "measured", title, start, end, _evidence(context, run)))
    return found[:1]


def _prompts_after(context: Context, run: Sequence[Row]) -> float:
    """Prompt tokens of the interval behind a run."""
    assert context.windows is not None
    after = context.windows.filter(pl.col("end") > run[-1]["end"]).head(1)
    return float((after["prompt_tps"].fill_null(0.0) * after["interval_s"].clip(0, 60)).sum())


def _crawls(row: Row) -> bool:
    running, tokens, prompts = (float(row[n] or 0.0) for n in ("running", "generation_tps", "prompt_tps"))
    return running > 0 and 0 < tokens < SLOW_TOKENS_PER_S * running and prompts < SLOW_TOKENS_PER_S * running


FILLING_FROM_PCT = 60.0
FILLS_WITHIN_S = 900.0
"""A cache that is full later than this is not said to fill: requests finish meanwhile."""
STEADY_SHARE = 0.8


def kv_filling(context: Context) -> list[Finding]:
    """At the log's end KV usage rises steadily towards full, with the same requests running: when it is full, preemption begins."""
    windows = context.windows
    if windows is None or windows["aggregated"].any():
        return []
    known = windows.filter(pl.col("kv_pct").is_not_null()) if windows["kv_pct"].null_count() else windows
    rows = known.tail(30).rows(named=True)
    run: list[Row] = []
    for row in reversed(rows):
        if run and (row["running"] != run[0]["running"] or row["kv_pct"] > run[0]["kv_pct"] or row["waiting"] > 0):
            break
        run.insert(0, row)
    if len(run) < MIN_WINDOWS or not run[-1]["running"] or run[-1]["waiting"]:
        return []
    first, last = run[0], run[-1]
    length, rise = (last["end"] - first["end"]).total_seconds(), last["kv_pct"] - first["kv_pct"]
    steps = [b["kv_pct"] > a["kv_pct"] for a, b in itertools.pairwise(run)]
    usage = float(last["kv_pct"])
    if length <= 0 or rise <= 0 or usage < FILLING_FROM_PCT or sum(steps) < STEADY_SHARE * len(steps):
        return []
    left = (100.0 - usage) * length / rise
    if left > FILLS_WITHIN_S:
        return []
    end = last["end"]
    at = end + timedelta(seconds=left)
    title = (
        f"The KV cache is filling up: {usage:.1f} % used, rising by {rise / length * 60:.1f} percentage points a minute with"
        f" {last['running']:.0f} requests running. At this rate it is full in about {_span(end, at)} (at {at:%H:%M:%S}) and preemption starts,"
        " unless requests finish first"
    )
    return [Finding("kv-filling", "warning", "measured", title, first["end"], end, _evidence(context, run))]


def prefill_bound(context: Context) -> list[Finding]:
    """Requests wait while the cache has room, seats are free and the steps are spent on prompts."""
    windows = context.windows
    if windows is None:
        return []
    seats = context.log.facts.seats
    held = bound_by("prefill", windows, seats)
    if held.height < 2 or 2 * held.height < windows.filter(pl.col("waiting") > 0).height:
        return []
    start, end = context.span_of(held)
    usage, queue = _most(held, "kv_pct"), _most(held, "waiting")
    prompts, tokens = held.select(
        pl.col("prompt_tps").fill_null(0).mean(), pl.col("generation_tps").fill_null(0).mean()
    ).row(0)
    title = (
        f"Prefill, not KV space, is what the queue waits for: up to {queue:.0f} requests waited in {held.height:,} of {windows.height:,} intervals"
        f" that were busy with prompts ({_rate(prompts)} prompt and {_rate(tokens)} generated tokens/s), with KV usage at most {usage:.0f} %"
    )
    return [Finding("prefill-bound", "warning", "measured", title, start, end, evidence_of(held, context.texts))]


def deferred(context: Context) -> list[Finding]:
    """Requests that the scheduler passes over: they wait for a KV transfer, a grammar or a LoRA slot, not for space."""
    windows = context.windows
    if windows is None or windows["deferred"].null_count() == windows.height:
        return []
    held = windows.filter((pl.col("deferred") > 0) & (pl.col("deferred") * 2 >= pl.col("waiting")))
    if held.height < 2:
        return []
    most = held.sort("deferred").row(-1, named=True)
    start, end = context.span_of(held)
    room = "" if most["full"] else f"; KV usage is {most['kv_pct'] or 0:.0f} %, so they are not waiting for KV space"
    title = (
        f"The scheduler skipped waiting requests (Deferred) in {held.height:,} of {windows.height:,} intervals, up to {most['deferred']:.0f} of"
        f" {most['waiting']:.0f}: their KV transfer, grammar or LoRA slot was not ready{room}"
    )
    return [Finding("deferred", "warning", "measured", title, start, end, evidence_of(held, context.texts))]


LONG_REQUEST_S = 60.0
ENDLESS_S = 600.0


def endless_request(context: Context) -> list[Finding]:
    """One request that goes on and on: it runs alone, its cache only grows, no prompt comes."""
    best: list[Row] = []
    for run in _runs(context, lambda row: bool(row["running"] == 1 and row["generation_tps"]), prompts=False):
        grows = all((b["kv_pct"] or 0) >= (a["kv_pct"] or 0) for a, b in itertools.pairwise(run))
        best = run if grows and len(run) > len(best) else best
    if not best or context.windows is None:
        return []
    start, end = best[0]["start"], best[-1]["end"]
    length = (end - start).total_seconds()
    queue = max(r["waiting"] for r in best)
    if length < (LONG_REQUEST_S / 2 if queue else LONG_REQUEST_S):
        return []
    tokens = sum(r["generation_tps"] * min(r["interval_s"], 60.0) for r in best)
    to_the_end = ", to the log's last line" if end == context.windows["end"][-1] else ""
    title = (
        f"One request ran alone for {_span(start, end)} and generated about {tokens:,.0f} tokens{to_the_end}: if it should have"
        " ended by then, it probably has no max_tokens, or the model is repeating itself"
    )
    if queue:
        title += f"; {plural(queue, 'request waits', 'requests wait')} behind it"
    severity = "warning" if length >= ENDLESS_S or queue else "info"
    return [Finding("endless-request", severity, "measured", title, start, end, _evidence(context, best))]


COMPILE_SHARE = 0.05
SLOWED = 0.5


def compile_stall(context: Context) -> list[Finding]:
    """Kernels that were compiled while requests ran: each is a latency spike that a warm-up would have taken."""
    runtime, windows = context.log.get("runtime"), context.windows
    rows = None if runtime is None else runtime.filter(pl.col("variant") == "jit")
    if rows is None or rows.height == 0:
        return []
    start, end = seconds(rows["at"].to_list())
    kernels = rows["kernel"].drop_nulls().unique(maintain_order=True).to_list()[:3] if "kernel" in rows.columns else []
    names = f" ({', '.join(kernels)})" if kernels else ""
    severity, effect = "warning", ""
    if windows is not None:
        severity, effect = _slowed_by(windows, rows)
    title = (
        f"{plural(rows.height, 'kernel compilation')} (JIT) while serving{names}: requests stall during {'it' if rows.height == 1 else 'each'}{effect};"
        " send warm-up requests of this kind before the server takes traffic"
    )
    return [Finding("compile-stall", severity, "measured", title, start, end, evidence_of(rows, context.texts))]


def _slowed_by(windows: pl.DataFrame, rows: pl.DataFrame) -> tuple[str, str]:
    """How grave it was: a warning where a good part of the busy intervals lost half of their tokens."""
    times = [t for t in rows["at"].to_list() if t is not None]
    busy = windows.filter(pl.col("running") > 0)
    hit = busy.filter(
        pl.any_horizontal(*((pl.col("start") < t) & (pl.col("end") >= t) for t in times[:200]), pl.lit(value=False))
    )
    usual = busy.filter(~pl.col("order").is_in(hit["order"].to_list()))["generation_tps"].median()
    if not hit.height or not isinstance(usual, float):
        return "info", ""
    slow = hit.filter(pl.col("generation_tps").fill_null(0) < SLOWED * usual)
    if slow.height == 0 or slow.height < COMPILE_SHARE * busy.height:
        return "info", ""
    least = min(slow["generation_tps"].fill_null(0.0).to_list())
    return "warning", f" (down to {_rate(least)} generated tokens/s, normally {_rate(usual)})"


FAILED_SHARE = 0.02
GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate", "/v1/embeddings", "/v1/messages")


def failed_requests(context: Context) -> list[Finding]:
    """Requests that were refused, and those that failed or were aborted."""
    requests, http, runtime = (context.log.get(name) for name in ("request", "http", "runtime"))
    if requests is None and http is None and runtime is None:
        return []
    refused = _many(requests, pl.col("variant") == "queue_full")
    too_long = _many(runtime, pl.col("variant").is_in(("toolong", "ctxlen")))
    answers = (
        None
        if http is None or "status" not in http.columns
        else http.filter(pl.col("path").str.split("?").list.first().is_in(GENERATING))
    )
    bad = _many(answers, pl.col("status").is_in((400, 413, 422)))
    unknown = _many(answers, pl.col("status") == 404)
    strangers = _many(answers, pl.col("status").is_in((401, 403)))
    busy = _many(answers, pl.col("status").is_in((429, 503)))
    broken = _many(answers, (pl.col("status") >= 500) & (pl.col("status") != 503))
    ok = _many(answers, pl.col("status") == 200)
    aborted = _aborted(requests)
    failed = _many(
        requests,
        (pl.col("variant") == "req_failed") & (pl.col("reason").is_null() | (pl.col("reason") == "engine dead")),
    )
    found = []
    no, why = max(bad, too_long) + max(refused, busy) + unknown + strangers, []
    if max(refused, busy):
        why.append(f"{max(refused, busy):,} because the queue was full")
    if too_long:
        why.append(f"{too_long:,} because the prompt was too long")
    if bad > too_long:
        why.append(f"{bad - too_long:,} with HTTP status 400, 413 or 422 (too long, or malformed)")
    if unknown:
        why.append(f"{unknown:,} with HTTP status 404 (a model or adapter that this server does not have)")
    if strangers:
        why.append(f"{strangers:,} with HTTP status 401 or 403 (no valid API key)")
    total = max(1, ok + no + broken + aborted)
    if no:
        rows = _first_rows(
            (runtime, pl.col("variant").is_in(("toolong", "ctxlen"))), (requests, pl.col("variant") == "queue_full")
        )
        title = f"{no:,} request{'s were' if no > 1 else ' was'} rejected: {', '.join(why)}"
        severity = "warning" if no >= max(2, FAILED_SHARE * total) else "info"
        found.append(Finding("rejected-requests", severity, "measured", title, evidence=_texts(context, rows)))
    what = [
        f"{n:,} {word}"
        for n, word in (
            (broken, "with an HTTP 5xx status"),
            (aborted, "aborted (client disconnected or timed out)"),
            (failed if not broken else 0, "failed in the engine"),
        )
        if n
    ]
    if what:
        severity = "warning" if max(broken, failed) >= 1 or aborted >= max(3, 5 * FAILED_SHARE * total) else "info"
        title = f"Requests failed: {', '.join(what)}" + (f"; {ok:,} succeeded" if ok else "")
        found.append(Finding("failed-requests", severity, "measured", title))
    return found + _unhealthy(http) + _out_of_grammar(context, runtime)


def _unhealthy(http: pl.DataFrame | None) -> list[Finding]:
    """Health probes that were answered with 503: those who probe take the server out of service, or restart it."""
    if http is None or "status" not in http.columns:
        return []
    probes = pl.col("path").str.split("?").list.first() == "/health"
    refused, all_ = _many(http, probes & (pl.col("status") == 503)), _many(http, probes)
    if not refused:
        return []
    title = f"{refused:,} of {plural(all_, 'health probe')} got HTTP 503: vLLM answers so when its engine is dead, or while it shuts down"
    return [Finding("failed-requests", "warning", "measured", title)]


def _out_of_grammar(context: Context, runtime: pl.DataFrame | None) -> list[Finding]:
    """Structured outputs that the model went on with otherwise than their grammar allows."""
    rows = None if runtime is None else runtime.filter(pl.col("variant") == "grammar")
    if rows is None or rows.height == 0:
        return []
    title = (
        f"Structured output failed for {plural(rows['request_id'].n_unique(), 'request')}: their grammar refused generated tokens"
        f" {_times(_many(rows, pl.lit(value=True)))}, so an output may be cut, break its schema, or never end"
    )
    start, end = seconds(rows["at"].to_list())
    return [Finding("failed-requests", "warning", "measured", title, start, end, evidence_of(rows, context.texts))]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _many(frame: pl.DataFrame | None, which: pl.Expr) -> int:
    """How many lines such rows stand for."""
    return 0 if frame is None else int(frame.filter(which.fill_null(value=False))["repeated"].sum())


def _aborted(requests: pl.DataFrame | None) -> int:
    """V1 prints an abort twice, with the same id; a line may name several requests."""
    if requests is None:
        return 0
    rows = requests.filter(pl.col("variant").is_in(("aborted", "req_aborted")))
    ids: set[str] = set()
    for one, many in (
        rows.select("request_id", "request_ids").iter_rows()
        if "request_ids" in rows.columns
        else rows.select("request_id", pl.lit(None)).iter_rows()
    ):
        ids |= set(many or ()) | ({one} if one else set())
    return max(
        len(ids), *(int(rows.filter(pl.col("variant") == v)["repeated"].sum()) for v in ("aborted", "req_aborted"))
    )


def _first_rows(*parts: tuple[pl.DataFrame | None, pl.Expr]) -> Iterator[tuple[str, int]]:
    for frame, which in parts:
        if frame is not None:
            yield from frame.filter(which).select("source", "line").head(2).rows()


def _texts(context: Context, rows: Iterator[tuple[str, int]]) -> tuple[Evidence, ...]:
    return tuple(Evidence(s, n, context.texts.get((s, n), "")) for s, n in rows)


def _runs(context: Context, keeps: Callable[[Row], bool], *, prompts: bool = True) -> Iterator[list[Row]]:
    """Runs of at least three neighbouring windows that all fulfil a condition; without `prompts` none in which prompts were computed."""
    windows = context.windows
    if windows is None or windows["aggregated"].any():
        return
    run: list[Row] = []
    for row in itertools.chain(windows.iter_rows(named=True), [None]):
        if row is not None and keeps(row) and (prompts or not row["prompt_tps"]):
            run.append(row)
            continue
        if len(run) >= MIN_WINDOWS:
            yield run
        run = []


def _most(rows: pl.DataFrame, name: str) -> float:
    return max((v for v in rows[name].to_list() if v is not None), default=0.0)


def _waiting(run: list[Row]) -> str:
    most = max(float(r["waiting"] or 0.0) for r in run)
    return f"up to {most:.0f} waiting" if most else "nothing waiting"


def _evidence(context: Context, run: list[Row]) -> tuple[Evidence, ...]:
    keys = [(str(r["source"]), int(r["line"]), r["end"]) for r in (run[0], run[-1])]
    return tuple(Evidence(s, n, context.texts.get((s, n), ""), at) for s, n, at in keys)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def _span(start: datetime, end: datetime) -> str:
    return stretch((end - start).total_seconds())


MIN_LINES = 5
NO_REUSE_PCT = 1.0
FALLEN_FROM_PCT = 20.0
FALLEN = 0.5
MUCH_EVICTED = 0.1


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
        if column not in stats.columns or stats.height - stats[column].null_count() < MIN_LINES:
            continue
        rows = stats.filter(pl.col(column).is_not_null() & (pl.col("prompt_throughput") > 0))
        if rows.height < MIN_LINES:
            continue
        rates = rows[column].to_list()
        first, most, last = rates[0], max(rates), rates[-1]
        if most >= FALLEN_FROM_PCT and last <= FALLEN * most:
            title = f"{name} hit rate fell from {most:.0f} % to {last:.0f} % of prompt tokens: {_why_fallen(context, column)}"
        elif most < NO_REUSE_PCT and _caching(context, column):
            title = f"{name} has no effect (hit rate {most:.1f} % at most): the prompts share no prefix, or each starts with something unique such as a timestamp or an id"
        elif most >= NO_REUSE_PCT:
            title = (
                f"{name} hit rate: {last:.0f} % of prompt tokens at the end ({first:.0f} % at first, peak {most:.0f} %)"
            )
        else:
            continue
        start, end = seconds(rows["at"].to_list())
        lines = evidence_of(rows, context.texts, 2)
        facts = {"evicted": round(context.evicted, 3)} if _counts_as_kv(context, column) else {}
        found.append(Finding("cache-reuse", "info", "measured", title, start, end, lines, facts=facts))
    return found


def _why_fallen(context: Context, column: str) -> str:
    if not _counts_as_kv(context, column):
        return "the prompts changed, or the cache is too full to keep their prefixes"
    return (
        f"while requests waited and the cache had little room, about {percent(context.evicted)} of the prompt tokens had to be computed again"
        " although the cache had held them before; the time of that prefill counts as lack of KV-cache space"
    )


def _counts_as_kv(context: Context, column: str) -> bool:
    """Whether so much of the cache's prompts was evicted that their prefill is lack of KV-cache space."""
    return not column.startswith("external") and context.evicted >= MUCH_EVICTED


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
    if not stats["drafted_tokens"].max():
        return []
    rows = stats.filter(pl.col("drafted_tokens") > 0)
    accepted, drafted = int(rows["accepted_tokens"].sum()), int(rows["drafted_tokens"].sum())
    share = accepted / drafted
    lengths = rows.filter(pl.col("mean_acceptance_length").is_not_null())
    weight = pl.col("drafted_tokens")
    weighted = lengths.select((pl.col("mean_acceptance_length") * weight).sum() / weight.sum()).item()
    seen = context.log.facts.acceptance
    if seen is not None:  # a look-up that proposes nothing has no part in the lines' mean
        weighted = 1.0 + seen.accepted
    each = f"; {weighted:.2f} tokens per request and step" if lengths.height else ""
    verdict = (
        "most of the drafting is wasted, so fewer speculative tokens, or none, may be faster"
        if share < LOW_ACCEPTANCE
        else "drafting pays off"
    )
    title = f"Speculative decoding: {number(accepted)} of {number(drafted)} drafted tokens were accepted ({percent(share)}){each}, {verdict}"
    start, end = seconds(rows["at"].to_list())
    return [Finding("speculation", "info", "measured", title, start, end, evidence_of(rows, context.texts, 2))]


SLOW_TRANSFER_S = 1.0
"""From this mean time of a KV transfer on, a queue behind it waits for the network."""
_COUNT = re.compile(r"Num (successful|failed) transfers=(\d{1,12})\b")
_MEAN_MS = re.compile(r"Avg xfer time \(ms\)=([\d.]{1,20})")


def kv_transfer(context: Context) -> list[Finding]:
    """KV caches moved between servers: how many, how long each took, and those that failed."""
    stats = context.log.get("stats")
    if stats is None or "metrics" not in stats.columns or stats["metrics"].null_count() == stats.height:
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
    mean_s = spent / done / 1000 if done else 0.0
    each = (
        f", {mean_s:.1f} s each on average"
        if mean_s >= 1
        else f", {1000 * mean_s:.1f} ms each on average"
        if spent
        else ""
    )
    queue = 0.0 if context.windows is None else float(context.windows["waiting"].max() or 0)  # type: ignore[arg-type]
    slow = mean_s >= SLOW_TRANSFER_S and queue > 0
    title = f"KV transfers: {number(done)} succeeded{each}" + (
        f", {number(failed)} failed: those prompts had to be recomputed" if failed else ""
    )
    if slow:
        title += f"; up to {queue:.0f} requests waited meanwhile, so look at the connector's network (RDMA or NVLink rather than TCP) before this engine's settings"
    start, end = seconds(rows["at"].to_list())
    severity = "warning" if failed or slow else "info"
    return [Finding("kv-transfer", severity, "measured", title, start, end, evidence_of(rows, context.texts, 2))]
