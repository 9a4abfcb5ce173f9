"""`parse --output`: one file a family, the same whether its rows waited on the disk or in memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal

from logscope import frame_files
from logscope.cli import cli
from parsers.columnar import reading
from parsers.events import Coverage
from parsers.frames import frames_of
from parsers.reader import read_events
from parsers.sources import expand

SAMPLE = Path(__file__).parents[2] / "samples" / "v0-with-warnings.log.gz"


@pytest.mark.parametrize("rows", [1, 50, 1_000_000])
@pytest.mark.parametrize("block", [1, 1 << 23])
def test_the_files_are_the_frames(
    tmp_path: Path, rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_files, "ROWS", rows)
    monkeypatch.setattr(reading, "BLOCK", block)
    log = tmp_path / "server.log"
    log.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    run = CliRunner().invoke(
        cli, ["parse", str(log), "--output", str(tmp_path / "out"), "--year", "2026"]
    )
    assert run.exit_code == 0
    assert run.output == ""
    expected = frames_of(read_events(expand([str(log)]), Coverage(), year=2026))
    assert {f.name for f in (tmp_path / "out").iterdir()} == {f"{f}.parquet" for f in expected}
    for family, frame in expected.items():
        assert_frame_equal(pl.read_parquet(tmp_path / "out" / f"{family}.parquet"), frame)
