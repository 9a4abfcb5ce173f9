"""However a log is split into runs, whatever rotation does in between: the answer is that of one run."""

from __future__ import annotations

import gzip
import random
import shutil
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from logscope.analysis import analyze
from logscope.log.frames import read_log
from logscope.log.span import Moment, Reading, Span
from logscope.log.state.frames import read_with_state
from logscope.output.json import analysis_document
from parsers.reading.in_bulk import reader
from parsers.sources.source import expand
from tests.conftest import SAMPLES
from tests.fleets.logs import busy, quiet, two_engines
from tests.logs import access, stats_v1, v0_warning, v1_start
from tests.readings import assert_same

YEAR = 2026
PROMPT = (
    "(APIServer pid=1) INFO 05-09 00:51:00 [logger.py:42] Received request cmpl-1: prompt: 'one\n"
    "INFO 05-09 00:51:01 [loggers.py:259] Engine 000: a client wrote this\ntwo', params: SamplingParams(n=1, max_tokens=16), "
    "prompt_token_ids: None, lora_request: None."
)
CRASH = [
    f"(EngineCore pid=2) ERROR 05-09 00:52:00 [core.py:700] {line}"
    for line in (
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "core.py", line 1, in step',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    )
]
PLAIN = "\n".join(
    [
        *busy(minutes=1),
        PROMPT,
        "a line of another program",
        *CRASH,
        access(),
        "RuntimeError: Engine core died",
        *v1_start(300, pid=9),
        stats_v1(310, 1, 0, 5.0),
        v0_warning(311, 1),
        stats_v1(312, 2, 0, 6.0),
    ]
)
JOURNAL = "\n".join(
    f"May 09 00:49:{i % 60:02} node{i % 2} vllm[{i % 2}]: {line}"
    for i, line in enumerate([x for pair in zip(two_engines(minutes=1), quiet(minutes=2), strict=False) for x in pair])
)
PODS = "\n".join(
    f"[pod/vllm-{i % 3}/vllm] {line}"
    for i, line in enumerate([x for pair in zip(busy(minutes=1), quiet(), two_engines(), strict=False) for x in pair])
)
CRI = "\n".join(
    f"2026-05-09T00:49:{i % 60:02}.000000000Z stdout {flag} {part}"
    for i, line in enumerate(busy(minutes=1))
    for flag, part in (("P", line[:30]), ("F", line[30:]))
)
TEXTS = {"plain": PLAIN, "journal": JOURNAL, "pods": PODS, "cri": CRI}
GZ, ZST, NOT_PRESSED = ".gz", ".zst", ""


def rotate(folder: Path, press: str) -> None:
    """server.log becomes server.log.1, what was there server.log.2, pressed."""
    for number in range(8, 0, -1):
        for suffix in (GZ, ZST, NOT_PRESSED):
            old = folder / f"server.log.{number}{suffix}"
            if old.exists():
                old.rename(folder / f"server.log.{number + 1}{suffix}")
    plain = folder / "server.log.2"
    if plain.exists() and press:
        data = plain.read_bytes()
        pressed = gzip.compress(data) if press == GZ else zstandard.ZstdCompressor().compress(data)
        (folder / f"server.log.2{press}").write_bytes(pressed)
        plain.unlink()
    (folder / "server.log").rename(folder / "server.log.1")


@pytest.fixture(params=[1000, 20], ids="left {}".format)
def lines_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So few lines at the end of the news are read one by one, the others in bulk."""
    monkeypatch.setattr(reader, "LEFT", request.param)
    monkeypatch.setattr(reader, "_FEWEST", 1)
    monkeypatch.setattr(reader, "BLOCK", 2000)


@pytest.mark.usefixtures("lines_left")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(TEXTS)),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    rotations=st.lists(st.floats(0, 1), max_size=3),
    press=st.sampled_from([GZ, ZST, NOT_PRESSED]),
    ended=st.booleans(),
)
def test_any_split_gives_the_answer_of_one_run(
    name: str, cuts: list[float], rotations: list[float], press: str, ended: bool
) -> None:
    data = (TEXTS[name] + ("\n" if ended else "")).encode()
    lines = data.splitlines(keepends=True)
    # A log is rotated between lines; a run may stop anywhere.
    starts = sorted({len(b"".join(lines[: int(r * len(lines))])) for r in rotations} - {0, len(data)})
    stops = sorted({int(c * len(data)) for c in cuts} | {len(data)})
    with tempfile.TemporaryDirectory() as temporary:
        folder, state = Path(temporary) / "logs", Path(temporary) / "state"
        folder.mkdir()
        log = folder / "server.log"
        for at, kind in sorted([(s, 0) for s in starts] + [(s, 1) for s in stops]):
            written = sum(_size(p) for p in folder.iterdir())
            with log.open("ab") as out:
                out.write(data[written:at])
            if kind == 0:
                rotate(folder, press)
                log.touch()
            else:
                found = read_with_state(state, expand([str(folder)]), Reading(year=YEAR))
        expected = read_log(expand([str(folder)]), Span(), year=YEAR)
        assert_same(found, expected)
        assert analysis_document(analyze(found, replay=False)) == analysis_document(analyze(expected, replay=False))


def _size(path: Path) -> int:
    data = path.read_bytes()
    if path.suffix == GZ:
        return len(gzip.decompress(data))
    return len(zstandard.ZstdDecompressor().decompress(data)) if path.suffix == ZST else len(data)


@pytest.mark.usefixtures("lines_left")
@pytest.mark.parametrize("sample", ["v1-under-pressure.log", "v1-calm.log", "v0-with-warnings.log.gz"])
def test_a_real_log_in_many_runs(sample: str, tmp_path: Path) -> None:
    data = (SAMPLES / sample).read_bytes()
    data = gzip.decompress(data) if sample.endswith(GZ) else data
    log, chance = tmp_path / "server.log", random.Random(1)
    stops = sorted({chance.randrange(len(data)) for _ in range(6)} | {len(data)})
    for stop in stops:
        log.write_bytes(data[:stop])  # the same file, longer
        found = read_with_state(tmp_path / "state", expand([str(log)]), Reading(year=YEAR))
    assert_same(found, read_log(expand([str(log)]), Span(), year=YEAR))


def test_only_the_news_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    lines = busy(minutes=200)
    log.write_text("\n".join(lines[:-3]) + "\n")
    read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    fed = 0
    from parsers.records.record import Assembler

    feed = Assembler.feed

    def counted(self: Assembler, line: object) -> object:
        nonlocal fed
        fed += 1
        return feed(self, line)  # type: ignore[arg-type]

    monkeypatch.setattr(Assembler, "feed", counted)
    with log.open("a") as out:
        out.write("\n".join(lines[-3:]) + "\n")
    found = read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    assert fed < 210
    assert found.coverage.lines == len(lines)


def test_a_log_that_was_deleted_still_counts(tmp_path: Path) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    log.write_text("\n".join(busy()) + "\n")
    first = read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    log.unlink()
    log.write_text("\n".join(quiet(3600)) + "\n")
    both = read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    assert both.frames["stats"].height == first.frames["stats"].height + 18
    assert both.frames["stats"]["run"].unique().to_list() == [0, 1]


def test_a_log_copied_and_truncated_counts_once(tmp_path: Path) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    log.write_text("\n".join(busy()) + "\n")
    read_with_state(state, expand([str(tmp_path / "*.log*")]), Reading(year=YEAR))
    shutil.copyfile(log, tmp_path / "server.log.1")
    log.write_text("\n".join(quiet(3600)) + "\n")
    found = read_with_state(state, expand([str(tmp_path / "*.log*")]), Reading(year=YEAR))
    assert_same(found, read_log(expand([str(tmp_path / "*.log*")]), Span(), year=YEAR))


def test_a_span_is_cut_from_everything_that_was_read(tmp_path: Path) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    lines = busy()
    span = Span(Moment(before_end_s=60))
    for stop in (20, len(lines)):
        log.write_text("\n".join(lines[:stop]) + "\n")
        found = read_with_state(state, expand([str(log)]), Reading(span, YEAR))
    expected = read_log(expand([str(log)]), span, year=YEAR)
    for family, frame in expected.frames.items():
        assert_frame_equal(found.frames[family], frame)


def test_a_killed_run_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before what says that the new frames count: the next run reads the same news again."""
    log, state = tmp_path / "server.log", tmp_path / "state"
    lines = busy()
    log.write_text("\n".join(lines[:12]) + "\n")
    read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    log.write_text("\n".join(lines) + "\n")
    with monkeypatch.context() as patched:
        patched.setattr("logscope.log.state.read_state.write_whole", _killed)
        with pytest.raises(KeyboardInterrupt):
            read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    found = read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    assert_same(found, read_log(expand([str(log)]), Span(), year=YEAR))


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_no_text_of_the_log_stands_in_the_state(tmp_path: Path) -> None:
    log, state = tmp_path / "server.log", tmp_path / "state"
    log.write_text(PLAIN.replace("two", "SECRET"))
    read_with_state(state, expand([str(log)]), Reading(year=YEAR))
    assert not any(b"SECRET" in path.read_bytes() for path in state.iterdir())
    assert (state / "state.json").exists()
