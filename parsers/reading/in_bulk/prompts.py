"""Requests that are received with their prompt (up to 0.11.0): long lines, each of which is cut at a few places.

`Received request x: prompt: '…', params: SamplingParams(…), prompt_token_ids: […], lora_request: None.` What stands around the prompt
and the ids is the same again and again but for the limits; it is read once. Of the prompt only the length is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl

from parsers.families.literals import unquote
from parsers.reading.frames import Coded, fields_frame
from parsers.reading.in_bulk.block import Block, Mask, Rows
from parsers.reading.in_bulk.parts import Column, Part
from parsers.reading.in_bulk.requests import fields_of
from parsers.records.prefix import find_glued, strip_ansi

__all__ = ["prompted"]

_PROMPT = b": prompt: "
_PARAMS = b", params: SamplingParams("
_IDS = re.compile(rb", prompt_token_ids: \[([0-9, ]*)\]")
_LIMITS = (b" max_tokens=", b" min_tokens=")
_LIMIT = re.compile(rb"=([0-9]{1,7})(?=[,)])")
_ID = re.compile(rb"[!-Z\\-~]+\Z")
_LONGEST_ID = 256
_ESCAPE = re.compile(rb"\\(?:[nrt\\'\"]|x[0-9a-f]{2})")
_UNKNOWN = -1
_CONTROLS = bytes((*range(9), *range(10, 32)))
_ANY_PROMPT = b"prompt: 'x', "


class _Cut(NamedTuple):
    """A line: its id, the length of its prompt in characters, the number of its ids, its parameters and limits."""

    request_id: str
    prompt_chars: int | None
    ids: int | None
    params: str
    limits: tuple[int, ...]


@dataclass(slots=True)
class _Alike:
    """The lines that are alike around prompt, ids and limits, and the fields that they share."""

    fields: dict[str, Column]
    names: tuple[str, ...]
    size: int
    rows: list[int] = field(default_factory=list)
    cuts: list[_Cut] = field(default_factory=list)

    def part(self) -> Part:
        """The lines as columns."""
        texts = list(dict.fromkeys(cut.params for cut in self.cuts))
        places = {text: place for place, text in enumerate(texts)}
        columns = {
            **self.fields,
            "request_id": pl.Series([cut.request_id for cut in self.cuts], dtype=pl.String()),
            "prompt_chars": pl.Series([cut.prompt_chars for cut in self.cuts], dtype=pl.Int64()),
            "num_prompt_token_ids": pl.Series([cut.ids for cut in self.cuts], dtype=pl.Int64()),
            "params": Coded(texts, np.array([places[c.params] for c in self.cuts], np.uint32)),
        }
        for place, name in enumerate(self.names):
            columns[name] = pl.Series([c.limits[place] for c in self.cuts], dtype=pl.Int64())
        return Part(np.array(self.rows, np.int64), columns)


def prompted(block: Block, rows: Rows, message: int, verb: str) -> tuple[list[Part], Mask]:
    """`Received request x: prompt: …`, and which rows were read."""
    alike: dict[bytes, _Alike] = {}
    good = np.zeros(len(rows), np.bool_)
    for place, row in enumerate(rows.tolist()):
        line = block.line(row)
        good[place] = _taken(alike, line[message + len(verb) :], row)
    return [one.part() for one in alike.values()], good


def _taken(alike: dict[bytes, _Alike], text: bytes, row: int) -> bool:
    end = text.find(_PROMPT, 0, _LONGEST_ID)
    start, at = end + len(_PROMPT), text.rfind(_PARAMS)
    if end < 0 or at < start or not _ID.match(text, 0, end):
        return False
    chars = _length(text[start:at].strip())
    if chars is _UNKNOWN:
        return False
    said, count = text[at + len(", ") :], None
    ids = _IDS.search(said)
    if ids is not None:
        count = ids[1].count(b",") + 1 if ids[1] else 0
        said = said[: ids.start(1)] + b"1" + said[ids.end(1) :]
    key, limits = _without_limits(said)
    one = alike.get(key)
    if one is None:
        known = _known(key, ids is not None)
        if known is None:
            return False
        one = alike[key] = _Alike(*known)
    if len(limits) != len(one.names):
        return False
    size = one.size + len(said) - len(key)
    params = said[len("params: ") : len("params: ") + size].decode()
    one.rows.append(row)
    one.cuts.append(_Cut(text[:end].decode(), chars, count, params, limits))
    return True


def _without_limits(said: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The parameters with 7 for each limit that is a number, and these."""
    numbers = []
    for name in _LIMITS:
        found = _LIMIT.match(said, said.find(name) + len(name) - 1) if name in said else None
        if found is not None:
            numbers.append(int(found[1]))
            said = said[: found.start(1)] + b"7" + said[found.end() :]
    return said, tuple(numbers)


def _length(prompt: bytes) -> int | None:
    """The length of a printed prompt in characters, None where it is no text, `_UNKNOWN` where the line is to be read by itself."""
    if prompt == b"None":
        return None
    if b"Traceback (" in prompt or b"x across cluster]" in prompt:
        return _UNKNOWN
    if b"[" in prompt:
        text = prompt.decode("utf-8", "replace")
        if strip_ansi(text) != text:
            return _UNKNOWN
    if (b"] " in prompt or b".py:" in prompt) and find_glued(prompt.decode("utf-8", "replace"), 0) >= 0:
        return _UNKNOWN  # it is counted as a client's text that looks like a record
    if len(prompt.translate(None, _CONTROLS)) < len(prompt):
        return _UNKNOWN
    quote, inner = prompt[:1], prompt[1:-1]
    if b"\\" in inner:
        inner = _ESCAPE.sub(b"_", inner)
    is_text = quote in (b"'", b'"') and prompt[-1:] == quote and len(prompt) > 1
    if is_text and b"\\" not in inner and quote not in inner:
        return len(inner) if inner.isascii() else len(inner.decode("utf-8", "replace"))
    return len(unquote(prompt.decode("utf-8", "replace")))


@lru_cache(maxsize=1 << 10)
def _known(key: bytes, has_ids: bool) -> tuple[dict[str, Column], tuple[str, ...], int] | None:
    """The fields of lines alike, the names of their limits, and how long their parameters are with limits of one digit."""
    fields = fields_of(_ANY_PROMPT + key, prompt=True)
    if fields is None or fields.get("num_prompt_token_ids") != (1 if has_ids else None):
        return None
    params = str(fields["params"])
    start = len("params: ")
    if key[start : start + len(params)].decode() != params:
        return None
    names = tuple(name[1:-1].decode() for name in _LIMITS if name + b"7" in key)
    for numbers in ((5, 1234567), (1020304, 90)):  # it is tried that nothing else depends on them
        given = dict(zip(names, numbers, strict=False))
        text = key
        for name, number in given.items():
            text = text.replace(b" %s=7" % name.encode(), b" %s=%d" % (name.encode(), number), 1)
        other = fields_of(_ANY_PROMPT + text, prompt=True)
        if other is None or other != {**fields, **given, "params": other["params"]}:
            return None
    columns = fields_frame("request", [fields]).row(0, named=True)
    own = {"request_id", "prompt", "prompt_chars", "num_prompt_token_ids", "params", *names}
    kept = {n: v for n, v in columns.items() if v is not None and n not in own}
    return {**kept, "variant": "received"}, names, len(params)
