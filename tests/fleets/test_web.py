"""Logs behind `http://` and `gs://`: good servers give the same as a file, bad ones a word and an end."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logscope.commands.cli import cli
from logscope.errors import LogscopeError
from logscope.log.frames import LogFrames, read_log
from logscope.log.span import Reading, Span
from logscope.log.state.frames import read_with_state
from parsers.sources import object_stores as remote
from parsers.sources.source import expand
from tests.fleets.logs import busy, quiet
from tests.fleets.web import Site, serving

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'logscope[remote]')")
pytest.importorskip("aiohttp", reason="aiohttp is not installed (pip install 'logscope[remote]')")

TEXT = ("\n".join(busy()) + "\n").encode()
BIG = b"".join(("\n".join(busy(600 * i, 90)) + "\n").encode() for i in range(60))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patched:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            patched.delenv(name, raising=False)
        with serving({"a.log": TEXT, "a.log.gz": gzip.compress(TEXT), "big.log": BIG}) as found:
            yield found


def read(url: str) -> LogFrames:
    return read_log(expand([url]), Span(), year=2026)


def problem(url: str) -> str:
    """Why a name cannot be looked up, or was not read to its end."""
    (source,) = expand([url])
    found = read_log([source], Span(), year=2026)
    return source.problem or found.coverage.skipped_sources[0]["problem"]


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> LogFrames:
    path = tmp_path_factory.mktemp("near") / "a.log"
    path.write_bytes(TEXT)
    return read(str(path))


@pytest.mark.parametrize("name", ["a.log", "a.log.gz", "a.log?signature=1%2F2*[x]"])
@pytest.mark.parametrize("habit", ["plain", "ranges", "no-head", "chunked", "slow", "302"])
def test_a_server_gives_what_a_file_gives(site: Site, near: LogFrames, habit: str, name: str) -> None:
    found = read(f"{site.address}/{habit}/{name}")
    assert found.coverage.skipped_sources == []
    assert found.coverage.lines == near.coverage.lines
    for family, frame in near.frames.items():
        assert found.frames[family].drop("source").equals(frame.drop("source"))


@pytest.mark.parametrize("habit", ["plain", "ranges", "chunked"])
def test_a_file_of_several_blocks_is_asked_for_once(site: Site, habit: str) -> None:
    assert len(BIG) > remote.BLOCK
    asked = site.asked
    found = read(f"{site.address}/{habit}/big.log")
    assert found.coverage.lines == BIG.count(b"\n")
    assert site.asked - asked <= 3  # before the last only what it says of itself is read


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/plain/none.log", "no such file; check the address"),
        ("/403/a.log", "permission denied (the server answers 403)"),
        ("/401/a.log", "permission denied (the server answers 401)"),
        ("/503/a.log", "the server answers 503"),
        ("/cut/big.log", "the answer is cut off before its end"),
    ],
)
def test_what_a_bad_server_costs(site: Site, path: str, said: str) -> None:
    assert problem(site.address + path) == said


def test_what_came_before_it_was_cut_off_counts(site: Site) -> None:
    found = read(f"{site.address}/cut/big.log")
    assert 0.3 * BIG.count(b"\n") < found.coverage.lines < 0.7 * BIG.count(b"\n")
    assert found.coverage.partly


def test_nobody_listens() -> None:
    assert "onnect" in problem("http://127.0.0.1:1/a.log")


def test_a_silent_server_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SILENCE_S", 0.5)
    began = time.monotonic()
    found = read(f"{site.address}/silent/big.log")
    assert time.monotonic() - began < 2.5
    assert found.coverage.lines > 0
    (lost,) = found.coverage.skipped_sources
    assert lost["problem"] == "the server is silent; try again later"


def test_an_endless_answer_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_UNTOLD", 1 << 20)
    found = read(f"{site.address}/endless/a.log")
    assert TEXT.count(b"\n") < found.coverage.lines <= (1 << 20) // 40
    (lost,) = found.coverage.skipped_sources
    assert "no size is told; download it first" in lost["problem"]


def test_the_state_goes_on_behind_a_server_too(site: Site, tmp_path: Path) -> None:
    for size in (len(TEXT) // 3, len(TEXT)):
        site.files["grown.log"] = TEXT[:size]
        url = f"{site.address}/plain/grown.log"
        found = read_with_state(tmp_path / "state", expand([url]), Reading(year=2026))
    expected = read(url)
    assert found.coverage == expected.coverage
    assert found.frames["stats"].equals(expected.frames["stats"])


def analyzed(*names: str) -> Any:
    arguments = ["analyze", *names, "--no-replay", "--year", "2026", "--json", "-"]
    return CliRunner().invoke(cli, arguments)


def test_the_command(site: Site) -> None:
    whole = analyzed(f"{site.address}/plain/a.log")
    assert whole.exit_code == 0, whole.output
    both = analyzed(f"{site.address}/plain/a.log", f"{site.address}/plain/none.log")
    assert both.exit_code == 4
    assert both.stderr == (f"logscope: {site.address}/plain/none.log: no such file; check the address\n")
    assert json.loads(both.stdout)["verdict"] == json.loads(whole.stdout)["verdict"]
    none = analyzed(f"{site.address}/503/a.log")
    assert isinstance(none.exception, LogscopeError)
    assert none.exception.status == 3


def test_several_processes_read_from_a_server(site: Site) -> None:
    names = [f"{site.address}/{habit}/a.log" for habit in ("plain", "ranges", "404")]
    one, two = analyzed(*names), analyzed(*names, "--jobs", "2")
    assert (one.exit_code, one.stdout) == (two.exit_code, two.stdout)
    assert one.exit_code == 4


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@host/a.log", "https://host/a.log"),
        ("https://user:p@ss@host/a.log?X-Token=abc&part=2#s", "https://host/a.log?X-Token=…&part=…"),
        ("s3://bucket/a.log", "s3://bucket/a.log"),
        ("cannot reach http://u:p@h:1/x?k=v now", "cannot reach http://h:1/x?k=… now"),
    ],
)
def test_no_password_of_a_name_is_shown(url: str, shown: str) -> None:
    assert remote.without_secrets(url) == shown


# --- Google's store


@pytest.fixture(scope="module")
def gs() -> Iterator[Any]:
    """A stand-in for Google's store, of this process."""
    emulator = pytest.importorskip(
        "gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed (dev extra)"
    )
    # its default looks up a bucket's kind by gRPC, which the stand-in does not speak
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    pytest.importorskip("gcsfs", reason="gcsfs is not installed (dev extra)")
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="logs")
    server.start()
    port = server._api._httpd.server_address[1]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            patched.delenv(name, raising=False)
        for scheme in ("gs", "gcs"):
            patched.setitem(fsspec.config.conf, scheme, {"token": "anon"})
        yield fsspec.filesystem("gs", skip_instance_cache=True)
    server.stop()


def test_a_bucket_of_googles(gs: Any, tmp_path: Path) -> None:
    gs.pipe("logs/pod-a/server.log.1.gz", gzip.compress(TEXT))
    gs.pipe("logs/pod-a/server.log", "\n".join(quiet(3600)).encode())
    gs.pipe("logs/pod-b/server.log", BIG)
    sources = expand(["gs://logs/**/*.log*"])
    assert [s.name for s in sources] == [
        "gs://logs/pod-a/server.log.1.gz",
        "gs://logs/pod-a/server.log",
        "gs://logs/pod-b/server.log",
    ]
    assert sources[0].group == sources[1].group != sources[2].group
    assert sources[2].size == len(BIG)
    found = read_log(sources, Span(), year=2026)
    assert found.coverage.skipped_sources == []
    assert found.coverage.lines == (TEXT + BIG).count(b"\n") + len(quiet())
    assert [s.problem for s in expand(["gs://logs/pod-b"])] == [None]
    (missing,) = expand(["gs://logs/none.log"])
    assert missing.problem == "no such file; check the address"
    (nothing,) = expand(["gs://elsewhere/*.log"])
    assert nothing.problem is not None
