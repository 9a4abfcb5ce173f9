"""The command line as a user calls it: what it prints where, exit statuses, and every bad input with a clear word."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logscope.cli import cli, main
from tests.logs import stats_v1, v0_warning, v1_start


def run(*args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The installed command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "logscope", *map(str, args)],
        input=stdin,
        capture_output=True,
        timeout=120,
        check=False,
    )


def invoke(*args: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args], input=stdin)


def log(folder: Path, *lines: str, name: str = "server.log") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_help_names_each_command_and_an_example() -> None:
    text = invoke("--help").output
    for verb in ("analyze", "parse", "replay", "formats"):
        assert verb in text
        verb_help = invoke(verb, "--help")
        assert verb_help.exit_code == 0
        assert "Example" in verb_help.output, f"{verb} --help shows no example"


def test_parse_gives_the_contracts_events(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), stats_v1(10, 4, 0, 5.0))
    events = [json.loads(x) for x in invoke("parse", path, "--year", "2026").output.splitlines()]
    found = events[-1]
    assert found["family"] == "stats"
    assert found["fields"]["running"] == 4
    assert found["time"] == "2026-05-09T00:49:10"
    keys = "source line time outer_time process pid server run engine_index level origin host unit pod container stream family fields"
    assert set(keys.split()) <= set(found)
    assert (
        found["process"],
        found["pid"],
        found["origin"],
        found["line"],
        found["engine_index"],
    ) == ("APIServer", 1, "loggers.py:259", 6, 0)


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
    for args in (
        ("analyze", path, "--json", "-"),
        ("analyze", path),
        ("parse", path, "--format", "csv"),
    ):
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
    assert {p.name for p in out.iterdir()} >= {
        "stats.parquet",
        "preemption.parquet",
        "startup.parquet",
    }
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


def test_analyze_keeps_the_configuration_that_stands_before_the_span(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(seats=33), *[stats_v1(60 * i, i, 0, 5.0) for i in range(1, 10)])
    document = json.loads(
        invoke("analyze", path, "--no-replay", "--json", "-", "--since", "-3m").output
    )
    assert document["engines"][0]["config"]["max_num_seqs"] == 33


def test_analyze_json_is_one_document_with_every_key(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 5)])
    result = run("analyze", path, "--json", "-", "--no-replay")
    document = json.loads(result.stdout)
    assert result.returncode == 0
    for key in [
        "schema_version",
        "input",
        "verdict",
        "pressure",
        "worst_engine",
        "preemptions",
        "latency",
        "throughput",
        "ledger",
        "replay",
        "spikes",
        "findings",
        "advice",
        "engines",
    ]:
        assert key in document
    assert document["verdict"] == "healthy"
    assert document["replay"] is None
    assert document["latency"]["e2e_s"] == {"p50": None, "p90": None, "p99": None}
    engine = document["engines"][0]
    assert engine["kv_cache"] == {
        "tokens": 8000,
        "num_blocks": 500,
        "block_size": 16,
        "bytes": None,
    }
    assert set(engine["config"]) >= {"max_num_seqs", "watermark", "policy", "kv_cache_dtype"}
    assert engine["config_basis"]["max_num_seqs"] == "measured"


def test_the_terminal_answer_is_plain_without_a_terminal(
    tmp_path: Path, sample_under_pressure: Path
) -> None:
    result = run("analyze", sample_under_pressure, "--no-replay")
    assert result.returncode == 0
    assert b"\x1b" not in result.stdout
    assert b"Preemptions" in result.stdout
    assert b"not visible in this log" in result.stdout.lower()


def test_colour_when_asked(tmp_path: Path) -> None:
    assert (
        "\x1b["
        in invoke(
            "analyze", log(tmp_path, stats_v1(1, 1, 0, 1.0)), "--no-replay", "--color", "always"
        ).output
    )


@pytest.mark.parametrize(("level", "status"), [("critical", 1), ("warning", 1), (None, 0)])
def test_fail_on(tmp_path: Path, level: str | None, status: int) -> None:
    path = log(tmp_path, v0_warning(10, 51), v0_warning(11, 101))
    assert (
        invoke("analyze", path, "--no-replay", *(["--fail-on", level] if level else [])).exit_code
        == status
    )


def test_fail_on_does_not_fail_a_calm_log(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 5)])
    assert invoke("analyze", path, "--no-replay", "--fail-on", "critical").exit_code == 0


def test_what_the_user_tells_overrules_the_log(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(seats=8), stats_v1(10, 4, 0, 5.0))
    document = json.loads(
        invoke("analyze", path, "--no-replay", "--set", "max-num-seqs=99", "--json", "-").output
    )
    engine = document["engines"][0]
    assert (engine["config"]["max_num_seqs"], engine["config_basis"]["max_num_seqs"]) == (
        99,
        "given",
    )


@pytest.mark.parametrize(
    "setting",
    [
        "nonsense=1",
        "max_num_seqs",
        "max_num_seqs=many",
        "max_num_seqs=-1",
        "max_num_seqs=1.5",
        "enable_prefix_caching=perhaps",
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(tmp_path: Path, setting: str) -> None:
    result = invoke("analyze", log(tmp_path, stats_v1(1, 1, 0, 1.0)), "--set", setting)
    assert result.exit_code == 2
    assert setting.split("=")[0].replace("-", "_") in result.output


# --- bad input: a clear word, the contract's status, the others still analysed


def nothing(*args: object, stdin: bytes = b"") -> str:
    result = run(*args, stdin=stdin)
    assert result.returncode == 3, result
    assert b"Traceback" not in result.stderr
    assert result.stderr.count(b"\n") <= 2
    return result.stderr.decode()


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in nothing("analyze", tmp_path / "nope.log")


def test_a_folder_without_logs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty" in nothing("analyze", tmp_path / "empty")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "server.log").touch()
    assert "empty" in nothing("parse", tmp_path / "server.log")


def test_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(bytes(range(256)) * 100)
    assert "binary" in nothing("analyze", path)


def test_a_file_without_a_vllm_line(tmp_path: Path) -> None:
    assert "none of them a vLLM record" in nothing("analyze", log(tmp_path, "hello", "world"))


def test_a_log_of_another_engine_is_named(tmp_path: Path) -> None:
    line = "[2026-05-09 00:49:33 TP0] Decode batch. #running-req: 9, #token: 99, token usage: 0.99, #queue-req: 9"
    assert "SGLang" in nothing("analyze", log(tmp_path, line))


def test_a_pipe_that_holds_nothing() -> None:
    assert "empty" in nothing("parse", "-", stdin=b"")
    assert "none of them a vLLM record" in nothing("analyze", stdin=b"hello\n")


def test_a_bad_source_does_not_stop_the_others(tmp_path: Path) -> None:
    good = log(tmp_path, *v1_start(), stats_v1(10, 4, 0, 5.0))
    result = run("analyze", tmp_path / "nope.log", good, "--json", "-", "--no-replay")
    assert result.returncode == 4
    document = json.loads(result.stdout)
    assert document["input"]["events"] > 0
    assert [s["source"] for s in document["input"]["skipped_sources"]] == [
        str(tmp_path / "nope.log")
    ]
    assert b"nope.log" in result.stderr


def test_a_truncated_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    text = "\n".join([*v1_start(), *[stats_v1(i, i, 0, 1.0) for i in range(2000)]])
    path.write_bytes(gzip.compress(text.encode())[:-2000])
    result = run("parse", path)
    assert result.returncode == 4
    assert b"server.log.gz" in result.stderr
    assert result.stdout.count(b'"stats"') > 100


def test_zero_bytes_and_garbage_between_good_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(
        stats_v1(1, 1, 0, 1.0).encode()
        + b"\n\0\0\xff\xfe garbage \n"
        + stats_v1(2, 2, 0, 2.0).encode()
        + b"\n"
    )
    result = run("parse", path)
    assert result.returncode == 0
    assert result.stdout.count(b'"stats"') == 2


def test_a_pipe_whose_reader_goes_away_ends_quietly(tmp_path: Path) -> None:
    path = log(tmp_path, *[stats_v1(i, i, 0, 1.0) for i in range(5000)])
    command = f"{sys.executable} -m logscope parse {path} | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert result.stderr == b""
    assert result.stdout.count(b"\n") == 1


def test_standard_input_is_the_default_in_a_pipe() -> None:
    result = run("parse", stdin=(stats_v1(1, 1, 0, 1.0) + "\n").encode())
    assert result.returncode == 0
    assert json.loads(result.stdout)["source"] == "-"


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this machine")
    path = log(tmp_path, *[stats_v1(i, i, 0, 1.0) for i in range(5000)])
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m logscope parse {path} > /dev/full"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (73, b"logscope: No space left on device\n")


def test_terminal_escapes_of_a_log_reach_no_terminal(tmp_path: Path) -> None:
    evil = stats_v1(10, 4, 0, 5.0) + "\x1b]0;owned\x07\x1b[2J"
    result = run(
        "analyze",
        log(tmp_path, *v1_start(), v0_warning(5, 1) + "\x1b[2J\x1b]52;c;eA==\x07", evil),
        "--no-replay",
        "--color",
        "always",
        "-v",
    )
    assert b"\x1b]" not in result.stdout
    assert b"\x1b[2J" not in result.stdout


def test_the_report_is_written_beside_the_answer(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 5)])
    out = tmp_path / "report.html"
    result = run("analyze", path, "--html", out, "--no-replay")
    assert result.returncode == 0, result.stderr
    assert "<html" in out.read_text()[:500]


def test_a_start_that_failed(sample_start_failed: Path) -> None:
    document = json.loads(invoke("analyze", sample_start_failed, "--json", "-").output)
    assert document["verdict"] == "startup-kv-too-small"
    (finding,) = [f for f in document["findings"] if f["id"] == "startup-kv-too-small"]
    assert "largest max_model_len that fits" in finding["title"]
    assert finding["facts"]["largest_max_model_len"] < finding["facts"]["max_model_len"]


def test_the_counts_of_a_real_log_are_those_of_grep(sample_under_pressure: Path) -> None:
    grep = shutil.which("grep")
    assert grep is not None
    found = [json.loads(x) for x in run("parse", sample_under_pressure).stdout.splitlines()]
    for pattern, family, variant in (
        (r"Avg prompt throughput", "stats", None),
        ("Received request", "request", "received"),
        ("Added request", "request", "added"),
    ):
        count = int(
            subprocess.run(
                [grep, "-c", pattern, str(sample_under_pressure)], capture_output=True, check=False
            ).stdout
        )
        assert count > 0
        assert (
            sum(e["family"] == family and variant in (None, e["variant"]) for e in found) == count
        )


def test_main_turns_an_error_into_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["parse", str(tmp_path / "nope")])
    assert stop.value.code == 3
    assert capsys.readouterr().err.startswith("logscope: ")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        folder = tmp_path / "loop"
        folder.symlink_to(folder)  # root reads everything: a link to itself is unreadable for all
        assert nothing("parse", folder)
        return
    path = log(tmp_path, stats_v1(1, 1, 0, 1.0))
    path.chmod(0)
    assert "permission denied" in nothing("parse", path)


@pytest.mark.parametrize("command", ["analyze", "parse", "whatif", "watch"])
def test_an_unknown_time_zone_is_wrong_usage(tmp_path: Path, command: str) -> None:
    path = log(tmp_path, *v1_start())
    result = run(command, path, "--timezone", "Mars/Olympus")
    assert result.returncode == 2
    assert b"unknown time zone 'Mars/Olympus'" in result.stderr


def test_a_zone_may_be_an_offset(tmp_path: Path) -> None:
    path = log(tmp_path, *[f"2026-05-09T00:49:0{s}Z {stats_v1(s, 1, 0, 1.0)}" for s in (1, 2, 3)])
    cut = ("--since", "2026-05-09T08:49:02", "--timezone", "+08:00")
    assert len(run("parse", path, *cut).stdout.splitlines()) == 2


@pytest.mark.parametrize("command", ["analyze", "parse"])
def test_a_source_that_is_not_there_is_named_once(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "missing.log")
    assert result.returncode == 3
    assert result.stderr.count(b"no such file") == 1


def test_a_hole_of_nuls_within_a_log_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    start, rest = v1_start(), [stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 4)]
    path.write_bytes("\n".join(start).encode() + b"\n" + b"\0" * 5000 + "\n".join(rest).encode())
    assert len(run("parse", path).stdout.splitlines()) == len(start) + len(rest)


def test_a_span_without_events_is_said_aloud(tmp_path: Path) -> None:
    path = log(tmp_path, *v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 4)])
    empty = run("analyze", path, "--no-replay", "--since", "2099-01-01")
    assert b"nothing in this log lies between" in empty.stderr
    some = run("analyze", path, "--no-replay", "--since", "-20s")
    assert some.stderr == b""
