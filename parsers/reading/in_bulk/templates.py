"""Lines that are told by comparing bytes: the same process says the same thing in the same words, time after time.

A log has few different beginnings of records, and few different ends of access lines. Each is parsed once, and remembered from
block to block; the lines that share it are found by comparing eight bytes at a time.

Both are read by `parsers.records` and `parsers.families`; that nothing but the stamp, or the client, makes a difference is tried.

Which lines of a block are records of one line, access lines or foreign, and which need the readers of single lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from parsers import families
from parsers.lines import Line, later
from parsers.reading.by_line import MAX_ROWS, level_of
from parsers.reading.frames import Value
from parsers.reading.in_bulk.block import STAMP_SIZE, Alphabet, Block, Mask, Rows, extracted, rows_of, stamps
from parsers.records.dates import Stamps, packed_stamps
from parsers.records.prefix import LEVELS, Header, find_glued, parse_header, split_tags, strip_ansi
from parsers.records.record import CUT_SLACK, CUTS, MAX_TAIL, OPENER, Assembler
from parsers.records.servers import OF_A_START

__all__ = [
    "MAX_HEAD",
    "WORD_CHARS",
    "AccessLines",
    "Alike",
    "AlikeRecords",
    "Beginning",
    "Known",
    "Structure",
    "alike_in",
    "is_odd",
    "mark_client_text",
    "mark_cut",
    "mark_tails",
    "structure_of",
]
WORD = r"[!-Z\\-~]"
"""A visible ASCII character but `[`, which could begin a colour code."""
WORD_CHARS = "".join(map(chr, (*range(0x21, 0x5B), *range(0x5C, 0x7F))))

MAX_HEAD = 200
CLIENT_CHARS = "0123456789ABCDEFabcdef.:[]"

_LONGEST_CLIENT = 64
_MOST_KNOWN = 64
_MOST_PATTERNS = 8
_MOST_MISSES = 64
_FEW_MISSES = 16  # where something is known: what is still to be learnt stands out
_FEWEST = 4  # lines alike, or it is not worth remembering
_STAMP = later(r"\d\d-\d\d \d\d:\d\d:\d\d")
_OTHER_STAMPS = (("12-31 23:59:58", (12, 31, 23, 59, 58)), ("01-02 03:04:05", (1, 2, 3, 4, 5)))
_MOST_WHOLE = 1 << 12
_LONGEST_WHOLE = 1 << 11
_NUMBER = later(r"\d")
_CLIENT = Alphabet(CLIENT_CHARS)
_OTHER_CLIENTS = ("1.2.3.4:5", "[fe80::1]:65535")
_PARTS = ("method", "path", "status")
_OTHER_PARTS = (("PUT", "/a?b=1", "503"), ("OPTIONS", "x", "100"))
_REASON = "(?: [A-Za-z -]*)?$"
_REASONS = ("", " OK", " Service Unavailable")


class Beginning(NamedTuple):
    """What records alike begin with: `before` the stamp and `after` it, as far as the first words of the message.

    `message` is where in the line the message begins, `verb` those first words; `family` and `variant` are the message's.
    """

    before: bytes
    after: bytes
    process: str | None
    pid: int | None
    level: str
    origin: str
    message: int
    verb: str
    family: str
    variant: str

    @property
    def size(self) -> int:
        """How many bytes all of them share, the stamp included."""
        return len(self.before) + STAMP_SIZE + len(self.after)


class Alone(NamedTuple):
    """A line read by itself: its record's prefix, whether it is that record and nothing else, and whether other parts have a prefix or a tag."""

    header: Header | None
    plain: bool
    tagged: bool


class AccessEnd(NamedTuple):
    """What follows the client in access lines alike."""

    text: bytes
    fields: dict[str, Value]


class AccessHead(NamedTuple):
    """What stands before the client, and the ends seen with it."""

    text: bytes
    process: str | None
    pid: int | None
    level: str | None
    ends: list[AccessEnd]


@dataclass(slots=True)
class Known:
    """The beginnings and ends seen so far in a source: the records' by what stands before the stamp."""

    records: dict[bytes, list[Beginning]] = field(default_factory=dict)
    access: dict[bytes, AccessHead] = field(default_factory=dict)
    access_patterns: dict[str, AccessHead] = field(default_factory=dict)
    """Of any access line, with what stands before the client."""
    whole: dict[str, Alone] = field(default_factory=dict)
    """Other records that came more than once, by their line with NUL for the stamp."""
    _once: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        """How many there are."""
        ends = sum(len(head.ends) for head in self.access.values())
        return ends + sum(map(len, self.records.values()))

    def note(self, key: str, one: Alone, stamp: re.Match[str]) -> None:
        """A record of one line, without its stamp: remembered when it comes again, and nothing else in it depends on the stamp."""
        if len(self.whole) + len(self._once) >= _MOST_WHOLE:
            self.whole.clear()
            self._once.clear()
        if key not in self._once:
            self._once.add(key)
            return
        text, (start, end) = stamp.string, stamp.span()
        others = [(parts, _alone(text[:start] + other + text[end:])) for other, parts in _OTHER_STAMPS]
        assert one.header is not None
        if text[:start].isascii() and all(o == one._replace(header=replace(one.header, stamp=p)) for p, o in others):
            self.whole[key] = one


class AlikeRecords(NamedTuple):
    """The lines of a block that have a beginning."""

    beginning: Beginning
    rows: Rows


class AccessLines(NamedTuple):
    """The access lines of a block that are alike but for their clients."""

    rows: Rows
    clients: pl.Series
    head: AccessHead
    end: AccessEnd


@dataclass(slots=True)
class Alike:
    """Records and access lines of a block that were found by their likeness; masks have one place a line."""

    header: Mask
    reached: Mask
    stamps: Stamps
    records: list[AlikeRecords] = field(default_factory=list)
    access: list[AccessLines] = field(default_factory=list)


def alike_in(block: Block, known: Known) -> Alike:
    """Find the lines that begin alike; what is seen for the first time is added to `known`."""
    count = len(block)
    found = Alike(np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.zeros(count, np.int64))
    todo: Rows = np.arange(count)
    for before, beginnings in known.records.items():
        todo = _records(found, block, todo, before, beginnings)
    for head in known.access.values():
        todo = _accesses(found, block, todo, head)
    misses, most = 0, _FEW_MISSES if known.count else _MOST_MISSES
    while len(todo) and misses < most and known.count < _MOST_KNOWN:
        row = int(todo[len(todo) * (misses + 1) * 5 // 8 % len(todo)])  # what is common stands everywhere
        left = _learned(found, block, todo, row, known)
        misses += len(todo) - len(left) < _FEWEST
        todo = left[left != row]
    return found


def _learned(found: Alike, block: Block, todo: Rows, row: int, known: Known) -> Rows:
    """What is left of the lines without those that are like line `row`."""
    text = block.line(row).decode("utf-8", "replace")
    beginning = _beginning_of(text)
    if beginning is not None:
        left = _records(found, block, todo, beginning.before, [beginning])
        if len(todo) - len(left) >= _FEWEST:
            known.records.setdefault(beginning.before, []).append(beginning)
        return left
    access = _access_of(text)
    if access is None:
        return todo
    head, pattern = access
    if pattern is not None and len(known.access_patterns) < _MOST_PATTERNS:
        known.access_patterns.setdefault(pattern, head._replace(ends=[]))
    left = _accesses(found, block, todo, head)
    if len(todo) - len(left) >= _FEWEST:
        known.access.setdefault(head.text, head._replace(ends=[])).ends.extend(head.ends)
    return left


def _beginning_of(text: str) -> Beginning | None:
    """What a record begins with whose message has a shape; that nothing else depends on its stamp is tried."""
    header = parse_header(text)
    if header is None or header.actors or header.start > MAX_HEAD or strip_ansi(text) != text:
        return None
    stamp = _STAMP.search(text, 0, header.start)
    message = text[header.start :]
    found = families.match(message, prefixed=True)
    if stamp is None or found is None or found.variant in OF_A_START:
        return None
    for other, parts in _OTHER_STAMPS:
        if parse_header(text[: stamp.start()] + other + text[stamp.end() :]) != replace(header, stamp=parts):
            return None
    verb = _verb(message, found)
    if not verb or not (text[: header.start] + verb).isascii() or header.start + len(verb) > MAX_HEAD:
        return None
    return Beginning(
        before=text[: stamp.start()].encode(),
        after=(text[stamp.end() : header.start] + verb).encode(),
        process=header.process,
        pid=header.pid,
        level=header.level,
        origin=header.origin,
        message=header.start,
        verb=verb,
        family=found.family,
        variant=found.variant,
    )


def _verb(message: str, found: families.Match) -> str:
    """A message up to what differs: the request's id, or the first number but for the engine's."""
    name = found.fields.get("request_id")
    if found.family == "request":
        return message[: message.find(name)] if isinstance(name, str) and "request_ids" not in found.fields else ""
    if found.family not in ("stats", "iteration"):
        return ""
    start = message.find(": ") if found.fields.get("engine") is not None else 0
    number = _NUMBER.search(message, start)
    return message[: number.start()] if number is not None else ""


def _access_of(text: str) -> tuple[AccessHead, str | None] | None:
    """The parts of an access line around its client, and a pattern of all access lines with this beginning."""
    tags = split_tags(text)
    fields = _access_fields(text, tags.start)
    client = fields.get("client") if fields else None
    if fields is None or not isinstance(client, str) or tags.actors or not text.isascii():
        return None
    at = text.find(client, tags.start)
    before, after = text[:at], text[at + len(client) :]
    if any(
        _access_fields(before + other + after, tags.start) != {**fields, "client": other} for other in _OTHER_CLIENTS
    ):
        return None
    own: dict[str, Value] = {name: value for name, value in fields.items() if name != "client" and value is not None}
    head = AccessHead(
        before.encode(), tags.process, tags.pid, level_of(text[tags.start :]), [AccessEnd(after.encode(), own)]
    )
    return head, _access_pattern(before, after, fields, tags.start)


def _access_fields(text: str, start: int) -> dict[str, Value] | None:
    """What an access line says that is nothing else besides."""
    message = text[start:]
    if find_glued(text, 0) >= 0 or strip_ansi(text) != text:
        return None
    found = families.match(message, prefixed=False)
    if found is None or (found.family, found.variant) != ("http", "access"):
        return None
    return {name: value for name, value in found.fields.items() if isinstance(value, Value)}


def _access_pattern(before: str, after: str, fields: dict[str, Value], start: int) -> str | None:
    """A pattern of access lines with any client, method, path and status; None where they do not stand apart."""
    literals, rest = [], after
    for name in _PARTS:
        literal, value, rest = rest.partition(str(fields.get(name)))
        if not value or not literal:
            return None
        literals.append(literal)
    for parts in _OTHER_PARTS:
        for reason in _REASONS:
            text = before + _OTHER_CLIENTS[0] + "".join(map("".join, zip(literals, parts, strict=True))) + reason
            want = {"client": _OTHER_CLIENTS[0], "method": parts[0], "path": parts[1], "status": int(parts[2])}
            if _access_fields(text, start) != want:
                return None
    kinds = ("(?P<method>[A-Z]+)", f"(?P<path>{WORD}+)", "(?P<status>[0-9]{3})")
    middle = "".join(re.escape(literal) + kind for literal, kind in zip(literals, kinds, strict=True))
    return f"^(?P<head>{re.escape(before)})(?P<client>[{re.escape(CLIENT_CHARS)}]+){middle}{_REASON}"


def _records(found: Alike, block: Block, todo: Rows, before: bytes, beginnings: list[Beginning]) -> Rows:
    """Take the records with these beginnings; gives the lines that have none of them."""
    starts = block.starts[todo]
    rows = todo[block.equal(starts, before)]
    if not len(rows):
        return todo
    moments, good = stamps(block, block.starts[rows] + len(before))
    rows, moments = rows[good], moments[good]
    for beginning in beginnings:
        places = block.starts[rows]
        same = block.equal(places + (len(before) + STAMP_SIZE), beginning.after)
        same &= block.ends[rows] > places + beginning.size
        if not same.any():
            continue
        mine = rows[same]
        found.header[mine] = True
        found.stamps[mine] = moments[same]
        found.records.append(AlikeRecords(beginning, mine))
        rows, moments = rows[~same], moments[~same]
        if not len(rows):
            break
    return todo[~found.header[todo]]


def _accesses(found: Alike, block: Block, todo: Rows, head: AccessHead) -> Rows:
    """Take the access lines with this head and its ends; gives the lines that are none of them."""
    rows = todo[block.equal(block.starts[todo], head.text)]
    for end in head.ends:
        if not len(rows):
            break
        places = block.starts[rows] + len(head.text)
        sizes = block.ends[rows] - len(end.text) - places
        same = (sizes > 0) & (sizes <= _LONGEST_CLIENT)
        same[same] = block.equal((places + sizes)[same], end.text)
        good, clients = block.strings(places[same], sizes[same], _CLIENT)
        mine = rows[same]
        if not good.all():
            mine, clients = mine[good], clients.filter(pl.Series(good))
        if len(mine):
            found.reached[mine] = True
            found.access.append(AccessLines(mine, clients, head, end))
        rows = rows[~same]
    return todo[~found.reached[todo]]


_NEAR_CUT = 4 * CUT_SLACK  # bytes; single lines are measured exactly
# Without one of these a text holds no record's prefix.
_LEVEL_WORDS = [f"{level} " for level in LEVELS]
# Without one of these a line without prefix is no exception's last line, and none of another engine's.
_TELLING_WORDS = [
    *("Error", "Exception", "Interrupt", "Exit"),
    *("#running-req: ", "#queue-req: ", "#new-token: ", "Retract requests", "text_generation_"),
    *("slot ", "srv ", "[TensorRT-LLM]", "[TRT-LLM]", "lmdeploy - "),
]
# Control characters, colour codes (also damaged ones), Ray's mark of folded repetitions.
_ODD = r"[\x00-\x08\x0a-\x1f]|\^\[\[|\[(?:[01];)?(?:0|1|3[0-7]|9[0-7])m|x across cluster\]"
_NONE = pl.DataFrame()
_RECORD_COLUMNS = {
    "row": pl.Int64(),
    "process": pl.String(),
    "pid": pl.Int64(),
    "level": pl.String(),
    "origin": pl.String(),
    "line": pl.String(),
    "start": pl.Int64(),
}
# The first line of several (`parsers.records.record.may_continue`).
_OPENS = rf"^\s*$|^ +raise |:$|Traceback \(most recent call last\)|^(?:{OPENER.pattern})|^  +(?:File \"|raise )"


@dataclass(slots=True)
class Structure:
    """A block's lines by kind; masks have one place a line.

    `records` are the lines with a prefix (`row`, its parts, `line`, and `start`, where in it the message begins) and `access` the
    access lines that are not among those found by their likeness (`alike`); `tagged` lines that name their process and are no records; `stamps` has a place for each line, zero where it has
    no prefix. `bad` lines are left to the readers of single lines; `telling` ones may end a traceback or be another engine's.
    """

    alike: Alike
    records: pl.DataFrame
    access: pl.DataFrame
    stamps: Stamps
    header: Mask
    reached: Mask
    blank: Mask
    bad: Mask
    telling: Mask
    tagged: Mask


def structure_of(block: Block, alike: Alike, known: Known) -> Structure:
    """Look at the beginning of each line that is not known yet, and at all of a line that begins like none known."""
    count = len(block)
    bad, blank, telling, tagged = np.zeros((4, count), np.bool_)
    found = Structure(
        alike, _NONE, _NONE, alike.stamps, alike.header.copy(), alike.reached.copy(), blank, bad, telling, tagged
    )
    blank |= block.starts == block.ends
    todo = np.flatnonzero(~(found.reached | found.header | blank))
    if not len(todo):
        return found
    rest = pl.DataFrame({"row": todo, "line": block.texts(todo)}, {"row": pl.Int64(), "line": pl.String()})
    rest = _other_accesses(found, rest, known)
    text = pl.col("line")
    levels, anchors, marks = (pl.Series(w).implode() for w in (_LEVEL_WORDS, list(families.anchors()), _TELLING_WORDS))
    looked = rest.select(
        "row",
        "line",
        record=text.str.contains_any(levels) | text.str.starts_with("("),
        odd=text.str.contains_any(anchors) | text.str.contains(_ODD),
        blank=text.str.contains(r"^\s*$"),
        telling=text.str.contains_any(marks),
    )
    _other_records(found, block, looked.filter("record"), known)
    foreign = looked.filter(~pl.col("record"))
    for name, mask in (("odd", bad), ("blank", blank), ("telling", telling)):
        mask[rows_of(foreign.filter(name))] = True
    return found


def _other_accesses(found: Structure, rest: pl.DataFrame, known: Known) -> pl.DataFrame:
    """Take the access lines of any path; gives the lines that are none."""
    parts = []
    for pattern, head in known.access_patterns.items():
        access = extracted(rest, "line", pattern, must="head")
        found.reached[rows_of(access)] = True
        rest = rest.filter(pl.Series(~found.reached[rows_of(rest)]))
        process = pl.lit(head.process, pl.String()).alias("process")
        level = pl.lit(head.level, pl.String()).alias("level")
        parts.append(access.with_columns(process, pl.lit(head.pid, pl.Int64()).alias("pid"), level))
    if parts:
        found.access = pl.concat(parts).sort("row")
    return rest


def _other_records(found: Structure, block: Block, lines: pl.DataFrame, known: Known) -> None:
    """Read lines that may have a prefix as the reference reads them; those that are more than one record are bad."""
    again: list[tuple[int, int]] = []
    records: list[tuple[object, ...]] = []
    for row, text in lines.select("row", "line").iter_rows():
        stamp = _STAMP.search(text, 0, MAX_HEAD)
        key = "" if stamp is None else text[: stamp.start()] + "\0" + text[stamp.end() :]
        one = known.whole.get(key)
        if one is not None and stamp is not None:
            again.append((row, stamp.start()))
        else:
            one = _alone(text)
            if stamp is not None and one.plain and len(text) <= _LONGEST_WHOLE:
                known.note(key, one, stamp)
            found.bad[row] = not one.plain
            found.tagged[row] = one.tagged
            if one.header is None:
                continue
            found.header[row] = True
            found.stamps[row] = packed_stamps(*map(np.int64, one.header.stamp))
        header = one.header
        if header is not None and one.plain:
            records.append((row, header.process, header.pid, header.level, header.origin, text, header.start))
    if again:
        rows, places = np.array(again, np.int64).T
        moments, good = stamps(block, block.starts[rows] + places)
        found.header[rows] = good
        found.stamps[rows] = moments
        found.bad[rows] = ~good
    if records:
        frame = pl.DataFrame(records, _RECORD_COLUMNS, orient="row")
        found.records = frame.filter(pl.Series(found.header[rows_of(frame)]))


def _alone(text: str) -> Alone:
    """A line as the reference reads it that has seen nothing before."""
    assembler = Assembler()
    assembler.first = False
    done = list(assembler.feed(Line(0, text)))
    record = assembler.pending
    header = record.header if record is not None else None
    if record is None or header is None:
        parts = [*done, record] if record is not None else done
        return Alone(None, False, any(part.header is not None or part.process or part.pid for part in parts))
    plain = not (done or header.actors or header.start > MAX_HEAD) and text.endswith(record.lines[0].text)
    return Alone(header, plain and len(text) == header.start + len(record.lines[0].text), False)


def is_odd(message: pl.Expr) -> pl.Expr:
    """Whether a record's text may be other than it seems: coloured, folded, two records, the first line of several."""
    words = pl.Series(_LEVEL_WORDS).implode()
    return message.str.contains_any(words) | message.str.contains(_ODD) | message.str.contains(_OPENS)


def mark_client_text(found: Structure, read: Mask) -> None:
    """Mark as bad the records with the very prefix of a record before them that may hold client text, and all between.

    `parsers.records.record.continues_client_text` decides: they may be no records but further lines of that text. A record that begins as a
    known one but was not `read` may hold anything.
    """
    says = read | found.bad | found.alike.header  # what says nothing known is never told again
    known: dict[str, int] = {}
    codes = np.zeros(len(found.header), np.int64)
    open_ = np.zeros(len(found.header), np.bool_)  # a client may have written in it
    kinds: Rows = np.zeros(len(found.header), np.int64)
    for group in found.alike.records:
        one = group.beginning
        text = "\x1f".join(map(str, (one.process, one.pid, one.level, one.origin)))
        codes[group.rows] = known.setdefault(text, len(known) + 1)
        open_[group.rows] = (not families.is_servers_own(one.family, one.variant)) | ~read[group.rows]
        kinds[group.rows] = np.where(read[group.rows], 1 + families.FAMILIES.index(one.family), 0)
    if len(found.records):
        parts = [pl.col(name).cast(pl.String()).fill_null("None") for name in ("process", "pid", "level", "origin")]
        texts = found.records.select(pl.concat_str(parts, separator="\x1f")).to_series()
        different = texts.unique().to_list()
        numbers = [known.setdefault(text, len(known) + 1) for text in different]
        codes[rows_of(found.records)] = texts.replace_strict(different, numbers, return_dtype=pl.Int64()).to_numpy()
        open_[rows_of(found.records)] = True
    rows = np.flatnonzero(found.header)
    before, after = rows[:-1], rows[1:]
    same = (codes[before] == codes[after]) & (found.stamps[before] == found.stamps[after])
    same &= open_[before] & says[after] & ((kinds[before] != kinds[after]) | (kinds[before] == 0))
    same |= open_[before] & (codes[after] == 0)  # a line of several records: the first need not be what it begins with
    for first, last in zip(before[same].tolist(), after[same].tolist(), strict=True):
        found.bad[first : last + 1] = True


def mark_cut(found: Structure, block: Block) -> int:
    """Mark as bad the lines that a carrier may have cut, with the line after each; gives the last one where nothing follows it."""
    sizes = block.ends - block.starts
    rows = np.flatnonzero(sizes >= CUTS[0] - _NEAR_CUT)
    if not len(rows):
        return len(sizes)
    rows = rows[np.abs(sizes[rows, None] - np.array(CUTS)).min(axis=1) <= _NEAR_CUT]
    found.bad[rows] = True
    found.bad[rows[rows + 1 < len(sizes)] + 1] = True
    return int(rows[-1]) if len(rows) and rows[-1] + 1 == len(sizes) else len(sizes)


def mark_tails(found: Structure, block: Block, complete: Mask) -> int:
    """Mark as bad the records that a line without prefix may complete, with all that follows them to such a line.

    `complete` are records (of the family `request`) that no line after them completes; nor is one completed where it and what
    follows hold no text of a format, however they are joined. Gives the line from which on a record may go on in the next block,
    the number of lines where there is none.
    """
    count = len(found.header)
    foreign = ~(found.header | found.reached | found.blank)
    if foreign.any():
        places = np.arange(count)
        record = np.maximum.accumulate(np.where(found.header, places, -1))
        breaks = np.maximum.accumulate(np.where(found.reached | found.blank, places, -1))
        follows = foreign & (record >= 0) & (breaks < record)
        follows &= (places - record <= MAX_TAIL) & ~complete[np.maximum(record, 0)]
        rows = np.flatnonzero(follows)
        wrong = np.zeros(count + 1, np.bool_)
        wrong[np.where(found.bad & (places - record <= MAX_TAIL), record, -1)] = (
            True  # a bad line needs its record before it
        )
        rows = rows[wrong[record[rows]] | ~_tell_nothing(block, record[rows], rows)]
        found.bad[rows] = True
        found.bad[record[rows]] = True
    _mark_wrapped(found, block)
    tail = found.header[-MAX_TAIL - 1 :]
    if not tail.any():
        return count
    last = count - 1 - int(tail[::-1].argmax())
    found.bad[last:] = True  # what follows stands in the next block
    return last


def _mark_wrapped(found: Structure, block: Block) -> None:
    """Mark as bad what may be an exception's last line that was wrapped, with the record before it."""
    rows = np.flatnonzero(found.telling & ~found.bad)
    if not len(rows):
        return
    count = len(found.header)
    stops = np.append(np.flatnonzero(found.header | found.reached | found.blank), count)
    ends = np.minimum(stops[np.searchsorted(stops, rows)], rows + MAX_ROWS + 1)
    spans = zip(block.starts[rows].tolist(), block.ends[ends - 1].tolist(), strict=True)
    texts = [block.stretch(start, end).translate(None, b" \n") for start, end in spans]
    dense = [anchor.encode() for anchor in _dense_anchors()]
    anchored = {text: any(anchor in text for anchor in dense) for text in {*texts}}
    for row in rows[[anchored[text] for text in texts]].tolist():
        before = np.flatnonzero(found.header[max(row - MAX_TAIL, 0) : row])
        first = max(row - MAX_TAIL, 0) + int(before[-1]) if len(before) else row
        found.bad[first : row + MAX_ROWS + 1] = True


def _dense_anchors() -> list[str]:
    return [anchor.replace(" ", "") for anchor in families.anchors()]


def _tell_nothing(block: Block, records: Rows, rows: Rows) -> Mask:
    """Which of `rows` follow, as others of `rows` may, one of `records` with which they hold no text of a format."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    lines = pl.DataFrame({"record": records, "text": block.texts(rows)}).group_by("record", maintain_order=True)
    joined = lines.agg(pl.col("text").str.join(""))
    heads = pl.Series(block.texts(joined["record"].to_numpy()))
    texts = (heads + joined["text"]).str.replace_all(" ", "", literal=True)
    tells = texts.str.contains_any(pl.Series([_dense_anchors()]))
    return ~np.isin(records, joined["record"].to_numpy()[tells.to_numpy()])
