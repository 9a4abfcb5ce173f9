"""`logscope replay`: what it writes and says, for each kind of workload and each kind of failure."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from logscope.commands.cli import main
from logscope.commands.replay import command
from logscope.errors import LogscopeError
from logscope.wording import LEDGER_LABELS

DATA = Path(__file__).resolve().parent / "data"
TRACES = DATA / "traces"
CLOCK = {"base_s": 0.02, "per_prefill_token_s": 1e-4, "per_decode_s": 2e-4, "per_kv_token_s": 1e-7}
CONFIG = {"num_blocks": 60, "block_size": 16, "max_num_seqs": 8, "max_model_len": 1024, "step_time": CLOCK}
LABELS = [
    "queued_for_kv", "queued_for_seat", "queued_for_budget", "prefill", "decode", "interference", "preempted_wait",
    "recompute",
]  # fmt: skip


def invoke(*args: object) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args], catch_exceptions=False)


def result_of(*args: object) -> dict[str, Any]:
    run = invoke(*args, "--json", "-")
    assert run.exit_code == 0, run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert isinstance(result, dict)
    return result


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def crowd(tmp_path: Path) -> Path:
    """Ten requests at once that do not fit into 60 blocks together."""
    path = tmp_path / "crowd.jsonl"
    rows = [
        {"request_id": f"r{number}", "arrival_s": 0.01 * number, "prompt_tokens": 120, "output_tokens": 60}
        for number in range(10)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def golden_lines(name: str) -> list[str]:
    """One trace of V1 0.32.0, all its lines."""
    lines: list[str] = []
    with gzip.open(DATA / "golden" / "v1-0.32.0.jsonl.gz", "rt") as text:
        for line in text:
            if line.startswith('{"schema"'):
                if lines:
                    break
                if f'"name":"{name}"' in line:
                    lines = [line]
            elif lines:
                lines.append(line)
    return lines


@pytest.mark.parametrize("name", ["m05_priority", "m12_async"])
def test_step_files_hold_the_real_decisions(tmp_path: Path, name: str) -> None:
    lines = golden_lines(name)
    folder = tmp_path / "v1-0.32.0"
    folder.mkdir()
    header = folder / f"{name}.jsonl.gz"
    header.write_bytes(gzip.compress(lines[0].encode()))
    run = invoke(header, "--steps-dir", tmp_path / "steps")
    assert run.exit_code == 0
    assert [path.name for path in (tmp_path / "steps").iterdir()] == [f"v1-0.32.0__{name}.jsonl"]
    written = (tmp_path / "steps" / f"v1-0.32.0__{name}.jsonl").read_text().splitlines()
    expected = [json.loads(line) for line in lines[1:-1]]
    got = [json.loads(line) for line in written]
    assert len(got) == len(expected)
    for want, have in zip(expected, got, strict=True):
        for key in ("s", "n", "pre", "new", "res", "nct", "free", "tok", "fin", "free_end"):
            assert (want.get(key) or []) == (have.get(key) or []), (want["s"], key)
        assert list(want.get("n", {})) == list(have.get("n", {}))
    assert sum(len(step.get("pre", [])) for step in got) > 5


def test_the_document_has_the_shape_of_the_contract(config: Path, crowd: Path) -> None:
    result = result_of(crowd, "--config", config)
    assert result["workload"] == str(crowd)
    assert result["requests"] == result["finished"] == 10
    assert result["steps"] > 60
    assert result["preemptions"] > 0
    assert result["recomputed_tokens"] > 0
    assert set(result["ttft_s"]) == set(result["e2e_s"]) == {"p50", "p90", "p99"}
    assert set(result["itl_s"]) == {"p50", "p99"}
    assert result["ttft_s"]["p50"] < result["e2e_s"]["p50"] < result["duration_s"]
    assert result["generation_tokens_per_s"] == pytest.approx(600 / result["duration_s"])
    for part in ("total_s", "slow_s", "typical_s"):
        assert list(result["ledger"][part]) == LABELS
    assert result["ledger"]["total_s"]["queued_for_kv"] > 0
    assert sum(result["ledger"]["slow_s"].values()) > sum(result["ledger"]["typical_s"].values())
    assert result["error"] is None
    assert result["notes"] == []


def test_the_same_input_gives_the_same_output(config: Path, crowd: Path) -> None:
    assert result_of(crowd, "--config", config) == result_of(crowd, "--config", config)


def test_frames_hold_all_steps_and_requests(config: Path, crowd: Path, tmp_path: Path) -> None:
    folder = tmp_path / "frames"
    run = invoke(crowd, TRACES / "vidur.csv", "--config", config, "--frames", folder, "--json", "-")
    results = json.loads(run.stdout)["results"]
    steps = pl.read_parquet(folder / "steps.parquet")
    requests = pl.read_parquet(folder / "requests.parquet")
    assert steps.height == sum(result["steps"] for result in results)
    assert requests.height == 15
    assert requests["workload"].unique(maintain_order=True).to_list() == [result["workload"] for result in results]
    lives = requests.select(
        pl.sum_horizontal(LABELS).alias("parts"), (pl.col("end_s") - pl.col("arrival_s")).alias("life")
    )  # fmt: skip
    assert (lives["parts"] - lives["life"]).abs().max() < 1e-6  # type: ignore[operator]
    assert sorted(path.name for path in folder.iterdir()) == ["requests.parquet", "steps.parquet"]


def test_the_trace_shows_each_life_and_the_load(config: Path, crowd: Path, tmp_path: Path) -> None:
    trace, frames = tmp_path / "trace.json", tmp_path / "frames"
    run = invoke(crowd, "--config", config, "--trace", trace, "--frames", frames)
    assert run.exit_code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"].removeprefix("request ")
        for event in events
        if event["name"] == "thread_name"
    }
    lives: dict[str, float] = dict.fromkeys(names.values(), 0.0)
    for event in events:
        if event["ph"] == "X":
            lives[names[event["tid"]]] += event["dur"]
    requests = pl.read_parquet(frames / "requests.parquet")
    expected = dict(zip(requests["request_id"], requests["e2e_s"] * 1e6, strict=True))
    assert lives == pytest.approx(expected, abs=0.01)
    assert {event["name"] for event in events if event["ph"] == "X"} == {
        "queued", "prefill", "decode", "preempted", "recompute",
    }  # fmt: skip
    usage = [event["args"]["percent"] for event in events if event["name"] == "KV usage"]
    assert max(usage) > 95
    assert {event["name"] for event in events if event["ph"] == "C"} == {"KV usage", "running", "waiting"}


def test_steps_of_a_workload_in_seconds(config: Path, crowd: Path, tmp_path: Path) -> None:
    steps, frames = tmp_path / "steps", tmp_path / "frames"
    invoke(crowd, "--config", config, "--steps-dir", steps, "--frames", frames)
    (file,) = steps.iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    frame = pl.read_parquet(frames / "steps.parquet")
    assert len(records) == frame.height
    assert [record["free_end"] for record in records] == frame["free_end"].to_list()
    assert [len(record.get("pre", [])) for record in records] == frame["preempted"].to_list()
    assert sorted(name for record in records for name in record.get("add", [])) == [
        f"r{number}" for number in range(10)
    ]


def test_a_public_trace_without_configuration_says_what_it_was_replayed_as() -> None:
    run = invoke(TRACES / "mooncake.jsonl.gz", "--json", "-")
    assert run.exit_code == 0
    assert "no configuration: replayed as an 8-billion-parameter model" in run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert result["requests"] == result["finished"] == 40
    assert result["notes"]
    quiet = invoke(TRACES / "mooncake.jsonl.gz", "--json", "-", "--quiet")
    assert quiet.stderr == ""


def test_shared_prefixes_shorten_the_prefill(config: Path, tmp_path: Path) -> None:
    def seconds(prefix: str | None) -> float:
        path = tmp_path / "prefix.jsonl"
        rows = [
            {"request_id": n, "arrival_s": float(n), "prompt_tokens": 500, "output_tokens": 1,
             "prefix_id": prefix, "prefix_tokens": 480}
            for n in range(5)
        ]  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        total: float = result_of(path, "--config", config)["ledger"]["total_s"]["prefill"]
        return total

    assert seconds("system") < 0.7 * seconds(None)


def test_hardware_and_model_stand_in_for_coefficients(tmp_path: Path, crowd: Path) -> None:
    path = tmp_path / "gpu.json"
    shape = {"weight_bytes": 141e9, "kv_bytes_per_token": 327680}
    medians = []
    for split in (4, 8):
        model = {**shape, "tensor_parallel_size": split}
        path.write_text(json.dumps({"num_blocks": 60, "hardware": "H100", "model": model}))
        medians.append(result_of(crowd, "--config", path)["itl_s"]["p50"])
    assert medians[1] < 0.7 * medians[0]


def test_settings_and_load_can_be_changed(config: Path, crowd: Path) -> None:
    base = result_of(crowd, "--config", config)
    seats = result_of(crowd, "--config", config, "--set", "max_num_seqs=2")
    assert base["preemptions"] > 0
    assert seats["preemptions"] == 0
    assert seats["ledger"]["total_s"]["queued_for_seat"] > 0
    slower = result_of(crowd, "--config", config, "--set", "arrival_scale=0.001")
    assert slower["duration_s"] > 90
    assert slower["ledger"]["total_s"]["queued_for_kv"] == 0


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("colour=red", "unknown setting"),
        ("max_num_seqs=many", "must be a whole number"),
        ("tensor_parallel_size=2", "give them in --config"),
        ("replicas=2", "give them in --config"),
    ],
)
def test_a_setting_that_cannot_be_changed(
    config: Path, crowd: Path, setting: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["replay", str(crowd), "--config", str(config), "--set", setting])
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_results_are_readable_without_json(config: Path, crowd: Path) -> None:
    run = invoke(crowd, "--config", config)
    assert "10 of 10 requests finished in" in run.stdout
    for label in ("first token", "whole request", "between tokens", *LEDGER_LABELS.values()):
        assert all(word in run.stdout for word in label.split()), label  # a narrow table wraps
    assert "\x1b[" not in run.stdout
    assert "\x1b[" in invoke(crowd, "--config", config, "--color", "always").stdout


def test_json_goes_to_a_file_too(config: Path, crowd: Path, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    run = invoke(crowd, "--config", config, "--json", target)
    assert json.loads(target.read_text())["schema_version"] == 1
    assert "requests finished" in run.stdout


def test_a_run_that_the_real_engine_would_not_finish_is_partly_done(tmp_path: Path) -> None:
    path = tmp_path / "stuck.jsonl"
    path.write_text('{"request_id": "big", "arrival_s": 0, "prompt_tokens": 300, "output_tokens": 5}\n')
    config = tmp_path / "small.json"
    config.write_text(json.dumps({**CONFIG, "num_blocks": 5}))
    run = invoke(path, "--config", config, "--json", "-", "--steps-dir", tmp_path / "steps")
    assert run.exit_code == 4
    assert "the replay ends early: request 'big' cannot progress" in run.stderr
    (result,) = json.loads(run.stdout)["results"]
    assert result["finished"] == 0
    assert "cannot progress" in result["error"]
    assert len(list((tmp_path / "steps").iterdir())) == 1


def test_one_bad_workload_does_not_stop_the_others(config: Path, crowd: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"request_id": 1, "arrival_s": -1, "prompt_tokens": 5, "output_tokens": 5}\n')
    run = invoke(bad, crowd, tmp_path / "gone.csv", "--config", config, "--json", "-")
    assert run.exit_code == 4
    assert [result["workload"] for result in json.loads(run.stdout)["results"]] == [str(crowd)]
    assert run.stderr.splitlines() == [
        f"logscope: {bad}: line 1: arrival_s is -1, it must not be negative",
        f"logscope: {tmp_path / 'gone.csv'}: no such file",
    ]


def test_nothing_to_work_on(tmp_path: Path) -> None:
    run = invoke(tmp_path / "gone.csv", "--json", "-")
    assert run.exit_code == 3
    assert json.loads(run.stdout)["results"] == []


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("{", "not a JSON configuration"),
        ("[]", "must be a JSON object"),
        ('{"max_num_seqs": 4}', "num_blocks is missing"),
        ('{"num_blocks": 4, "max_num_seq": 4}', "did you mean max_num_seqs"),
        ('{"num_blocks": 4, "hardware": "A999", "model": {"weight_bytes": 1, "kv_bytes_per_token": 1}}', "GPU table"),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_named(tmp_path: Path, crowd: Path, document: str, sentence: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(document)
    with pytest.raises(LogscopeError, match=r"bad\.json: .*" + sentence):
        invoke(crowd, "--config", path)


@pytest.mark.parametrize("key", ["num_blocks", "block_size", "max_num_seqs"])
def test_a_configuration_that_no_engine_could_run(tmp_path: Path, crowd: Path, key: str) -> None:
    path = tmp_path / "zero.json"
    path.write_text(json.dumps({**CONFIG, key: 0}))
    run = invoke(crowd, "--config", path)
    assert run.exit_code == 3
    assert run.stderr.startswith(f"logscope: {crowd}: {key} is 0")


def test_a_missing_configuration_and_two_workloads_for_one_trace(crowd: Path, tmp_path: Path) -> None:
    with pytest.raises(LogscopeError, match=r"none\.json: no such file"):
        invoke(crowd, "--config", tmp_path / "none.json")
    with pytest.raises(LogscopeError, match="single file"):
        invoke(crowd, crowd, "--trace", tmp_path / "t.json")


def test_as_a_program_of_its_own(config: Path, crowd: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "logscope", "replay", str(crowd), "--config", str(config), "--json", "-"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    assert json.loads(run.stdout)["results"][0]["finished"] == 10
    assert run.stderr == ""


def test_an_error_is_one_line_and_no_traceback(crowd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["replay", str(crowd), "--config", str(tmp_path / "none.json")])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
