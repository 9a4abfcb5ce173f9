"""Reading on where an earlier run stopped: a window on a source's text that begins a little before its news.

The lines before the news are read again so that envelopes and records stand as they stood; what they say is known already.
Offsets are bytes of text: decompressed, as UTF-8, so that they hold for the file that rotation compressed, too.
"""

from __future__ import annotations

import codecs
import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

from parsers.envelopes.rare import rows_of
from parsers.lines import later

__all__ = ["HEAD", "ResumePoint", "RewrittenError", "TailWindow", "head_hash"]

HEAD = 1024
_KEPT = 8 << 20
_SAMPLE = 200
_EXPORT = later(rb"(?:__[A-Z_]+=[^\n]*\n)+[A-Z_]")
_NOT_PLAIN = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"\0")


class RewrittenError(Exception):
    """The text before the news is not what was read before: this is another file."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an earlier run stopped: it read `end` bytes; to go on, read from `start` (after `lines` lines), whose text has `digest`.

    With `closed` nothing was pending at `end`.
    """

    start: int = 0
    end: int = 0
    lines: int = 0
    digest: str = ""
    closed: bool = False


class TailWindow:
    """The text of one source from a `ResumePoint` on; `known` while the text that was read before goes by, `ended` after the last block."""

    def __init__(self, resume_point: ResumePoint | None = None) -> None:
        self.resume_point = resume_point if resume_point is not None else ResumePoint()
        self.known = self.resume_point.end > self.resume_point.start
        self.ended = False
        self.whole = False
        self._at = 0  # offset of the text that comes next
        self._kept: deque[tuple[int, int, bytes]] = deque()  # offset, lines before, text
        self._lines = self.resume_point.lines
        self._size = 0

    @property
    def length(self) -> int:
        """How much text was seen, from the source's start."""
        return self._at

    @property
    def lines(self) -> int:
        """How many complete lines of it."""
        return self._lines

    def reach(self, stream: BinaryIO, head: bytes) -> bytes:
        """Go to the window's start in a plain file; gives the bytes to go on with."""
        start = self.resume_point.start
        if not start or head.startswith(_NOT_PLAIN) or not stream.seekable():
            return head
        stream.seek(start)
        self._at = start
        return stream.read(1 << 20)

    def over(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The window's text. Raises RewrittenError where what was read before is no longer there."""
        blocks = self._skipped(blocks)
        first, rest = self._read_before(blocks)
        if first:
            self._keep(first)
            yield first
            self.known = False
        for block in chain((rest,) if rest else (), blocks):
            if not self._at:
                self._begin(block)
            self._keep(block)
            yield block
        self.ended = True

    def _skipped(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            skip = self.resume_point.start - self._at
            if skip >= len(block):
                self._at += len(block)
                continue
            if skip > 0:
                self._at += skip
            yield block[max(0, skip) :]

    def _read_before(self, blocks: Iterator[bytes]) -> tuple[bytes, bytes]:
        """The text that was read before, checked, and what follows it in the same block."""
        size = self.resume_point.end - self.resume_point.start
        if size <= 0:
            return b"", b""
        parts: list[bytes] = []
        have = 0
        while have < size and (block := next(blocks, None)) is not None:
            parts.append(block)
            have += len(block)
        text = b"".join(parts)
        if hashlib.sha256(text[:size]).hexdigest() != self.resume_point.digest:
            raise RewrittenError
        return text[:size], text[size:]

    def _begin(self, block: bytes) -> None:
        """Exports of a journal and lines that a terminal wrapped make sense from their start only."""
        sample = block[: 1 << 15].decode("utf-8", "replace").split("\n")[:_SAMPLE]
        if _EXPORT.match(block) or rows_of(sample[:-1]) is not None:
            self.whole = self.ended = True

    def _keep(self, block: bytes) -> None:
        self._kept.append((self._at, self._lines, block))
        self._at += len(block)
        self._lines += block.count(b"\n")
        self._size += len(block)
        while len(self._kept) > 1 and self._size - len(self._kept[0][2]) > _KEPT:
            self._size -= len(self._kept.popleft()[2])

    def earliest_line(self) -> int:
        """The first line (from 1) that begins within the text still at hand."""
        at, before, _ = self._kept[0] if self._kept else (0, 0, b"")
        return before + (1 if at == self.resume_point.start else 2)

    def resume_at(self, line: int, *, closed: bool = False) -> ResumePoint:
        """The stand of a run that stops here and has to begin at `line` to go on; raises ValueError for a line not at hand."""
        end = self._at if closed else self._end_of_lines()
        start = self._offset_of(line)
        if start is None:
            raise ValueError(line)
        start = min(start, end)
        return ResumePoint(start, end, line - 1, self._digest(start, end), closed)

    def _end_of_lines(self) -> int:
        for at, _, block in reversed(self._kept):
            if (found := block.rfind(b"\n")) >= 0:
                return at + found + 1
        return self.resume_point.end if self.resume_point.end else 0

    def _offset_of(self, line: int) -> int | None:
        if line - 1 == self.resume_point.lines:
            return self.resume_point.start
        for at, before, block in self._kept:
            need = line - 1 - before
            if need <= block.count(b"\n"):
                found = -1
                for _ in range(need):
                    found = block.find(b"\n", found + 1)
                return at + found + 1 if need > 0 else None
        return None

    def _digest(self, start: int, end: int) -> str:
        digest = hashlib.sha256()
        for at, _, block in self._kept:
            digest.update(block[max(0, start - at) : max(0, end - at)])
        return digest.hexdigest()


def head_hash(head: bytes, size: int) -> str:
    """The hash by which a file is known again: of its first `size` bytes of text."""
    return hashlib.sha256(head[:size]).hexdigest()
