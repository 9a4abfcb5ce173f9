"""Frames that grow from run to run: `read_with_state` gives what one run over everything would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from logscope.finding import Evidence
from logscope.fleets.coverage import add_coverage
from logscope.incremental.memory import Entry, Memory, locked
from logscope.incremental.reading import SETTLED, News, read_news
from logscope.log_frames import EVIDENCE_FAMILIES, LogFrames
from logscope.log_span import within_span
from logscope.times import Span
from logscope.whole_files import whole_file
from parsers.events import Coverage, Event
from parsers.frames import FrameBuilder
from parsers.reader import MAX_SAMPLES, Keep

__all__ = ["read_with_state"]

MAX_SEGMENTS = 12
TEXTS, EXCEPTIONS, TAIL = "_texts", "_exceptions", "tail"
_TEXT_COLUMNS = {"source": pl.String, "line": pl.Int64, "text": pl.String}
_EXCEPTION_COLUMNS = {
    "order": pl.Int64,
    "server": pl.Int32,
    "run": pl.Int32,
    **_TEXT_COLUMNS,
}

Frames = dict[str, pl.DataFrame]


@dataclass(slots=True)
class _Collected:
    """Events of a run as frames, with the lines that may serve as evidence."""

    builder: FrameBuilder = field(default_factory=FrameBuilder)
    texts: list[tuple[str, int, str]] = field(default_factory=list)
    exceptions: list[tuple[int, int, int, str, int, str]] = field(default_factory=list)

    def frames(self) -> Frames:
        found = self.builder.frames()
        if self.texts:
            found[TEXTS] = pl.DataFrame(self.texts, schema=_TEXT_COLUMNS, orient="row")
        if self.exceptions:
            found[EXCEPTIONS] = pl.DataFrame(
                self.exceptions, schema=_EXCEPTION_COLUMNS, orient="row"
            )
        return found


class _Collector:
    """Takes events: those that are settled, and for each file those of its end."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.settled = _Collected()
        self.tails: dict[int, _Collected] = {}
        self.order = memory.order
        self.last: dict[tuple[int, str], int] = {(s, name): us for s, name, us in memory.last}
        for (server, name), last_us in self.last.items():
            self.settled.builder.number(0, server, name, last_us)

    def take(self, event: Event, entry: Entry, settled: bool) -> None:
        into = self.settled if settled else self._tail(event, entry)
        order, self.order = self.order, self.order + 1
        if event.family == "exception":
            into.exceptions.append(
                (order, event.server, event.run, event.source, event.line, event.text)
            )
            return
        builder = into.builder
        builder.number(order - builder.number(0, -1, "", None), -1, "", None)
        builder.add(event)
        if settled:
            last_us = builder.last_us(event.server, event.source)
            if last_us is not None:
                self.last[event.server, event.source] = last_us
        if event.family in EVIDENCE_FAMILIES and event.text:
            into.texts.append((event.source, event.line, event.text))

    def _tail(self, event: Event, entry: Entry) -> _Collected:
        found = self.tails.get(entry.id)
        if found is None:
            found = self.tails[entry.id] = _Collected()
        builder = found.builder
        key = event.server, event.source
        if builder.last_us(*key) is None and key in self.last:
            builder.number(0, *key, self.last[key])
        return found

    def end(self) -> None:
        """Tell the memory how far it went."""
        self.memory.order = self.order
        self.memory.last = [[server, name, us] for (server, name), us in self.last.items()]


def read_with_state(
    folder: Path, sources: Sequence[Any], span: Span, *, year: int | None = None
) -> LogFrames:
    """Read what is new since the last run with this `folder`, and give the frames of everything that was read so far.

    Raises StateError for a folder that cannot be used and for sources that cannot be read on.
    """
    with locked(folder):
        memory = Memory.load(folder, {"year": year})
        collector = _Collector(memory)
        news = News()
        keep = Keep(exceptions=True)
        for event, entry, standing in read_news(sources, memory, news, year=year, keep=keep):
            collector.take(event, entry, standing == SETTLED)
        collector.end()
        memory.runs += 1
        settled = collector.settled.frames()
        kept = _kept_tails(folder, memory, {e.id for e in news.present})
        tails = [c.frames() for c in collector.tails.values()]
        tail = _joined([kept, *tails])
        _write(folder, memory, settled, tail)
        frames = _joined(_segments(folder, memory.segments))
    return within_span(_as_one_run(frames, memory, news), span)


def _kept_tails(folder: Path, memory: Memory, present: set[int]) -> Frames:
    """What stood at the end of files that are gone."""
    gone = [str(e.id) for e in memory.entries if e.id not in present]
    old = _joined(_segments(folder, [s for s in memory.segments if s.startswith(f"{TAIL}.")]))
    memory.segments = [s for s in memory.segments if not s.startswith(f"{TAIL}.")]
    kept = {name: f.filter(pl.col("source").is_in(gone)) for name, f in old.items()}
    return {name: frame for name, frame in kept.items() if frame.height}


def _write(folder: Path, memory: Memory, settled: Frames, tail: Frames) -> None:
    """The frames first, then what says that they count, then away with what counts no more."""
    parts = [s for s in memory.segments if not s.startswith(f"{TAIL}.")]
    runs = {s.split(".")[0] for s in parts}
    if len(runs) >= MAX_SEGMENTS:
        settled = _joined([*_segments(folder, parts), settled])
        parts = []
    parts += _written(folder, f"{memory.runs:08}", settled)
    memory.segments = parts + _written(folder, f"{TAIL}.{memory.runs:08}", tail)
    memory.save(folder)
    for path in folder.glob("*.parquet"):
        if path.name not in memory.segments:
            path.unlink(missing_ok=True)


def _written(folder: Path, stem: str, frames: Frames) -> list[str]:
    names = []
    for family, frame in frames.items():
        name = f"{stem}.{family}.parquet"
        with whole_file(folder / name) as part:
            frame.write_parquet(part)
        names.append(name)
    return names


def _segments(folder: Path, names: Sequence[str]) -> list[Frames]:
    return [{name.split(".")[-2]: pl.read_parquet(folder / name)} for name in names]


def _joined(parts: Sequence[Mapping[str, pl.DataFrame]]) -> Frames:
    found: dict[str, list[pl.DataFrame]] = {}
    for part in parts:
        for family, frame in part.items():
            found.setdefault(family, []).append(frame)
    return {
        f: p[0] if len(p) == 1 else pl.concat(p, how="diagonal_relaxed") for f, p in found.items()
    }


def _as_one_run(frames: Frames, memory: Memory, news: News) -> LogFrames:
    """Names, servers and order as one run over the files gives them."""
    entries = _reading_order(memory, news)
    position = {str(entry.id): index for index, entry in enumerate(entries)}
    names = {str(entry.id): entry.name for entry in entries}
    texts = frames.pop(TEXTS, pl.DataFrame(schema=_TEXT_COLUMNS))
    exceptions = frames.pop(EXCEPTIONS, pl.DataFrame(schema=_EXCEPTION_COLUMNS))
    servers = _server_numbers([*frames.values(), exceptions], position)
    found = LogFrames({}, _coverage(entries, news))
    for source, line, text in texts.iter_rows():
        found.texts[names[source], line] = text
    rows = sorted(exceptions.iter_rows(), key=lambda r: (position[r[3]], r[0]))
    for _, server, run, source, line, text in rows:
        place = found.exceptions.setdefault((servers[server], run), [])
        place.append(Evidence(names[source], line, text))
    found.frames = _ordered(frames, position, names, servers)
    return found


def _reading_order(memory: Memory, news: News) -> list[Entry]:
    """The files in the order of the input; those that are gone before the others of their set."""
    present = list(news.present)
    here = {entry.id for entry in present}
    gone = [e for e in memory.entries if e.id not in here and e.settled.lines + e.tail.lines]
    for entry in sorted(gone, key=lambda e: e.id, reverse=True):
        places = [i for i, e in enumerate(present) if e.stream == entry.stream]
        present.insert(places[0] if places else 0, entry)
    return present


def _server_numbers(frames: Sequence[pl.DataFrame], position: Mapping[str, int]) -> dict[int, int]:
    first: dict[int, tuple[int, int]] = {}
    for frame in frames:
        seen = frame.group_by("server", "source").agg(pl.col("order").min())
        for server, source, order in seen.iter_rows():
            place = position[source], order
            first[server] = min(first.get(server, place), place)
    return {server: n for n, server in enumerate(sorted(first, key=lambda s: first[s]))}


def _ordered(
    frames: Frames,
    position: Mapping[str, int],
    names: Mapping[str, str],
    servers: Mapping[int, int],
) -> Frames:
    if not frames:
        return {}
    keys = pl.concat([f.select("source", "order") for f in frames.values()])
    place = pl.col("source").replace_strict(position, return_dtype=pl.Int64)
    ranked = (
        keys.with_columns(place.alias("place")).sort("place", "order").select("source", "order")
    ).with_columns(pl.int_range(pl.len()).alias("rank"))
    out = {}
    for family, frame in frames.items():
        out[family] = (
            frame.join(ranked, on=["source", "order"], how="left")
            .with_columns(
                pl.col("rank").cast(frame.schema["order"]).alias("order"),
                pl.col("source").replace_strict(names, return_dtype=pl.String),
                pl.col("server").replace_strict(servers, return_dtype=frame.schema["server"]),
            )
            .drop("rank")
            .sort("order")
        )
    return dict(sorted(out.items(), key=lambda item: int(item[1]["order"][0])))


def _coverage(entries: Sequence[Entry], news: News) -> Coverage:
    whole = Coverage()
    for entry in entries:
        for part in (entry.settled, entry.tail):
            add_coverage(whole, part)
        whole.bytes += entry.bytes
        whole.sources.append(entry.name)
    names = {str(entry.id): entry.name for entry in entries}
    whole.warning_samples = [
        {**sample, "source": names[sample["source"]]} for sample in whole.warning_samples
    ][:MAX_SAMPLES]
    whole.skipped_sources = list(news.problems)
    whole.partly = bool(news.problems)
    return whole
