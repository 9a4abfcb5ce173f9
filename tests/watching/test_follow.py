"""Following: rotation, truncation, pipes, and lines that come in pieces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from logscope.live.follow import follow_file, live_lines, needed_lines, read_pipe
from parsers.lines import Line
from parsers.reading.events import Coverage

Step = Callable[[Path], object]


def append(text: str) -> Step:
    def step(path: Path) -> None:
        with path.open("a") as file:
            file.write(text)

    return step


def rotate(path: Path) -> None:
    path.rename(path.with_name("server.log.1"))
    path.write_text("new 1\nnew 2\n")


def late_line_then_rotate(path: Path) -> None:
    append("last\n")(path)
    rotate(path)


def away(path: Path) -> None:
    path.rename(path.with_name("server.log.1"))


def copy_and_truncate(path: Path) -> None:
    os.truncate(path, 0)
    append("new 1\n")(path)


def truncated_and_grown_beyond(path: Path) -> None:
    path.write_bytes(b"new line that is longer than all that was there before\n")


def follow(path: Path, *steps: Step) -> list[tuple[int, str]]:
    """What is read while the steps happen, one at each wait."""
    todo = list(steps)

    class Done(Exception):  # noqa: N818
        pass

    def wait(seconds: float) -> None:
        assert seconds > 0
        if not todo:
            raise Done
        todo.pop(0)(path)

    found: list[tuple[int, str]] = []
    with suppress(Done):
        found.extend((x.number, x.text) for x in live_lines(follow_file(path, wait)) if x)
    return found


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([append("three\n")], [(3, "three")]),
        ([append("th"), append("ree\n")], [(3, "three")]),
        ([rotate], [(1, "new 1"), (2, "new 2")]),
        ([late_line_then_rotate], [(3, "last"), (1, "new 1"), (2, "new 2")]),
        ([append("cut"), rotate], [(3, "cut"), (1, "new 1"), (2, "new 2")]),
        ([away, lambda p: p.write_text("back\n")], [(1, "back")]),
        ([copy_and_truncate], [(1, "new 1")]),
        ([truncated_and_grown_beyond], [(1, "new line that is longer than all that was there before")]),
    ],
)
def test_a_file_is_followed(tmp_path: Path, steps: list[Step], found: list[tuple[int, str]]) -> None:
    path = tmp_path / "server.log"
    path.write_text("one\ntwo\n")
    assert follow(path, *steps) == [(1, "one"), (2, "two"), *found]


def test_a_pipe_ends_where_its_writer_ends() -> None:
    read, write = os.pipe()
    chunks = read_pipe(read, poll_s=0.0)
    assert next(chunks) is None
    os.write(write, b"one\ntw")
    assert next(chunks) == b"one\ntw"
    os.close(write)
    assert list(chunks) == []
    os.close(read)


def chunked(*chunks: bytes | None) -> list[str | None]:
    stream: Iterator[bytes | None] = iter(chunks)
    return [line and line.text for line in live_lines(stream)]


def test_lines_are_whole_whatever_the_chunks() -> None:
    assert chunked(b"on", b"e\r\ntw", None, b"o\n", b"three") == ["one", None, "two", "three"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    [line] = chunked(*[b"x" * 1_000_000] * 5)
    assert line is not None
    assert len(line) <= 2 << 20


def test_an_envelope_is_taken_off() -> None:
    text = b'{"log":"INFO 05-09 00:49:10 [a.py:1] hello\\n","stream":"stderr","time":"2026-05-09T00:49:10Z"}\n'
    assert chunked(text) == ["INFO 05-09 00:49:10 [a.py:1] hello"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("(APIServer pid=1) INFO 11-29 23:56:46 [async_llm.py:578] Added request cmpl-1.", False),
        ("(EngineCore pid=2) INFO 11-29 23:56:46 [core.py:1] Iteration(10): 1 context", False),
        ('INFO:     127.0.0.1:34408 - "POST /v1/completions HTTP/1.1" 200 OK', False),
        ('INFO:     127.0.0.1:34408 - "POST /v1/completions HTTP/1.1" 500 Error', True),
        ("INFO 11-29 23:56:46 [a.py:1] Received request 1: prompt: 'x " + "y" * 500, True),
        ("INFO 11-29 23:56:46 [loggers.py:259] Engine 000: Running: 1 reqs", True),
    ],
)
def test_lines_that_tell_nothing_are_passed_over_but_counted(text: str, kept: bool) -> None:
    coverage = Coverage()
    found = list(needed_lines(iter([None, Line(1, text)]), coverage))
    assert found == [None, Line(1, text)][: 2 if kept else 1]
    assert coverage.lines == (0 if kept else 1)
