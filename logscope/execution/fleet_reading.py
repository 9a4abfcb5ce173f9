"""The logs of several servers, read side by side: the same frames and the same numbers as when they are read one after the other.

Counts of several readings as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from logscope.execution.executors import Executor
from logscope.log.frames import LogFrames, read, within_span
from logscope.log.span import Reading
from logscope.log.stored_rows import StoredRows
from parsers.reading.by_line import MAX_SAMPLES
from parsers.reading.events import Coverage, add_coverage

__all__ = ["read_fleet", "stream_groups"]


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
    numbers = _server_numbers(parts, position)
    starts = _order_starts(parts, position)
    frames: dict[str, list[pl.DataFrame]] = {}
    stored: dict[str, list[StoredRows]] = {}
    merged = LogFrames({}, merged_coverage([p.data.coverage for p in parts], names))
    for index, part in enumerate(parts):
        own = {old: new for (i, old), new in numbers.items() if i == index}
        for family, frame in part.data.frames.items():
            shift = {name: start for (i, name), start in starts.items() if i == index}
            frames.setdefault(family, []).append(_renumbered(frame, own, shift))
        for family, rows in part.data.stored.items():
            shift = {name: start for (i, name), start in starts.items() if i == index}
            stored.setdefault(family, []).append(rows.renumbered(own, shift))
        merged.texts.update(part.data.texts)
        for (server, run), evidence in part.data.exceptions.items():
            merged.exceptions.setdefault((own[server], run), []).extend(evidence)
    merged.frames = {f: pl.concat(p).sort("order") for f, p in _as_met(frames)}
    for family, parts_stored in stored.items():
        merged.stored[family] = StoredRows.joined(parts_stored)
    return merged


def _as_met(frames: dict[str, list[pl.DataFrame]]) -> list[tuple[str, list[pl.DataFrame]]]:
    def first(item: tuple[str, list[pl.DataFrame]]) -> int:
        return min(int(frame["order"][0]) for frame in item[1])

    return sorted(frames.items(), key=first)


def _server_numbers(parts: Sequence[_Part], position: dict[str, int]) -> dict[tuple[int, int], int]:
    """(task, its number) to the number in the whole input: servers are numbered as they are met."""
    first: dict[tuple[int, int], int] = {}
    for index, part in enumerate(parts):
        for server, source in _seen(part.data):
            key = index, server
            first[key] = min(first.get(key, position[source]), position[source])
    ordered = sorted(first, key=lambda key: (first[key], key[1]))
    return {key: number for number, key in enumerate(ordered)}


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


def _renumbered(frame: pl.DataFrame, servers: dict[int, int], shifts: dict[str, int]) -> pl.DataFrame:
    shift = pl.col("source").replace_strict(shifts, return_dtype=pl.Int64)
    return frame.with_columns(
        (pl.col("order") + shift).cast(frame.schema["order"]),
        pl.col("server").replace_strict(servers, return_dtype=frame.schema["server"]),
    )


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
