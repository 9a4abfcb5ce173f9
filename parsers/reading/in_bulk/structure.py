"""Which lines of a block are records of one line, access lines or foreign, and which need the readers of single lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from parsers.families import ANCHORS
from parsers.reading.in_bulk.block import Block, Mask
from parsers.reading.in_bulk.column import extracted, rows_of
from parsers.reading.in_bulk.prefixes import ACCESS, HEADER, MAX_HEAD
from parsers.reading.in_bulk.templates import Alike
from parsers.records.dates import Stamps, packed_stamps
from parsers.records.prefix import LEVELS
from parsers.records.record import MAX_TAIL, OPENER

__all__ = ["Structure", "is_odd", "mark_tails", "structure_of"]

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
    no prefix. `bad` lines are left to the readers of single lines.
    """

    alike: Alike
    records: pl.DataFrame
    access: pl.DataFrame
    stamps: Stamps
    header: Mask
    reached: Mask
    blank: Mask
    bad: Mask


def structure_of(block: Block, alike: Alike) -> Structure:
    """Look at the beginning of each line that is not known yet, and at all of a line that begins like none known."""
    count = len(block)
    reached, header, stamps = alike.reached.copy(), alike.header.copy(), alike.stamps
    todo = np.flatnonzero(~(reached | header))
    bad, blank = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    if not len(todo):
        return Structure(alike, _NONE, _NONE, stamps, header, reached, blank, bad)
    rest = pl.DataFrame(
        {"row": todo, "line": block.texts(todo)}, {"row": pl.Int64(), "line": pl.String()}
    )
    likely = pl.col("line").str.contains(r"^(?:\([^()]*\) )?INFO:     ")
    access = extracted(rest.filter(likely), "line", ACCESS, must="head")
    reached[rows_of(access)] = True
    rest = rest.filter(pl.Series(~reached[todo]))
    records = extracted(rest, "line", HEADER, must="head").filter(
        pl.col("head").str.len_bytes() <= MAX_HEAD
    )
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
        words = pl.Series([*_LEVEL_WORDS, *_TELLING_WORDS, *ANCHORS]).implode()
        looked = foreign.select(
            "row",
            odd=text.str.contains_any(words) | text.str.contains(_ODD) | text.str.starts_with("("),
            blank=text.str.contains(r"^\s*$"),
        )
        bad[rows_of(looked.filter("odd"))] = True
        blank[rows_of(looked.filter("blank"))] = True
    return Structure(alike, records, access, stamps, header, reached, blank, bad)


def _stamps(texts: pl.Series) -> Stamps:
    """`05-09 00:49:33` as numbers; all of them have the same places."""
    joined = texts.str.join("").item() if len(texts) else ""
    digits = np.frombuffer((joined or "").encode(), np.uint8).reshape(-1, 14).astype(np.int64) - 48
    tens = digits[:, (0, 3, 6, 9, 12)] * 10 + digits[:, (1, 4, 7, 10, 13)]
    return packed_stamps(*tens.T)


def is_odd(message: pl.Expr) -> pl.Expr:
    """Whether a record's text may be other than it seems: coloured, folded, two records, the first line of several."""
    words = pl.Series(_LEVEL_WORDS).implode()
    return (
        message.str.contains_any(words) | message.str.contains(_ODD) | message.str.contains(_OPENS)
    )


def mark_tails(found: Structure, complete: Mask) -> int:
    """Mark as bad the records that a line without prefix may complete, with all that follows them to such a line.

    `complete` are records (of the family `request`) that no line after them completes. Gives the line from which on a record may
    go on in the next block, the number of lines where there is none.
    """
    count = len(found.header)
    foreign = ~(found.header | found.reached | found.blank)
    if foreign.any():
        places = np.arange(count)
        record = np.maximum.accumulate(np.where(found.header, places, -1))
        breaks = np.maximum.accumulate(np.where(found.reached | found.blank, places, -1))
        follows = foreign & (record >= 0) & (breaks < record)
        follows &= (places - record <= MAX_TAIL) & ~complete[np.maximum(record, 0)]
        found.bad[follows] = True
        found.bad[record[follows]] = True
    tail = found.header[-MAX_TAIL - 1 :]
    if not tail.any():
        return count
    last = count - 1 - int(tail[::-1].argmax())
    found.bad[last:] = True  # what follows stands in the next block
    return last
