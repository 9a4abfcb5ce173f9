"""Several servers side by side: their logs read, and each engine inferred and replayed, as tasks of their own.

The frames, numbers and counts are those of reading one log after the other; in this process alone nothing is split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from logscope.analysis import Analysis, EngineResult, analyze, engine_result, with_imbalance, worst_of
from logscope.diagnosis.verdict import RANK
from logscope.execution.executors import Executor, RayCluster
from logscope.inference.result import Effort
from logscope.log.frames import LogFrames, believed_log, read, within_span
from logscope.log.span import Reading
from logscope.log.stored_rows import Numbers, StoredRows, as_met
from logscope.server.engines import EngineLog, engine_logs
from parsers.reading.by_line import MAX_SAMPLES
from parsers.reading.events import Coverage, add_coverage

__all__ = ["analyze_fleet", "analyze_on", "read_fleet", "read_on", "server_rows", "servers_of", "stream_groups"]
Place = tuple["str | None", "str | None", "str | None"]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one task read: sources `positions` of the input."""

    positions: tuple[int, ...]
    data: LogFrames


def stream_groups(sources: Sequence[Any]) -> list[list[int]]:
    """The positions of the sources that belong together (a rotated set is one server's stream), in the order of the input."""
    found: dict[str, list[int]] = {}
    for position, source in enumerate(sources):
        found.setdefault(source.group, []).append(position)
    return list(found.values())


def read_fleet(sources: Sequence[Any], reading: Reading, executor: Executor) -> LogFrames:
    """`logscope.log.frames.read`, with the sources of one stream as one task of `executor`.

    Streams in which the same pod, unit or host speaks are one server's: they are read once more, together.
    """
    groups = stream_groups(sources)
    read_parts = partial(_read_parts, sources, reading=reading, executor=executor)
    parts = read_parts(groups)
    while (joined := _joined(parts)) is not None:
        again = [g for g in joined if not any(p.positions == tuple(g) for p in parts)]
        kept = [p for p in parts if list(p.positions) in joined]
        parts = kept + read_parts(again)
    data = _merged(sorted(parts, key=lambda p: p.positions), [s.name for s in sources])
    return within_span(data, reading.span) if reading.span.needs_end else data


def _read_parts(
    sources: Sequence[Any], groups: Sequence[Sequence[int]], reading: Reading, executor: Executor
) -> list[_Part]:
    # A span that counts from the end needs the end of all of them, and the time of each event until then.
    task = partial(read, reading=Reading(year=reading.year, wanted=None) if reading.span.needs_end else reading)
    items = [[sources[i] for i in group] for group in groups]
    shared = [all(_can_be_sent(s) for s in item) for item in items]
    sent_items = (item for item, sent in zip(items, shared, strict=True) if sent)
    far = executor.map(task, [[source.elsewhere() for source in item] for item in sent_items])
    return [
        _Part(tuple(group), next(far) if sent else task(item))
        for group, item, sent in zip(groups, items, shared, strict=True)
    ]


def _can_be_sent(source: Any) -> bool:
    """Standard input and pipes can only be read here."""
    return source.problem is None and source.size is not None


def _joined(parts: Sequence[_Part]) -> list[list[int]] | None:
    """The groups to read instead, where two hold the same server; None where none do."""
    owner: dict[Place, int] = {}
    root = list(range(len(parts)))

    def find(index: int) -> int:
        while root[index] != index:
            index = root[index]
        return index

    for index, part in enumerate(parts):
        for place in _places(part.data.frames):
            first = owner.setdefault(place, index)
            a, b = sorted((find(first), find(index)))
            root[b] = a
    if all(find(i) == i for i in range(len(parts))):
        return None
    union: dict[int, list[int]] = {}
    for index, part in enumerate(parts):
        union.setdefault(find(index), []).extend(part.positions)
    return [sorted(positions) for positions in union.values()]


def _places(frames: dict[str, pl.DataFrame]) -> set[Place]:
    """Who speaks, where an envelope tells: what makes a server (see `parsers.records.servers`)."""
    columns = pl.col("host"), pl.col("unit"), pl.coalesce("pod", "container").alias("pod")
    found = {row for frame in frames.values() for row in frame.select(columns).unique().rows()}
    return found - {(None, None, None)}


def _merged(parts: Sequence[_Part], names: Sequence[str]) -> LogFrames:
    position = {name: index for index, name in reversed(list(enumerate(names)))}
    seen = ((i, server, source) for i, part in enumerate(parts) for server, source in _seen(part.data))
    servers = as_met(((i, server), (position[source], server)) for i, server, source in seen)
    starts = _order_starts(parts, position)
    frames: dict[str, list[pl.DataFrame]] = {}
    stored: dict[str, list[StoredRows]] = {}
    merged = LogFrames({}, merged_coverage([p.data.coverage for p in parts], names))
    for index, part in enumerate(parts):
        own = {old: new for (i, old), new in servers.items() if i == index}
        numbers = Numbers(own, {name: start for (i, name), start in starts.items() if i == index})
        for family, frame in part.data.frames.items():
            frames.setdefault(family, []).append(numbers.of(frame.lazy()).collect())
        for family, rows in part.data.stored.items():
            stored.setdefault(family, []).append(rows.renumbered(numbers))
        merged.texts.update(part.data.texts)
        for (server, run), evidence in part.data.exceptions.items():
            merged.exceptions.setdefault((own[server], run), []).extend(evidence)
    met = sorted(frames.items(), key=lambda item: min(int(frame["order"][0]) for frame in item[1]))
    merged.frames = {f: pl.concat(p).sort("order") for f, p in met}
    for family, parts_stored in stored.items():
        merged.stored[family] = StoredRows.joined(parts_stored)
    return merged


def _seen(data: LogFrames) -> Iterable[tuple[int, str]]:
    for frame in data.frames.values():
        yield from frame.select("server", "source").unique().rows()
    for (server, _), evidence in data.exceptions.items():
        yield from ((server, e.source) for e in evidence)


def _order_starts(parts: Sequence[_Part], position: dict[str, int]) -> dict[tuple[int, str], int]:
    """By how much the `order` of a source's events moves: events are numbered through, source by source."""
    spans: dict[str, tuple[int, int, int]] = {}  # which task, first and last place
    for index, part in enumerate(parts):
        for frame in part.data.frames.values():
            order = pl.col("order")
            places = frame.group_by("source").agg(order.min(), order.max().alias("last")).rows()
            for source, low, high in places:
                before = spans.get(source, (index, low, high))
                spans[source] = (index, min(low, before[1]), max(high, before[2]))
    starts, at = {}, 0
    for source in sorted(spans, key=position.__getitem__):
        index, low, high = spans[source]
        starts[index, source] = at - low
        at += high - low + 1
    return starts


def merged_coverage(parts: Sequence[Coverage], names: Sequence[str]) -> Coverage:
    """The coverage of several tasks as one; lists in the order of the sources' `names`."""
    position = {name: index for index, name in reversed(list(enumerate(names)))}

    def place(name: str) -> int:
        return position.get(name, len(position))

    whole = Coverage()
    for part in parts:
        add_coverage(whole, part)
    whole.sources.sort(key=place)
    whole.skipped_sources.sort(key=lambda s: place(s["source"]))
    whole.warning_samples.sort(key=lambda s: place(s["source"]))
    del whole.warning_samples[MAX_SAMPLES:]
    return whole


_ALONE = Effort()
_MANY = 2  # engines a place, from which on the last ones leave few places idle
_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class _Task:
    """One engine, with the lines and exceptions of its sources."""

    data: LogFrames
    log: EngineLog


def analyze_fleet(
    data: LogFrames, executor: Executor, *, given: Mapping[str, Any] | None = None, effort: Effort = _ALONE
) -> Analysis:
    """`logscope.analysis.analyze` on the places of `executor`: the same answer, whoever gives it.

    Where there are many engines each is a task as a whole: candidates are replayed where the workload was inferred. Of a few engines the
    passes of the inference and the replays of the candidates are tasks, so that no place is idle.
    """
    data = believed_log(data)
    logs = engine_logs(data.frames, given)
    if len(logs) >= _MANY * executor.width:
        results = _whole(data, logs, executor, Effort(effort.seed))
    else:
        results = _in_parts(data, logs, Effort(effort.seed, map=executor.map))
    found = []
    for done, result in enumerate(results, 1):
        effort.report(done / len(logs))
        found.append(result)
    found = with_imbalance(found)
    return Analysis(data, tuple(found), worst_of(found), effort.seed, dict(given or {}))


def _whole(data: LogFrames, logs: Sequence[EngineLog], executor: Executor, effort: Effort) -> Iterator[EngineResult]:
    tasks = (_Task(_portion(data, log), log) for log in logs)
    for log, result in zip(logs, executor.map(partial(_result, effort), tasks), strict=True):
        yield replace(result, log=log, context=replace(result.context, log=log))


def _in_parts(data: LogFrames, logs: Sequence[EngineLog], effort: Effort) -> Iterator[EngineResult]:
    """A thread for each engine hands its parts out and waits for them."""
    threads = ThreadPoolExecutor(max(1, min(len(logs), _MOST_THREADS)))
    try:
        yield from threads.map(partial(engine_result, data, effort=effort), logs)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _portion(data: LogFrames, log: EngineLog) -> LogFrames:
    """Of the lines that may serve as evidence, those of the engine's sources."""
    own = {name for frame in log.frames.values() for name in frame["source"].unique().to_list()}
    texts = data.texts.of_sources(own)
    stored = {family: rows.of_server(log.facts.server) for family, rows in data.stored.items()}
    place = log.facts.server, log.facts.run
    exceptions = {place: data.exceptions[place]} if place in data.exceptions else {}
    return LogFrames({}, data.coverage, texts, exceptions, stored)


def _result(effort: Effort, task: _Task) -> EngineResult:
    """One engine's result, without the frames and lines that the asker has."""
    found = engine_result(task.data, task.log, effort)
    bare = EngineLog(task.log.facts, {})
    return replace(found, log=bare, context=replace(found.context, log=bare, texts={}))


def read_on(executor: Executor, sources: Sequence[Any], reading: Reading, *, state: Path | None = None) -> LogFrames:
    """Read `sources`, the streams in parallel where `executor` has several places to run; with `state` only what is new, one by one."""
    if state is not None:
        from logscope.log.state.frames import read_with_state

        return read_with_state(state / "analyze", sources, reading)
    if executor.width == 1 and not isinstance(executor, RayCluster):
        return read(sources, reading)
    return read_fleet(sources, reading, executor)


def analyze_on(
    executor: Executor, data: LogFrames, *, given: Mapping[str, Any] | None, replay: bool, effort: Effort
) -> Analysis:
    """Analyse `data`: the engines in parallel where `executor` has several places to run, else the replays of each as it sees fit."""
    if executor.width > 1 and replay:
        return analyze_fleet(data, executor, given=given, effort=effort)
    return analyze(data, given=given, replay=replay, effort=replace(effort, map=executor.map))


def server_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """One row a server, the worst first: what its worst engine says, and preemptions summed over its engines and starts.

    Keys: server, names (its sources), verdict, pressure, engines, imbalance (the finding's title or None), preemptions (value; its bounds
    as preemptions_low and preemptions_high), p99_e2e_s, p99_ttft_s, worst_engine (index into `engines[]` of the document).
    """
    names = _names(analysis)
    rows = [_row(server, part, names.get(server, [])) for server, part in _by_server(analysis).items()]
    return sorted(rows, key=_badness)


def servers_of(analysis: Analysis) -> dict[int, Analysis]:
    """The analysis of each server alone, by number; the counts of what was read stay those of all."""
    found = {}
    frames = {
        family: frame.partition_by("server", as_dict=True)
        for family, frame in analysis.data.frames.items()
        if frame.height
    }
    for server, part in _by_server(analysis).items():
        own = {family: parts[server,] for family, parts in frames.items() if (server,) in parts}
        results = tuple(result for _, result in part)
        found[server] = replace(
            analysis,
            data=replace(analysis.data, frames=own),
            engines=results,
            worst=worst_of(results),
            total_preemptions=None,
            latency=None,
        )
    return found


def _by_server(analysis: Analysis) -> dict[int, list[tuple[int, EngineResult]]]:
    found: dict[int, list[tuple[int, EngineResult]]] = {}
    for index, result in enumerate(analysis.engines):
        found.setdefault(result.log.facts.server, []).append((index, result))
    return found


def _row(server: int, part: Sequence[tuple[int, EngineResult]], names: list[str]) -> dict[str, Any]:
    worst = worst_of([result for _, result in part]) or 0
    index, result = part[worst]
    answer = result.answer
    latency = (result.latency or (answer.latency if answer is not None else None)) or {}
    counts = [r.preemptions.value for _, r in part if r.preemptions.value is not None]
    known = [r.preemptions for _, r in part if r.preemptions.low is not None]
    highs = [p.high for p in known if p.high is not None]
    uneven = [f.title for _, r in part for f in r.findings if f.id == "engine-imbalance"]
    return {
        "server": server,
        "names": names,
        "verdict": result.verdict,
        "pressure": result.pressure,
        "engines": len(part),
        "imbalance": uneven[0] if uneven else None,
        "preemptions": sum(counts) if counts else None,
        "preemptions_low": sum(p.low or 0.0 for p in known) if known else None,
        "preemptions_high": sum(highs) if highs and len(highs) == len(known) else None,
        "p99_e2e_s": (latency.get("e2e_s") or {}).get("p99"),
        "p99_ttft_s": (latency.get("ttft_s") or {}).get("p99"),
        "worst_engine": index,
    }


def _names(analysis: Analysis) -> dict[int, list[str]]:
    """By server the sources in which it speaks, in the order of the input; pod or unit where an envelope names it."""
    own: defaultdict[int, set[str]] = defaultdict(set)
    places: defaultdict[int, set[str]] = defaultdict(set)
    for frame in analysis.data.frames.values():
        for server, source, *envelope in frame.select("server", "source", "pod", "unit", "container").unique().rows():
            own[server].add(source)
            places[server].update(name for name in envelope if name is not None)
    order = {source: at for at, source in enumerate(analysis.data.coverage.sources)}
    return {
        server: sorted(places[server]) or sorted((s for s in sources if s in order), key=order.__getitem__)
        for server, sources in own.items()
    }


_NOT_SERVING = ("startup-kv-too-small", "startup-failed", "engine-crash", "runtime-oom", "engine-stall")
"""Of several servers those that serve nobody stand above those that are slow."""


def _badness(row: Mapping[str, Any]) -> tuple[int, float, float, int]:
    order = (*_NOT_SERVING, *(v for v in RANK if v not in _NOT_SERVING))
    rank = order.index(row["verdict"]) if row["verdict"] in order else len(order)
    return rank, -(row["p99_e2e_s"] or 0.0), -(row["preemptions"] or 0.0), row["server"]
