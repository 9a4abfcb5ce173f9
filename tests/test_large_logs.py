"""A log is told the same way whether its requests, access lines and steps are all in memory, or only a few stand for them."""

from __future__ import annotations

import gzip
import os
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from logscope.analysis import analyze
from logscope.atomic_files import temporary_file
from logscope.commands.cli import cli
from logscope.diagnosis import long_logs
from logscope.evidence.finding import Evidence
from logscope.execution.executors import Serial
from logscope.execution.fleet import read_fleet
from logscope.inference.result import Effort, PreemptionCount
from logscope.log import frames as span_reading
from logscope.log import kept_rows
from logscope.log.frames import SETUP_FAMILIES, LogFrames, read_log
from logscope.log.kept_rows import LARGE_FAMILIES
from logscope.log.span import Moment, Reading, Span
from logscope.log.state.frames import read_with_state
from logscope.log.stored_rows import columns_kept
from logscope.output.json import analysis_document
from parsers.reading import frames
from parsers.reading.by_line import Keep, read_events
from parsers.reading.events import Coverage
from parsers.reading.frames import FrameBuilder, frames_of
from parsers.reading.in_bulk import reader as reading
from parsers.sources.source import Source, expand
from tests.logs import access, stats_v1, v1_start

SAMPLES = Path(__file__).parents[1] / "samples"
STEP = "(EngineCore pid=2) INFO 05-09 00:{:02}:{:02} [core.py:412] Iteration({}): 1 context requests, 8 context tokens, 6 generation requests, 6 generation tokens, iteration elapsed time: 34.12 ms"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large, and comes in small blocks."""
    _make_small(monkeypatch)


def _make_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept_rows, "LARGE", 30)
    patch.setattr(kept_rows, "STEP", 60)
    patch.setattr(frames, "CHUNK", 3)
    patch.setattr(reading, "BLOCK", 1)
    whole = Source.blocks

    def blocks(source: Source) -> Iterator[bytes]:
        for block in whole(source):
            yield from (block[at : at + 12000] for at in range(0, len(block), 12000))

    patch.setattr(Source, "blocks", blocks)


def _plain(path: Path, folder: Path) -> Path:
    data = path.read_bytes()
    log = folder / path.name.removesuffix(".gz")
    log.write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)
    return log


def _document(log: Path, *, wanted: Any, replay: bool = False) -> dict[str, Any]:
    data = read_log(expand([str(log)]), Span(), year=2026, wanted=wanted)
    return analysis_document(analyze(data, replay=replay))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *((p.name, "findings") for p in sorted(SAMPLES.glob("*.log*"))),
        ("v1-calm.log", "replay"),
        ("v1-calm.log", "frames"),
    ],
)
def test_findings_are_the_same(name: str, wanted: str, tmp_path: Path, small: None) -> None:
    log = _plain(SAMPLES / name, tmp_path)
    data = read_log(expand([str(log)]), Span(), year=2026, wanted=wanted)
    expected = set() if wanted == "findings" or "failed" in name else {"request", "http"}
    assert set(data.stored) == expected
    assert analysis_document(analyze(data, replay=False)) == _document(log, wanted=None)


def test_a_replay_reads_its_rows_back(tmp_path: Path, small: None) -> None:
    log = _plain(SAMPLES / "v1-calm.log", tmp_path)
    assert _document(log, wanted="replay", replay=True) == _document(log, wanted=None, replay=True)


def test_all_rows_are_written_where_frames_are_asked_for(tmp_path: Path, small: None) -> None:
    log = _plain(SAMPLES / "v1-calm.log", tmp_path)
    out = tmp_path / "frames"
    options = ["--no-replay", "--year", "2026", "--frames", str(out)]
    assert CliRunner().invoke(cli, ["analyze", str(log), *options]).exit_code == 0
    for family, frame in frames_of(read_events(expand([str(log)]), Coverage(), year=2026)).items():
        assert_frame_equal(pl.read_parquet(out / f"{family}.parquet"), frame)


def test_what_was_stored_travels_to_another_process_and_goes_with_its_holder(tmp_path: Path, small: None) -> None:
    log = _plain(SAMPLES / "v1-calm.log", tmp_path)
    data = read_log(expand([str(log)]), Span(), year=2026)
    rows = data.stored["request"]
    sent = pickle.loads(pickle.dumps(rows))
    assert_frame_equal(sent.scan().collect(), rows.scan().collect())
    path = sent.parts[0].file.path
    assert path.exists()
    del sent
    assert not path.exists()


def test_what_a_killed_run_left_among_the_temporary_files_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = ("logscope-4194304-old.rows", "logscope-4194304-new.rows", f"logscope-{os.getpid()}-x")
    for name in (*names, "other-4194304-x"):
        (tmp_path / name).write_text("")
        if name != names[1]:
            os.utime(tmp_path / name, (0, 0))
    folder = tmp_path / "logscope-4194304-folder"
    folder.mkdir()
    (folder / "request.parquet").write_text("")
    os.utime(folder, (0, 0))
    made = temporary_file(".rows")
    assert {p.name for p in tmp_path.iterdir()} == {*names[1:], "other-4194304-x", made.name}


LINES = [
    access("/v1/completions", "POST"),
    access("/health"),
    access("/metrics"),
    access("/v1/embeddings", "POST"),
    "(APIServer pid=1) INFO 05-09 00:50:10 [async_llm.py:420] Added request cmpl-a-0.",
    "(APIServer pid=1) INFO 05-09 00:49:10 [async_llm.py:420] Added request cmpl-a-1.",
    "(APIServer pid=1) INFO 05-09 00:50:00 [request_logger.py:65] Received request cmpl-b: params: BeamSearchParams(beam_width=2, max_tokens=3), lora_request: None.",
    "(APIServer pid=1) INFO 05-09 00:50:00 [request_logger.py:65] Received request cmpl-c: params: SamplingParams(n=3, max_tokens=3), lora_request: None.",
    *(STEP.format(50, i, i) for i in (3, 7)),
    *(stats_v1(10.0 * i, 4, 3 * (i % 2), 99.0) for i in range(1, 6)),
    "(APIServer pid=1) INFO 05-09 00:51:00 [api_server.py:1] vLLM API server version 0.10.2",
]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=st.lists(st.tuples(st.sampled_from(LINES), st.integers(1, 60)), min_size=1, max_size=6))
def test_any_mixture_is_told_the_same(
    parts: Sequence[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("any") / "server.log"
    lines = [line for line, many in parts for _ in range(many)]
    log.write_text("\n".join([*v1_start(), *lines]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        _make_small(patch)
        assert _document(log, wanted="findings") == _document(log, wanted=None)


@pytest.mark.parametrize("wanted", ["findings", "replay"])
def test_runs_with_a_state_are_told_the_same(tmp_path: Path, wanted: Any, small: None) -> None:
    log, log_b = tmp_path / "a.log", tmp_path / "b.log"
    lines = [*v1_start(), *(line for line in LINES[:-1] for _ in range(20))]
    for stop in (90, 150, len(lines)):
        log.write_text("\n".join(lines[:stop]) + "\n")
        log_b.write_text("\n".join(lines[: stop // 2]) + "\n")
        sources = expand([str(log_b), str(log)])
        found = read_with_state(tmp_path / "state", sources, Reading(year=2026, wanted=wanted))
    assert set(found.stored) == (set(LARGE_FAMILIES) if wanted == "replay" else set())
    whole = read_log(sources, Span(), year=2026, wanted=None)
    assert analysis_document(analyze(found, replay=False)) == analysis_document(analyze(whole, replay=False))
    for family, stored in found.stored.items():
        rows = stored.frame(stored.scan()).drop("order")
        assert_frame_equal(rows, whole.frames[family].drop("order"))


def test_servers_read_side_by_side_are_told_the_same(tmp_path: Path, small: None) -> None:
    samples = ("v1-calm.log", "v1-under-pressure.log")
    names = [str(_plain(SAMPLES / name, tmp_path)) for name in samples]
    found = read_fleet(expand(names), Reading(year=2026), Serial())
    whole = read_log(expand(names), Span(), year=2026, wanted=None)
    assert analysis_document(analyze(found, replay=False)) == analysis_document(analyze(whole, replay=False))
    rows = found.stored["request"]
    kept = list(columns_kept("request"))
    assert_frame_equal(rows.frame(rows.scan()).select(kept), whole.frames["request"].select(kept))
    for server in (0, 1):
        own = rows.of_server(server)
        assert len(own.parts) == 1
        assert own.scan().select("server").collect()["server"].unique().to_list() == [server]


def test_probes_behind_the_last_statistics_line_are_counted(tmp_path: Path, small: None) -> None:
    lines = [stats_v1(10.0 * i, 1, 1, 99.0) for i in range(1, 7)]
    lines = [line for stats in lines for line in (*[access()] * 5, stats)]
    log = tmp_path / "server.log"
    log.write_text("\n".join([*v1_start(), *lines, *[access()] * 60]) + "\n")
    found = _document(log, wanted="findings")
    assert found["verdict"] == "engine-stall"
    assert any("answered 60 health probes" in f["title"] for f in found["findings"])


def test_few_rows_stand_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "LARGE", 500)
    monkeypatch.setattr(kept_rows, "STEP", 200)
    monkeypatch.setattr(reading, "BLOCK", 1 << 12)
    log = tmp_path / "server.log"
    events = (LINES[0], LINES[2], LINES[4], LINES[8], LINES[4])
    log.write_text("\n".join([*v1_start(), *events * 4000]) + "\n")
    data = read_log(expand([str(log)]), Span(), wanted="findings")
    assert all(data.frames[family].height < 50 for family in LARGE_FAMILIES)


def _long(turns: int, *, steps: bool = False) -> list[str]:
    """A calm log with one busy quarter in the middle."""
    lines = []
    for i in range(turns):
        busy = turns // 2 <= i < 3 * turns // 4
        at = 10.0 * i
        stamp = stats_v1(at, 1, 0, 1.0).split("[")[0]
        for k in range(4):
            name = f"cmpl-{i}-{k}"
            lines.append(
                f"{stamp}[request_logger.py:65] Received request {name}: params: SamplingParams(n=1, ignore_eos=True, max_tokens=20), lora_request: None."
            )
        if steps:
            minute, second = divmod(int(at) % 3600, 60)
            lines.append(STEP.format(minute, second, i + 1))
        lines.append(stats_v1(at, 4, 5 if busy else 0, 99.0 if busy else 10.0))
    return lines


@pytest.mark.parametrize("stored", [True, False])
def test_the_worst_span_of_a_long_log_is_cut_out(tmp_path: Path, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MANY_ARRIVALS", 500), ("_ARRIVALS", 100), ("_MARGIN", 3)):
        monkeypatch.setattr(long_logs, name, value)
    if stored:
        _make_small(monkeypatch)
    log = tmp_path / "server.log"
    log.write_text("\n".join([*v1_start(), *_long(200)]) + "\n")
    data = read_log(expand([str(log)]), Span(), year=2026)
    found = analyze(data, replay=False)
    portion = long_logs.worst_portion(found.engines[0].log, data.stored)
    requests, stats = portion.log.frames["request"], portion.log.frames["stats"]
    assert portion.requests == 800
    assert 100 <= requests.height <= 140
    assert stats.filter(pl.col("waiting") > 0).height >= 25
    assert portion.share == pytest.approx(stats.filter(pl.col("waiting") > 0).height / 50)
    whole = frames_of(read_events(expand([str(log)]), Coverage(), year=2026, keep=Keep()))
    inside = whole["request"].filter(pl.col("order").is_in(requests["order"].implode()))
    kept = ["order", "request_id", "max_tokens", "ignore_eos", "at"]
    assert_frame_equal(requests.select(kept), inside.select(kept))


def test_a_log_that_is_not_long_is_left_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join([*v1_start(), *_long(50)]) + "\n")
    data = read_log(expand([str(log)]), Span(), year=2026)
    engine = analyze(data, replay=False).engines[0].log
    assert long_logs.worst_portion(engine, data.stored).log is engine


def test_a_long_log_says_which_span_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MANY_ARRIVALS", 500), ("_ARRIVALS", 60), ("_MARGIN", 3)):
        monkeypatch.setattr(long_logs, name, value)
    log = tmp_path / "server.log"
    log.write_text("\n".join([*v1_start(), *_long(200)]) + "\n")
    data = read_log(expand([str(log)]), Span(), year=2026)
    log_of_engine = analyze(data, replay=False).engines[0].log
    answer, (said,), _ = long_logs.replay_worst(log_of_engine, data.stored, 200, Effort())
    assert answer is not None
    assert answer.requests == 800
    assert said.id == "coverage"
    assert "worst span, 2026-05-09 01:" in said.title


def test_counts_of_a_span_are_extrapolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join([*v1_start(), *_long(50)]) + "\n")
    data = read_log(expand([str(log)]), Span(), year=2026)
    found = analyze(data, with_advice=False).engines[0]
    assert found.answer is not None
    answer = replace(found.answer, preemptions=PreemptionCount(8.0, 10.0, 12.0, 30))
    whole = long_logs.extrapolated(answer, long_logs.Portion(found.log, 0.5, 900))
    low, value, high = whole.preemptions.bounds
    assert value == 20.0
    assert low < 16.0 < 24.0 < high
    assert whole.preemptions.recomputed_tokens == 60
    assert whole.requests == 900
    assert long_logs.extrapolated(answer, long_logs.Portion(found.log)) is answer


def _one_by_one(sources: Sequence[Source], span: Span) -> LogFrames:
    """What a span holds, event by event."""
    events = list(read_events(sources, Coverage(), year=2026, keep=Keep(exceptions=True)))
    clocks = [span.clock(e.time, e.outer_us) for e in events]
    end = max((c for c in clocks if c is not None), default=None)
    found, builder, last = LogFrames({}, Coverage()), FrameBuilder(), None
    for event, clock in zip(events, clocks, strict=True):
        last = clock or last
        if event.family not in SETUP_FAMILIES and not span.holds(last, end):
            continue
        if event.family == "exception":
            place = found.exceptions.setdefault((event.server, event.run), [])
            place.append(Evidence(event.source, event.line, event.text))
        else:
            builder.add(event)
    found.frames = builder.frames()
    return found


@pytest.mark.parametrize("events", [7, 1000])
@pytest.mark.parametrize(
    "span",
    [
        Span(Moment(datetime(2026, 5, 9, 0, 50, 30))),
        Span(None, Moment(datetime(2026, 5, 9, 0, 50, 30))),
        Span(Moment(before_end_s=40), Moment(before_end_s=10)),
        Span(Moment(datetime(2030, 1, 1))),
        Span(Moment(datetime(2026, 5, 9, 2, 50, 20)), zone="Europe/Berlin"),
        Span(Moment(before_end_s=30), zone="+02:00"),
    ],
    ids=str,
)
@pytest.mark.parametrize("outer", [False, True])
def test_a_span_is_read_in_bulk(
    tmp_path: Path, span: Span, events: int, outer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_reading, "_EVENTS", events)
    lines = [access(), *v1_start(), access()]
    for i in range(60):
        lines += [
            f"(APIServer pid=1) INFO 05-09 00:{50 + i // 40}:{i % 40:02} [async_llm.py:420] Added request cmpl-{i}.",
            access(),
            "ValueError: broken",
        ]
        lines += [stats_v1(60.0 + i, 1, 0, 5.0)] * (i % 5 == 0)
    lines += v1_start(120)
    if outer:
        lines = [f"2026-05-09T00:{50 + i // 200}:{i % 200 // 4:02}.5Z {ln}" for i, ln in enumerate(lines)]
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    sources = [str(tmp_path / name) for name in ("a.log", "b.log")]
    found = read_log(expand(sources), span, year=2026)
    expected = _one_by_one(expand(sources), span)
    assert found.frames.keys() == expected.frames.keys()
    for family, frame in expected.frames.items():
        assert_frame_equal(found.frames[family].drop("at"), frame.drop("at"))
    assert found.exceptions == expected.exceptions
