"""From sources to events: records are named by their family, given their time and their place, and everything is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from parsers import families
from parsers.lines import Line, later
from parsers.reading.events import Coverage, Event
from parsers.records.dates import RecordClock
from parsers.records.prefix import Header, find_glued
from parsers.records.record import Record, RecordText, is_client_facing, read_records
from parsers.records.servers import Sessions, engine_index

__all__ = [
    "ERROR_LEVELS",
    "EXCEPTION_END",
    "KEEP_EVENTS",
    "MAX_ROWS",
    "MAX_TEXT",
    "WARNING_LEVELS",
    "Keep",
    "LogSource",
    "SourceReader",
    "hide_text",
    "level_of",
    "read_events",
    "read_lines",
    "readers",
]

MAX_TEXT = 400
MAX_SAMPLES = 5
ERROR_LEVELS = ("ERROR", "CRITICAL")
WARNING_LEVELS = ("WARNING", *ERROR_LEVELS)
_EXCEPTION_ENDS = r"(?:Error|Exception|Interrupt|Exit)(?:: .*)?"
EXCEPTION_END = _EXCEPTION_ENDS + r"\s*$"
"""What the last line of a traceback ends in, or holds before its text."""
# The last line of a traceback, and the line in which pydantic says what is wrong: why a start failed that no family knows.
_EXCEPTION = later(
    r"(?:\[rank\d{1,4}\]: )?(?:[A-Za-z_][\w.]{0,100}\.)?[A-Za-z_]\w{0,60}"
    + _EXCEPTION_ENDS
    + r"$|\s{1,8}Value error, .*$"
)
MAX_ROWS = 4
_PIECE = later(r"Traceback \(most recent call last\)|\s+(?:File \"|raise )")
# A traceback echoes the source: `raise ValueError("No available memory for the cache blocks. "`.
_RAISE = later(r"(?m)^ {2,40}raise ([A-Za-z_]\w{0,60})\(")
_LITERAL = later(r"[fr]{0,2}(?:\"([^\"\\\n]*)\"|'([^'\\\n]*)')")
_PLACEHOLDER = later(r"\{[^{}]*\}")
_OTHER_ENGINES = (
    ("SGLang", later(r"#running-req: |#queue-req: |#new-token: |Retract requests")),
    ("TGI", later(r"text_generation_(?:router|launcher|server)")),
    ("llama.cpp", later(r"\bslot (?:launch_slot_|update_slots|release)|\bsrv +update_slots")),
    ("TensorRT-LLM", later(r"\[TensorRT-LLM\]|\[TRT-LLM\]")),
    ("LMDeploy", later(r"\blmdeploy - (?:INFO|WARNING|ERROR)")),
)


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept beside the events of the known families.

    `other`: each vLLM record of no known family, as family `other` with its `message`. `prompts`: prompts, token ids and outputs, of
    which else only the lengths remain (`prompt_chars`). `exceptions`: the last line of a traceback that no family knows, as family
    `exception`.
    """

    other: bool = False
    prompts: bool = False
    exceptions: bool = False


KEEP_EVENTS = Keep()
"""Nothing beside the known families."""


class LogSource(Protocol):
    """What this module needs of a source (`parsers.sources.source.Source` is one)."""

    @property
    def name(self) -> str:
        """The source as the user gave it."""

    @property
    def group(self) -> str:
        """The server's stream that it belongs to."""

    @property
    def modified_us(self) -> int | None:
        """Its last change, UTC microseconds since the epoch."""

    @property
    def size(self) -> int | None:
        """Its size in bytes, None for a pipe."""

    @property
    def problem(self) -> str | None:
        """Why it cannot be read at all."""

    @property
    def loss(self) -> Any:
        """What of it could not be read."""

    def lines(self) -> Iterator[Line]:
        """Its payload lines, in order."""


def read_events(
    sources: Sequence[LogSource], coverage: Coverage, *, year: int | None = None, keep: Keep = KEEP_EVENTS
) -> Iterator[Event]:
    """Yield the events of `sources` in their order; `coverage` is filled as the reading goes on.

    A source that cannot be read is noted in `coverage.skipped_sources`, the others go on.
    """
    for source, reader in readers(sources, coverage, year=year, keep=keep):
        yield from reader.read(source.lines())


def readers(
    sources: Sequence[LogSource], coverage: Coverage, *, year: int | None = None, keep: Keep = KEEP_EVENTS
) -> Iterator[tuple[LogSource, SourceReader]]:
    """Each source that can be read, with its reader; what the reading came to is counted when the next is asked for."""
    sessions = Sessions()
    clocks: dict[str, RecordClock] = {}
    for source in sources:
        if source.problem is not None:
            _skip(coverage, source)
            continue
        clock = clocks.setdefault(source.group, RecordClock(year, source.modified_us))
        coverage.sources.append(source.name)
        reader = SourceReader(source.name, source.group, clock, sessions, coverage, keep)
        known = coverage.vllm_records
        yield source, reader
        coverage.skipped_sources += [
            {"source": source.name, "problem": remark} for remark in getattr(source, "remarks", ())
        ]
        if reader.behind > coverage.vllm_records - known:
            coverage.partly = True
            problem = f"{reader.behind} lines hold a record behind a prefix that logscope does not know"
            coverage.skipped_sources.append({"source": source.name, "problem": problem})
        coverage.bytes += source.size if source.size is not None else reader.chars
        coverage.truncated += source.loss.truncated
        if source.loss.problem is not None or source.problem is not None:
            coverage.partly = True
            coverage.skipped_sources.append(
                {"source": source.name, "problem": source.loss.problem or source.problem or ""}
            )
    coverage.out_of_order = sum(c.backwards for c in clocks.values())


def read_lines(
    lines: Iterable[Line | None], coverage: Coverage, *, name: str = "-", year: int | None = None
) -> Iterator[Event]:
    """Yield the events of lines that come from nowhere in particular (a live stream, a test).

    A live stream gives None where nothing follows for now: the record before is then taken as complete.
    """
    return SourceReader(name, name, RecordClock(year), Sessions(), coverage, Keep()).read(lines)


def _skip(coverage: Coverage, source: LogSource) -> None:
    coverage.partly = True
    coverage.skipped_sources.append({"source": source.name, "problem": source.problem or ""})


class SourceReader:
    """Reads one source, record by record; clock and sessions are shared by the sources of one server."""

    def __init__(
        self, name: str, group: str, clock: RecordClock, sessions: Sessions, coverage: Coverage, keep: Keep
    ) -> None:
        self.name, self.group, self.clock, self.sessions = name, group, clock, sessions
        self.coverage, self.keep = coverage, keep
        self.chars = 0
        self.behind = 0  # lines that hold a record behind something else
        self._clients_line = -1  # the last unknown warning that a client may have written into

    def read(self, lines: Iterable[Line | None]) -> Iterator[Event]:
        """The events of payload lines."""
        for record in read_records(self._counted(lines)):
            yield from self.events(record)

    def events(self, record: Record) -> Iterator[Event]:
        """The events of one record and of the lines without prefix that followed it."""
        if record.header is None and not record.tail and not record.lines[0].text.strip():  # a blank line
            self.coverage.foreign_lines += 1
            return
        self.coverage.client_text += record.passed_over
        if record.header is None:
            yield from self._foreigners(record, [*record.lines, *record.tail])
        else:
            yield from self._record(record)

    def _counted(self, lines: Iterable[Line | None]) -> Iterator[Line | None]:
        for line in lines:
            if line is not None:  # as `count` does
                self.coverage.lines += 1
                self.chars += len(line.text) + 1
            yield line

    def count(self, line: Line) -> None:
        """Count a payload line."""
        self.coverage.lines += 1
        self.chars += len(line.text) + 1

    def _record(self, record: Record) -> Iterator[Event]:
        self.coverage.vllm_records += 1
        header = record.header
        assert header is not None
        time = self._time(record)
        found, number, used = _match(record)
        if found is not None:
            yield self._event(record, found, number, time)
        else:
            self.coverage.other_records += 1
            if header.level in WARNING_LEVELS:
                self.note_warning(record.number, record.lines[0].text)
            if self.keep.exceptions and (end := _end_of_traceback(record, header)) is not None:
                yield self._exception(record, end)
            if self.keep.other:
                other = families.Match("other", "other", {"message": record.message})
                yield self._event(record, other, record.number, time)
                self.coverage.events -= 1
        yield from self._foreigners(record, record.tail[used:])

    def _foreigners(self, record: Record, parts: Sequence[RecordText]) -> Iterator[Event]:
        """Lines without prefix; an exception's last line may have been wrapped."""
        at = 0
        while at < len(parts):
            if not parts[at].text.strip():
                self.coverage.foreign_lines += 1
                at += 1
                continue
            found, used = _wrapped_exception(parts[at : at + 1 + MAX_ROWS])
            yield from self.foreign(record, parts[at], found)
            at += 1 + used

    def foreign(self, record: Record, part: RecordText, found: families.Match | None = None) -> Iterator[Event]:
        """A line without prefix: an access line, the end of a traceback, or nothing known."""
        if found is None:
            found = families.match(part.text, prefixed=False)
        if found is None:
            self.coverage.foreign_lines += 1
            self.behind += find_glued(part.text, 0) > 0
            if self.keep.exceptions and _EXCEPTION.match(part.text):
                yield self._exception(record, part)
            for engine, pattern in _OTHER_ENGINES:
                if pattern.search(part.text):
                    self.coverage.other_engines[engine] = self.coverage.other_engines.get(engine, 0) + 1
            return
        own = record.header is None
        bare = Record(
            [part],
            None,
            record.process if own else None,
            record.pid if own else None,
            record.actors if own else (),
            record.outer,
        )
        yield self._event(bare, found, part.number, None)

    def _exception(self, record: Record, part: RecordText) -> Event:
        found = families.Match("exception", "exception", {"message": families.without_rank(part.text)[:MAX_TEXT]})
        event = self._event(record, found, part.number, None)
        self.coverage.events -= 1
        return event

    def _time(self, record: Record) -> datetime | None:
        if record.moment is not None:
            return self.clock.note(record.moment)
        if record.stamp is None:
            return None
        time = self.clock.resolve(record.stamp, record.outer.time_us if record.outer else None)
        self.coverage.unbelieved += time is None
        return time

    def _event(self, record: Record, found: families.Match, number: int, time: datetime | None) -> Event:
        self.coverage.events += 1
        fields = dict(found.fields)
        if not self.keep.prompts and found.prompt_fields:
            hide_text(fields, found.prompt_fields)
        place = self.sessions.place(self.group, record, found.family, found.variant, fields)
        outer, header = record.outer, record.header
        return Event(
            source=self.name,
            line=number,
            family=found.family,
            variant=found.variant,
            fields=fields,
            time=time,
            outer_us=outer.time_us if outer else None,
            process=record.process,
            pid=record.pid,
            server=place.server,
            run=place.run,
            engine_index=engine_index(record, found.family, fields),
            level=header.level if header else level_of(record.lines[0].text),
            origin=header.origin or None if header else None,
            host=outer.host if outer else None,
            unit=outer.unit if outer else None,
            pod=outer.pod if outer else None,
            container=outer.container if outer else None,
            stream=outer.stream if outer else None,
            repeated=record.repeated,
            text=_evidence(record, found, number),
        )

    def note_warning(self, number: int, message: str) -> None:
        """Count a record at WARNING or above that no family knows; the first ones are kept as samples.

        Of one that begins as a client's text does the server's words are kept, of the lines right behind it nothing.
        """
        self.coverage.unrecognized_warnings += 1
        own = "" if number == self._clients_line + 1 else families.words_before_client_text(message)
        if own is not None:
            self._clients_line = number
            message = f"{own}(left out)"
        if len(self.coverage.warning_samples) < MAX_SAMPLES:
            self.coverage.warning_samples.append({"source": self.name, "line": number, "text": message[:MAX_TEXT]})


def _match(record: Record) -> tuple[families.Match | None, int, int]:
    """The record's family, the line it stands on, and how many lines of the tail belong to it.

    An error of several lines is named by its cause: the last line that says something known.
    """
    header = record.header
    if len(record.lines) > 1 and header is not None and header.level in ERROR_LEVELS:
        for part in reversed(record.lines):
            if found := families.match(part.text, prefixed=False):
                return found, part.number, 0
    if header is not None and header.level in ERROR_LEVELS and (echo := _echo(record)) is not None:
        return echo, record.number, 0
    message = record.message
    found = families.match(message, prefixed=True)
    if record.tail and len(record.lines) == 1:
        return (*_with_tail(record, found, message),)
    return found, record.number, 0


def _end_of_traceback(record: Record, header: Header) -> RecordText | None:
    """The exception in a piece of a traceback: where several processes print theirs at once, each piece is a record."""
    if header.level not in ERROR_LEVELS or is_client_facing(header.origin):
        return None
    parts = record.lines if _PIECE.match(record.lines[0].text) else record.lines[:1]
    ends = (p for p in reversed(parts) if len(p.text) < MAX_TEXT and _EXCEPTION.match(p.text.rstrip()))
    return next(ends, None)


def _wrapped_exception(parts: Sequence[RecordText]) -> tuple[families.Match | None, int]:
    """What an exception's last line says together with the rows after it, and how many of them belong to it."""
    text = parts[0].text
    if len(parts) < 2 or not _EXCEPTION.match(text):
        return None, 0
    best = families.match(text, prefixed=False)
    if best is not None:
        return best, 0
    for count, part in enumerate(parts[1:], 1):
        if not part.text.strip() or _EXCEPTION.match(part.text):
            break
        for glue in ("", " "):
            joined = text + glue + part.text
            found = families.match(joined, prefixed=False)
            if found is not None:
                return found, count
        text += part.text
    return None, 0


def _echo(record: Record) -> families.Match | None:
    """The error that a traceback's echo of the source names, where the exception itself was cut off: which, not with what numbers."""
    if any(_EXCEPTION.match(part.text) for part in record.lines):
        return None
    text = "\n".join(part.text for part in record.lines)
    raised = _RAISE.search(text)
    if raised is None:
        return None
    words = "".join(found[1] or found[2] or "" for found in _LITERAL.finditer(text, raised.end()))
    found = families.match(f"{raised[1]}: {_PLACEHOLDER.sub('0', words)}", prefixed=False)
    if found is not None:
        found.fields.update({name: None for name in found.fields if name != "error"})
    return found


def _with_tail(record: Record, found: families.Match | None, message: str) -> tuple[families.Match | None, int, int]:
    """A terminal or a document may have wrapped the line: take lines of the tail while they complete the message."""
    best, used = found, 0
    if len(record.lines) > 1 or (found is not None and found.family == "request"):
        return found, record.number, 0
    for count in range(1, len(record.tail) + 1):
        part = record.tail[count - 1].text
        if not part.strip() or families.match(part, prefixed=False):
            break
        for glue in ("", " "):
            joined = message + glue + part
            more = families.match(joined, prefixed=True)
            if (
                more is not None
                and _says(more) > (_says(best) if best is not None else 0)
                and (best is None or more.family == best.family)
            ):
                best, used, longest = more, count, joined
                break
        else:
            longest = message + part
        message = longest
    return best, record.number, used


def _says(found: families.Match) -> int:
    """How much a match tells: the fields that its family knows, and a little for matching at all."""
    known = families.columns(found.family)
    return 1 + sum(v is not None and k in known for k, v in found.fields.items())


def hide_text(fields: dict[str, Any], names: frozenset[str]) -> None:
    """Leave the length of each of the named texts, in characters, in its place."""
    for name in names:
        value = fields.pop(name, None)
        if isinstance(value, str):
            fields[f"{name}_chars"] = len(value)


def level_of(text: str) -> str | None:
    """The level that a line without vLLM's header begins with, as uvicorn's do; None where it names none."""
    head = text.split(":", 1)[0]
    return head if head in ("INFO", "WARNING", "ERROR", "CRITICAL", "DEBUG") else None


def _evidence(record: Record, found: families.Match, number: int) -> str:
    """The line as evidence; never the text of a request."""
    if found.family in ("request", "iteration", "http", "other"):
        return ""
    text = next((p.text for p in record.lines if p.number == number), record.lines[0].text)
    if found.family == "exception":
        text = str(found.fields["message"])
    if found.variant == "v0_preempt_warning":  # with a client's id, which may have taken several lines
        rest = text.rpartition(" is preempted")[2] if " is preempted" in text else ""
        text = f"Sequence group {found.fields['request_id']} is preempted{rest}"
    return text[:MAX_TEXT]
