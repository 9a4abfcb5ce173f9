"""Bytes as they are written: a file through rotation and truncation, a pipe, and lines out of both.

A stream of chunks gives `None` where nothing is there for now, so that what reads it can look at the clock. Nothing here waits by
itself: `wait` is called with the seconds to pass, which a test replaces.

What can be watched: a file, standard input or a named pipe, and a unit's journal.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from logscope.errors import NothingToWorkOn
from parsers.envelopes import Clock, Unwrapper
from parsers.lines import MAX_LINE, Line
from parsers.reading.events import Coverage
from parsers.sources.compression import compression_of
from parsers.sources.journal import JournalError, start_journalctl

__all__ = [
    "JOURNAL_LINES",
    "POLL_S",
    "Wait",
    "follow_file",
    "live_lines",
    "needed_lines",
    "open_source",
    "open_unit",
    "read_pipe",
]
POLL_S = 0.25
BLOCK = 1 << 18
_MARK = 64
_SHORT = 400
# Lines of which a busy server prints many, and which tell nothing that is watched: a single request's steps and access lines.
_PASSED_OVER = (" Added request ", " Iteration(", ' HTTP/1.1" 200', ' HTTP/1.0" 200')

Wait = Callable[[float], None]


def read_pipe(descriptor: int, poll_s: float = POLL_S) -> Iterator[bytes | None]:
    """The bytes of a pipe (or of a file on standard input) as they come, to its end."""
    while True:
        ready, _, _ = select.select([descriptor], [], [], poll_s)
        if not ready:
            yield None
            continue
        block = os.read(descriptor, BLOCK)
        if not block:
            return
        yield block


def follow_file(path: Path, wait: Wait, poll_s: float = POLL_S) -> Iterator[bytes | None]:
    """The bytes of a file from its start and as it grows, without end.

    When another file takes the path's name (rotation) the old one is read to its end first, then the new one from its start; when the
    file becomes shorter, or holds other bytes where it was read (copied and truncated), it is read from its start again. An empty chunk
    stands where one file ends and the next begins. Raises OSError where the file cannot be opened at first.
    """
    file = _Followed(path)
    try:
        while True:
            block = file.read()
            if block:
                yield block
            elif file.moved():
                yield b""
            else:
                yield None
                wait(poll_s)
    finally:
        file.close()


class _Followed:
    """An open file, how far it was read, and its last bytes: by them a rewritten file is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.position = 0
        self.mark = b""
        self.identity = self._identity()

    def close(self) -> None:
        os.close(self.descriptor)

    def read(self) -> bytes:
        if not self._is_continued():
            return b""
        block = os.pread(self.descriptor, BLOCK, self.position)
        self.position += len(block)
        self.mark = (self.mark + block)[-_MARK:]
        return block

    def moved(self) -> bool:
        """Go to the file's start, or to the file that has its name now; False where all is as before."""
        if not self._is_continued():
            self.position, self.mark = 0, b""
            return True
        try:
            fresh = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False  # between two files of a rotation
        facts = os.fstat(fresh)
        if (facts.st_dev, facts.st_ino) == self.identity or not stat.S_ISREG(facts.st_mode):
            os.close(fresh)
            return False
        os.close(self.descriptor)
        self.descriptor, self.position, self.mark = fresh, 0, b""
        self.identity = self._identity()
        return True

    def _identity(self) -> tuple[int, int]:
        facts = os.fstat(self.descriptor)
        return facts.st_dev, facts.st_ino

    def _is_continued(self) -> bool:
        if os.fstat(self.descriptor).st_size < self.position:
            return False
        before = os.pread(self.descriptor, len(self.mark), self.position - len(self.mark))
        return before == self.mark


def live_lines(chunks: Iterator[bytes | None], *, timezone: str | None = None) -> Iterator[Line | None]:
    """The payload lines of chunks, out of their envelopes; None where nothing follows for now.

    An empty chunk starts another file: lines are numbered from 1 again. A line of more than 1 MiB is cut. Raises ValueError for an
    unknown time zone.
    """
    clock = Clock(timezone)
    unwrapper, number, rest = Unwrapper(clock), 1, b""
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        if not chunk:
            yield from unwrapper.feed_block(number, _texts(rest) if rest else [])
            yield from unwrapper.finish()
            yield None
            unwrapper, number, rest = Unwrapper(clock), 1, b""
            continue
        whole, feed, after = (rest + chunk).rpartition(b"\n")
        rest = after if len(after) <= MAX_LINE else after[:MAX_LINE]
        if not feed:
            continue
        texts = _texts(whole)
        unwrapper.survey(texts[:400])
        yield from unwrapper.feed_block(number, texts)
        number += len(texts)
    if rest:
        yield from unwrapper.feed_block(number, _texts(rest))
    yield from unwrapper.finish()


def _texts(data: bytes) -> list[str]:
    # As elsewhere, a carriage return before the line feed is dropped.
    return [t.rstrip("\r") for t in data.decode("utf-8", "replace").lstrip("\0").split("\n")]


def needed_lines(lines: Iterator[Line | None], coverage: Coverage) -> Iterator[Line | None]:
    """The lines without those that the watch has no use for; they are counted as lines and as records all the same."""
    for line in lines:
        if line is not None and len(line.text) < _SHORT and line.record is None:
            text = line.text
            if any(word in text for word in _PASSED_OVER):
                coverage.lines += 1
                coverage.vllm_records += text[:1] == "(" or text.startswith("INFO ")
                continue
        yield line


JOURNAL_LINES = 100_000
"""Entries of a unit's journal that are read before new ones: enough to hold the server's last start, and bounded."""

Chunks = Iterator["bytes | None"]


@contextmanager
def open_source(name: str, wait: Wait) -> Iterator[Chunks]:
    """The chunks of standard input (`-`), a named pipe or a file.

    Raises NothingToWorkOn for what cannot be opened or followed.
    """
    if not name.strip():
        raise NothingToWorkOn("an empty name; name a file, or - for standard input")
    if name == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise NothingToWorkOn(
                "no log given: pass a file, or pipe one in (docker logs -f vllm 2>&1 | logscope watch -)"
            )
        yield read_pipe(sys.stdin.fileno())
        return
    try:
        pipe = _pipe_at(Path(name))
    except OSError as error:
        raise NothingToWorkOn(f"{name}: {error.strerror or error}") from None
    if pipe is None:
        yield follow_file(Path(name), wait)
        return
    try:
        yield read_pipe(pipe)
    finally:
        os.close(pipe)


def _pipe_at(path: Path) -> int | None:
    """A descriptor where a pipe (or a terminal) is, None where a file is that can be followed.

    Raises NothingToWorkOn for what cannot, OSError for what cannot be opened.
    """
    kind = path.stat().st_mode
    if stat.S_ISDIR(kind):
        raise NothingToWorkOn(f"{path}: a folder; name the file to follow")
    if not stat.S_ISREG(kind):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if stat.S_ISFIFO(kind) or os.isatty(descriptor) or path.resolve() == Path(os.devnull):
            return descriptor
        os.close(descriptor)
        raise NothingToWorkOn(f"{path}: a device, no file of text")
    with path.open("rb") as file:
        if compression_of(file.read(16)):
            raise NothingToWorkOn(f"{path}: compressed, so it does not grow; logscope analyze reads it")
    return None


@contextmanager
def open_unit(unit: str) -> Iterator[Chunks]:
    """The entries of a systemd unit's journal, the last ones first and then each new one. Raises NothingToWorkOn without journalctl."""
    try:
        process = start_journalctl([f"--unit={unit}", "--follow", f"--lines={JOURNAL_LINES}"], "json")
    except JournalError:
        raise NothingToWorkOn(
            "--unit needs the command journalctl, which is not installed here; pipe the log in instead"
        ) from None
    assert process.stdout is not None
    try:
        yield read_pipe(process.stdout.fileno())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
