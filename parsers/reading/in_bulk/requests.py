"""Requests that are received, added, finished or aborted: all but the id is the same again and again, or differs in its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from parsers import families
from parsers.families.formats import Fields
from parsers.lines import later
from parsers.reading.frames import Coded, fields_frame
from parsers.reading.in_bulk.block import MARGIN, Alphabet, Block, Hole, Mask, Rows, Shape, shape_of
from parsers.reading.in_bulk.parts import Column, Part
from parsers.reading.in_bulk.templates import WORD_CHARS
from parsers.records.prefix import find_glued, strip_ansi
from parsers.records.record import Record, RecordText, is_open, may_continue

__all__ = ["KnownParameters", "is_simple", "learned_holes", "life_lines", "received", "with_parameters"]

_LONGEST_ID = 256
_LONGEST = MARGIN - 512  # with other numbers it may become longer
_NEAR = 64  # bytes in which nearly all ids end
_WORD = Alphabet(WORD_CHARS)
_ENDS = (ord("."), ord(":"))  # an id does not end in these
_PARAMS = b": params: "
_ANY_ID = "x"
_MOST_SHAPES = 64
_SMALL = 1 << 16  # a table of so many numbers is sooner made than the numbers sorted
_FEWEST = 4
_ANY_NUMBER = later(rb"(?<![\w.])[0-9]+(?:\.[0-9]+)?(?![\w])")
_ENGINE_FIELDS = frozenset({"engine", "num_engines"})  # they tell where an event belongs
_OTHER = "_"
_COPIES = frozenset({"params"})
_ANY = Alphabet("".join(map(chr, range(128))))
_MANY_SHAPES = 12
_MOST_MISSES = 8


@dataclass(frozen=True, slots=True)
class _Parameters:
    """What follows the id: at `start` the `pieces` of `params` around its numbers, and after it `rest` bytes.

    `columns` are the fields but for the limits.
    """

    shape: Shape
    pieces: tuple[str, ...]
    start: int
    rest: int
    columns: dict[str, Column]


@dataclass(slots=True)
class KnownParameters:
    """The parameters seen so far in a source, but for their limits."""

    all: list[_Parameters] = field(default_factory=list)


def life_lines(block: Block, rows: Rows, message: int, verb: str, variant: str) -> tuple[Part, Mask]:
    """`Added request x.` and its like, whose text begins `message` bytes after the line's start; and which rows were read."""
    starts = block.starts[rows] + (message + len(verb))
    sizes = block.ends[rows] - starts
    last = block.words(block.ends[rows] - 8)  # the record's prefix alone is longer
    closed = last >> np.uint64(56) == ord(".")
    sizes -= closed
    good = (sizes > 0) & (sizes <= _LONGEST_ID)
    ends = np.where(closed, last >> np.uint64(48), last >> np.uint64(56)) & np.uint64(0xFF)
    for mark in _ENDS:
        good &= ends != mark
    fit, ids = block.strings(starts[good], sizes[good], _WORD)
    good[good] = fit
    columns: dict[str, Column] = {
        "request_id": ids.filter(pl.Series(fit)) if not fit.all() else ids,
        "variant": variant,
    }
    return Part(rows[good], columns), good


def received(
    block: Block, rows: Rows, message: int, verb: str, known: KnownParameters, opening: bytes = _PARAMS
) -> tuple[list[Part], Mask]:
    """`Received request x: params: …`, and which rows were read; `opening` is what stands between the id and the parameters."""
    starts = block.starts[rows] + (message + len(verb))
    sizes, good = _id_sizes(block, starts, opening)
    return with_parameters(
        block, rows, starts, sizes, starts + (sizes + len(": ")), good, known, len(opening) - len(": ")
    )


def with_parameters(
    block: Block, rows: Rows, starts: Rows, sizes: Rows, said: Rows, good: Mask, known: KnownParameters, at: int
) -> tuple[list[Part], Mask]:
    """Requests whose ids of `sizes` bytes begin at `starts`, and which rows were read; only those that are `good` are looked at.

    Their parameters stand `at` bytes after the places `said`.
    """
    fit, ids = block.strings(starts[good], sizes[good], _WORD)
    good = good.copy()
    good[good] = fit
    if not fit.all():
        ids = ids.filter(pl.Series(fit))
    mine = rows[good]
    places = said[good]
    ends = block.ends[mine]
    parts: list[Part] = []
    left = np.arange(len(mine))

    def take(parameters: _Parameters) -> int:
        nonlocal left
        found = parameters.shape.find(block, places[left], ends[left])
        if not len(found.which):
            return 0
        which = left[found.which]
        own = ids if len(which) == len(ids) else ids.gather(pl.Series(which))
        columns = _columns(parameters, found.values, block, places[which], ends[which])
        parts.append(Part(mine[which], {"request_id": own, **columns}))
        left = np.delete(left, found.which)
        return len(which)

    for parameters in known.all:
        if len(left):
            take(parameters)
    misses = 0
    while len(left) and len(known.all) < _MOST_SHAPES and misses < _MOST_MISSES:
        one = int(left[(len(left) // 2 + misses) % len(left)])
        text = block.stretch(int(places[one]), int(ends[one]))
        learned = False
        for loose in (False, True)[len(known.all) >= _MANY_SHAPES :]:
            seen = _parameters_of(text, at, loose=loose)
            if seen is not None and len(left) and take(seen) >= _FEWEST:
                known.all.append(seen)
                learned = True
                break
        misses += not learned
    done = np.ones(len(mine), np.bool_)
    done[left] = False
    good[good] = done
    return parts, good


def _id_sizes(block: Block, starts: Rows, opening: bytes) -> tuple[Rows, Mask]:
    """How long the ids are that are followed by parameters, and where there is one. Most are as long as the first."""
    first = block.stretch(int(starts[0]), int(starts[0]) + _NEAR).find(opening)
    sizes = np.full(len(starts), max(first, 0))
    good = block.equal(starts + first, opening) if first > 0 else np.zeros(len(starts), np.bool_)
    if not good.all():
        others = starts[~good]
        size = (block.fetched(others, _NEAR) == ord(":")).argmax(axis=1)
        sizes[~good] = size
        good[~good] = (size > 0) & block.equal(others + size, opening)
    return sizes, good


def _columns(
    parameters: _Parameters, numbers: dict[str, NDArray[Any]], block: Block, places: Rows, ends: Rows
) -> dict[str, Column]:
    """The fields of requests with parameters alike, which stand from `places` to before `ends`."""
    limits = {name: values for name, values in numbers.items() if not name.startswith(_OTHER)}
    columns = dict(parameters.columns)
    columns.update((name, pl.Series(values)) for name, values in limits.items())
    if not numbers:
        return {**columns, "params": parameters.pieces[0]}
    count = len(places)
    if len(limits) < len(numbers) or _are_many(limits, count):
        sizes = ends - places - (parameters.start + parameters.rest)
        _, printed = block.strings(places + parameters.start, sizes, _ANY)
        return {**columns, "params": printed}
    # Few limits come again and again: each text is made once.
    rows = np.zeros((1, 0), np.int64)
    codes = np.zeros(count, np.int64)
    for values in limits.values():
        known, which = _different(values)
        both, codes = _different(codes * len(known) + which)
        rows = np.column_stack((rows[both // len(known)], known[both % len(known)]))
    texts = [
        "".join(chain.from_iterable(zip_longest(parameters.pieces, map(str, row), fillvalue="")))
        for row in rows.tolist()
    ]
    return {**columns, "params": Coded(texts, codes.astype(np.uint32))}


def _are_many(limits: dict[str, NDArray[np.int64]], count: int) -> bool:
    """Whether the limits differ so much that few texts would be made twice."""
    return any(len(_different(values)[0]) * 4 > count for values in limits.values())


def _different(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different numbers among `values`, none of them negative, and which of them each is."""
    if not len(values) or values.max() >= _SMALL:
        return np.unique(values, return_inverse=True)
    seen = np.zeros(_SMALL, np.bool_)
    seen[values] = True
    known = np.flatnonzero(seen)
    places = np.zeros(_SMALL, np.int64)
    places[known] = np.arange(len(known))
    return known, places[values]


@lru_cache(maxsize=1 << 10)
def _parameters_of(said: bytes, start: int, *, loose: bool) -> _Parameters | None:
    """The shape and the fields of what follows `Received request x: `, with the parameters at `start`; None where the line is to be read by itself.

    In a `loose` shape other numbers may vary too.
    """
    fields = _fields_of(said) if len(said) < _LONGEST else None
    if fields is None:
        return None
    params = said[start : start + len(str(fields["params"]))]
    if params.decode() != fields["params"]:
        return None
    holes = learned_holes(said, fields, _fields_of, families.columns("request"), _COPIES, loose=loose)
    shape = shape_of(said, holes)
    if shape is None:
        holes, shape = [], shape_of(said, [])
    if shape is None:
        return None
    columns = fields_frame("request", [fields]).row(0, named=True)
    own = {"request_id", "params", "prompt", "prompt_chars", *(hole.name for hole in holes)}
    columns = {n: value for n, value in columns.items() if value is not None and n not in own}
    pieces, at = [], start
    for hole in (*holes, None):
        end = start + len(params) if hole is None else hole.start
        pieces.append(said[at:end].decode())
        at = hole.end if hole is not None else end
    columns["variant"] = "received"
    return _Parameters(shape, tuple(pieces), start, len(said) - start - len(params), columns)


def _fields_of(said: bytes) -> Fields | None:
    """What `Received request x: …` says; None where the line is to be read by itself."""
    if not said.isascii() or said.count(b"prompt: ") != said.startswith(b"prompt: "):
        return None
    message = f"Received request {_ANY_ID}: {said.decode()}"
    if not is_simple(message):
        return None
    match = families.match(message, prefixed=True)
    if match is None or (match.family, match.variant) != ("request", "received"):
        return None
    return match.fields


def learned_holes(
    text: bytes,
    fields: Fields,
    read: Callable[[bytes], Fields | None],
    known: Mapping[str, object],
    copies: frozenset[str] = frozenset(),
    *,
    loose: bool = False,
) -> list[Hole]:
    """The numbers of a text that are fields: what `read` gives of other numbers in their places shows which, and that all may vary.

    `known` are the fields that may be one, `copies` those that repeat the text. With `loose`, numbers that are no field may vary
    too. Empty where they cannot vary together.
    """
    holes: list[Hole] = []
    for found in _ANY_NUMBER.finditer(text):
        name = _moved(text, found.span(), fields, read, copies)
        if name == _OTHER and loose:
            name = f"{_OTHER}{len(holes)}"
        elif name not in known or name in _ENGINE_FIELDS:
            continue
        holes.append(Hole(str(name), *found.span(), b"." in found[0]))
    if len({hole.name for hole in holes}) != len(holes):
        return []
    for one, other_one in (("7", "1234567"), ("1020304", "90")):
        changed, want = text, dict(fields)
        for place, hole in reversed(list(enumerate(holes))):
            number = (one, other_one)[place % 2]
            printed = f"{number}.{number}" if hole.fraction else number
            changed = changed[: hole.start] + printed.encode() + changed[hole.end :]
            if not hole.name.startswith(_OTHER):
                want[hole.name] = float(printed) if hole.fraction else int(number)
        other = read(changed)
        want |= {name: (other or {}).get(name) for name in copies}
        longer = len(changed) - len(text)
        if other != want or any(len(str(want[name])) != len(str(fields[name])) + longer for name in copies):
            return []
    return holes


def _moved(
    text: bytes, span: tuple[int, int], fields: Fields, read: Callable[[bytes], Fields | None], copies: frozenset[str]
) -> str | None:
    """The one field that has another number's value when this number is another; `_OTHER` where none has it."""
    start, end = span
    names = set()
    for probe in (b"7.5", b"1234567.25") if b"." in text[start:end] else (b"7", b"1234567"):
        if text[start:end] == probe:
            continue
        other = read(text[:start] + probe + text[end:])
        if other is None or other.keys() != fields.keys():
            return None
        moved = {name for name in fields if other[name] != fields[name]} - copies
        if len(moved) > 1 or any(other[name] != float(probe) for name in moved):
            return None
        names.add(moved.pop() if moved else _OTHER)
    return names.pop() if len(names) == 1 else None


def is_simple(message: str) -> bool:
    """Whether a record's text is one message on one line."""
    return not (
        may_continue(message)
        or "x across cluster]" in message
        or strip_ansi(message) != message
        or not message.isprintable()
        or find_glued(message, 0) >= 0
        or is_open(Record([RecordText(0, message)]))
    )
