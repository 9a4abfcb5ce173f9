"""Bad input has a clear word and the contract's status, and the other sources are analysed."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logscope.commands.cli import main
from tests.logs import stats_v1, v1_start
from tests.running import invoke, log, run


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
    assert [s["source"] for s in document["input"]["skipped_sources"]] == [str(tmp_path / "nope.log")]
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
        stats_v1(1, 1, 0, 1.0).encode() + b"\n\0\0\xff\xfe garbage \n" + stats_v1(2, 2, 0, 2.0).encode() + b"\n"
    )
    result = run("parse", path)
    assert result.returncode == 0
    assert result.stdout.count(b'"stats"') == 2


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


def test_main_turns_an_error_into_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(("named", "said"), [("-", "-: standard input is closed"), ("", "no log given")])
def test_a_closed_standard_input(named: str, said: str) -> None:
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m logscope parse {named} <&-"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 3
    assert result.stderr.startswith(f"logscope: {said}")
    assert result.stderr.count("\n") == 1


def _endless(path: Path, start: bytes, piece: bytes) -> Path:
    """300 MiB that take little room."""
    with gzip.open(path, "wb", 1) as file:
        file.write(start)
        for _ in range(300):
            file.write(piece * ((1 << 20) // len(piece)))
    return path


def test_a_device_is_not_followed() -> None:
    assert "a device" in nothing("watch", "/dev/zero")


@pytest.mark.parametrize(
    ("start", "piece", "said"),
    [(b"", b" ", "a line of more than 256 MiB"), (b"[\n", b" " * 1023 + b"\n", "a JSON document of more than 256 MiB")],
)
def test_a_workload_that_never_ends(tmp_path: Path, start: bytes, piece: bytes, said: str) -> None:
    assert said in nothing("replay", _endless(tmp_path / "workload.gz", start, piece))


@pytest.mark.parametrize(("name", "said"), [("", "an empty name"), ("huge", "damaged")])
def test_a_state_folder_that_is_none(tmp_path: Path, name: str, said: str) -> None:
    state = tmp_path / "huge" / "analyze" / "state.json"
    state.parent.mkdir(parents=True)
    with state.open("wb") as file:
        file.truncate(3 << 30)
    path = log(tmp_path, stats_v1(1, 1, 0, 1.0))
    done = run("analyze", path, "--no-replay", "--state", tmp_path / name if name else "")
    assert done.returncode == 2
    assert said in done.stderr.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("watch", ""),
        ("analyze", "LOG", "--no-replay", "--metrics", ""),
        ("analyze", "LOG", "--no-replay", "--latencies", " "),
        ("replay", ""),
        ("replay", "LOG", "--config", ""),
        ("report", "", "--terminal"),
    ],
)
def test_an_empty_name_is_no_file(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = log(tmp_path, stats_v1(1, 1, 0, 1.0))
    done = run(*(path if a == "LOG" else a for a in arguments))
    assert done.returncode in (2, 3)
    assert "an empty name" in done.stderr.decode()


@pytest.mark.parametrize(
    "setting",
    [
        "num_blocks=1e308",
        "max_model_len=1e16",
        "kv_groups=" + "[" * 50_000,
        "policy=<script>",
        "gpu_memory_utilization=1e9",
        "watermark=2",
        "max_num_seqs=\x1b[31m7",
    ],
)
def test_a_setting_that_no_server_can_have_is_refused(tmp_path: Path, setting: str) -> None:
    path = log(tmp_path, stats_v1(1, 1, 0, 1.0))
    done = run("analyze", path, "--no-replay", "--set", setting)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr
