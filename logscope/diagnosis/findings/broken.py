"""What broke while serving: out of memory, a dead engine, a silent one.

Starts that failed: KV space that is too small for one request, and every other reason that the log names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from signal import Signals
from typing import Any

import polars as pl

from logscope.evidence.context import CLEAN_STOP_S, Context, cause_of
from logscope.evidence.finding import Evidence, Finding, evidence_of, proven, seconds
from logscope.evidence.preemptions import usual_interval
from logscope.sanitize import without_client_text
from logscope.wording import plural, stretch
from parsers.families.http import PROBE_PATHS

__all__ = ["engine_crash", "engine_stall", "failed_start", "runtime_oom", "worker_waits"]
_DEAD = "dead|died|fatal|output_handler|worker_exc|rpc|failed_step"
MIN_SILENCE_S = 30.0
PROBES_OF_A_STALL = 20
ZERO_WINDOWS_OF_A_STALL = 3
FROZEN_WINDOWS = 4
FROZEN_S = 20.0
"""With so many lines that are all alike, a shorter time is a stall: nobody's prompt is that long, or its blocks would come."""

EMPTY_S = 15.0
"""Requests that wait while none runs are admitted in the next step: with three lines that show none, there is no next step."""


def runtime_oom(context: Context) -> list[Finding]:
    """The GPU ran out of memory while the server served: its remedy is the opposite of a full KV cache's."""
    runtime = context.log.get("runtime")
    if runtime is None or not context.served:
        return []
    rows = runtime.filter(pl.col("variant").str.contains("oom"))
    if rows.height == 0:
        return []
    title = "The GPU ran out of memory while serving: lower gpu_memory_utilization or max_num_batched_tokens (never raise them)"
    span = seconds(rows["at"].to_list())
    return [proven("runtime-oom", title, span, evidence_of(rows, context.texts))]


def engine_crash(context: Context) -> list[Finding]:
    """An engine that died while it served. An `EngineDeadError` after the server was told to stop is none (0.32 logs one at a clean SIGTERM)."""
    log = context.log
    swap = log.get("preemption")
    if swap is not None:
        rows = swap.filter(pl.col("variant").str.contains("swap_abort"))
        if rows.height:
            span = seconds(rows["at"].to_list())
            title = (
                "The V0 engine died because a preempted request found no CPU swap space: raise --swap-space, or lower --max-num-seqs"
                " so that fewer requests are preempted (requests of several sequences can only be swapped)"
            )
            return [proven("engine-crash", title, span, evidence_of(rows, context.texts))]
    runtime = log.get("runtime")
    if runtime is None or not context.served:
        return []
    dead = runtime.filter(pl.col("variant").str.contains(_DEAD))
    if dead.height == 0 or _stopped_before(context, dead):
        return []
    near = _near(context, dead)
    cause = _cause(context, dead, near)
    title = f"The engine died while serving{cause}; its requests failed"
    evidence = evidence_of(dead, context.texts) + tuple(near[:2])
    return [proven("engine-crash", title, seconds(dead["at"].to_list()), evidence)]


NEAR_LINES = 2_000
"""An exception that stands further before the first word of an engine's death is another story: a request's, mostly."""


def _near(context: Context, dead: pl.DataFrame) -> list[Evidence]:
    """The exceptions that stand near the rows of an engine's death."""
    spans = {
        source: (first - NEAR_LINES, last + NEAR_LINES)
        for source, first, last in dead.group_by("source")
        .agg(pl.col("line").min().alias("first"), pl.col("line").max().alias("last"))
        .iter_rows()
    }
    return [
        e for e in context.exceptions if e.source not in spans or spans[e.source][0] <= e.line <= spans[e.source][1]
    ]


def _cause(context: Context, dead: pl.DataFrame, near: list[Evidence]) -> str:
    """What the engine died of, with a colon before it; empty where the log only says that it did."""
    said = dict(_errors(context, dead)) | {e.text: e.text for e in near}
    cause = cause_of(said)
    return f": {said[next(text for text in said if text.strip() == cause)]}" if cause else ""


def _errors(context: Context, rows: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """What each row's error says: its traceback's last line, or the line itself where the error is the line; and what of it is shown."""
    for row in rows.iter_rows(named=True):
        said = row.get("error") or ""
        if row["variant"] == "rpc" and row.get("method"):
            yield (f"RPC call to {row['method']} timed out",) * 2
        elif row["variant"] == "native_fatal":
            yield (said or "segmentation fault",) * 2
        elif (row.get("exit_code") or 0) < 0:
            yield (_signal(-row["exit_code"]),) * 2
        elif said and ": " not in said and row["variant"] not in ("engine_dead", "dead"):
            line = context.texts.get((row["source"], row["line"]), "").partition("\n")[0]
            line = line if said in line else ""
            yield line or said, line or without_client_text(said)
        else:
            yield said, without_client_text(said)


def _signal(number: int) -> str:
    """What ended a process, by its signal."""
    try:
        name = Signals(number).name
    except ValueError:
        return f"a process was ended by signal {number}"
    rest = ", most often because the host ran out of memory" if name == "SIGKILL" else ""
    return f"a process was ended by {name}{rest}"


def _stopped_before(context: Context, dead: pl.DataFrame) -> bool:
    stop = context.log.get("shutdown")
    if stop is None:
        return False
    first = dead["order"].min()
    if stop.filter(pl.col("order") < first).height:
        return True
    # The processes of a group get the signal together: one may be gone before the other says that it stops.
    died, said = dead["at"].min(), stop.filter(pl.col("order") > first)["at"].min()
    told = "signal" in stop.columns and stop["signal"].drop_nulls().len() > 0
    return (
        told
        and isinstance(died, datetime)
        and isinstance(said, datetime)
        and said - died <= timedelta(seconds=CLEAN_STOP_S)
    )


def engine_stall(context: Context) -> list[Finding]:
    """A gap in the statistics while work was queued. vLLM prints no line at INFO when nothing moved in two intervals, idle or stuck."""
    windows = context.windows
    if windows is None:
        return []
    usual = usual_interval(windows)
    limit = max(3 * usual, MIN_SILENCE_S)
    found = []
    # A day of several engines has tens of thousands of windows: one at a time.
    for here, after in itertools.pairwise(windows.iter_rows(named=True)):
        silence = (after["end"] - here["end"]).total_seconds()
        # One line may follow the stop: what ran in the gap is then credited at its end.
        moved = ((after["generation_tps"] or 0) + (after["prompt_tps"] or 0)) * silence
        if (_queued(here) or _stuck(here)) and silence > limit and moved < 1:
            found.append(_stall(context, here, here["end"], after["end"], silence))
    found += _silent_end(context, windows.row(-1, named=True), limit)
    return found + _zero_windows(context, windows.iter_rows(named=True))


def _queued(row: Mapping[str, Any]) -> bool:
    return bool(row["waiting"] > 0)


def _stuck(row: Mapping[str, Any]) -> bool:
    """Requests run and none got a token in this interval: what comes before a silence when they are stuck."""
    return bool(row["running"] > 0 and row["idle"] and row["generation_tps"] is not None)


def _stall(context: Context, row: Mapping[str, Any], start: datetime, end: datetime, silence: float) -> Finding:
    line = (str(row["source"]), int(str(row["line"])))
    title = f"The engine logged nothing for {stretch(silence)} with {_held(row)}: it hung and no request made progress"
    evidence = (Evidence(*line, context.texts.get(line, ""), row["end"]),)
    return proven("engine-stall", title, (start, end), evidence)


def _silent_end(context: Context, last: Mapping[str, Any], limit: float) -> list[Finding]:
    """The statistics end with a queue, and the log goes on without them."""
    log = context.log
    order = int(str(last["order"]))
    if not (_queued(last) or _stuck(last)) or _stopped_after(context, order):
        return []
    end = last["end"]
    assert isinstance(end, datetime)
    if _died_after(context, order):
        return []
    later = [_latest(f, end, order) for name, f in log.frames.items() if name != "shutdown"]
    latest = max((t for t in later if t is not None), default=end)
    silence = max((latest - end).total_seconds(), _outer_silence(context, order))
    if silence > limit:
        return [_stall(context, last, end, end + timedelta(seconds=silence), silence)]
    return _only_probes(context, last, limit)


def _only_probes(context: Context, last: Mapping[str, Any], limit: float) -> list[Finding]:
    """Behind the last statistics nothing but health probes, which bear no time: they tell it by their number.

    With nothing running twenty are enough; else they must be more than came in as long a time before.
    """
    http, requests, order = context.log.get("http"), context.log.get("request"), last["order"]
    if http is None or "path" not in http.columns:
        return []
    if requests is not None and requests.filter(pl.col("order") > order).height:
        return []
    probes = http.filter(pl.col("path").is_in(PROBE_PATHS))
    after = _many(probes.filter(pl.col("order") > order))
    if after < PROBES_OF_A_STALL:
        return []
    if last["running"] > 0:
        windows = context.windows
        assert windows is not None
        before = _many(probes.filter(pl.col("order").is_between(windows["order"][0], order)))
        every = windows["interval_s"][1:].clip(0, 60).sum() / before if before else 0.0
        if after * every <= 2 * limit:
            return []
    title = f"After its last statistics line ({_held(last)}) the server only answered {after} health probes: it hung"
    key = (str(last["source"]), int(last["line"]))
    evidence = (Evidence(*key, context.texts.get(key, ""), last["end"]),)
    return [proven("engine-stall", title, (last["end"], None), evidence)]


def _many(rows: pl.DataFrame) -> int:
    """How many lines the rows stand for (`logscope.log.kept_rows`)."""
    return int(rows["repeated"].sum())


def _held(row: Mapping[str, Any]) -> str:
    """The requests that it held."""
    waiting, running = (round(row[n] or 0) for n in ("waiting", "running"))
    if not waiting:
        return f"{plural(running, 'request')} running and none waiting"
    return f"{plural(waiting, 'request')} waiting and {running or 'none'} running"


def _latest(frame: pl.DataFrame, after: datetime, order: int) -> datetime | None:
    """A frame's last time among the events behind `order`; earlier ones may bear later times, where a clock was set back."""
    own = frame.filter(pl.col("order") > order)["time"].max()
    return own if isinstance(own, datetime) and own > after else None


def _outer_silence(context: Context, order: int) -> float:
    """Seconds from the last statistics line to the log's last line on the envelope's clock; 0 where there is none."""
    stats = context.log.frames["stats"].filter(pl.col("order") == order)["outer_time"].to_list()
    if not stats or stats[0] is None:
        return 0.0
    latest = [
        t
        for name, f in context.log.frames.items()
        if name != "shutdown" and isinstance(t := f["outer_time"].max(), datetime)
    ]
    return float((max(latest) - stats[0]).total_seconds()) if latest else 0.0


def _stopped_after(context: Context, order: int) -> bool:
    stop = context.log.get("shutdown")
    return stop is not None and stop.filter(pl.col("order") > order).height > 0


def _died_after(context: Context, order: int) -> bool:
    """Whether the engine died behind an event: its silence is death, which is another finding."""
    runtime = context.log.get("runtime")
    if runtime is None:
        return False
    dead = runtime.filter(pl.col("variant").str.contains(f"{_DEAD}|oom"))
    return dead.filter(pl.col("order") > order).height > 0


def _zero_windows(context: Context, rows: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Before 0.8.5 (and at DEBUG) a stuck engine goes on printing: zero tokens with a queue, or with requests that run in a cache that does not move."""
    found: list[Finding] = []
    run: list[Mapping[str, Any]] = []
    for row in itertools.chain(rows, [None]):
        if row is not None and _still(row, run[-1] if run else None):
            run.append(row)
            continue
        if len(run) >= ZERO_WINDOWS_OF_A_STALL:
            found += _printed_stall(context, run)
        run = [row] if row is not None and _still(row, None) else []
    return found


def _still(row: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    if not row["idle"] or row["generation_tps"] is None or row["aggregated"]:
        return False
    if not _queued(row) and not row["running"]:
        return False
    # Without a queue: a long prefill makes no token either, but takes block after block.
    same = before is None or (before["running"], before["kv_pct"]) == (row["running"], row["kv_pct"])
    return _queued(row) or (row["kv_pct"] is not None and same)


def _printed_stall(context: Context, run: list[Mapping[str, Any]]) -> list[Finding]:
    start, end = run[0]["end"], run[-1]["end"]
    assert isinstance(start, datetime)
    assert isinstance(end, datetime)
    silence = (end - start).total_seconds()
    frozen = len(run) >= FROZEN_WINDOWS and len({(r["running"], r["kv_pct"]) for r in run}) == 1
    empty = all(r["running"] == 0 and r["waiting"] > (r["deferred"] or 0) for r in run)
    if frozen or empty:
        start = run[0]["start"]
        silence = (end - start).total_seconds()
    if silence <= (EMPTY_S - 1 if empty else FROZEN_S - 1 if frozen else MIN_SILENCE_S):
        return []
    title = f"No progress for {stretch(silence)} with {_held(run[0])}: {len(run):,} statistics lines in a row show no tokens, so the engine hung"
    keys = [(str(r["source"]), int(r["line"]), r["end"]) for r in (run[0], run[-1])]
    evidence = tuple(Evidence(s, n, context.texts.get((s, n), ""), at) for s, n, at in keys)
    return [proven("engine-stall", title, (start, end), evidence)]


def worker_waits(context: Context) -> list[Finding]:
    """Processes of one server that wait a minute and more for each other's next message: while it served that is a hang, while it started a compilation."""
    runtime, windows = context.log.get("runtime"), context.windows
    if runtime is None:
        return []
    rows = runtime.filter(pl.col("variant").str.starts_with("shm"))
    if rows.height == 0:
        return []
    start, end = seconds(rows["at"].to_list())
    longest = max(rows["seconds"].drop_nulls().to_list(), default=0) if "seconds" in rows.columns else 0
    waited = f" of {longest} s" if longest else ""
    lines = f"{rows.height:,} waits{waited}" if rows.height > 1 else f"a wait{waited}"
    severity, rest = "warning", "one of them is hung, or busy with something long such as compilation"
    if windows is not None and start is not None and end is not None:
        if end <= windows["start"].min():  # type: ignore[operator]
            severity, rest = "info", "this was before it served requests, so probably compilation or loading"
        else:
            moved = windows.filter((pl.col("end") >= start) & (pl.col("start") <= end))
            if moved.height and not moved.filter((pl.col("running") > 0) & pl.col("idle")).height:
                severity, rest = "info", "requests kept making progress meanwhile"
    title = f"The server's processes waited for each other through shared memory ({lines}): {rest}"
    return [Finding("engine-stall", severity, "measured", title, start, end, evidence_of(rows, context.texts))]


PRINTED_GIB = 0.01
_SPACE = ("toserve", "maxseqlen", "noavail", "cannotfit")


def failed_start(context: Context) -> list[Finding]:
    """A start whose engine never served, with the error's own numbers. Nothing where the server came up."""
    log = context.log
    if context.served:
        return []
    errors = log.get("kv_error")
    if errors is not None:
        space = errors.filter(pl.col("variant").str.contains_any(list(_SPACE)))
        if space.height:
            return [_space_finding(context, space)]
    if (none := _no_blocks(context)) is not None:
        return [none]
    reason, evidence = _reason(context, errors)
    if reason is None:
        return []
    span = log.facts.start, log.facts.end
    return [proven("startup-failed", f"The server did not start: {reason}", span, evidence)]


def _no_blocks(context: Context) -> Finding | None:
    """A profile of the GPU's memory that left no block: whatever follows in the log, nothing can be served."""
    sizing = context.log.get("kv_sizing")
    columns = ("num_gpu_blocks", "kv_cache_tokens")
    if sizing is None:
        return None
    none = sizing.filter(
        pl.any_horizontal(*(pl.col(n) == 0 for n in columns if n in sizing.columns), pl.lit(value=False))
    )
    if none.height == 0:
        return None
    title = (
        "No GPU memory is left for the KV cache (0 blocks) after weights and activations: raise gpu_memory_utilization, free GPU memory,"
        " or use a smaller model"
    )
    return proven("startup-kv-too-small", title, seconds(none["at"].to_list()), evidence_of(none, context.texts))


def _space_finding(context: Context, errors: pl.DataFrame) -> Finding:
    rows = errors.rows(named=True)
    told = max(rows, key=lambda r: sum(v is not None for v in r.values()))
    fits = _fits(told, context.log.facts.config.get("block_size") or 16)
    title = _space_sentence(told, fits)
    facts: dict[str, Any] = {
        "max_model_len": told.get("max_model_len"),
        "largest_max_model_len": fits,
        "needed_gib": told.get("needed_gib"),
        "available_gib": told.get("available_kv_cache_gib"),
    }
    span = seconds(r["at"] for r in rows)
    return proven("startup-kv-too-small", title, span, evidence_of(errors, context.texts), facts)


def _fits(row: dict[str, Any], block_size: int) -> int | None:
    """The largest max_model_len that fits: what vLLM estimated, else the cache's tokens, else by proportion of the bytes.

    The bytes are rounded as printed (before 0.9.1 there is nothing else), and a request takes whole blocks: both count against it.
    """
    if row.get("estimated_max_model_len"):
        return int(row["estimated_max_model_len"])
    if row.get("kv_cache_tokens"):
        return int(row["kv_cache_tokens"])
    needed, free, length = (row.get("needed_gib"), row.get("available_kv_cache_gib"), row.get("max_model_len"))
    if needed and free is not None and length:
        tokens = length * max(0.0, free - PRINTED_GIB / 2) / (needed + PRINTED_GIB / 2)
        return int(tokens // block_size) * block_size
    return None


def _space_sentence(row: dict[str, Any], fits: int | None) -> str:
    length, needed, free = (row.get("max_model_len"), row.get("needed_gib"), row.get("available_kv_cache_gib"))
    end = f"; the largest max_model_len that fits is {fits:,}" if fits else ""
    if length and needed is not None and free is not None:
        return f"One request of max_model_len {length:,} tokens needs {needed:g} GiB of KV cache, but only {free:g} GiB is available{end}"
    if length and row.get("kv_cache_tokens"):
        return f"max_model_len is {length:,} tokens, but the KV cache holds only {row['kv_cache_tokens']:,}{end}"
    return "No memory is left for the KV cache after weights and activations: raise gpu_memory_utilization, free GPU memory, or use a smaller model"


def _reason(context: Context, errors: pl.DataFrame | None) -> tuple[str | None, tuple[Evidence, ...]]:
    """The cause that the log names, best first: a memory error, an out-of-memory error, the last exception, a process that died."""
    if errors is not None and errors.height:
        row = errors.rows(named=True)[-1]
        if row.get("free_gib") is not None and row.get("requested_gib") is not None:
            text = (
                f"only {row['free_gib']:g} of {row['total_gpu_gib']:g} GiB of GPU memory is free, but gpu_memory_utilization asks for {row['requested_gib']:g} GiB;"
                " another process is using GPU memory, or the value is too high"
            )
            return text, evidence_of(errors, context.texts)
        return "vLLM rejected its memory settings", evidence_of(errors, context.texts)
    runtime = context.log.get("runtime")
    if runtime is not None:
        memory = runtime.filter(pl.col("variant").str.contains("oom"))
        sampler = memory.filter(pl.col("variant") == "oom_sampler")
        if sampler.height:
            asked = f" with {sampler['num_reqs'][-1]:,} requests" if sampler["num_reqs"][-1] else ""
            text = f"it ran out of GPU memory when it warmed up the sampler{asked}: lower max_num_seqs or gpu_memory_utilization"
            return text, evidence_of(sampler, context.texts)
        if memory.height:
            return "it ran out of GPU memory during start-up", evidence_of(memory, context.texts)
        taken = runtime.filter(pl.col("variant") == "bind_error")
        if taken.height:
            return f"its address is not free: {taken['error'][-1]}", evidence_of(taken, context.texts)
        refused = runtime.filter(pl.col("variant") == "usage_error")
        if refused.height:
            return f"vLLM rejected its command line: {refused['error'][-1]}", evidence_of(refused, context.texts)
    died = None if runtime is None else runtime.filter(pl.col("variant").str.contains("dead|died|fatal|worker_exc"))
    named = None if died is None else cause_of(text for text, _ in _errors(context, died))
    if named is not None and died is not None:
        return _plain(named), evidence_of(died, context.texts) + tuple(context.exceptions[-2:])
    # Of a chain of exceptions the last one says it best.
    last = cause_of(e.text for e in reversed(context.exceptions))
    if last is not None:
        return _plain(last), tuple(context.exceptions[-3:])
    if died is not None and died.height:
        return "an engine process died; the log does not say why", evidence_of(died, context.texts)
    return None, ()


def _plain(text: str) -> str:
    """An exception's last line without pydantic's wrapping."""
    return text.strip().removeprefix("Value error, ").split(" [type=")[0]
