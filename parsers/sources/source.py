"""Where log lines come from: files, folders, globs, standard input, systemd journals.

A source is read in bounded blocks, whatever its size and compression; what could not be read is counted
in `Source.loss` and never stops another source.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from itertools import chain, pairwise
from pathlib import Path
from typing import BinaryIO

from parsers.envelopes import Clock, Unwrapper
from parsers.envelopes.blocks import is_newest_first, oldest_first_pieces, unwrapped
from parsers.envelopes.form import zone_of
from parsers.envelopes.rare import TooLargeError
from parsers.envelopes.unwrapper import SAMPLE
from parsers.lines import Line, Loss, Outer, TextBlock, after_hole, is_binary, transcoded, without_lone_surrogates
from parsers.records.layouts import NO_CLOCK, Layout, layout_of
from parsers.records.prefix import parse_header, strip_ansi
from parsers.sources.compression import BLOCK, DamagedError, compression_of, decoded, open_blocks, unsupported
from parsers.sources.discovery import Found, discover, pod_of, rotation_of
from parsers.sources.journal import MAGIC, JournalError, JournalQuery, export_blocks
from parsers.sources.object_stores import RemoteFile, sentence_of
from parsers.sources.resuming import TailWindow

__all__ = ["JournalQuery", "Source", "Sources", "expand", "journal_of", "open_file", "pushed_back"]

_FIFO_PATIENCE_S = 2.0
_MAGIC_SIZE = 16
# So much of a source's beginning shows how its records are laid out.
_HEAD = 1 << 18
_HEAD_LINES = 1000
_FEW_LINES = 20


class Source:
    """One stream of log lines.

    `name` is the source as the user gave it, `group` the rotated set (or journal) that it belongs to: one
    server's stream; `modified_us` its last change in microseconds since the epoch (UTC), None for a pipe.
    `remarks` are sentences on how it was read. `problem` says why it could not be opened or read at all; it is set at once or when it is first read.
    """

    def __init__(
        self,
        name: str,
        *,
        path: Path | None = None,
        stream: BinaryIO | None = None,
        group: str | None = None,
        timezone: str | None = None,
        problem: str | None = None,
        live: bool = False,
        query: JournalQuery | None = None,
        remote: RemoteFile | None = None,
    ) -> None:
        self.name = without_lone_surrogates(name)  # a file name need not be UTF-8
        self.path = path
        self.group = group if group is not None else name
        self.timezone = timezone
        self.live = live
        self.problem = problem
        self.loss = Loss()
        self.remarks: list[str] = []
        self.size: int | None = None
        self.modified_us: int | None = None
        self.newest_first = False
        self.goes_on = False  # in the next file of its rotated set
        self.compression: str | None = None
        self.window: TailWindow | None = None
        self._is_journal = False
        self._stream = stream
        self._query = query
        self._remote = remote
        if remote is not None:
            self.size, self.modified_us = remote.size, remote.modified_us
        if path is not None and problem is None:
            self._examine(path)

    def __repr__(self) -> str:
        return f"Source({self.name!r}, problem={self.problem!r})"

    def elsewhere(self) -> Source:
        """The same for a process that works in another folder, or on another machine that sees the same files."""
        other = copy(self)
        other.path = self.path.absolute() if self.path is not None else None
        return other

    def _examine(self, path: Path) -> None:
        try:
            facts = path.stat()
        except OSError as error:
            self.problem = _sentence(error)
            return
        if stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode):
            self.modified_us = facts.st_mtime_ns // 1000
        if stat.S_ISREG(facts.st_mode):
            self.size = facts.st_size
        elif stat.S_ISSOCK(facts.st_mode):
            self.problem = "a socket, not a log"

    def blocks(self) -> Iterator[bytes]:
        """The source's bytes, decompressed, in blocks of bounded size; a journal's in export format.

        Never raises for what lies in the source: see `problem` and `loss`.
        """
        if self.problem is not None:
            return
        text = self._open_and_read()
        try:
            yield from self._counting_a_cut_end(text) if self.window is None else self.window.over(text)
        except DamagedError as damage:
            self.loss.problem = damage.reason
            self.loss.bytes += damage.lost
        except JournalError as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = _sentence(error)

    def _counting_a_cut_end(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """A file of a set that was rotated within a line: the two halves are counted as what they are, one line that was cut."""
        last = b"\n"
        for block in blocks:
            yield block
            last = block[-1:] or last
        self.loss.truncated += self.goes_on and last != b"\n"

    def _open_and_read(self) -> Iterator[bytes]:
        if self._stream is not None:
            yield from self._read(self._stream)
        elif self._remote is not None:
            yield from self._read_remote(self._remote)
        elif self._query is not None:
            yield from self._journal(self._query.blocks(BLOCK))
        elif self.path is not None and self.path.is_dir():
            yield from self._journal(export_blocks(self.path, BLOCK))
        elif self.path is not None:
            stream, head = open_file(self.path)
            with stream:
                yield from self._read(stream, head)

    def _read_remote(self, remote: RemoteFile) -> Iterator[bytes]:
        try:
            with remote.open() as stream:
                yield from self._read(stream)
        except (DamagedError, JournalError):
            raise
        except Exception as error:  # each store has exceptions of its own
            if isinstance(error, OSError) and error.strerror:
                raise
            raise OSError(0, sentence_of(error)) from error

    def _read(self, stream: BinaryIO, head: bytes = b"") -> Iterator[bytes]:
        read = open_blocks(stream, live=self.live, until=None if self.live else _size_of(stream))
        head += read()
        while 0 < len(head) < _MAGIC_SIZE and (more := read()):  # a pipe may give little at a time
            head += more
        if self.path is not None and head.startswith(MAGIC):
            yield from self._journal(export_blocks(self.path, BLOCK))
            return
        self.problem = unsupported(head)
        if self.problem is not None:
            return
        kind = self.compression = compression_of(head)
        if kind is None and self.window is not None and self.size is not None:
            head = self.window.reach(stream, head)
        raw = pushed_back(head, read)
        yield from self._text(decoded(kind, raw) if kind else iter(raw, b""))
        if kind is None and self.size is not None:
            self._check_whole(stream)

    def _journal(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        self._is_journal = True
        return blocks

    def _text(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        first = next(blocks, b"")
        if self.size is not None and first[:1] == b"\0":
            first = after_hole(first, blocks)
        if (problem := unsupported(first)) or is_binary(first):
            self.problem = problem or "a binary file, not a log"
            return
        yield from transcoded(first, blocks)

    def _check_whole(self, stream: BinaryIO) -> None:
        """Note when a file became shorter while it was read (log rotation by copy and truncate)."""
        with suppress(OSError, ValueError):
            if os.fstat(stream.fileno()).st_size < stream.tell():
                self.loss.problem = "the file was truncated while it was read"

    def lines(self) -> Iterator[Line]:
        """The payload lines: physical lines with their envelopes removed.

        Physical lines end at a line feed alone; carriage returns before it are dropped, others stay. A line
        of more than 1 MiB is cut and counted in `loss`. Bytes that are no UTF-8 become U+FFFD. A source that
        is newest first is turned round (`newest_first` is set), its lines keep their numbers.
        """
        for piece in self._pieces(bulk=False):
            if isinstance(piece, TextBlock):
                yield from piece.lines()
            else:
                yield from piece

    def pieces(self) -> Iterator[TextBlock | list[Line]]:
        """The bulk form of `lines`: payload text in blocks where that can be had, all else as lines.

        A block's `data` is payload text; in which envelopes its lines stood tell its `envelopes`, if not None
        (`envelopes.outer(i)` gives the facts of the block's line i, from 0).
        """
        return self._pieces(bulk=True)

    def _laid_out(self, pieces: Iterator[TextBlock | list[Line]], layout: Layout) -> Iterator[list[Line]]:
        for piece in pieces:
            yield list(layout.over(piece.lines() if isinstance(piece, TextBlock) else piece))
        if layout.counted:
            self.remarks.append(NO_CLOCK)

    def _pieces(self, *, bulk: bool) -> Iterator[TextBlock | list[Line]]:
        clock = Clock(self.timezone, self.modified_us)
        pod = pod_of(str(self.path.absolute())) if self.path is not None else None
        blocks = self.blocks()
        head = next(blocks, b"")
        layout = None if self._is_journal else _layout_of(head, clock, live=self.live)
        pieces: Iterator[TextBlock | list[Line]] = unwrapped(
            chain((head,) if head else (), blocks),
            self.loss,
            clock,
            by_entry=lambda: self._is_journal,
            bulk=bulk and pod is None and layout is None,
        )
        if layout is not None:
            pieces = self._laid_out(pieces, layout)
        if pod is not None:
            pieces = _placed(pieces, Outer("", pod=pod[0], container=pod[1]))
        first = next(pieces, None)
        if first is None:
            return
        self.newest_first = not self.live and is_newest_first(first)
        if not self.newest_first:
            yield first
            yield from pieces
            return
        try:
            yield from oldest_first_pieces(first, pieces)
        except TooLargeError:
            self.loss.problem = "newest first and too large to turn round; sort it oldest first"
        except OSError as error:  # no space for the temporary file
            reason = error.strerror or str(error)
            self.loss.problem = f"newest first and could not be turned round: {reason}"


def _layout_of(head: bytes, clock: Clock, *, live: bool) -> Layout | None:
    """The layout of a source that begins with these bytes, where its records stand behind what no form knows."""
    texts = head[:_HEAD].decode("utf-8", "replace").split("\n")[:_HEAD_LINES]
    texts = [text.rstrip("\r") for text in texts]
    few, others = texts[:_FEW_LINES], texts[_FEW_LINES:]
    if any(parse_header(strip_ansi(text)) is not None for text in few):
        return None
    unwrapper = Unwrapper(clock)
    unwrapper.survey(texts[:SAMPLE])
    lines = unwrapper.feed_block(1, few)
    if any(line.record is None and parse_header(strip_ansi(line.text)) is not None for line in lines):
        return None
    return layout_of([*lines, *unwrapper.feed_block(1 + len(few), others)], clock, live=live)


def _placed(pieces: Iterator[TextBlock | list[Line]], place: Outer) -> Iterator[TextBlock | list[Line]]:
    """With the pod and container that the file's place tells, where the lines do not."""
    for piece in pieces:
        if isinstance(piece, TextBlock):
            yield piece
        else:
            yield [ln._replace(outer=ln.outer.completed(place)) if ln.outer else ln for ln in piece]


class Sources(list[Source]):
    """The sources found, in reading order; `notes` has a sentence for each file passed over in a folder."""

    def __init__(self, sources: Sequence[Source] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(sources)
        self.notes = list(notes)


def journal_of(query: JournalQuery) -> Source:
    """This machine's journal of a unit, as a source named after it."""
    return Source(f"journal:{query.unit}", query=query, live=query.follow)


def expand(
    args: Sequence[str], *, stdin: BinaryIO | None = None, timezone: str | None = None, live: bool = False
) -> Sources:
    """Turn the arguments of a command into sources, rotated sets oldest first.

    Files, folders (recursively; files that look like logs), globs, `-` for standard input. What cannot be
    read is a source with its `problem` set. `timezone` (an IANA name) is that of outer clocks without zone.
    `live` gives lines as soon as a pipe has them, which leaves out what needs to look far ahead (newest-first
    exports). Raises ValueError for an unknown time zone.
    """
    zone_of(timezone)
    sources: list[Source] = []
    notes: list[str] = []
    for found in _in_rotation_order(list(discover(args, notes))):
        if found.name == "-" and found.place is None and found.problem is None:
            stream = stdin if stdin is not None else sys.stdin.buffer
            sources.append(Source("-", stream=stream, timezone=timezone, live=live))
        else:
            group = rotation_of(found.place).base if found.place is not None else None
            sources.append(
                Source(
                    found.name,
                    live=live,
                    path=found.path,
                    group=group,
                    timezone=timezone,
                    problem=found.problem,
                    remote=found.remote,
                )
            )
    for earlier, later in pairwise(sources):
        earlier.goes_on = earlier.path is not None and earlier.group == later.group and not earlier.path.is_dir()
    return Sources(sources, notes)


def _in_rotation_order(found: list[Found]) -> list[Found]:
    """Keep the order of sets as given, and sort each set oldest first."""
    place: dict[str, int] = {}
    keys = []
    for index, item in enumerate(found):
        rotation = rotation_of(item.place) if item.place is not None else None
        base = rotation.base if rotation is not None else item.name
        age = rotation.age if rotation is not None else (2, 0, "")
        keys.append((place.setdefault(base, index), age, index))
    return [found[key[2]] for key in sorted(keys)]


def pushed_back(head: bytes, read: Callable[[], bytes]) -> Callable[[], bytes]:
    """`read` that gives `head` first: what was looked at is not lost."""
    pending = [head]

    def again() -> bytes:
        return pending.pop() if pending else read()

    return again


class _WithoutWaiting(io.FileIO):
    """A file of the kernel's (/proc/kmsg) that has no end: what it holds now is read, what it may hold later is not waited for."""

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes, b"" where there are none now."""
        return super().read(size) or b""


def open_file(path: Path) -> tuple[BinaryIO, bytes]:
    """Open a file, with its first byte if that was needed to see it.

    Nothing is waited for without end: a named pipe without a writer, and a file of the kernel's that gives nothing, are an error
    after `_FIFO_PATIENCE_S`. Raises OSError whose `strerror` is a sentence.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    head = b""
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISFIFO(facts.st_mode):
            select.select([descriptor], [], [], _FIFO_PATIENCE_S)
            with suppress(BlockingIOError):
                head = os.read(descriptor, 1)
                if not head:
                    raise OSError(0, "an empty named pipe that nobody writes to")
        elif stat.S_ISREG(facts.st_mode) and not facts.st_size:
            if not select.select([descriptor], [], [], _FIFO_PATIENCE_S)[0]:
                raise OSError(0, f"gives nothing in {_FIFO_PATIENCE_S:.0f} s")
            return _WithoutWaiting(descriptor, "rb"), b""
        elif stat.S_ISCHR(facts.st_mode) and not os.isatty(descriptor) and path.resolve() != Path(os.devnull):
            raise OSError(0, "a device, no file of text")
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb"), head
    except BaseException:
        os.close(descriptor)
        raise


def _size_of(stream: BinaryIO) -> int | None:
    """A regular file's size now: what is written while it is read is left to the next run, or a fast writer would be read for ever."""
    try:
        facts = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return None
    return facts.st_size or None if stat.S_ISREG(facts.st_mode) else None


def _sentence(error: OSError) -> str:
    """An operating system's error as a short sentence with what to do."""
    if isinstance(error, FileNotFoundError):
        return "no such file; check the path"
    if isinstance(error, PermissionError):
        return "permission denied; run as a user who may read it"
    return error.strerror or str(error)
