"""Where results are written: what cannot be written, or would overwrite what is read, is refused before any work."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logscope.commands.cli import cli
from tests.conftest import ROOT

LOG = ROOT / "samples" / "v1-calm.log"


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return Path(shutil.copy(LOG, tmp_path / "server.log"))


@pytest.mark.parametrize("option", ["--json", "--html", "--trace", "--workload-out"])
@pytest.mark.parametrize("how", ["itself", "link", "hard link", "other spelling"])
def test_the_log_is_never_written(log: Path, option: str, how: str) -> None:
    target = log.parent / "link"
    if how == "link":
        target.symlink_to(log)
    elif how == "hard link":
        target.hardlink_to(log)
    else:
        target = log if how == "itself" else log.parent / ".." / log.parent.name / log.name
    before = log.read_bytes()
    result = run("analyze", log, "--no-replay", option, target)
    assert result.exit_code == 2
    assert "this is what is read" in result.output
    assert log.read_bytes() == before


def test_a_scrape_is_not_written_either(log: Path) -> None:
    scrape = log.parent / "m.prom"
    scrape.write_text("vllm:num_preemptions_total 3.0\n")
    result = run("analyze", log, "--no-replay", "--metrics", scrape, "--json", scrape)
    assert result.exit_code == 2
    assert scrape.read_text() == "vllm:num_preemptions_total 3.0\n"


@pytest.mark.parametrize(
    "second", [("--html", "out"), ("--trace", "out"), ("--workload-out", "./out"), ("--frames", "out")]
)
def test_two_results_of_one_name(log: Path, second: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log.parent)
    result = run("analyze", log, "--no-replay", "--json", "out", *second)
    assert result.exit_code == 2
    assert "writes there already" in result.output
    assert not Path("out").exists()


def test_dev_null_takes_many(log: Path) -> None:
    assert run("analyze", log, "--no-replay", "-q", "--json", "/dev/null", "--html", "/dev/null").exit_code == 0


@pytest.mark.parametrize("option", ["--json", "--html", "--frames", "--trace"])
@pytest.mark.parametrize("name", ["", " ", "loop"])
def test_names_that_no_file_can_have(log: Path, option: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log.parent)
    Path("loop").symlink_to("loop")
    result = run("analyze", log, "--no-replay", option, name)
    assert result.exit_code == 2, result.output


def test_a_pipe_that_nobody_reads_is_refused(log: Path) -> None:
    pipe = log.parent / "pipe"
    os.mkfifo(pipe)
    result = run("analyze", log, "--no-replay", "--json", pipe)
    assert result.exit_code == 2
    assert "nobody reads" in result.output


def test_a_pipe_that_somebody_reads_gets_the_whole_answer(log: Path) -> None:
    pipe, got = log.parent / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    for _ in range(200):  # until the reader has opened it
        result = run("analyze", log, "--no-replay", "-q", "--json", pipe)
        if result.exit_code == 0:
            break
    reader.join(10)
    assert got
    assert got[0].startswith("{")


@pytest.mark.parametrize("arguments", [("replay", "{}"), ("replay", "{}", "--config", "{}")])
def test_a_pipe_is_no_workload(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = run(*(a.format(tmp_path / "pipe") for a in arguments))
    assert result.exit_code in (2, 3) or getattr(result.exception, "status", None) in (2, 3)
