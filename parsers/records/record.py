"""From payload lines to vLLM's records: continuation lines joined, glued records split, client text kept inside its record.

What belongs together:

* vLLM's formatter repeats the whole prefix before each line of a multi-line message and ends the line before with CR.
  In a stream that lost its CRs, equal prefixes are joined only where the first line opens a message of several lines.
* A line without prefix after a record is its `tail`: perhaps the rest of a line that a terminal wrapped, perhaps a
  foreign line. Who knows the message decides (`parsers.reading.by_line`).

What a client can write never opens a record (`Record.passed_over` counts what looked like one):

* A request's record is open until the prompt's or the output's quote is closed and the server's words follow. If a later line
  closes it, all between is client text, whatever it looks like; if none does to the stream's end, the line was cut.
* A second record within a line of the source (glued on, after a carriage return, in an entry of several lines) is looked for only
  behind text that is the server's own (`parsers.families.CLIENT_TEXT`).
* What carries a log cuts long lines, some without a mark (journald's text, Docker's drivers for stores): behind a line of just such a
  length stands the rest of it, whatever it looks like.
* One statement of vLLM's code prints one kind of message: a line with the very prefix of a record that may hold client text, but
  with another kind of message, is a further line of that text.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import IO, Union

from parsers import families
from parsers.lines import Line, Outer, later, packed, unpacked
from parsers.records.prefix import Header, Stamp, find_glued, parse_header, split_repeated, split_tags, strip_ansi

__all__ = [
    "CUTS",
    "CUT_SLACK",
    "OPENER",
    "Assembler",
    "Assemblers",
    "PlaceKey",
    "Record",
    "RecordText",
    "continues_client_text",
    "glued_at",
    "in_line_order",
    "is_client_facing",
    "is_open",
    "may_continue",
    "place_of",
    "read_records",
]

CUTS = (8_192, 16_384, 49_152, 65_536, 262_118, 262_144)
"""Bytes after which a carrier begins a new line: containerd's and Podman's, Docker's, journald's, Azure's, CloudWatch's two."""
CUT_SLACK = 8
"""A character that is cut in two is shorter or longer when it is read."""
MAX_TAIL = 8
MAX_HELD_LINES = 2_000
MAX_HELD_CHARS = 1 << 21
MAX_MESSAGE_LINES = 2_000
_MAX_KEPT_CHARS = 1 << 20

# Messages that print what a client sent.
_CLIENT = later(r"(?:Received request |Generated response |Request \S{1,200} details: )")
# What follows the id: a text of the client's, or the server's own words.
_BODY = later(r": (?:(?P<text>prompt: |output: )|params: |sampling[_ ]params: )| details: (?P<ids>output_token_ids: )")
_STRING = later(r"'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\"", re.S)
_QUOTE = later(r"['\"]")
_WORDS = r"params: |sampling[_ ]params: |prefix_pos: |prompt[_ ]token[_ ]ids: |output_token_ids: |finish_reason: "
_AFTER_TEXT = later(rf",\s?(?:{_WORDS})")
# What closes an open text, on a later line.
_CLOSES = later(
    r"['\"], ?(?:(?:params: |sampling[_ ]params: )(?:Sampling|Pooling|BeamSearch)Params\(|prefix_pos: |prompt[_ ]token[_ ]ids: |output_token_ids: |finish_reason: )"
)
# Messages that print no more of a client's than an id. Who could begin one could also write a whole one.
_LIFE = later(r"(?:Added|Aborted|Finished) request ")
_ANY = "?"  # what stands behind a record may be a part of it
_MOST_PARTS = 4_000  # strings in one record's parameters
# Those who answer clients: what they print of an error is a client's.
_CLIENT_FACING = later(r"(?:.*/)?(?:serving\w*|(?:request_)?logger)\.py:")
# First lines of messages that vLLM prints over several lines.
OPENER = later(
    r"Memory profiling takes |\*\*CUDAGraph Config|EngineCore (?:failed|encountered|hit)|Exception in |Engine background task failed"
    r"|AsyncLLM output_handler failed|WorkerProc (?:hit an exception|failed to start)|Error executing method "
)
_MULTILINE = later(r"\s*$|.*Traceback \(most recent call last\)|[^\n]*:$|  +(?:File \"|raise )")
_RAISED = later(r"(?:[A-Za-z_][\w.]{0,100}\.)?[A-Za-z_]\w{0,60}(?:Error|Exception): ")
# A record may be glued to these.
_PROGRESS = later(r"\d{1,3}%\||(?:it/s|s/it)[^\]]{0,40}\]\s*$")
_ACCESS = later(
    r"(?:\([^()]{1,100}\) )?INFO: {5}\S{1,100} - \"[A-Z]{1,20} \S+ HTTP/[\d.]{1,5}\" \d{3} ?[A-Za-z -]{0,40}$"
)

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
    repetitions. `passed_over` counts what looked like records in client text. `moment` is set instead of the header's stamp where the stream gives a full date (JSON logs).
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
    passed_over: int = 0

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
    assemblers = Assemblers(Assembler)
    for line in lines:
        if line is None:
            for unfinished in assemblers.values():
                yield from unfinished.pause()
            continue
        yield from assemblers.feed(line)
    for assembler in in_line_order(assemblers.values()):
        yield from assembler.end()


class Assemblers(dict[PlaceKey, "Assembler"]):
    """Who puts a line together with others, by place, in the order in which the places were met."""

    def __init__(self, make: Callable[[], Assembler]) -> None:
        super().__init__()
        self._make = make
        # Those that were fed since somebody asked, or waited then: of thousands of places few are looked at.
        self._may_wait: dict[Assembler, None] = {}

    def at(self, place: PlaceKey) -> Assembler:
        """That of a place; made, where nobody has met it."""
        found = self.get(place)
        if found is None:
            found = self[place] = self._make()
            found.met = len(self)
        return found

    def feed(self, line: Line) -> Iterable[Record]:
        """Take a line; gives the records which are complete with it.

        While a client's text is open, an envelope from a place that nobody has met is a part of it.
        """
        place = None if line.outer is None else place_of(line.outer)
        found = self.get(place)
        if found is None:
            found = self.waiting() or self.at(place)
        elif found.pending is None and not found.held.first and _is_blank(line):
            found.first = found.cut = False
            return _BLANK
        self._may_wait[found] = None
        return found.feed(line)

    def waiting(self) -> Assembler | None:
        """The first that has a client's text open."""
        self._may_wait = {a: None for a in self._may_wait if a.waits}
        return min(self._may_wait, key=lambda a: a.met, default=None)


def in_line_order(assemblers: Iterable[Assembler]) -> list[Assembler]:
    """In the order of the lines at which their unfinished records begin: the order in which places were met says nothing."""
    return sorted(assemblers, key=lambda a: a.since)


# What a blank line gives that follows no record: some logs hold little else.
_BLANK = (Record([RecordText(0, "")]),)


def _is_blank(line: Line) -> bool:
    text = line.text
    return (not text or (text.isspace() and "\r" not in text)) and line.record is None


class _Held:
    """Lines that may be a client's text, in order: some in memory, very many in a temporary file."""

    def __init__(self) -> None:
        self.first = 0
        self._lines: list[Line] = []
        self._chars = 0
        self._file: IO[bytes] | None = None

    def __bool__(self) -> bool:
        return bool(self.first)

    def add(self, line: Line) -> None:
        self.first = self.first or line.number
        self._lines.append(line)
        self._chars += len(line.text)
        if len(self._lines) > MAX_HELD_LINES or self._chars > MAX_HELD_CHARS:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `taken`)
            self._file.writelines(json.dumps(packed(held)).encode() + b"\n" for held in self._lines)
            self._lines, self._chars = [], 0

    def taken(self) -> Iterator[Line]:
        """All of them; nothing is held then."""
        file, lines = self._file, self._lines
        self.first, self._file, self._lines, self._chars = 0, None, [], 0
        if file is not None:
            with file:
                file.seek(0)
                for text in file:
                    yield unpacked(json.loads(text))
        yield from lines


class Assembler:
    """Puts the lines of one place together to records; holds the record that is not yet known to be complete."""

    def __init__(self) -> None:
        self.pending: Record | None = None
        self.saw_cr = False
        self.first = True
        self.held = _Held()
        self.cut = False  # the line before may go on in the next one
        self.met = 0  # how many places were met with this one
        self._was_cut = False  # nothing that follows closes what is open
        self._passed_over = 0  # behind lines that were handed over

    @property
    def since(self) -> int:
        """The physical line at which what is unfinished begins; 0 where nothing is."""
        return self.pending.number if self.pending is not None else self.held.first

    @property
    def waits(self) -> bool:
        """Whether a client's text is open."""
        return not self._was_cut and (bool(self.held) or (self.pending is not None and is_open(self.pending)))

    def feed(self, line: Line) -> Iterator[Record]:
        """Take a line; gives the records which are complete with it."""
        if self.waits:
            yield from self._hold(line)
            return
        cut, self.cut = self.cut, line.record is None and _was_cut(line.text)
        if cut and line.record is None:
            self._take_rest(line.text)
            yield Record([RecordText(line.number, "")])
            return
        if line.record is not None:
            yield from self._of_a_formatter(line)
            return
        text = line.text
        cr = text.endswith("\r")
        if cr:
            self.saw_cr = True
            text = text.rstrip("\r")
        text = strip_ansi(text)
        if "\r" in text:
            pieces = [p for p in text.split("\r") if p]
            headed = False
            for i, piece in enumerate(pieces):
                before = None if i == 0 else _ANY if headed else pieces[i - 1]
                headed = headed or parse_header(piece) is not None
                yield from self._piece(line, piece, cr and i == len(pieces) - 1, before)
        else:
            yield from self._piece(line, text, cr, None)
        self.first = False

    def end(self) -> Iterator[Record]:
        """Nothing follows: gives what is unfinished. What is still open was cut, and the lines after it are read as usual."""
        self._was_cut = True
        yield from self._flush()
        for line in self.held.taken():
            yield from self.feed(line)
        yield from self._flush()
        self._was_cut = False

    def pause(self) -> Iterator[Record]:
        """Nothing follows for now: a record is written at once, so that what is still open was cut."""
        yield from self.end()

    def _take_rest(self, text: str) -> None:
        """What follows a line that was cut is read by nobody; what looks like a record there is counted."""
        if find_glued(strip_ansi(text), 0) >= 0:
            if self.pending is None:
                self._passed_over += 1
            else:
                self.pending.passed_over += 1

    def _of_a_formatter(self, line: Line) -> Iterator[Record]:
        record = _from_json(line)
        if line.inside and self._passes_over(None):
            return
        yield from self._flush()
        if line.outer is not None and line.outer.envelope == "vllm-json":
            yield record
        else:  # a header in another logger's layout
            self.pending = record

    def _flush(self) -> Iterator[Record]:
        if self.pending is not None:
            yield self.pending
            self.pending = None

    def _piece(self, line: Line, text: str, cr: bool, before: str | None) -> Iterator[Record]:
        """One stretch of text between carriage returns (`before`: the stretch before it); it may hold several records."""
        within = line.inside or before is not None
        while True:
            header = parse_header(text)
            if header is None and self.first and not within:
                header = parse_header(text, cut=True)
            cut = glued_at(text, header)
            here, text = (text[:cut], text[cut:]) if cut > 0 else (text, "")
            if header is None:
                yield from self._foreign(line, here)
            elif within and not self.continues(header, here[header.start :], line.outer) and self._passes_over(before):
                pass
            else:
                yield from self._prefixed(line, header, here[header.start :], cr and not text)
            if not text:
                return
            within = False

    def _passes_over(self, before: str | None) -> bool:
        """Whether a record that does not begin where a line of the source begins stands behind what a client may have written."""
        if before is not None and (not before.strip() or _PROGRESS.search(before)):
            return False
        pending = self.pending
        if pending is None:
            self._passed_over += 1
        elif before != _ANY and pending.header is not None and _is_servers(pending.message):
            return False
        else:
            pending.passed_over += 1
        return True

    def _prefixed(self, line: Line, header: Header, message: str, cr: bool) -> Iterator[Record]:
        message, repeated = split_repeated(message)
        part = RecordText(line.number, message)
        pending = self.pending
        if pending is not None and self.continues(header, message, line.outer):
            pending.lines.append(part)
            pending.ended_with_cr = cr
            return
        if pending is not None and continues_client_text(pending, header, message):
            pending.passed_over += 1
            return
        yield from self._flush()
        self.pending = Record(
            [part], header, header.process, header.pid, header.actors, line.outer, repeated, ended_with_cr=cr
        )
        self.pending.passed_over += self._passed_over + (find_glued(message, 0) > 0)
        self._passed_over = 0

    def continues(self, header: Header, message: str, outer: Outer | None) -> bool:
        """Whether a line is a further line of the pending record."""
        pending = self.pending
        if (
            pending is None
            or pending.tail
            or not _has_prefix_of(pending, header)
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
            and tags.start == 0
            and not (pending.header is None and not text.strip())
            and len(pending.tail) < MAX_TAIL
            and place_of(pending.outer) == place_of(line.outer)
        ):
            pending.tail.append(RecordText(line.number, text))
            return
        yield from self._flush()
        part = RecordText(line.number, text[tags.start :])
        foreign = Record([part], None, tags.process, tags.pid, tags.actors, line.outer)
        if tags.start and _RAISED.match(part.text):  # a terminal may have wrapped it
            self.pending = foreign
        else:
            yield foreign

    def _hold(self, line: Line) -> Iterator[Record]:
        """Client text, unless the record that printed it turns out to be cut: wait for the end of that record."""
        pending = self.pending
        assert pending is not None
        self.held.add(line)
        text = strip_ansi(line.text.rstrip("\r"))
        header = parse_header(text)
        start = header.start if header is not None else 0
        if (header is not None and _CLIENT.match(text, start)) or not _is_closed_by(pending, text, start):
            return
        chars = 0
        for held in self.held.taken():
            part = strip_ansi(held.text.rstrip("\r"))
            header = parse_header(part)
            mine = header is not None and _has_prefix_of(pending, header)
            away = held.record is not None or place_of(held.outer) != place_of(pending.outer)
            pending.passed_over += away or (header is not None and not mine)
            chars += len(part)
            if chars < _MAX_KEPT_CHARS or held is line:
                start = header.start if header is not None and mine else 0
                pending.lines.append(RecordText(held.number, part[start:]))
        self.cut = _was_cut(line.text)
        yield from self._flush()


def _was_cut(text: str) -> bool:
    if len(text) * 4 < CUTS[0]:
        return False
    size = len(text.encode("utf-8", "replace"))
    return any(abs(size - limit) <= CUT_SLACK for limit in CUTS)


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
    if len(record.lines) > 1 or record.tail or _CLIENT.match(text) is None:
        return False
    body = _BODY.search(text)
    if body is None:
        return " details: prompt: " not in text or _is_unclosed(text, text.index(" details: ") + 18)
    return _is_unclosed(text, body.end()) if body["text"] else _has_open_quote(text, body.end())


def _is_closed_by(record: Record, text: str, start: int) -> bool:
    """Whether a later line closes the client's text that a record has open: its quote, or an id with a line break in it."""
    if _CLOSES.search(text, start):
        return True
    body = _BODY.search(text, start) if _BODY.search(record.lines[0].text) is None else None
    return body is not None and not (body["text"] and _is_unclosed(text, body.end()))


def _is_unclosed(text: str, at: int) -> bool:
    """Whether a client's text, printed at `at`, goes on at the line's end."""
    if text.startswith("None", at):
        return False
    string = _STRING.match(text, at)
    return string is None or _AFTER_TEXT.match(text, string.end()) is None or _has_open_quote(text, string.end())


def _has_open_quote(text: str, at: int) -> bool:
    """Whether the last string that a repr prints is not closed."""
    for _ in range(_MOST_PARTS):
        quote = _QUOTE.search(text, at)
        if quote is None:
            return False
        string = _STRING.match(text, quote.start())
        if string is None:
            return True
        at = string.end()
    return False


def _has_prefix_of(record: Record, header: Header) -> bool:
    """Whether a header is the very prefix of a record: the same statement printed it, in the same second."""
    before = record.header
    return (
        before is not None
        and before.stamp == header.stamp
        and before.origin == header.origin
        and before.level == header.level
        and before.pid == header.pid
        and before.process == header.process
    )


def continues_client_text(pending: Record, header: Header, message: str) -> bool:
    """Whether a line is no record but a further line of what a client wrote into the pending one."""
    if not _has_prefix_of(pending, header):
        return False
    said = families.match(message, prefixed=True)
    if said is None:
        return False
    before = families.match(pending.message, prefixed=True)
    if before is not None:
        return said.family != before.family and not families.is_servers_own(before.family, before.variant)
    if families.begins_as_servers_own(pending.message) or (_LIFE.match(pending.message) and _LIFE.match(message)):
        return False
    return said.family in _NO_ERRORS or is_client_facing(header.origin)


def is_client_facing(origin: str) -> bool:
    """Whether those who answer clients print a record of this origin (`serving_chat.py:164`): what they say of an error is a client's."""
    return _CLIENT_FACING.match(origin) is not None


_NO_ERRORS = frozenset(("stats", "iteration", "preemption", "request", "startup", "http", "kv_sizing"))


def _is_servers(message: str) -> bool:
    """Whether a message is known, and all of it the server's own."""
    said = families.match(message, prefixed=True)
    return said is not None and families.is_servers_own(said.family, said.variant)


def glued_at(text: str, header: Header | None) -> int:
    """Where a second record begins on this line, or -1: only behind what no client can write."""
    start = header.start if header is not None else 0
    at = find_glued(text, start)
    if at <= 0:
        return -1
    before = text[start:at]
    if header is None:
        return at if _PROGRESS.search(before) or _ACCESS.match(before) else -1
    return at if _is_servers(before) else -1


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
