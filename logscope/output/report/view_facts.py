"""Single numbers of the page, each with its basis: those that matter first, the configuration, what was read and from whom.

The cross-check on the page: what the server's metrics or the clients measured, beside what the replay infers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from logscope.output.report.captions import all_engines, engine_name, lines_read
from logscope.output.report.chart import engine_key
from logscope.sanitize import visible
from logscope.wording import NOT_VISIBLE, between, bounds, change, duration, estimate, number, period, setting

__all__ = [
    "Fact",
    "Witness",
    "clock",
    "configuration",
    "coverage",
    "numbers",
    "places",
    "preemptions",
    "rows_of_engine",
    "server_name",
    "witness",
]
# The numbers of a finding which the first screen shows where there are no latencies.
FACTS = {
    "needed_gib": ("KV cache needed", "{:g} GiB"),
    "available_gib": ("KV cache available", "{:g} GiB"),
    "largest_max_model_len": ("Largest max_model_len that fits", "{:,.0f}"),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One number with its name, what else there is to say of it, and its basis."""

    name: str
    value: str
    detail: str = ""
    basis: str = ""


def numbers(analysis: Mapping[str, Any], engine: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> list[Fact]:
    """What matters first, best known first; the page shows three."""
    latency = analysis.get("latency") or {}
    e2e, ttft = latency.get("e2e_s") or {}, latency.get("ttft_s") or {}
    basis = latency.get("basis") or ""
    several = len(analysis.get("engines") or []) > 1
    own = f", {engine_name(engine, analysis)}" if several else ""
    facts = [
        _total(preemptions(analysis.get("preemptions") or {}), engine, analysis)
        if several
        else preemptions(analysis.get("preemptions") or {})
    ]
    for name, points in (("E2E p99", e2e), ("TTFT p99", ttft)):
        if points.get("p99") is not None:
            of = "" if basis == "measured" else own
            facts.append(Fact(name + of, duration(points["p99"]), _beside_p99(points), basis))
    stats = _rows_of(frames.get("stats"), engine)
    peaks = (
        ("gpu_kv_cache_usage_pct", "Peak KV-cache usage", "{:g} %", "in a statistics line"),
        ("waiting", "Peak waiting", "{:g}", "requests in a statistics line"),
        ("running", "Peak running", "{:g}", "requests in a statistics line"),
    )
    for column, name, form, detail in peaks:
        peak: Any = stats[column].max() if stats is not None and column in stats.columns else None
        if peak is not None:
            facts.append(Fact(name, form.format(float(peak)), detail, "measured"))
    facts += _sizes(engine)
    proven = [f for f in analysis.get("findings") or [] if f.get("id") == analysis.get("verdict")]
    facts = _facts_of(proven[0]) + facts if proven else facts
    known = [f for f in facts if f.value != NOT_VISIBLE]
    return known if len(known) >= 3 else facts


def _beside_p99(points: Mapping[str, Any]) -> str:
    """The bounds of a p99 and the median beside it."""
    low, high = ((points.get(side) or {}).get("p99") for side in ("low", "high"))
    said = f"{between(low, high)}; " if low is not None or high is not None else ""
    median = points.get("p50")
    return f"{said}median {'withheld' if median is None else duration(median)}"


def _total(fact: Fact, engine: Mapping[str, Any], analysis: Mapping[str, Any]) -> Fact:
    """A count over all engines, and beside it that of the engine which the page is about."""
    found = engine.get("preemptions") or {}
    own = "" if found.get("value") is None else estimate(found.get("low"), found["value"], found.get("high"))
    detail = "; ".join(filter(None, (fact.detail, f"{engine_name(engine, analysis)}: {own}" if own else "")))
    return Fact(f"Preemptions, {all_engines(analysis)}", fact.value, detail, fact.basis)


def _facts_of(finding: Mapping[str, Any]) -> list[Fact]:
    given = finding.get("facts") or {}
    return [
        Fact(name, form.format(given[key]), basis=finding.get("basis") or "")
        for key, (name, form) in FACTS.items()
        if isinstance(given.get(key), (int, float))
    ]


def _sizes(engine: Mapping[str, Any]) -> list[Fact]:
    kv, config = engine.get("kv_cache") or {}, engine.get("config") or {}
    basis = engine.get("config_basis") or {}
    facts = []
    if kv.get("tokens") is not None:
        facts.append(Fact("KV cache", f"{kv['tokens']:,}", "tokens", "measured"))
    known = (n for n in ("max_model_len", "max_num_seqs", "max_num_active_seqs") if config.get(n) is not None)
    facts += [Fact(name, number(config[name]), "", basis.get(name) or "") for name in known]
    return facts


def preemptions(found: Mapping[str, Any]) -> Fact:
    """The count of preemptions with its bounds; where the log only bounds it, the bounds are the number."""
    logged = found.get("logged") or {}
    low, value, high = found.get("low"), found.get("value"), found.get("high")
    said, proven = bounds(low, high), bounds(logged.get("low"), logged.get("high"))
    # what the log itself proves are bounds, not a count
    counted = value is not None and found.get("basis") != "measured"
    shown = number(value) if counted or low == high else said
    parts = [said if shown != said and low != high else ""]
    if proven and proven != said:
        parts.append(f"logged: {proven}")
    elif proven:
        parts.append("from the server's counter")
    if beside := found.get("inferred"):
        parts.append(f"replay estimate: {bounds(beside.get('low'), beside.get('high'))}")
    if again := found.get("recomputed_tokens"):
        parts.append(f"{number(again)} tokens recomputed")
    detail = "; ".join(p for p in parts if p)
    return Fact("Preemptions", shown or NOT_VISIBLE, detail, found.get("basis") or "")


# Names of logs that many servers have: the folder tells them apart.
_SAYS_NOTHING = re.compile(
    r"(?:server|vllm|logs?|std(?:out|err)|out(?:put)?|nohup|current|console|engine|\d+)(?:[.-]\w+)*$", re.I
)
_PLACES = (("host", "Host"), ("pod", "Pod"), ("unit", "Unit"), ("container", "Container"))


def places(frames: Mapping[str, pl.DataFrame]) -> list[tuple[str, str]]:
    """Host, pod, unit and container that the envelopes name, at most three of each."""
    found = []
    for column, word in _PLACES:
        names: set[str] = set()
        for frame in frames.values():
            if column in frame.columns and frame[column].dtype == pl.String:
                names |= set(frame[column].drop_nulls().unique().to_list())
        if names:
            shown = sorted(names)
            found.append((word, ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")))
    return found


def server_name(given: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> str:
    """What the server is called: its pod, unit, container or host, else the log's own file name."""
    known = dict(places(frames))
    for word in ("Pod", "Unit", "Container", "Host"):
        if word in known:
            return known[word]
    names = [str(s) for s in given.get("sources") or []]
    if not names or names[0] == "-":
        return "standard input"
    *folders, name = names[0].replace("\\", "/").strip("/").split("/")
    return f"{folders[-1]}/{name}" if folders and _SAYS_NOTHING.match(name) else name or names[0]


def clock(analysis: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> str:
    """Which clock the times of the page are on."""
    zone = (analysis.get("options") or {}).get("timezone")
    if zone:
        return f"times in {visible(str(zone), 60)}"
    apart = _offset(frames)
    if apart is None:
        return "server's clock (time zone not in the log)"
    sign, minutes = ("−" if apart < 0 else "+"), abs(apart)
    return f"server's clock, UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}"


def _offset(frames: Mapping[str, pl.DataFrame]) -> int | None:
    """Minutes by which the records' clock is ahead of the envelope's UTC, to a quarter of an hour; None without an envelope's clock."""
    for frame in frames.values():
        if "time" in frame.columns and "outer_time" in frame.columns:
            both = frame.select(
                t=pl.col("time").cast(pl.Datetime("us")), o=pl.col("outer_time").dt.replace_time_zone(None)
            ).drop_nulls()
            if both.height:
                apart = (both["t"] - both["o"].cast(pl.Datetime("us"))).dt.total_seconds().median()
                if isinstance(apart, (int, float)) and abs(apart) < 15 * 3600:
                    return round(apart / 900) * 15
    return None


def _rows_of(frame: pl.DataFrame | None, engine: Mapping[str, Any]) -> pl.DataFrame | None:
    return None if frame is None else rows_of_engine(frame, engine)


def rows_of_engine(frame: pl.DataFrame, engine: Mapping[str, Any]) -> pl.DataFrame:
    """The frame's rows of one engine; columns that a frame does not have do not divide it."""
    names = ("server", "run", "engine_index")
    for name, place in zip(names, engine_key(dict(engine)), strict=True):
        if name in frame.columns:
            frame = frame.filter(pl.col(name).fill_null(0) == place)
    return frame


def configuration(engine: Mapping[str, Any]) -> list[Fact]:
    """The engine's settings, its KV cache first."""
    basis = engine.get("config_basis") or {}
    kv = engine.get("kv_cache") or {}
    facts = [
        Fact(visible(str(k)), visible(setting(v)), basis=visible(str(basis.get(k) or "")))
        for k, v in (engine.get("config") or {}).items()
    ]
    if kv.get("tokens") is not None:
        facts.insert(0, Fact("KV cache, tokens", number(kv["tokens"]), basis="measured"))
    if kv.get("bytes") is not None:
        facts.insert(1, Fact("KV cache, GiB", f"{kv['bytes'] / 2**30:.2f}", basis="measured"))
    return facts


def coverage(given: Mapping[str, Any]) -> list[Fact]:
    """What became of the lines that were read."""
    if given.get("lines") is None:
        return []
    (_, _), *parts = lines_read(given)
    named = (
        ("unrecognized_warnings", "unrecognised warnings"),
        ("out_of_order", "lines out of order"),
        ("truncated", "truncated lines"),
        ("unbelieved", "lines with impossible values"),
    )
    facts = [Fact("lines read", number(given["lines"])), *(Fact(word, value) for value, word in parts)]
    return facts + [Fact(name, number(given[key])) for key, name in named if given.get(key)]


_QUEUES = ("queued_for_kv", "queued_for_seat", "queued_for_budget")
_LATENCIES = (("ttft_s", "TTFT"), ("e2e_s", "E2E"), ("itl_s", "ITL"))


@dataclass(frozen=True, slots=True)
class Witness:
    """`said`: what was read of each witness. `rows`: what, measured, inferred, and by how much the inferred is off."""

    said: tuple[str, ...]
    rows: tuple[tuple[str, str, str, str], ...]
    notes: tuple[str, ...]


def witness(analysis: Mapping[str, Any]) -> Witness | None:
    """The section of an analysis with `--metrics` or `--latencies`; None without."""
    block = analysis.get("witness")
    if not isinstance(block, Mapping):
        return None
    metrics, clients = block.get("metrics") or {}, block.get("latencies") or {}
    rows = [*_preemptions(analysis), *_queue(analysis, metrics), *_latencies(analysis)]
    return Witness(
        said=tuple(s for s in (_metrics(metrics), _clients(clients)) if s),
        rows=tuple(rows),
        notes=tuple(visible(str(note)) for note in block.get("notes") or []),
    )


def _metrics(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    sources = ", ".join(visible(str(s), 120) for s in found.get("sources") or [])
    said = f"{number(found.get('samples'))} samples of vLLM's metrics from {sources}"
    if found.get("start") and found.get("end"):
        said += f", {period(found['start'], found['end'])} in UTC"
    return said


def _clients(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    return f"the latencies of {number(found.get('requests'))} requests from {visible(str(found.get('source')), 120)}, as their clients saw them"


def _preemptions(analysis: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    found = analysis.get("preemptions") or {}
    beside = found.get("inferred") or {}
    if found.get("basis") != "measured":
        return []
    infers, measured = beside.get("value"), found.get("value")
    told = f"{number(infers)} ({bounds(beside.get('low'), beside.get('high'))})" if beside else "–"
    return [("Preemptions", number(measured), told, change(measured, infers))]


def _queue(analysis: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    measured = metrics.get("queue_time_mean_s")
    if measured is None:
        return []
    engines = analysis.get("engines") or []
    totals = [((e.get("ledger") or {}).get("total_s") or {}) for e in engines]
    requests = [int((e.get("replay") or {}).get("requests") or 0) for e in engines]
    infers = None
    if requests and min(requests) > 0:  # each engine was replayed
        waited = sum(total.get(label) or 0.0 for total in totals for label in _QUEUES)
        infers = waited / sum(requests)
    told = "–" if infers is None else duration(infers)
    return [("Mean time in the queue", duration(measured), told, change(measured, infers))]


def _latencies(analysis: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    found = analysis.get("latency") or {}
    if found.get("basis") != "measured":
        return []
    rows = []
    for key, name in _LATENCIES:
        inferred = (found.get("inferred") or {}).get(key) or {}
        for point, measured in (found.get(key) or {}).items():
            if isinstance(measured, int | float):  # beside the percentiles stand the bounds of what is inferred
                infers = inferred.get(point)
                told = "–" if infers is None else duration(infers)
                rows.append((f"{name} {point}", duration(measured), told, change(measured, infers)))
    return rows
