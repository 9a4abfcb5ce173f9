"""`parse --output`: one file a family, the same whether its rows waited on the disk or in memory."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from logscope.commands.cli import cli
from logscope.log import stored_rows as frame_files
from logscope.log.parquet import RowGroups
from parsers.reading.by_line import read_events
from parsers.reading.events import Coverage
from parsers.reading.frames import CompactFrame, frames_of
from parsers.reading.in_bulk import reader as reading
from parsers.sources.source import expand

SAMPLE = Path(__file__).parents[2] / "samples" / "v0-with-warnings.log.gz"


@pytest.mark.parametrize("rows", [1, 50, 1_000_000])
@pytest.mark.parametrize("block", [1, 1 << 23])
def test_the_files_are_the_frames(tmp_path: Path, rows: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_files, "ROWS", rows)
    monkeypatch.setattr(reading, "BLOCK", block)
    log = tmp_path / "server.log"
    log.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    run = CliRunner().invoke(cli, ["parse", str(log), "--output", str(tmp_path / "out"), "--year", "2026"])
    assert run.exit_code == 0
    assert run.output == ""
    expected = frames_of(read_events(expand([str(log)]), Coverage(), year=2026))
    assert {f.name for f in (tmp_path / "out").iterdir()} == {f"{f}.parquet" for f in expected}
    for family, frame in expected.items():
        assert_frame_equal(pl.read_parquet(tmp_path / "out" / f"{family}.parquet"), frame)


def test_nothing_is_left_of_files_that_were_not_finished(tmp_path: Path) -> None:
    files = frame_files.FrameFiles(tmp_path)
    events = list(read_events(expand([str(SAMPLE)]), Coverage(), year=2026))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_files, "ROWS", 10)
        for event in events:
            files.add(event)
    assert all(p.name.startswith(".") for p in tmp_path.iterdir())
    assert list(tmp_path.iterdir())
    files.close()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    dead = tmp_path / ".request.parquet.4194304.part"
    dead.write_bytes(b"PAR1")
    run = CliRunner().invoke(cli, ["parse", str(SAMPLE), "--output", str(tmp_path)])
    assert run.exit_code == 0
    assert "request.parquet" in {p.name for p in tmp_path.iterdir()}
    assert not dead.exists()


def test_a_file_of_many_row_groups_is_one_frame(tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    parts = [
        pl.DataFrame(
            {
                "order": [i, i + 1],
                "name": [None, "é" * i],
                "flag": [True, None],
                "share": [0.5, i],
                "ids": [["a"], None],
            },
            schema_overrides={"share": pl.Float64},
        )
        for i in range(0, 80, 2)
    ]
    file = RowGroups(path, parts[0].schema, 3)
    for part in parts:
        file.append(CompactFrame(part))
    file.close()
    assert_frame_equal(pl.read_parquet(path), pl.concat(parts))
    within = pl.scan_parquet(path).filter(pl.col("order").is_between(31, 40)).collect()
    assert within["order"].to_list() == list(range(31, 41))


@given(
    st.lists(
        st.tuples(st.lists(st.text(max_size=5) | st.none(), max_size=30), st.integers(-(2**63), 2**63 - 1)),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 40),
)
@settings(max_examples=30, deadline=None)
def test_row_groups_of_any_size(parts: list[tuple[list[str | None], int]], rows: int) -> None:
    frames = [
        pl.DataFrame(
            {"text": texts, "number": [number] * len(texts), "again": texts},
            schema={"text": pl.String, "number": pl.Int64, "again": pl.String},
        )
        for texts, number in parts
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.parquet"
        file = RowGroups(path, frames[0].schema, rows)
        for frame in frames:
            file.append(CompactFrame(frame))
        file.close()
        assert_frame_equal(pl.read_parquet(path), pl.concat(frames))
