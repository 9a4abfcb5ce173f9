"""`logscope parse`: the contract's events as JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from tests.logs import stats_v1, v0_warning, v1_start
from tests.running import invoke, log


def test_parse_gives_the_contracts_events(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), stats_v1(10, 4, 0, 5.0))
    events = [json.loads(x) for x in invoke("parse", path, "--year", "2026").output.splitlines()]
    found = events[-1]
    assert found["family"] == "stats"
    assert found["fields"]["running"] == 4
    assert found["time"] == "2026-05-09T00:49:10"
    keys = "source line time outer_time process pid server run engine_index level origin host unit pod container stream family fields"
    assert set(keys.split()) <= set(found)
    assert (found["process"], found["pid"], found["origin"], found["line"], found["engine_index"]) == (
        "APIServer",
        1,
        "loggers.py:259",
        6,
        0,
    )


def test_parse_all_gives_every_other_record(tmp_path: Path) -> None:
    path = log(tmp_path, "INFO 05-09 00:49:10 [a.py:1] hello world")
    assert invoke("parse", path).output == ""
    (found,) = [json.loads(x) for x in invoke("parse", path, "--all").output.splitlines()]
    assert (found["family"], found["fields"]) == ("other", {"message": "hello world"})


REQUEST = "INFO 05-09 00:49:33 [logger.py:40] Received request c-1: prompt: 'my secret', params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: [1, 2, 3], lora_request: None, prompt_adapter_request: None."


def test_prompts_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    path = log(tmp_path, REQUEST)
    plain, asked = invoke("parse", path).output, invoke("parse", path, "--include-prompts").output
    assert "secret" not in plain
    assert json.loads(plain)["fields"]["prompt_chars"] == 9
    assert json.loads(asked)["fields"]["prompt"] == "my secret"
    for args in (("analyze", path, "--json", "-"), ("analyze", path), ("parse", path, "--format", "csv")):
        assert "secret" not in invoke(*args).output


def test_csv_cells_are_no_formulas(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        "INFO 05-09 00:49:10 [a.py:1] =HYPERLINK(1)",
        "(=cmd pid=3) INFO 05-09 00:49:10 [a.py:1] x",
        name="=1+1.log",
    )
    rows = list(csv.reader(io.StringIO(invoke("parse", path, "--all", "--format", "csv").output)))
    assert rows[0][0] == "source"
    assert not [cell for row in rows[1:] for cell in row if cell.startswith(("=", "+", "@"))]


def test_parquet_one_file_a_family(tmp_path: Path) -> None:
    import polars as pl

    path = log(tmp_path, *v1_start(), stats_v1(10, 4, 0, 5.0), v0_warning(12, 1))
    out = tmp_path / "out"
    assert invoke("parse", path, "--output", out).exit_code == 0
    assert {p.name for p in out.iterdir()} >= {"stats.parquet", "preemption.parquet", "startup.parquet"}
    frame = pl.read_parquet(out / "stats.parquet")
    assert frame.schema["gpu_kv_cache_usage_pct"] == pl.Float64
    assert frame.schema["time"] == pl.Datetime("us")


def test_since_and_until_cut_on_the_records_clock(tmp_path: Path) -> None:
    path = log(tmp_path, *[stats_v1(60 * i, i, 0, 5.0) for i in range(10)])

    def running(*args: str) -> list[int]:
        lines = invoke("parse", path, "--year", "2026", *args).output.splitlines()
        return [json.loads(x)["fields"]["running"] for x in lines]

    assert running("--since", "2026-05-09T00:52:00", "--until", "2026-05-09T00:55:00") == [3, 4, 5]
    assert running("--since", "-2m") == [7, 8, 9]
    assert invoke("parse", path, "--since", "yesterday-ish").exit_code == 2
