"""Lines that are told by comparing bytes: the same process says the same thing in the same words, time after time.

A log has few different beginnings of records, and few different ends of access lines. Each is parsed once, and remembered from
block to block; the lines that share it are found by comparing eight bytes at a time.

What records and access lines begin with, strictly: a line that does not match is read by itself.

Which lines of a block are records of one line, access lines or foreign, and which need the readers of single lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from parsers.families import ANCHORS
from parsers.reading.in_bulk.block import STAMP_SIZE, Alphabet, Block, Mask, Rows, extracted, rows_of, stamps
from parsers.records.dates import Stamps, packed_stamps
from parsers.records.prefix import LEVELS
from parsers.records.record import MAX_TAIL, OPENER

__all__ = [
    "ACCESS",
    "CLIENT_CHARS",
    "HEADER",
    "MAX_HEAD",
    "WORD",
    "WORD_CHARS",
    "AccessLines",
    "Alike",
    "Beginning",
    "Known",
    "Speech",
    "Structure",
    "alike_in",
    "is_odd",
    "mark_tails",
    "structure_of",
]
WORD = r"[!-Z\\-~]"
"""A visible ASCII character but `[`, which could begin a colour code."""
WORD_CHARS = "".join(map(chr, (*range(0x21, 0x5B), *range(0x5C, 0x7F))))

_TAG = r"(?:\((?P<process>[A-Za-z_][0-9A-Za-z_]{0,60})(?: rank=[0-9]{1,4})? pid=(?P<pid>[0-9]{1,9})\) )?"
_FILE = r"[A-Za-z_][0-9A-Za-z_./-]*"
# (APIServer pid=1) INFO 05-09 00:49:33 [loggers.py:259] text
HEADER = (
    rf"^(?P<head>{_TAG}(?P<level>{'|'.join(LEVELS)}) "
    r"(?P<stamp>(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01]) (?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)) "
    rf"(?:\[(?P<origin>{_FILE}:[0-9]{{1,6}})\]|(?P<origin_old>{_FILE}\.py:[0-9]{{1,6}})\]?) )."
)
MAX_HEAD = 200
CLIENT_CHARS = "0123456789ABCDEFabcdef.:[]"
CLIENT = rf"[{re.escape(CLIENT_CHARS)}]+"
# (APIServer pid=1) INFO:     10.20.0.5:51324 - "POST /v1/chat/completions HTTP/1.1" 200 OK
ACCESS = (
    rf'^(?P<head>{_TAG}INFO:     )(?P<client>{CLIENT}) - "(?P<method>[A-Z]+) (?P<path>{WORD}+) '
    r'HTTP/[0-9.]+" (?P<status>[0-9]{3})(?: [A-Za-z -]*)?$'
)

_LONGEST_CLIENT = 64
_MOST_KNOWN = 64
_MOST_MISSES = 16
_FEWEST = 4  # lines alike, or it is not worth remembering
_HEADER = re.compile(HEADER.encode())
_ACCESS = re.compile(ACCESS.encode())
_VERBS = re.compile(
    rb"(?:Received|Added|Aborted|Finished) request |(?:Engine \d{1,9}: )?(?:Iteration\(|Avg prompt throughput: )"
)
_CLIENT = Alphabet(CLIENT_CHARS)


class Beginning(NamedTuple):
    """What records alike begin with: `before` the stamp and `after` it, as far as the first words of the message.

    `message` is where in the line the message begins, `verb` those first words.
    """

    before: bytes
    after: bytes
    process: str | None
    pid: int | None
    level: str
    origin: str
    message: int
    verb: str

    @property
    def size(self) -> int:
        """How many bytes all of them share, the stamp included."""
        return len(self.before) + STAMP_SIZE + len(self.after)


class AccessEnd(NamedTuple):
    """What follows the client in access lines alike."""

    text: bytes
    method: str
    path: str
    status: int


class AccessHead(NamedTuple):
    """What stands before the client, and the ends seen with it."""

    text: bytes
    process: str | None
    pid: int | None
    ends: list[AccessEnd]


@dataclass(slots=True)
class Known:
    """The beginnings and ends seen so far in a source: the records' by what stands before the stamp."""

    records: dict[bytes, list[Beginning]] = field(default_factory=dict)
    access: dict[bytes, AccessHead] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        ends = sum(len(head.ends) for head in self.access.values())
        return ends + sum(map(len, self.records.values()))


class Speech(NamedTuple):
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
    speeches: list[Speech] = field(default_factory=list)
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
    misses = 0
    while len(todo) and misses < _MOST_MISSES and known.count < _MOST_KNOWN:
        row = int(todo[len(todo) // 2])  # what is common stands in the middle too
        left = _learned(found, block, todo, row, known)
        misses += len(todo) - len(left) < _FEWEST
        todo = left[left != row]
    return found


def _learned(found: Alike, block: Block, todo: Rows, row: int, known: Known) -> Rows:
    """What is left of the lines without those that are like line `row`."""
    line = block.line(row)
    access = _ACCESS.match(line)
    if access is not None:
        text, process, pid = access["head"], access["process"], access["pid"]
        end = AccessEnd(
            line[access.end("client") :], access["method"].decode(), access["path"].decode(), int(access["status"])
        )
        name, number = process.decode() if process else None, int(pid) if pid else None
        left = _accesses(found, block, todo, AccessHead(text, name, number, [end]))
        if len(todo) - len(left) >= _FEWEST:
            known.access.setdefault(text, AccessHead(text, name, number, [])).ends.append(end)
        return left
    beginning = _beginning_of(line)
    if beginning is None:
        return todo
    left = _records(found, block, todo, beginning.before, [beginning])
    if len(todo) - len(left) >= _FEWEST:
        known.records.setdefault(beginning.before, []).append(beginning)
    return left


def _beginning_of(line: bytes) -> Beginning | None:
    header = _HEADER.match(line)
    verb = _VERBS.match(line, header.end("head")) if header else None
    if header is None or verb is None or verb.end() > MAX_HEAD:
        return None
    process, pid, origin = (header["process"], header["pid"], header["origin"] or header["origin_old"])
    return Beginning(
        before=line[: header.start("stamp")],
        after=line[header.end("stamp") : verb.end()],
        process=process.decode() if process else None,
        pid=int(pid) if pid else None,
        level=header["level"].decode(),
        origin=origin.decode(),
        message=header.end("head"),
        verb=verb[0].decode(),
    )


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
        found.speeches.append(Speech(beginning, mine))
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
# The first line of several (`parsers.records.record.may_continue`).
_NONE = pl.DataFrame()
_OPENS = rf"^\s*$|:$|Traceback \(most recent call last\)|^(?:{OPENER.pattern})"


@dataclass(slots=True)
class Structure:
    """A block's lines by kind; masks have one place a line.

    `records` are the lines with a prefix (`row`, its parts, `line`, and `start`, where in it the message begins) and `access` the
    access lines that are not among those found by their likeness (`alike`); `stamps` has a place for each line, zero where it has
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


def structure_of(block: Block, alike: Alike) -> Structure:
    """Look at the beginning of each line that is not known yet, and at all of a line that begins like none known."""
    count = len(block)
    reached, header, stamps = alike.reached.copy(), alike.header.copy(), alike.stamps
    todo = np.flatnonzero(~(reached | header))
    bad, blank, telling = np.zeros((3, count), np.bool_)
    if not len(todo):
        return Structure(alike, _NONE, _NONE, stamps, header, reached, blank, bad, telling)
    rest = pl.DataFrame({"row": todo, "line": block.texts(todo)}, {"row": pl.Int64(), "line": pl.String()})
    likely = pl.col("line").str.contains(r"^(?:\([^()]*\) )?INFO:     ")
    access = extracted(rest.filter(likely), "line", ACCESS, must="head")
    reached[rows_of(access)] = True
    rest = rest.filter(pl.Series(~reached[todo]))
    records = extracted(rest, "line", HEADER, must="head").filter(pl.col("head").str.len_bytes() <= MAX_HEAD)
    rows = rows_of(records)
    header[rows] = True
    stamps[rows] = _stamps(records["stamp"])
    records = records.select(
        "row",
        "process",
        pl.col("pid").cast(pl.Int64()),
        "level",
        pl.coalesce("origin", "origin_old").alias("origin"),
        "line",
        pl.col("head").str.len_bytes().cast(pl.Int64()).alias("start"),
    )
    foreign = rest.filter(pl.Series(~header[rows_of(rest)]))
    if len(foreign):
        text = pl.col("line")
        words, marks = pl.Series([*_LEVEL_WORDS, *ANCHORS]).implode(), pl.Series(_TELLING_WORDS).implode()
        looked = foreign.select(
            "row",
            odd=text.str.contains_any(words) | text.str.contains(_ODD) | text.str.starts_with("("),
            blank=text.str.contains(r"^\s*$"),
            telling=text.str.contains_any(marks),
        )
        telling[rows_of(looked.filter("telling"))] = True
        bad[rows_of(looked.filter("odd"))] = True
        blank[rows_of(looked.filter("blank"))] = True
    return Structure(alike, records, access, stamps, header, reached, blank, bad, telling)


def _stamps(texts: pl.Series) -> Stamps:
    """`05-09 00:49:33` as numbers; all of them have the same places."""
    joined = texts.str.join("").item() if len(texts) else ""
    digits = np.frombuffer((joined or "").encode(), np.uint8).reshape(-1, 14).astype(np.int64) - 48
    tens = digits[:, (0, 3, 6, 9, 12)] * 10 + digits[:, (1, 4, 7, 10, 13)]
    return packed_stamps(*tens.T)


def is_odd(message: pl.Expr) -> pl.Expr:
    """Whether a record's text may be other than it seems: coloured, folded, two records, the first line of several."""
    words = pl.Series(_LEVEL_WORDS).implode()
    return message.str.contains_any(words) | message.str.contains(_ODD) | message.str.contains(_OPENS)


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
    tail = found.header[-MAX_TAIL - 1 :]
    if not tail.any():
        return count
    last = count - 1 - int(tail[::-1].argmax())
    found.bad[last:] = True  # what follows stands in the next block
    return last


def _tell_nothing(block: Block, records: Rows, rows: Rows) -> Mask:
    """Which of `rows` follow, as others of `rows` may, one of `records` with which they hold no text of a format."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    lines = pl.DataFrame({"record": records, "text": block.texts(rows)}).group_by("record", maintain_order=True)
    joined = lines.agg(pl.col("text").str.join(""))
    heads = pl.Series(block.texts(joined["record"].to_numpy()))
    texts = (heads + joined["text"]).str.replace_all(" ", "", literal=True)
    tells = texts.str.contains_any(pl.Series([[anchor.replace(" ", "") for anchor in ANCHORS]]))
    return ~np.isin(records, joined["record"].to_numpy()[tells.to_numpy()])
