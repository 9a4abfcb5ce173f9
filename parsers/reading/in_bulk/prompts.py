"""Requests that are received with their prompts: the length of the prompt is counted, the rest is read as of those without one (`requests`)."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from parsers.families.literals import unquote
from parsers.families.request import PARAMS, PROMPT, PROMPT_IDS
from parsers.lines import TextBlock, later
from parsers.reading.in_bulk.block import Block, Mask, Rows
from parsers.reading.in_bulk.parts import Part
from parsers.reading.in_bulk.requests import KnownParameters, received, with_parameters
from parsers.records.prefix import find_glued, strip_ansi

__all__ = ["prompted"]

_PROMPT, _PARAMS = f": {PROMPT}".encode(), f", {PARAMS[0]}".encode()
_OTHER_PROMPT = _PROMPT + b"'x'"
_OPENING = _OTHER_PROMPT + b", params: "
_IDS = later(re.escape(PROMPT_IDS).encode() + rb"\[([0-9][0-9, ]*)\]")
_TOKEN_IDS = f"{PROMPT_IDS}[".encode()
_LONGEST_ID = 256
_ESCAPE = later(rb"\\x[0-9a-f]{2}")
_SHORT_ESCAPES = (rb"\\", rb"\n", rb"\t", rb"\r", rb"\'", rb"\"")
_UNKNOWN = -1
_CONTROLS = bytes((*range(9), *range(11, 32)))
# What may be more than text, as is a bracket (colours, a record's prefix) or a control character.
_WORDS_OF_MARKS = (b"Traceback (", b".py:")
_MARKS = (*_WORDS_OF_MARKS, b"x across cluster]", b"[", b"] ", b"^[")
_BACKSLASH = ord("\\")
_QUOTES = tuple(b"'\"")


def _table(characters: bytes) -> Mask:
    return np.isin(np.arange(256), np.frombuffer(characters, np.uint8))


_QUOTE = _table(bytes(_QUOTES))
_ESCAPED = _table(bytes(escape[1] for escape in _SHORT_ESCAPES))
_SPECIAL = _table(bytes((*range(32), *range(127, 256))) + b"[]\\" + bytes(_QUOTES))


def prompted(block: Block, rows: Rows, message: int, verb: str, known: KnownParameters) -> tuple[list[Part], Mask]:
    """`Received request x: prompt: …`, and which rows were read."""
    starts, ends = block.starts[rows] + (message + len(verb)), block.ends[rows]
    ids = block.first(_PROMPT, starts, np.minimum(starts + _LONGEST_ID, ends))
    params = block.last(_PARAMS, starts, ends)
    begins = ids + len(_PROMPT)
    plain = (ids > starts) & (begins < params)
    plain[plain] = block.first(_TOKEN_IDS, params[plain], ends[plain]) < 0
    sizes = np.zeros(len(rows), np.int64)
    sizes[plain], plain[plain] = _plain_lengths(block, begins[plain], params[plain])
    parts, good = with_parameters(block, rows, starts, ids - starts, params + len(", "), plain, known, len("params: "))
    chars = np.zeros(len(block), np.int64)
    chars[rows] = sizes
    parts = [Part(part.rows, {**part.columns, "prompt_chars": pl.Series(chars[part.rows])}) for part in parts]
    if not good.all():
        others, read = _one_by_one(block, rows[~good], message, verb, known)
        parts += others
        good[~good] = read
    return parts, good


def _plain_lengths(block: Block, starts: Rows, ends: Rows) -> tuple[Rows, Mask]:
    """How many characters prompts have that are ASCII texts as Python prints them, and which of them are such and nothing else besides."""
    none = np.zeros(len(starts), np.bool_)
    if not len(starts):
        return starts, none
    first, last = int(starts.min()), int(ends.max())
    codes = block.codes(first, last + 1)
    places = np.flatnonzero(_SPECIAL[codes])
    kinds = codes[places]
    # Of a run of backslashes each other one begins an escape.
    number = np.arange(len(places))
    slash = kinds == _BACKSLASH
    goes_on = np.zeros(len(places), np.bool_)
    goes_on[1:] = slash[1:] & slash[:-1] & (np.diff(places) == 1)
    run = np.maximum.accumulate(np.where(goes_on, 0, number))
    escape = slash & ((number - run) % 2 == 0)
    escaped = codes[np.minimum(places + 1, len(codes) - 1)]
    odd = ~(slash | _QUOTE[kinds]) | (escape & ~_ESCAPED[escaped])
    within = np.zeros(len(places), np.bool_)  # an escape
    within[1:] = escape[:-1] & (np.diff(places) == 1)
    low, high = np.searchsorted(places, starts - first), np.searchsorted(places, ends - first)

    def count(which: Mask) -> Rows:
        sums = np.zeros(len(which) + 1, np.int64)
        np.cumsum(which, out=sums[1:])
        inside: Rows = sums[high] - sums[low]
        return inside

    quotes = block.codes(first, last)[starts - first]
    good = _QUOTE[quotes] & (codes[ends - first - 1] == quotes) & (ends - starts > 1) & (count(odd) == 0)
    for quote in _QUOTES:
        good &= (quotes != quote) | (count((kinds == quote) & ~within) == 2)
    for mark in _WORDS_OF_MARKS:
        good[good] = block.first(mark, starts[good], ends[good]) < 0
    sizes: Rows = np.subtract(ends - 2, starts + count(escape), dtype=np.int64)
    return sizes, good


def _one_by_one(block: Block, rows: Rows, message: int, verb: str, known: KnownParameters) -> tuple[list[Part], Mask]:
    """Each line is told with another prompt, and then read as those without one."""
    cuts: list[tuple[int, bytes, bytes, int]] = []
    prompts: list[bytes] = []
    starts = (block.starts[rows] + (message + len(verb))).tolist()
    for place, (start, end) in enumerate(zip(starts, block.ends[rows].tolist(), strict=True)):
        text = block.stretch(start, end)
        before, at = text.find(_PROMPT, 0, _LONGEST_ID), text.rfind(_PARAMS)
        if before < 0 or at < before + len(_PROMPT):
            continue
        said, count = text[at:], 0
        if ids := _IDS.search(said):
            count = ids[1].count(b",") + 1
            said = said[: ids.start(1)] + b"1" + said[ids.end(1) :]
        cuts.append((place, text[:before], said, count))
        prompts.append(text[before + len(_PROMPT) : at].strip())
    sizes = _lengths(prompts) if prompts else []
    kept = [(*cut, size) for cut, size in zip(cuts, sizes, strict=True) if size != _UNKNOWN]
    good = np.zeros(len(rows), np.bool_)
    if not kept:
        return [], good
    lines = b"\n".join([begin + _OTHER_PROMPT + said for _, begin, said, _, _ in kept])
    others = Block([TextBlock(1, lines + b"\n")])
    parts, read = received(others, np.arange(len(kept)), 0, "", known, _OPENING)
    places, counts = (np.array([cut[field] for cut in kept]) for field in (0, 3))
    chars = pl.Series([cut[4] for cut in kept], dtype=pl.Int64())
    good[places[read]] = True
    return [_with_prompts(part, rows[places[part.rows]], chars, counts[part.rows]) for part in parts], good


def _with_prompts(part: Part, rows: Rows, chars: pl.Series, counts: Rows) -> Part:
    columns = {**part.columns, "prompt_chars": chars.gather(pl.Series(part.rows))}
    if counts.any():
        columns["num_prompt_token_ids"] = pl.Series(counts)
    return Part(rows, columns)


def _lengths(prompts: list[bytes]) -> list[int | None]:
    """How many characters printed prompts have, None for one that is no text, `_UNKNOWN` where the line is to be read by itself."""
    whole = b"\n".join(prompts)
    reduced = whole
    if b"\\" in whole:
        for escape in _SHORT_ESCAPES:
            reduced = reduced.replace(escape, b"\1" if escape == rb"\\" else b"_")
        reduced = _ESCAPE.sub(b"_", reduced) if b"\\x" in reduced else reduced
    sizes: list[int | None] = []
    for prompt, text in zip(prompts, reduced.split(b"\n"), strict=True):
        quote = text[:1]
        if quote in (b"'", b'"') and text[-1:] == quote and text.count(quote) == 2 and b"\\" not in text:
            sizes.append(len(text) - 2 if text.isascii() else len(text.decode("utf-8", "replace")) - 2)
        else:
            sizes.append(None if prompt == b"None" else len(unquote(prompt.decode("utf-8", "replace"))))
    controls = len(whole.translate(None, _CONTROLS)) < len(whole)
    marks = [mark for mark in _MARKS if mark in whole]
    if controls or marks:
        sizes = [_UNKNOWN if _is_more(p, marks) else size for p, size in zip(prompts, sizes, strict=True)]
    return sizes


def _is_more(prompt: bytes, marks: list[bytes]) -> bool:
    """Whether a prompt holds what the reference reads otherwise than text, or counts as a client's text that looks like a record."""
    if len(prompt.translate(None, _CONTROLS)) < len(prompt):
        return True
    if not any(mark in prompt for mark in marks):
        return False
    text = prompt.decode("utf-8", "replace")
    return "Traceback (" in text or "x across cluster]" in text or strip_ansi(text) != text or find_glued(text, 0) >= 0
