"""From payload lines to vLLM's records: continuation lines joined, glued records split, client text kept inside its record.

Three rules decide what belongs together:

* vLLM's formatter repeats the whole prefix before each line of a multi-line message and ends the line before with CR.
  In a stream that lost its CRs, equal prefixes are joined only where the first line opens a message of several lines.
* A line without prefix after a record is its `tail`: perhaps the rest of a line that a terminal wrapped, perhaps a
  foreign line. Who knows the message decides (`parsers.reading.by_line`).
* A request record that prints a prompt is open until its parameters are seen. Until then everything is client text,
  whatever it looks like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Union

from parsers.lines import Line, Outer
from parsers.records.prefix import Header, Stamp, find_glued, parse_header, split_repeated, split_tags, strip_ansi

__all__ = [
    "OPENER",
    "Assembler",
    "PlaceKey",
    "Record",
    "RecordText",
    "as_begun",
    "glued_at",
    "is_open",
    "may_continue",
    "place_of",
    "read_records",
]

MAX_TAIL = 8
MAX_CLIENT_LINES = 2_000
MAX_CLIENT_CHARS = 1 << 21
MAX_MESSAGE_LINES = 2_000

# Messages that print what a client sent, and the text after which they are the server's own again.
_CLIENT_OPEN = re.compile(r"(?:Received request |Generated response |Request \S{1,200} details: )")
_CLIENT_CLOSE = re.compile(
    r"params: (?:Sampling|Pooling|BeamSearch)Params\(|sampling[_ ]params: |params: None|output_token_ids: |prompt_token_ids: [^,\n]{0,40}?(?:\]|None), prompt_embeds"
)
# First lines of messages that vLLM prints over several lines.
OPENER = re.compile(r"Memory profiling takes |\*\*CUDAGraph Config|EngineCore (?:failed|encountered|hit)|Exception in ")
_MULTILINE = re.compile(r"\s*$|.*Traceback \(most recent call last\)|[^\n]*:$")
# A record may be glued to these, and to the first line of a source (which may be the end of a cut record).
_PROGRESS = re.compile(r"\d{1,3}%\||(?:it/s|s/it)[^\]]{0,40}\]\s*$")
_ACCESS = re.compile(r"INFO: {5}\S+ - \"[A-Z]+ [^\"]*\" \d{3} ?[A-Za-z ]*$")

PlaceKey = Union["tuple[str | None, str | None, str | None, str | None]", None]


@dataclass(frozen=True, slots=True)
class RecordText:
    """One physical line's share of a record."""

    number: int
    text: str


@dataclass(slots=True)
class Record:
    """A vLLM record, or (with `header` None) a line that bears no prefix of vLLM's.

    `lines` are the message's lines; `tail` holds lines without prefix that followed. `repeated` is Ray's count of folded
    repetitions. `moment` is set instead of the header's stamp where the stream gives a full date (JSON logs).
    """

    lines: list[RecordText]
    header: Header | None = None
    process: str | None = None
    pid: int | None = None
    actors: tuple[str, ...] = ()
    outer: Outer | None = None
    repeated: int = 1
    moment: datetime | None = None
    tail: list[RecordText] = field(default_factory=list)
    ended_with_cr: bool = False

    @property
    def message(self) -> str:
        """The message's lines, joined by a newline."""
        return self.lines[0].text if len(self.lines) == 1 else "\n".join(x.text for x in self.lines)

    @property
    def number(self) -> int:
        """The physical line at which the record starts."""
        return self.lines[0].number

    @property
    def stamp(self) -> Stamp | None:
        """Month, day, hour, minute, second of the record's own clock."""
        return self.header.stamp if self.header else None


def read_records(lines: Iterable[Line | None]) -> Iterator[Record]:
    """Assemble the records of one source's payload lines, in order.

    None among the lines of a live stream says that nothing follows for now: what is not open is handed over.
    """
    # Lines of several pods may alternate: each place has its own unfinished record.
    assemblers: dict[PlaceKey, Assembler] = {}
    for line in lines:
        if line is None:
            for waiting in assemblers.values():
                yield from waiting.pause()
            continue
        key = place_of(line.outer)
        assembler = assemblers.get(key)
        if assembler is None:
            assembler = assemblers[key] = Assembler()
        yield from assembler.feed(line)
    for assembler in as_begun(assemblers.values()):
        yield from assembler.end()


def as_begun(assemblers: Iterable[Assembler]) -> list[Assembler]:
    """In the order of the lines at which their unfinished records begin: the order in which places were met says nothing."""
    return sorted(assemblers, key=lambda a: a.since)


class Assembler:
    """Puts the lines of one place together to records; holds the record that is not yet known to be complete."""

    def __init__(self) -> None:
        self.pending: Record | None = None
        self.saw_cr = False
        self.first = True
        self.held: list[Line] = []
        self.held_chars = 0

    @property
    def since(self) -> int:
        """The physical line at which what is unfinished begins; 0 where nothing is."""
        if self.pending is not None:
            return self.pending.number
        return self.held[0].number if self.held else 0

    def feed(self, line: Line) -> Iterator[Record]:
        """Take a line; gives the records which are complete with it."""
        if line.record is not None:
            yield from self.end()
            yield _from_json(line)
            return
        if self.held or (self.pending is not None and is_open(self.pending)):
            yield from self._hold(line)
            return
        text = line.text
        cr = text.endswith("\r")
        if cr:
            self.saw_cr = True
            text = text.rstrip("\r")
        text = strip_ansi(text)
        if "\r" in text:
            pieces = [p for p in text.split("\r") if p]
            for i, piece in enumerate(pieces):
                yield from self._piece(line, piece, cr and i == len(pieces) - 1)
        else:
            yield from self._piece(line, text, cr)
        self.first = False

    def end(self) -> Iterator[Record]:
        """Nothing follows: gives what is unfinished."""
        if self.held:
            yield from self._release()
        yield from self._flush()

    def pause(self) -> Iterator[Record]:
        """Hand over the pending record, unless it waits for the end of a client's text."""
        if not self.held and self.pending is not None and not is_open(self.pending):
            yield from self._flush()

    def _flush(self) -> Iterator[Record]:
        if self.pending is not None:
            yield self.pending
            self.pending = None

    def _piece(self, line: Line, text: str, cr: bool) -> Iterator[Record]:
        """One stretch of text between carriage returns; it may hold several records."""
        while True:
            header = parse_header(text)
            cut = glued_at(text, header, self.first)
            here, text = (text[:cut], text[cut:]) if cut > 0 else (text, "")
            if header is None:
                yield from self._foreign(line, here)
            else:
                yield from self._prefixed(line, header, here[header.start :], cr and not text)
            if not text:
                return

    def _prefixed(self, line: Line, header: Header, message: str, cr: bool) -> Iterator[Record]:
        message, repeated = split_repeated(message)
        part = RecordText(line.number, message)
        pending = self.pending
        if pending is not None and self.continues(pending, header, message, line.outer):
            pending.lines.append(part)
            pending.ended_with_cr = cr
            return
        yield from self._flush()
        self.pending = Record(
            [part], header, header.process, header.pid, header.actors, line.outer, repeated, ended_with_cr=cr
        )

    def continues(self, pending: Record, header: Header, message: str, outer: Outer | None) -> bool:
        """Whether a line is a further line of the pending record."""
        before = pending.header
        if (
            before is None
            or pending.tail
            or before.stamp != header.stamp
            or before.origin != header.origin
            or before.level != header.level
            or before.pid != header.pid
            or len(pending.lines) >= MAX_MESSAGE_LINES
            or place_of(pending.outer) != place_of(outer)
        ):
            return False
        if pending.ended_with_cr:
            return True
        return not self.saw_cr and _opens_several(pending) and OPENER.match(message) is None

    def _foreign(self, line: Line, text: str) -> Iterator[Record]:
        tags = split_tags(text)
        pending = self.pending
        if (
            pending is not None
            and pending.header is not None
            and tags.start == 0
            and len(pending.tail) < MAX_TAIL
            and place_of(pending.outer) == place_of(line.outer)
        ):
            pending.tail.append(RecordText(line.number, text))
            return
        yield from self._flush()
        part = RecordText(line.number, text[tags.start :])
        yield Record([part], None, tags.process, tags.pid, tags.actors, line.outer)

    def _hold(self, line: Line) -> Iterator[Record]:
        """Client text: wait for the end of the record that printed it."""
        self.held.append(line)
        self.held_chars += len(line.text)
        pending = self.pending
        assert pending is not None
        if _CLIENT_CLOSE.search(line.text):
            header = parse_header(strip_ansi(line.text))
            if header is not None and _CLIENT_OPEN.match(strip_ansi(line.text), header.start):
                yield from self._release()  # another request: the first one was cut
                return
            for held in self.held:
                text = strip_ansi(held.text.rstrip("\r"))
                header = parse_header(text)
                same = header is not None and pending.header is not None and header.origin == pending.header.origin
                start = header.start if header is not None and same else 0
                pending.lines.append(RecordText(held.number, text[start:]))
            self.held, self.held_chars = [], 0
            yield from self._flush()
        elif len(self.held) > MAX_CLIENT_LINES or self.held_chars > MAX_CLIENT_CHARS:
            yield from self._release()

    def _release(self) -> Iterator[Record]:
        """The record never closed (it was cut): hand it over as it is and read the lines after it as usual."""
        lines, self.held, self.held_chars = self.held, [], 0
        yield from self._flush()
        for line in lines:
            yield from self.feed(line)


def place_of(outer: Outer | None) -> PlaceKey:
    """Which of several interleaved streams a line belongs to; None for a line without envelope."""
    return None if outer is None else (outer.host, outer.unit, outer.pod, outer.container)


def _opens_several(pending: Record) -> bool:
    """Whether the record's first line promises more. A logo begins and ends with an empty line."""
    first = pending.lines[0].text
    if not first.strip():
        return len(pending.lines) == 1 or bool(pending.lines[-1].text.strip())
    return may_continue(first)


def may_continue(message: str) -> bool:
    """Whether a record's first line is one that vLLM follows with more lines under the same prefix."""
    return OPENER.match(message) is not None or _MULTILINE.match(message) is not None


def is_open(record: Record) -> bool:
    """Whether the record prints client text whose end has not been seen."""
    text = record.lines[0].text
    if len(record.lines) > 1 or record.tail or _CLIENT_OPEN.match(text) is None:
        return False
    return "prompt: " in text[:400] and _CLIENT_CLOSE.search(text) is None


def glued_at(text: str, header: Header | None, first: bool) -> int:
    """Where a second record begins on this line, or -1. Never inside what a client sent."""
    if header is None:
        at = find_glued(text, 0)
        if at <= 0:
            return -1
        before = text[:at]
        return at if first or _PROGRESS.search(before) or _ACCESS.search(before) else -1
    start = header.start
    if _CLIENT_OPEN.match(text, start):
        start = text.rfind("lora_request: ")
        return find_glued(text, start) if start > 0 else -1
    at = find_glued(text, start)
    if at > 0 and text[at - 1] in "'\"`":
        return -1
    return at


def _from_json(line: Line) -> Record:
    """A record of vLLM's JSON formatter (0.32.0 on): the stream itself gives level, time and process."""
    found = line.record
    assert found is not None
    stamp = (
        (1, 1, 0, 0, 0)
        if found.time is None
        else (found.time.month, found.time.day, found.time.hour, found.time.minute, found.time.second)
    )
    message, repeated = split_repeated(strip_ansi(found.message.replace("\r\n", "\n")))
    header = None
    if found.level is not None:
        header = Header(found.level, stamp, found.logger or "", 0, found.process, found.pid)
    parts = [RecordText(line.number, text) for text in message.split("\n")]
    record = Record(parts, header, found.process, found.pid, (), line.outer, repeated)
    return replace(record, moment=found.time)
