"""Files, folders, globs, pipes; every compression; what is damaged, missing or no log."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import resource
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.lines import MAX_LINE, Line
from parsers.reading.by_line import read_events
from parsers.reading.events import Coverage
from parsers.sources.discovery import rotation_of
from parsers.sources.source import Source, expand
from tests.conftest import SAMPLES

TEXT = b"".join(b"INFO 11-29 23:07:%02d [a.py:1] line %d\n" % (i % 60, i) for i in range(3000))
LINES = TEXT.decode().splitlines()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


def texts(source: Source) -> list[str]:
    return [line.text for line in source.lines()]


def of(data: bytes, tmp_path: Path) -> Source:
    path = tmp_path / "server.log"
    path.write_bytes(data)
    return expand([str(path)])[0]


def standing(data: bytes) -> Source:
    return expand(["-"], stdin=io.BytesIO(data))[0]


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressions_by_content(kind: str, tmp_path: Path) -> None:
    compress = COMPRESS[kind]
    source = of(compress(TEXT), tmp_path)
    assert texts(source) == LINES
    assert (source.problem, source.loss.problem) == (None, None)
    assert texts(standing(compress(TEXT))) == LINES


@pytest.mark.parametrize("kind", [k for k in COMPRESS if k != "none"])
def test_several_members(kind: str, tmp_path: Path) -> None:
    compress = COMPRESS[kind]
    data = b"".join(compress(TEXT[at : at + 7000]) for at in range(0, len(TEXT), 7000))
    source = of(data, tmp_path)
    assert texts(source) == LINES
    assert source.loss.problem is None


@pytest.mark.parametrize("kind", [k for k in COMPRESS if k != "none"])
def test_truncated_stream_gives_what_can_be_decoded(kind: str, tmp_path: Path) -> None:
    noise = os.urandom(300_000).hex().encode()  # hard to press, so that half of it is half of the text
    text = b"".join(noise[at : at + 100] + b"\n" for at in range(0, len(noise), 100))
    data = COMPRESS[kind](text[: len(text) // 2]) + COMPRESS[kind](text[len(text) // 2 :])
    source = of(data[: len(data) * 3 // 4], tmp_path)
    found = texts(source)
    assert len(found) >= len(text) // 101 // 2
    assert text.decode().startswith("\n".join(found))
    assert source.problem is None
    assert source.loss.problem == f"the {kind} stream is cut short"


@pytest.mark.parametrize("kind", [k for k in COMPRESS if k != "none"])
def test_damaged_stream(kind: str, tmp_path: Path) -> None:
    data = bytearray(COMPRESS[kind](TEXT) + COMPRESS[kind](TEXT))
    middle = len(data) // 2 + 40
    data[middle : middle + 200] = b"\xff" * 200
    source = of(bytes(data), tmp_path)
    assert texts(source)[: len(LINES)] == LINES
    assert source.loss.problem is not None
    assert kind in source.loss.problem


def test_padding_and_rubbish_after_the_last_member(tmp_path: Path) -> None:
    source = of(gzip.compress(TEXT) + bytes(512), tmp_path)
    assert texts(source) == LINES
    assert source.loss.problem is None
    source = of(gzip.compress(TEXT) + b"rubbish that is no gzip", tmp_path)
    assert texts(source) == LINES
    assert source.loss.problem == "bytes after the end of the gzip stream are no gzip"
    assert source.loss.bytes == 23


@pytest.mark.parametrize("kind", ["gzip", "zstd", "xz", "bzip2"])
def test_decompression_bomb_needs_no_memory(kind: str) -> None:
    line = b"INFO 11-29 23:07:01 [a.py:1] " + b"x" * 1000 + b"\n"
    press = {"xz": lambda data: lzma.compress(data, preset=0), "bzip2": lambda data: bz2.compress(data, 1)}
    pressed = press.get(kind, COMPRESS[kind])(line * 80_000)  # 82 MB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes, count = [], 0
    for block in standing(pressed).blocks():
        sizes.append(len(block))
        count += block.count(b"\n")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert count == 80_000
    assert max(sizes) <= 32 << 20
    assert after - before < 60_000  # kB; a whole copy were 82 MB


@given(st.lists(st.integers(0, 200), max_size=8), st.sampled_from(["none", "gzip", "zstd"]))
@settings(max_examples=40, deadline=None)
def test_lines_do_not_depend_on_how_a_pipe_cuts_them(cuts: list[int], kind: str) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self, parts: list[bytes]) -> None:
            self.parts = parts

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            part = self.parts.pop(0) if self.parts else b""
            buffer[: len(part)] = part
            return len(part)

    data = COMPRESS[kind](TEXT[:2000])
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    parts = [data[a:b] for a, b in pairwise(edges)]
    source = expand(["-"], stdin=io.BufferedReader(Pipe(parts)))[0]
    assert texts(source) == TEXT[:2000].decode().split("\n")


def test_physical_lines(tmp_path: Path) -> None:
    source = of(b"\xef\xbb\xbfa\r\nb\rc\r\r\n\n\0\xff\xfe\xe2\x28d\x0be\xc2\x85\xe2\x80\xa8f\nlast", tmp_path)
    want = ["a", "b\rc", "", "\0\ufffd\ufffd\ufffd(d\x0be\x85\u2028f", "last"]
    assert list(source.lines()) == [Line(i, text) for i, text in enumerate(want, 1)]


def test_utf_16(tmp_path: Path) -> None:
    for encoding, mark in (("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)):
        source = of(mark + (TEXT.decode().replace("\n", "\r\n")).encode(encoding), tmp_path)
        assert texts(source) == LINES


def test_long_lines(tmp_path: Path) -> None:
    fits, long = b"a" * 300_000, b"b" * (5 * MAX_LINE)
    source = of(b"x\n" + fits + b"\n" + long + b"\ny\n" + long, tmp_path)
    lines = list(source.lines())
    assert [(line.number, len(line.text), line.text[0]) for line in lines] == [
        (1, 1, "x"),
        (2, 300_000, "a"),
        (3, MAX_LINE, "b"),
        (4, 1, "y"),
        (5, MAX_LINE, "b"),
    ]
    assert source.loss.truncated == 2
    assert source.loss.bytes == 2 * 4 * MAX_LINE
    assert source.loss.problem is None


def test_a_document_of_json_may_be_longer(tmp_path: Path) -> None:
    row = '["1778262423906000000","INFO 11-29 23:07:01 [a.py:1] line"]'
    rows = ",".join([row] * 40_000)
    answer = f'{{"data":{{"result":[{{"stream":{{"pod":"a"}},"values":[{rows}]}}]}}}}'
    assert len(answer) > 2 * MAX_LINE
    source = of(f"{answer}\n{{{'x' * 2 * MAX_LINE}\nlast\n".encode(), tmp_path)
    lines = list(source.lines())
    assert [line.number for line in lines] == [1] * 40_000 + [2, 3]
    assert len(lines[-2].text) == MAX_LINE
    assert source.loss.truncated == 1
    assert source.loss.bytes == MAX_LINE + 1


def test_holes_of_nuls_before_a_log_that_was_truncated_under_its_writer(tmp_path: Path) -> None:
    for hole in (1, 100_000, 3 << 20):
        assert texts(of(bytes(hole) + TEXT, tmp_path)) == LINES
        assert texts(of(TEXT + bytes(hole) + TEXT, tmp_path))[len(LINES) + 1 :] == LINES[1:]
    assert texts(of(TEXT + bytes(3 << 20) + TEXT, tmp_path)) == LINES * 2
    source = of(bytes(3 << 20), tmp_path)
    assert texts(source) == []
    assert source.problem == "a binary file, not a log"


NO_LOG = [
    (os.urandom(3000), "a binary file, not a log"),
    (b"\x7fELF" + bytes(2000), "a binary file, not a log"),
    (gzip.compress(bytes(3000)), "a binary file, not a log"),
    (b"PK\x03\x04" + bytes(100), "a zip archive; unpack it first"),
    (b"\x04\x22\x4d\x18" + bytes(100), "lz4 compressed; decompress it first (lz4 -d)"),
    (gzip.compress(b"log/".ljust(257, b"\0") + b"ustar" + bytes(250)), "a tar archive; unpack it first"),
]


@pytest.mark.parametrize(("data", "problem"), NO_LOG, ids=range(len(NO_LOG)))
def test_no_logs(data: bytes, problem: str, tmp_path: Path) -> None:
    source = of(data, tmp_path)
    assert texts(source) == []
    assert source.problem == problem


def test_empty_file(tmp_path: Path) -> None:
    source = of(b"", tmp_path)
    assert (texts(source), source.problem, source.size) == ([], None, 0)


def test_missing_and_unreadable_do_not_stop_the_others(tmp_path: Path) -> None:
    good, closed = tmp_path / "good.log", tmp_path / "closed.log"
    good.write_bytes(TEXT)
    closed.write_bytes(TEXT)
    closed.chmod(0)
    sources = expand([str(tmp_path / "missing.log"), str(closed), "no*match", "bad\0name", str(good)])
    assert [bool(texts(s)) for s in sources] == [False, os.geteuid() == 0, False, False, True]
    assert [s.problem for s in sources] == [
        "no such file; check the path",
        None if os.geteuid() == 0 else "permission denied; run as a user who may read it",
        "matches no file; check the pattern",
        "no valid file name",
        None,
    ]


def test_file_replaced_or_truncated_while_it_is_read(tmp_path: Path) -> None:
    data = TEXT * 40
    for change in ("replace", "truncate"):
        path = tmp_path / f"{change}.log"
        path.write_bytes(data)
        source = expand([str(path)])[0]
        lines = source.lines()
        next(lines)
        if change == "replace":
            (tmp_path / "new").write_bytes(b"other\n")
            (tmp_path / "new").rename(path)
        else:
            os.truncate(path, 10)
        count = 1 + sum(1 for _ in lines)
        assert source.problem is None
        if change == "replace":
            assert count == len(LINES) * 40
            assert source.loss.problem is None
        else:
            assert 1 < count < len(LINES) * 40
            assert source.loss.problem == "the file was truncated while it was read"


ROTATED = [
    (["server.log", "server.log.1", "server.log.2.gz", "server.log.10.gz"], [3, 2, 1, 0]),
    (["server.log", "server.log-20260501.gz", "server.log-20260430.gz"], [2, 1, 0]),
    (["vllm.log.2026-05-02_00-00-00", "vllm.log", "vllm.log.2026-05-01_00-00-00"], [1, 2, 0]),
    (["0.log", "0.log.20260501-120000.gz", "0.log.20260501-110000.gz"], [2, 1, 0]),
    (["server.2026-05-02.log", "server.2026-05-01.log"], [1, 0]),
    (["syslog.1", "syslog", "syslog.2.gz"], [1, 2, 0]),
    (["abc-json.log.1", "abc-json.log"], [0, 1]),
]


@pytest.mark.parametrize(("names", "order"), ROTATED)
@pytest.mark.parametrize("way", ["files", "folder", "glob"])
def test_rotated_sets_are_one_group_oldest_first(names: list[str], order: list[int], way: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(gzip.compress(TEXT) if name.endswith("gz") else TEXT)
    args = {
        "files": [str(tmp_path / name) for name in names],
        "folder": [str(tmp_path)],
        "glob": [str(tmp_path / "*")],
    }[way]
    sources = expand(args)
    ranked = sorted(zip(order, names, strict=True))
    assert [Path(s.name).name for s in sources] == [name for _, name in ranked]
    assert len({s.group for s in sources}) == 1
    assert all(texts(s) == LINES for s in sources)


def test_runs_of_one_container_in_a_kubelets_folder(tmp_path: Path) -> None:
    folder = tmp_path / "default_vllm-0_6f1c2a3b-0000-4000-8000-000000000001" / "vllm"
    folder.mkdir(parents=True)
    order = ["0.log.20260501-120000.gz", "0.log", "1.log.20260502-120000.gz", "1.log"]
    for name in order:
        (folder / name).write_bytes(gzip.compress(TEXT) if name.endswith("gz") else TEXT)
    sources = expand([str(tmp_path)])
    assert [s.path.name for s in sources if s.path] == order
    assert len({s.group for s in sources}) == 1


@pytest.mark.parametrize(
    "name",
    [
        "pods/default_vllm-0_6f1c2a3b-0000-4000-8000-000000000001/vllm/0.log",
        f"containers/vllm-0_default_vllm-{'0a' * 32}.log",
    ],
)
def test_pod_and_container_from_the_place_of_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"2026-05-08T17:47:03.906Z stderr F INFO 05-08 17:47:03 [a.py:1] x\n")
    [line] = expand([str(path)])[0].lines()
    assert line.outer is not None
    assert (line.outer.pod, line.outer.container, line.outer.stream) == ("vllm-0", "vllm", "stderr")


@pytest.mark.parametrize("name", [".", "/", "..", ".gz", "", "a/.gz", "1", "log"])
def test_names_without_a_stem_are_their_own_set(name: str) -> None:
    assert rotation_of(name).age[0] == 2


def test_other_names_are_no_rotated_set(tmp_path: Path) -> None:
    names = ["worker-1.log", "worker-2.log", "worker-10.log", "run-0.8", "run-0.9"]
    for name in names:
        (tmp_path / name).write_bytes(TEXT)
    sources = expand([str(tmp_path / name) for name in names])
    assert [Path(s.name).name for s in sources] == names
    assert len({s.group for s in sources}) == len(names)


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in ("a/server.log", "a/deep/vllm.out", "stdout", ".git/x.log", "README.md", "a/code.py", "a/.hidden.log"):
        (tmp_path / name).write_bytes(TEXT)
    (tmp_path / "docker-json.json").write_bytes(b'{"log":"x\\n","stream":"stderr","time":"2026-01-01T00:00:00Z"}\n')
    (tmp_path / "truth.json").write_bytes(b'{"preemptions": 3}')
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "again.log").symlink_to(tmp_path / "a" / "server.log")
    (tmp_path / "broken.log").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.log")
    sources = expand([str(tmp_path)])
    names = [str(s.path.relative_to(tmp_path)) for s in sources if s.path]
    assert sorted(names) == ["a/again.log", "a/deep/vllm.out", "docker-json.json", "stdout"]
    assert all(s.problem is None for s in sources)
    notes = "\n".join(sources.notes)
    for passed_over, why in [
        ("README.md", "not named like a log"),
        ("code.py", "not named like a log"),
        ("truth.json", "JSON without log text"),
        ("broken.log", "a broken link"),
        ("pipe.log", "no regular file"),
        ("server.log", "named twice, read once"),
    ]:
        assert f"{passed_over}: {why}" in notes


def test_folder_without_logs(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_bytes(b"x")
    [source] = expand([str(tmp_path)])
    assert source.problem == "no log files in this folder; pass the log file itself"


def test_live_lines_come_when_they_are_written() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as stream, os.fdopen(theirs, "wb", buffering=0) as writer:
        [source] = expand(["-"], stdin=stream, live=True)
        lines = source.lines()
        for text in LINES[:3]:
            writer.write(text.encode() + b"\n")
            assert next(lines).text == text  # with nothing behind it yet


def test_unknown_time_zone() -> None:
    with pytest.raises(ValueError, match="unknown time zone 'Mars/Olympus'"):
        expand(["-"], timezone="Mars/Olympus")


def test_named_pipes(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    [source] = expand([str(path)])
    assert texts(source) == []
    assert source.problem == "an empty named pipe that nobody writes to"
    writer = threading.Thread(target=path.write_bytes, args=(TEXT,))
    writer.start()
    assert texts(expand([str(path)])[0]) == LINES
    writer.join()


def test_order_of_arguments_is_kept(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "a.log.1"):
        (tmp_path / name).write_bytes(TEXT)
    args = [str(tmp_path / name) for name in ("b.log", "a.log", "a.log.1")]
    assert [Path(s.name).name for s in expand(args)] == ["b.log", "a.log.1", "a.log"]


def test_a_set_that_was_rotated_within_a_line_counts_it(tmp_path: Path) -> None:
    whole = (SAMPLES / "v1-calm.log").read_bytes()
    at = whole.index(b"\n", len(whole) // 2) - 20
    for name, part in (("server.log.1", whole[:at]), ("server.log", whole[at:])):
        (tmp_path / name).write_bytes(part)
    coverage = Coverage()
    list(read_events(expand([str(tmp_path)]), coverage))
    assert coverage.truncated == 1
    (tmp_path / "server.log.1").write_bytes(whole[:at] + b"\n")
    coverage = Coverage()
    list(read_events(expand([str(tmp_path)]), coverage))
    assert coverage.truncated == 0


@pytest.mark.parametrize("name", ["x" * 300, "[" * 5000, "", " ", f"/{'x' * 300}/*"])
def test_a_name_that_no_file_can_have_is_a_problem_of_that_source(name: str) -> None:
    (source,) = expand([name])
    list(source.lines())
    assert source.problem
