"""Every fault that a user may meet, tried as a user would: a clear word, the contract's status, nothing half written.

docs/when-things-go-wrong.md is the same as a table.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from logscope.atomic_files import whole_file, write_whole
from logscope.commands.cli import UNWRITTEN
from parsers.sources import compression as decompress
from parsers.sources.source import expand
from tests.logs import stats_v1, v1_start

LOG = "\n".join([*v1_start(), *[stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 30)]]) + "\n"
PR_CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2


@pytest.fixture
def server_log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(LOG)
    return path


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def run(
    *args: object, before: Callable[[], None] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "logscope", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        preexec_fn=before,
        stdin=subprocess.DEVNULL,
    )


def as_anyone() -> None:
    """Root without the right to pass over permissions, which it loses with the next program that it starts."""
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None).prctl
        for capability in (DAC_OVERRIDE, DAC_READ_SEARCH):
            prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def told(result: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """One sentence on standard error that holds the words, no traceback, and the exit status of the documents."""
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    sentences = [line for line in result.stderr.splitlines() if line.startswith("logscope: ")]
    assert len(sentences) == len(result.stderr.splitlines()) <= 2, result.stderr
    for word in words:
        assert word in result.stderr.lower()


def left_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


# --- writing


def small_disk() -> None:
    """No file may pass 3 kB: what a full disk does, without one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))


@pytest.mark.parametrize(("option", "name"), [("--json", "a.json"), ("--html", "a.html")])
def test_a_full_disk_leaves_the_file_that_was_there(option: str, name: str, server_log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("the old one")
    told(run("analyze", server_log, "--no-replay", option, out / name, before=small_disk), UNWRITTEN, name)
    assert (out / name).read_text() == "the old one"
    assert left_in(out) == {name}


def test_a_full_disk_leaves_no_half_parquet(server_log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told(run("parse", server_log, "--output", out, before=small_disk), UNWRITTEN, "parquet")
    assert not [name for name in left_in(out) if "part" in name]
    for path in out.glob("*.parquet"):
        pl.read_parquet(path)


def test_a_run_that_is_killed_leaves_whole_files_or_none(server_log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "logscope", "analyze", str(server_log), "--no-replay", "-q"]
    command += ["--json", str(out / "a.json"), "--html", str(out / "a.html"), "--frames", str(out)]
    began = time.monotonic()
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - began
    names = left_in(out)
    for share in (0.6, 0.75, 0.9, 0.97):
        shutil.rmtree(out)
        out.mkdir()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(share * whole)
        process.kill()
        process.wait()
        for path in out.iterdir():
            if path.name == "a.json":
                json.loads(path.read_text())
            elif path.name == "a.html":
                assert path.read_text().rstrip().endswith("</html>")
            elif path.name.endswith(".parquet"):
                pl.read_parquet(path)
            else:
                assert path.name.startswith(".")
                assert path.name.endswith(".part")
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert left_in(out) == names, "the next run takes away what a killed one left"


KILLED = """
import os, signal, sys
from pathlib import Path
from logscope.atomic_files import whole_file
with whole_file(Path(sys.argv[1])) as part:
    part.write_text("half of")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    (left,) = left_in(tmp_path)
    assert left.endswith(".part")
    others = tmp_path / ".other.json.1.part"  # of another file
    others.write_text("")
    living = tmp_path / f".answer.json.{os.getppid()}.part"  # of a run that lives
    living.write_text("")
    write_whole(path, b"{}")
    assert left_in(tmp_path) == {path.name, others.name, living.name}


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with whole_file(tmp_path / "a.json") as part:
            part.write_text("half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert left_in(tmp_path) == set()


def test_special_files_are_written_to_and_never_replaced(server_log: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert run("analyze", server_log, "--no-replay", "--json", pipe).returncode == 0
    reader.join(20)
    assert json.loads(read[0])["schema_version"] == 1
    assert pipe.is_fifo()
    assert run("analyze", server_log, "--no-replay", "--json", os.devnull).returncode == 0
    assert Path(os.devnull).is_char_device()
    assert run("analyze", server_log, "--no-replay", "--json", "/dev/stdout").returncode == 0


def test_a_link_stays_a_link_and_the_mode_stays_the_mode(server_log: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    assert run("analyze", server_log, "--no-replay", "--json", link).returncode == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["schema_version"] == 1
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_folder_that_must_not_be_written_to(open_folder: Path) -> None:
    log = open_folder / "server.log"
    log.write_text(LOG)
    locked = open_folder / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    for option, target in (("--json", "a.json"), ("--html", "a.html"), ("--frames", "frames")):
        result = run("analyze", log, "--no-replay", option, locked / target, before=as_anyone)
        told(result, UNWRITTEN, "permission denied", str(locked / target))
    assert left_in(locked) == set()


def test_a_folder_that_is_not_there(server_log: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "a.json"
    told(run("analyze", server_log, "--no-replay", "--json", missing), UNWRITTEN, "no such", str(missing))


@pytest.mark.parametrize("verb", ["parse", "analyze --no-replay", "analyze --no-replay --json -", "formats"])
def test_a_reader_that_goes_away(verb: str, server_log: Path) -> None:
    name = "" if verb == "formats" else str(server_log)
    script = f"{sys.executable} -m logscope {verb} {name} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, timeout=60, check=False)
    assert result.returncode == 0
    assert result.stderr == b""


# --- reading


def test_an_unreadable_file_among_readable_ones(open_folder: Path) -> None:
    (open_folder / "a.log").write_text(LOG)
    (open_folder / "b.log").write_text(LOG)
    (open_folder / "b.log").chmod(0)
    result = run("analyze", open_folder, "--no-replay", "--json", "-", before=as_anyone)
    told(result, 4, "b.log", "permission denied")
    found = json.loads(result.stdout)["input"]
    assert found["events"] > 29
    assert [Path(s["source"]).name for s in found["skipped_sources"]] == ["b.log"]


def test_links_that_go_in_circles_are_followed_once(tmp_path: Path, server_log: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "up").symlink_to(tmp_path)
    (tmp_path / "deeper" / "self.log").symlink_to(tmp_path / "deeper" / "self.log")
    (tmp_path / "again.log").symlink_to(server_log)
    result = run("parse", tmp_path)
    assert result.returncode in (0, 4)
    assert result.stdout.count('"stats"') == 29


def test_pipes_and_sockets_in_a_folder_stop_nothing(tmp_path: Path, server_log: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    result = run("parse", tmp_path, timeout=20)
    assert result.returncode == 0
    assert result.stdout.count('"stats"') == 29
    told(run("parse", tmp_path / "pipe.log", timeout=20), 3, "nobody writes to")


def test_a_file_that_grows_faster_than_it_is_read_has_an_end(server_log: Path) -> None:
    (source,) = expand([str(server_log)])
    lines = 0
    with server_log.open("ab") as writer:
        for _ in source.lines():
            lines += 1
            writer.write(b"x" * 2_000_000 + b"\n")
            writer.flush()
            assert lines < 100
    assert lines == LOG.count("\n")


def test_a_file_that_is_replaced_or_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(LOG * 2000)
    (source,) = expand([str(path)])
    lines = source.lines()
    next(lines)
    os.truncate(path, 1000)
    rest = sum(1 for _ in lines)
    assert rest < LOG.count("\n") * 2000
    assert source.loss.problem is not None
    assert "truncated while it was read" in source.loss.problem


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz", "bzip2"])
def test_a_decompression_bomb_is_not_read_to_its_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bz2
    import io
    import lzma

    import zstandard

    press = {"gzip": gzip.compress, "zstd": zstandard.compress, "xz": lzma.compress, "bzip2": bz2.compress}
    monkeypatch.setattr(decompress, "BOMB_BYTES", 1 << 20)
    stream = io.BytesIO(press[kind](b"a\n" * (6 << 20)))
    given = 0

    def read() -> None:
        nonlocal given
        for block in decompress.decoded(kind, lambda: stream.read(1 << 20)):
            given += len(block)

    with pytest.raises(decompress.DamagedError, match="decompression bomb") as damage:
        read()
    assert given < 12 << 20
    assert "decompress it first" in damage.value.reason


def test_a_bomb_costs_the_others_nothing(server_log: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.log.gz"
    line = b"INFO 11-29 23:07:01 [a.py:1] " + b"x" * 100_000 + b"\n"
    with gzip.open(bomb, "wb") as out:
        for _ in range(2500):
            out.write(line)
    assert bomb.stat().st_size < 400_000
    result = run("parse", bomb, server_log)
    told(result, 4, "bomb.log.gz", "decompression bomb", "decompress it first")
    assert result.stdout.count('"stats"') == 29


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_thousands_of_small_members_cost_linear_time(kind: str) -> None:
    import io

    import zstandard

    member = gzip.compress(b"") if kind == "gzip" else zstandard.compress(b"x")
    stream = io.BytesIO(member * 50_000)
    began = time.process_time()
    for _ in decompress.decoded(kind, lambda: stream.read(1 << 20)):
        pass
    assert time.process_time() - began < 5


def test_a_file_name_that_is_no_utf_8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\x1b[2J.log"
    with open(path, "w") as out:  # noqa: PTH123
        out.write(LOG)
    for arguments in (["parse"], ["analyze", "--no-replay", "--json", "-"]):
        result = run(*arguments, tmp_path)
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout
    answer = run("analyze", "--no-replay", "-v", tmp_path, "--html", tmp_path / "a.html")
    assert answer.returncode == 0, answer.stderr
    assert "\x1b" not in answer.stdout
    missing = run("parse", os.fsdecode(b"/nowhere/\xff\x1b[2J.log"))
    assert missing.returncode == 3
    assert "\x1b" not in missing.stderr


def test_what_stands_before_the_damage_is_read(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    lines = "\n".join(stats_v1(i, i % 97, 0, i % 100) for i in range(3000))
    whole = gzip.compress(lines.encode())
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * 50 + whole[half + 50 :])
    result = run("parse", path)
    told(result, 4, "server.log.gz", "damaged gzip stream")
    assert result.stdout.count('"stats"') > 1000
