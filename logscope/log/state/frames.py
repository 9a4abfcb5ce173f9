"""Frames that grow from run to run: `read_with_state` gives what one run over everything would give.

Large families of a state folder: their representative rows are taken out of the segments, without being in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from logscope.atomic_files import whole_file
from logscope.evidence.finding import Evidence
from logscope.log import kept_rows
from logscope.log.frames import EVIDENCE_FAMILIES, LogFrames, within_span
from logscope.log.kept_rows import LARGE_FAMILIES, RepresentativeRows
from logscope.log.parquet import RowGroups
from logscope.log.span import Reading, Wanted
from logscope.log.state.read_new import SETTLED, FilesRead, read_new
from logscope.log.state.read_state import Entry, ReadState, locked
from logscope.log.stored_rows import FrameFiles, Numbers, StoredRows, as_met
from parsers.reading.by_line import MAX_SAMPLES, Keep
from parsers.reading.events import Coverage, Event, add_coverage
from parsers.reading.frames import CompactFrame, FrameBuilder
from parsers.reading.in_bulk.reader import Bulk

__all__ = ["Place", "large_families", "places_in", "places_of", "read_with_state", "representative_frames"]
_ROWS_AT_ONCE = 50_000

Place = tuple[int, str, int]
"""A server, a source in which it speaks, and the first `order` there."""


def large_families(folder: Path, segments: Sequence[str]) -> dict[str, list[Path]]:
    """The families whose segments together have too many rows for the memory, with those segments."""
    found: dict[str, list[Path]] = {}
    for name in segments:
        family = name.split(".")[-2]
        if family in LARGE_FAMILIES:
            found.setdefault(family, []).append(folder / name)
    return {f: files for f, files in found.items() if sum(map(_rows, files)) >= kept_rows.LARGE}


def places_in(rows: pl.LazyFrame) -> list[Place]:
    """Who speaks where, and from when on."""
    by = rows.group_by("server", "source").agg(pl.col("order").min())
    return list(by.collect(engine="streaming").iter_rows())


def places_of(large: Mapping[str, Sequence[Path]]) -> Iterator[Place]:
    """`places_in` of all segments."""
    for files in large.values():
        for file in files:
            yield from places_in(pl.scan_parquet(file))


def representative_frames(
    large: Mapping[str, Sequence[Path]], numbers: Numbers, stats: pl.DataFrame | None
) -> dict[str, pl.DataFrame]:
    """The rows that stand for all, by family (see `logscope.log.kept_rows`)."""
    orders = np.empty(0, np.int64) if stats is None else stats["order"].to_numpy()
    found = {}
    for family, files in large.items():
        kept = RepresentativeRows(family)
        for file in files:
            rows = numbers.of(pl.scan_parquet(file))
            for at in range(0, _rows(file), _ROWS_AT_ONCE):
                kept.take(rows.slice(at, _ROWS_AT_ONCE).collect(), orders)
        found[family] = kept.frame()
    return found


def _rows(file: Path) -> int:
    return int(pl.scan_parquet(file).select(pl.len()).collect().item())


MAX_SEGMENTS = 12
_ROWS = 50_000
_TEXTS_A_FRAME = 10_000
TEXTS, EXCEPTIONS, TAIL = "_texts", "_exceptions", "tail"
_TEXT_COLUMNS = {"source": pl.String, "line": pl.Int64, "text": pl.String}
_EXCEPTION_COLUMNS = {"order": pl.Int64, "server": pl.Int32, "run": pl.Int32, **_TEXT_COLUMNS}

Frames = dict[str, pl.DataFrame]


class _Collected:
    """Events of a run as frames, with the lines that may serve as evidence."""

    def __init__(self, builder: FrameBuilder) -> None:
        self.builder = builder
        self._texts: list[tuple[str, int, str]] = []
        self._exceptions: list[tuple[int, int, int, str, int, str]] = []
        self._done: list[pl.DataFrame] = []

    def add(self, event: Event) -> None:
        """Take an event, which the builder numbers."""
        if event.family == "exception":
            order = self.builder.order
            self.builder.go_on_from(order + 1)
            self._exceptions.append((order, event.server, event.run, event.source, event.line, event.text))
            return
        self.builder.add(event)
        if event.family in EVIDENCE_FAMILIES and event.text:
            self.add_text(event.source, event.line, event.text)

    def add_text(self, source: str, line: int, text: str) -> None:
        """Take a line that may serve as evidence."""
        self._texts.append((source, line, text))
        if len(self._texts) >= _TEXTS_A_FRAME:
            self._done.append(self._text_frame())

    def lines(self) -> Frames:
        """The lines that may serve as evidence, and the ends of tracebacks."""
        found: Frames = {}
        if self._texts or self._done:
            found[TEXTS] = pl.concat([*self._done, self._text_frame()])
        if self._exceptions:
            found[EXCEPTIONS] = pl.DataFrame(self._exceptions, schema=_EXCEPTION_COLUMNS, orient="row")
        return found

    def _text_frame(self) -> pl.DataFrame:
        frame = pl.DataFrame(self._texts, schema=_TEXT_COLUMNS, orient="row")
        self._texts = []
        return frame


class _Collector:
    """Takes events: those that are settled, and for each file those of its end."""

    def __init__(self, state: ReadState, settled: FrameBuilder) -> None:
        self.state = state
        self.settled = _Collected(settled)
        self.tails: dict[int, _Collected] = {}
        settled.go_on_from(state.order)
        for server, name, last_us in state.last:
            settled.set_last(server, name, last_us)

    def take(self, event: Event, entry: Entry, settled: bool) -> None:
        if settled:
            self.settled.add(event)
            return
        builder, tail = self.settled.builder, self._tail(event, entry)
        tail.builder.go_on_from(builder.order)
        tail.add(event)
        builder.go_on_from(tail.builder.order)

    def _tail(self, event: Event, entry: Entry) -> _Collected:
        found = self.tails.get(entry.id)
        if found is None:
            found = self.tails[entry.id] = _Collected(FrameBuilder())
        key = event.server, event.source
        last_us = self.settled.builder.last_us(*key)
        if found.builder.last_us(*key) is None and last_us is not None:
            found.builder.set_last(*key, last_us)
        return found

    def end(self) -> None:
        """Note in the state how far it went."""
        builder = self.settled.builder
        self.state.order = builder.order
        self.state.last = [[server, name, us] for (server, name), us in builder.last_times().items()]


def read_with_state(folder: Path, sources: Sequence[Any], reading: Reading) -> LogFrames:
    """Read what is new since the last run with this `folder`, and give the frames of everything that was read so far.

    Large families are thinned, as by `logscope.log.frames.read_log`, where the span is open. Raises StateError for a folder that cannot be used and for sources that cannot be read on.
    """
    with locked(folder):
        state = ReadState.load(folder, {"year": reading.year})
        state.runs += 1
        with closing(FrameFiles(folder, f"{state.runs:08}.")) as files:
            collector = _Collector(state, files)
            files_read = FilesRead()
            keep = Keep(exceptions=True)
            bulk = Bulk(collector.settled.builder, collector.settled.add, collector.settled.add_text)
            for event, entry, standing in read_new(
                sources, state, files_read, year=reading.year, keep=keep, in_bulk=bulk
            ):
                collector.take(event, entry, standing == SETTLED)
            collector.end()
            written = files.finish()
        kept = _kept_tails(folder, state, {e.id for e in files_read.present})
        tails = [{**c.builder.frames(), **c.lines()} for c in collector.tails.values()]
        _write(folder, state, written, collector.settled.lines(), _joined([kept, *tails]))
        large = large_families(folder, state.segments) if reading.span.is_open else {}
        small = [name for name in state.segments if name.split(".")[-2] not in large]
        frames = _joined(_segments(folder, small))
        if large:
            return _of_large(frames, large, state, files_read, reading.wanted)
    return within_span(_as_one_run(frames, state, files_read), reading.span)


def _kept_tails(folder: Path, state: ReadState, present: set[int]) -> Frames:
    """What stood at the end of files that are gone."""
    gone = [str(e.id) for e in state.entries if e.id not in present]
    old = _joined(_segments(folder, [s for s in state.segments if s.startswith(f"{TAIL}.")]))
    state.segments = [s for s in state.segments if not s.startswith(f"{TAIL}.")]
    kept = {name: f.filter(pl.col("source").is_in(gone)) for name, f in old.items()}
    return {name: frame for name, frame in kept.items() if frame.height}


def _write(folder: Path, state: ReadState, written: Sequence[str], lines: Frames, tail: Frames) -> None:
    """The frames first (those `written` already), then what says that they count, then away with what counts no more."""
    parts = [s for s in state.segments if not s.startswith(f"{TAIL}.")]
    runs = {s.split(".")[0] for s in parts}
    parts += [*written, *_written(folder, f"{state.runs:08}", lines)]
    if len(runs) >= MAX_SEGMENTS:
        parts = _together(folder, f"{state.runs:08}a", parts)
    state.segments = parts + _written(folder, f"{TAIL}.{state.runs:08}", tail)
    state.save(folder)
    for path in folder.glob("*.parquet"):
        if path.name not in state.segments:
            path.unlink(missing_ok=True)


def _together(folder: Path, stem: str, parts: Sequence[str]) -> list[str]:
    """Many segments as one for each family."""
    families: dict[str, list[str]] = {}
    for name in parts:
        families.setdefault(name.split(".")[-2], []).append(name)
    found = []
    for family, names in families.items():
        name = f"{stem}.{family}.parquet"
        with whole_file(folder / name) as place:
            scans = [pl.scan_parquet(folder / part) for part in names]
            file = RowGroups(place, scans[0].collect_schema())
            for scan in scans:
                height = scan.select(pl.len()).collect().item()
                for at in range(0, height, _ROWS):
                    file.append(CompactFrame(scan.slice(at, _ROWS).collect()))
            file.close()
        found.append(name)
    return found


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
    return {f: p[0] if len(p) == 1 else pl.concat(p, how="diagonal_relaxed") for f, p in found.items()}


def _as_one_run(frames: Frames, state: ReadState, files_read: FilesRead) -> LogFrames:
    """Names, servers and order as one run over the files gives them."""
    entries = _reading_order(state, files_read)
    position = {str(entry.id): index for index, entry in enumerate(entries)}
    names = {str(entry.id): entry.name for entry in entries}
    texts, exceptions = _lines_of(frames)
    places = _places([*frames.values(), exceptions])
    servers = as_met((server, (position[source], order)) for server, source, order in places)
    found = LogFrames({}, _coverage(entries, files_read))
    _add_lines(found, texts, exceptions, position, names, servers)
    found.frames = _ordered(frames, position, names, servers)
    return found


def _of_large(
    frames: Frames, large: Mapping[str, Sequence[Path]], state: ReadState, files_read: FilesRead, wanted: Wanted | None
) -> LogFrames:
    """`_as_one_run` where some families are only on the disk: events keep the order that it gives, but are not numbered through."""
    entries = _reading_order(state, files_read)
    position = {str(entry.id): index for index, entry in enumerate(entries)}
    names = {str(entry.id): entry.name for entry in entries}
    texts, exceptions = _lines_of(frames)
    places = [*_places([*frames.values(), exceptions]), *places_of(large)]
    servers = as_met((server, (position[source], order)) for server, source, order in places)
    shifts = {source: place * (state.order + 1) for source, place in position.items()}
    numbers = Numbers(servers, shifts, names)
    found = LogFrames({}, _coverage(entries, files_read))
    _add_lines(found, texts, exceptions, position, names, servers)
    small = {f: numbers.of(frame.lazy()).collect().sort("order") for f, frame in frames.items()}
    found.frames = {**small, **representative_frames(large, numbers, small.get("stats"))}
    found.frames = dict(sorted(found.frames.items(), key=lambda f: int(f[1]["order"][0])))
    if wanted != "findings":
        found.stored = {f: StoredRows.of_files(f, files, numbers) for f, files in large.items()}
    return found


def _lines_of(frames: Frames) -> tuple[pl.DataFrame, pl.DataFrame]:
    texts = frames.pop(TEXTS, pl.DataFrame(schema=_TEXT_COLUMNS))
    return texts, frames.pop(EXCEPTIONS, pl.DataFrame(schema=_EXCEPTION_COLUMNS))


def _add_lines(
    found: LogFrames,
    texts: pl.DataFrame,
    exceptions: pl.DataFrame,
    position: Mapping[str, int],
    names: Mapping[str, str],
    servers: Mapping[int, int],
) -> None:
    for source, line, text in texts.iter_rows():
        found.texts[names[source], line] = text
    rows = sorted(exceptions.iter_rows(), key=lambda r: (position[r[3]], r[0]))
    for _, server, run, source, line, text in rows:
        place = found.exceptions.setdefault((servers[server], run), [])
        place.append(Evidence(names[source], line, text))


def _reading_order(state: ReadState, files_read: FilesRead) -> list[Entry]:
    """The files in the order of the input; those that are gone before the others of their set."""
    present = list(files_read.present)
    here = {entry.id for entry in present}
    gone = [e for e in state.entries if e.id not in here and e.settled.lines + e.tail.lines]
    for entry in sorted(gone, key=lambda e: e.id, reverse=True):
        places = [i for i, e in enumerate(present) if e.stream == entry.stream]
        present.insert(places[0] if places else 0, entry)
    return present


def _places(frames: Sequence[pl.DataFrame]) -> list[Place]:
    return [row for frame in frames for row in places_in(frame.lazy())]


def _ordered(
    frames: Frames, position: Mapping[str, int], names: Mapping[str, str], servers: Mapping[int, int]
) -> Frames:
    if not frames:
        return {}
    keys = pl.concat([f.select("source", "order") for f in frames.values()])
    place = pl.col("source").replace_strict(position, return_dtype=pl.Int64)
    ranked = (keys.with_columns(place.alias("place")).sort("place", "order").select("source", "order")).with_columns(
        pl.int_range(pl.len()).alias("rank")
    )
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


def _coverage(entries: Sequence[Entry], files_read: FilesRead) -> Coverage:
    whole = Coverage()
    for entry in entries:
        for part in (entry.settled, entry.tail):
            add_coverage(whole, part)
        whole.bytes += entry.bytes
        whole.sources.append(entry.name)
    names = {str(entry.id): entry.name for entry in entries}
    whole.warning_samples = [{**sample, "source": names[sample["source"]]} for sample in whole.warning_samples][
        :MAX_SAMPLES
    ]
    whole.skipped_sources = list(files_read.problems)
    whole.partly = bool(files_read.problems)
    return whole
