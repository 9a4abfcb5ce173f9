"""Logs of object stores: the same as if they lay in a folder."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logscope.log.frames import read_log
from logscope.log.span import Reading, Span
from logscope.log.state.frames import read_with_state
from parsers.sources.object_stores import is_remote
from parsers.sources.source import expand
from tests.fleets.logs import busy, quiet

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'logscope[remote]')")

TEXT = ("\n".join(busy()) + "\n").encode()


@pytest.fixture
def memory() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield store
    store.store.clear()


@pytest.mark.parametrize("name", ["s3://b/x.log", "gs://b/*.gz", "https://h/x.log", "memory://x"])
def test_remote_names(name: str) -> None:
    assert is_remote(name)


@pytest.mark.parametrize("name", ["server.log", "/var/log/a://b", "file:///var/log/x", "C:/x.log", "-"])
def test_local_names(name: str) -> None:
    assert not is_remote(name)


def test_files_of_a_store_are_read_like_files(memory: Any, tmp_path: Path) -> None:
    cut = TEXT.index(b"\n", len(TEXT) // 2) + 1
    for folder in (tmp_path / "logs",):
        folder.mkdir()
        (folder / "a.log.1.gz").write_bytes(gzip.compress(TEXT[:cut]))
        (folder / "a.log").write_bytes(TEXT[cut:])
        (folder / "b.log").write_bytes("\n".join(quiet()).encode())
        for path in folder.iterdir():
            memory.pipe(f"/logs/{path.name}", path.read_bytes())
    far = expand(["memory://logs/*.log*"])
    assert [s.name.rpartition("/")[2] for s in far] == ["a.log.1.gz", "a.log", "b.log"]
    assert far[0].group == far[1].group != far[2].group
    near = read_log(expand([str(tmp_path / "logs" / "*.log*")]), Span(), year=2026)
    found = read_log(far, Span(), year=2026)
    assert found.coverage.lines == near.coverage.lines
    assert found.coverage.bytes == near.coverage.bytes
    for family, frame in near.frames.items():
        assert found.frames[family].drop("source").equals(frame.drop("source"))


def test_a_folder_and_what_is_missing(memory: Any) -> None:
    memory.pipe("/logs/deep/a.log", TEXT)
    assert [s.problem for s in expand(["memory://logs"])] == [None]
    (none,) = expand(["memory://nothing/*.log"])
    assert none.problem == "matches no file; check the pattern"
    (missing,) = expand(["memory://nothing/x.log"])
    assert missing.problem == "no such file; check the address"
    (unknown,) = expand(["gibberish://x/y.log"])
    assert unknown.problem is not None
    assert "gibberish" in unknown.problem


def test_a_name_in_a_store_does_not_lead_out_of_it(memory: Any, tmp_path: Path) -> None:
    """Others name what lies in a store; fsspec would take such a name for a chain of file systems."""
    (tmp_path / "secret.log").write_text("secret")
    evil = f"/logs/a::file://{tmp_path}/secret.log"
    memory.pipe(evil, TEXT)
    (source,) = expand(["memory://logs"])
    assert source.name == f"memory://{evil}"
    assert read_log([source], Span(), year=2026).coverage.lines == TEXT.count(b"\n")
    (chain,) = expand([f"memory://none::file://{tmp_path}/secret.log"])
    assert chain.problem == "no such file; check the address"


def test_a_failing_store_is_a_loss_not_a_crash(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/logs/a.log", TEXT)
    sources = expand(["memory://logs/a.log"])

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the store https://user:secret@store is down")

    monkeypatch.setattr(type(memory), "_open", broken)
    found = read_log(sources, Span())
    assert found.coverage.skipped_sources == [{"source": sources[0].name, "problem": "the store https://store is down"}]


def test_state_goes_on_in_a_store(memory: Any, tmp_path: Path) -> None:
    for size in (len(TEXT) // 3, len(TEXT)):
        memory.pipe("/logs/a.log", TEXT[:size])
        found = read_with_state(tmp_path / "state", expand(["memory://logs/a.log"]), Reading(year=2026))
    expected = read_log(expand(["memory://logs/a.log"]), Span(), year=2026)
    assert found.coverage == expected.coverage
    assert found.frames["stats"].equals(expected.frames["stats"])


def test_without_fsspec_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    (source,) = expand(["s3://bucket/x.log"])
    assert source.problem is not None
    assert "pip install 'logscope[remote]'" in source.problem


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """An S3 server of this process."""
    moto = pytest.importorskip("moto.server", reason="moto is not installed (dev extra)")
    pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'logscope[remote]')")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patched.setenv("AWS_ACCESS_KEY_ID", "test")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patched.delenv("HTTP_PROXY", raising=False)
        patched.delenv("http_proxy", raising=False)
        store = fsspec.filesystem("s3", skip_instance_cache=True)
        store.mkdir("logs")
        yield store
    server.stop()


def test_an_s3_bucket(s3: Any, tmp_path: Path) -> None:
    big = b"".join(("\n".join(busy(600 * i, 90)) + "\n").encode() for i in range(60))
    assert len(big) > 5 << 20  # several blocks
    s3.pipe("logs/pod-a/server.log.gz", gzip.compress(TEXT))
    s3.pipe("logs/pod-b/server.log", big)
    sources = expand(["s3://logs/**/*.log*"])
    assert [s.name for s in sources] == ["s3://logs/pod-a/server.log.gz", "s3://logs/pod-b/server.log"]
    found = read_log(sources, Span(), year=2026)
    (tmp_path / "server.log").write_bytes(big)
    near = read_log(expand([str(tmp_path / "server.log")]), Span(), year=2026)
    own = found.frames["stats"].filter(found.frames["stats"]["server"] == 1)
    assert own.height == near.frames["stats"].height
    assert found.coverage.lines == near.coverage.lines + TEXT.count(b"\n")
    (missing,) = expand(["s3://logs/none.log"])
    assert missing.problem == "no such file; check the address"
