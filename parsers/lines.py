"""From blocks of bytes to physical lines.

What an envelope hands on: a payload line, and the facts of the envelope around it.

Both are named tuples: a log has millions of lines, and a tuple is built in a third of a frozen dataclass's time.

Lone surrogates out of text: JSON and Python's reprs can spell half a UTF-16 pair (`\ud800`), which no UTF-8 can hold.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, AnyStr, NamedTuple, Protocol, cast

import numpy as np
import regex
from numpy.typing import NDArray

__all__ = [
    "MAX_DOCUMENT",
    "MAX_LINE",
    "EnvelopesOff",
    "Heads",
    "JsonRecord",
    "Later",
    "Line",
    "Loss",
    "Outer",
    "TextBlock",
    "after_hole",
    "is_binary",
    "json_without_lone_surrogates",
    "later",
    "later_regex",
    "packed",
    "text_blocks",
    "transcoded",
    "unpacked",
    "without_lone_surrogates",
]


class Later:
    """A pattern that is compiled when it is first used: a short log asks for few of the many that are known, and each costs a millisecond to start."""

    def __init__(self, compiled: Callable[..., Any], pattern: object, flags: int = 0) -> None:
        self._compiled, self.pattern, self.flags = compiled, pattern, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by `copy` and `pickle`, before there is anything to compile
            raise AttributeError(name)
        found = self._compiled(self.pattern, self.flags)
        self.__dict__ |= {method: getattr(found, method) for method in _METHODS}
        return getattr(found, name)


_METHODS = ("match", "search", "fullmatch", "finditer", "findall", "sub", "subn", "split")


def later(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` gives, compiled when it is first used."""
    return cast("re.Pattern[AnyStr]", Later(re.compile, pattern, flags))


def later_regex(pattern: str, flags: int = 0) -> regex.Pattern[str]:
    """What `regex.compile` gives, compiled when it is first used."""
    return cast("regex.Pattern[str]", Later(regex.compile, pattern, flags))


class Outer(NamedTuple):
    """The facts that an envelope (journal, container runtime, log shipper) gives about a line.

    `time_us` is UTC in microseconds since the epoch; an outer clock without zone is read in the
    zone given to `expand` (UTC without one), one without year gets the year nearest to the file's time.
    In nested envelopes `envelope` and each fact are the outermost's, `time_us` is the innermost's:
    the nearer to the process, the more exact.
    """

    envelope: str
    time_us: int | None = None
    host: str | None = None
    unit: str | None = None
    pod: str | None = None
    container: str | None = None
    stream: str | None = None
    pid: int | None = None

    def completed(self, other: Outer) -> Outer:
        """These facts, with the other's where there is none."""
        return Outer(
            self.envelope,
            other.time_us if self.time_us is None else self.time_us,
            self.host or other.host,
            self.unit or other.unit,
            self.pod or other.pod,
            self.container or other.container,
            self.stream or other.stream,
            other.pid if self.pid is None else self.pid,
        )


class JsonRecord(NamedTuple):
    """A record that a JSON formatter wrote: the facts that stand in a text record's prefix.

    `time` is the record's own clock, local and without zone; `logger` the dotted module name.
    """

    level: str | None
    time: datetime | None
    logger: str | None
    process: str | None
    pid: int | None
    message: str


class Line(NamedTuple):
    """One payload line: `text` without its line end, `number` the physical line (from 1) at which it starts.

    `inside`: it does not begin where a line of the source begins, but after a line break within an entry's text.
    """

    number: int
    text: str
    outer: Outer | None = None
    record: JsonRecord | None = None
    inside: bool = False


def packed(line: Line) -> list[object]:
    """A line as JSON holds it."""
    record = line.record and [line.record.time and line.record.time.isoformat(), *line.record]
    return [line.number, line.text, line.outer, record and [*record[:2], None, *record[3:]], line.inside]


def unpacked(values: list[Any]) -> Line:
    """The line that `packed` gave."""
    number, text, outer, record, inside = values
    if record:
        stamp, level, _, *rest = record
        record = JsonRecord(level, datetime.fromisoformat(stamp) if stamp else None, *rest)
    return Line(number, text, Outer(*outer) if outer else None, record or None, inside)


MAX_LINE = 1 << 20
MAX_DOCUMENT = 1 << 24
_WORD = 8
_MOST_COLOURED = 8  # different coloured beginnings that are compared
# What a record or an access line without an envelope begins with, the most common first; `CRITICAL` is longer than a word, and rare.
_MOST_USUAL = 3  # of these, in nearly all lines
_USUAL = (b"(", b"INFO ", b"INFO:", *(b"DEBUG ", b"WARNING ", b"ERROR ", b"DEBUG:", b"WARNING:", b"ERROR:"))
_HEAD = 1 << 15
_SAMPLE = 1 << 13
_CONTROLS = bytes(c for c in range(32) if c not in b"\t\n\r\x0b\x0c\x1b\x08\x07\x1e") + b"\x7f"
_HOLE = later(rb"\0{4,}")
_CARRIAGE_RETURNS = later(rb"(?<!\r)\r+\n")
_COLOUR = rb"\x1b\[[0-9;]{0,12}m"
# A record whose first part is coloured: the process's tag, or the level with the stamp behind it. No envelope begins so.
_COLOURED = later(
    _COLOUR
    + rb"(?:\([A-Za-z]\w{0,60} (?:pid|rank)=\d|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:"
    + _COLOUR
    + rb")? (?:"
    + _COLOUR
    + rb")?\d\d-\d\d \d\d:\d\d:\d\d)"
)


@dataclass(slots=True)
class Loss:
    """What of a source could not be read.

    `truncated` counts lines that were cut, `bytes` what was left out (of cut lines: text, of a damaged
    compressed stream: compressed bytes), `problem` is a sentence or None.
    """

    truncated: int = 0
    problem: str | None = None
    bytes: int = 0


class Heads(NamedTuple):
    """Of each line of a block, what tells the facts of its envelopes: texts in `data`, all of the same parts."""

    data: bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


class EnvelopesOff(Protocol):
    """The envelopes that were taken off a block: its lines as they were (`wrapped`), and the facts of each line's envelopes."""

    wrapped: TextBlock
    """The block with its envelopes on."""
    names: tuple[str, ...]
    """The envelopes' names, the outermost first."""
    heads: Heads

    def facts(self, text: str) -> Outer:
        """The facts of a line in these envelopes."""
        ...

    def with_head(self, index: int, head: bytes) -> str:
        """The block's line `index` (from 0) with another head of the same size."""
        ...

    def outer(self, index: int) -> Outer:
        """The facts of the block's line `index` (from 0)."""
        ...


class TextBlock:
    """Whole physical lines: `data` ends with a line feed (but for the source's last), the first is line `number`.

    `envelopes` are those that were taken off, where `data` is what stood in them. The text is given as its `body` and what stands `before` it,
    without a line feed: the beginning of a line that was cut at a block's end. They are joined when somebody asks for `data`.
    """

    __slots__ = ("_data", "_ends", "envelopes", "number", "parts")

    def __init__(
        self,
        number: int,
        body: bytes | memoryview,
        envelopes: EnvelopesOff | None = None,
        before: bytes = b"",
        ends: NDArray[np.int64] | None = None,
    ) -> None:
        self.number, self.envelopes = number, envelopes
        self.parts: tuple[bytes, bytes | memoryview] = (before, body)
        self._data: bytes | None = None
        self._ends = ends

    def __len__(self) -> int:
        return len(self.parts[0]) + len(self.parts[1])

    @property
    def data(self) -> bytes:
        """The text."""
        if self._data is None:
            self._data = b"".join(self.parts)
        return self._data

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each line ends: the place of its line feed, or of the text's end."""
        if self._ends is None:
            before, body = self.parts
            ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n")) + len(before)
            if len(self) and (not len(body) or body[-1] != ord("\n")):
                ends = np.append(ends, len(self))
            self._ends = ends
        return self._ends

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each line begins."""
        ends = self.ends
        return np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: len(ends)]

    def unusual(self) -> NDArray[np.int64]:
        """The lines (from 0), none of them empty, that do not begin as vLLM's records do: they may wear an envelope."""
        before, body = self.parts
        starts, ends = self.starts[1:] - len(before), self.ends[1:] - len(before)
        last = len(body) - _WORD
        near = int(np.searchsorted(starts, last, "right"))  # from here on a word is longer than the text
        words = np.ndarray((max(last + 1, 0),), "<u8", body, strides=(1,))[starts[:near]]
        alike = ends[:near] == starts[:near]
        for tried, begin in enumerate(_USUAL, 1):
            mask = np.uint64((1 << 8 * len(begin)) - 1)
            alike |= (words & mask) == np.uint64(int.from_bytes(begin, "little"))
            if tried >= _MOST_USUAL and alike.all():
                break
        left = np.flatnonzero(~alike)
        if len(left):
            escapes = (words[left] & np.uint64(0xFF)) == np.uint64(ord("\x1b"))
            if escapes.any():
                escapes[escapes] = _are_coloured(body, starts[left[escapes]])
                left = left[~escapes]
        short = np.flatnonzero(ends[near:] > starts[near:]) + near
        first = before[:_WORD] or bytes(body[:_WORD])
        rows = np.concatenate((left, short)) + 1
        usual_first = not first or first.startswith((b"\n", *_USUAL)) or _COLOURED.match(before or body) is not None
        return rows if usual_first else np.insert(rows, 0, 0)

    def line(self, index: int) -> str:
        """One line (from 0); bytes that are no UTF-8 become U+FFFD."""
        return self.line_bytes(index).decode("utf-8", "replace")

    def line_bytes(self, index: int) -> bytes:
        """One line (from 0)."""
        before, body = self.parts
        end = int(self.ends[index]) - len(before)
        if not index:
            return before + bytes(body[:end])
        return bytes(body[int(self.ends[index - 1]) + 1 - len(before) : end])

    def lines_at(self, rows: NDArray[np.int64]) -> list[bytes]:
        """Some lines (from 0)."""
        data = self.data
        return [
            data[start:end] for start, end in zip(self.starts[rows].tolist(), self.ends[rows].tolist(), strict=True)
        ]

    def texts(self) -> list[str]:
        """The lines; bytes that are no UTF-8 become U+FFFD."""
        lines = self.data.decode("utf-8", "replace").split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    def head(self, lines: int) -> list[str]:
        """The first `lines` lines, fewer when they are long."""
        return self.data[:_HEAD].decode("utf-8", "replace").split("\n")[:lines]

    def lines(self) -> Iterator[Line]:
        """The payload lines."""
        if self.envelopes is None:
            return map(Line, count(self.number), self.texts())
        outers = map(self.envelopes.outer, count())
        return map(Line, count(self.number), self.texts(), outers)


def _are_coloured(body: bytes | memoryview, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """At which places a record begins whose first part is coloured. Most begin as one before did: those are found by comparing."""
    found = np.zeros(len(places), np.bool_)
    left = np.arange(len(places))
    for _ in range(_MOST_COLOURED):
        if not len(left):
            return found
        match = _COLOURED.match(body, int(places[left[0]]))
        if match is None:
            left = left[1:]
            continue
        begin = bytes(match[0])
        heads = np.ndarray((len(body) - len(begin) + 1,), f"V{len(begin)}", body, strides=(1,))
        alike = heads[np.minimum(places[left], len(heads) - 1)] == np.void(begin)
        alike[0] = True
        found[left[alike]] = True
        left = left[~alike]
    found[left] = [_COLOURED.match(body, at) is not None for at in places[left].tolist()]
    return found


def is_binary(block: bytes) -> bool:
    """Whether the first block of a source is no text.

    UTF-16 (a redirect in PowerShell) is text, and so is a log with holes (runs of NULs).
    """
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    sample = _HOLE.sub(b"", block)[:_SAMPLE] or block[:_SAMPLE]
    bad = len(sample) - len(sample.translate(None, _CONTROLS))
    bad += sample.decode("utf-8", "replace").count("\ufffd")
    return bad > len(sample) // 8


def after_hole(first: bytes, rest: Iterator[bytes]) -> bytes:
    """The first block after a run of NULs at a file's start, or NULs when there is nothing else.

    That is what a log looks like after it was truncated under a writer without O_APPEND.
    """
    block = first
    while not block.strip(b"\0"):
        following = next(rest, None)
        if following is None:
            return first
        block = following
    return block.lstrip(b"\0")


def transcoded(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks as UTF-8: a byte order mark is dropped, UTF-16 is converted."""
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        yield decoder.decode(first).encode("utf-8", "replace")
        for block in rest:
            yield decoder.decode(block).encode("utf-8", "replace")
        return
    yield first.removeprefix(codecs.BOM_UTF8)
    yield from rest


def text_blocks(blocks: Iterator[bytes], loss: Loss) -> Iterator[TextBlock]:
    """Cut blocks at line ends; `\\r` before a line feed is dropped, too long lines are cut.

    A line may have `MAX_LINE` bytes, one that begins as JSON `MAX_DOCUMENT`: it may hold many entries.
    """
    number = 1
    pending: list[bytes] = []  # the parts of an unfinished line
    size = 0
    limit = MAX_LINE
    for block, ends, returns in map(_marked, blocks):
        if not size:
            limit = MAX_DOCUMENT if block[:1] in (b"{", b"[") else MAX_LINE
        if len(ends):
            end = int(ends[-1]) + 1
            cut = size + int(ends[0]) > limit
            before = b"".join(pending)
            lines = TextBlock(number, memoryview(block)[:end], before=before, ends=ends + size)
            if cut or returns or b"\r" in before:
                lines = TextBlock(number, _clean(lines.data, loss, limit if cut else 0))
            yield lines
            number += len(lines.ends)
            pending, size = [block[end:]], len(block) - end
            limit = MAX_DOCUMENT if block[end : end + 1] in (b"{", b"[") else MAX_LINE
        elif size <= limit:
            pending.append(block)
            size += len(block)
        else:  # the rest of a line that is already too long: only counted
            loss.bytes += len(block)
    tail = b"".join(pending).rstrip(b"\r")
    if tail:
        yield TextBlock(number, _clean(tail, loss, limit if size > limit else 0))


def _marked(block: bytes) -> tuple[bytes, NDArray[np.int64], bool]:
    """The block without runs of NULs, where its lines end, and whether it has carriage returns; all found in one search.

    A file has runs of NULs where it was truncated under its writer.
    """
    codes = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero(codes <= ord("\r"))
    found = codes[marks]
    ends = found == ord("\n")
    if ends.all():
        return block, marks, False
    if not found.all():
        whole = _HOLE.sub(b"", block)
        if len(whole) < len(block):
            return _marked(whole)
    return block, marks[ends], bool((found == ord("\r")).any())


def _clean(data: bytes, loss: Loss, limit: int) -> bytes:
    """Drop carriage returns at line ends, and cut the first line at `limit` bytes (0: it is not too long).

    Only the first line can be longer than a block; one within a block of 1 MiB never is.
    """
    if limit:
        end = data.find(b"\n")
        end = len(data) if end < 0 else end
        loss.truncated += 1
        loss.bytes += end - limit
        data = data[:limit] + data[end:]
    if b"\r" not in data:  # most logs, and the search for one byte is nearly free
        return data
    data = data.replace(b"\r\n", b"\n")
    doubled = b"\r\n" in data  # by a terminal
    return _CARRIAGE_RETURNS.sub(b"\n", data) if doubled else data


_LONE = later("[\ud800-\udfff]")
# Escapes one after the other, so that the second half of `\\\\ud800` (a backslash, then text) is none: a pair, a lone half, any other.
_ESCAPE = later(
    r"\\(?:u[dD][89aAbB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|(?P<lone>u[dD][89a-fA-F][0-9A-Fa-f]{2})|.)", re.S
)


def without_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a pair."""
    return _LONE.sub("\ufffd", text)


def json_without_lone_surrogates(text: str) -> str:
    """A JSON text with U+FFFD for each escape that is half of a pair; whole pairs stay."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\\ufffd" if found["lone"] else found[0], text)
