"""JSON around the lines of a block, taken off all of them at once: learnt from one line, then found in all others by its quotes.

Which of its texts is the log line is tried, and which others say something (time, stream, pod); the rest (cursors, counters) may be
anything of their kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parsers.envelopes.form import Clock, Unwrapped
from parsers.envelopes.structured import from_line, parse
from parsers.lines import Heads, TextBlock, later

__all__ = ["JsonForm", "UnwrappedLines", "distinct_rows", "json_form"]

_STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*"'
_TOKENS = later(_STRING + rb"|-?\d[0-9.eE+-]*|true|false|null|[{}\[\]:,]|[ \t]+")
_DIGIT = later(rb"\d")
_MASK = bytes.maketrans(b"0123456789", b"0" * 10)
_MOST_KINDS = 1 << 12
_FEW_KINDS = 64
_MOST_SIZES = 8
_LONGEST_NUMBER = 32
_LONGEST_HEAD = 256
_NUMERIC = np.isin(np.arange(256), np.frombuffer(b"-.0123456789", np.uint8))
_ESCAPE = later(rb"\\(?:u([0-9a-fA-F]{4})|([/t]))")
_NO_LINE = frozenset(map(chr, (*range(9), *range(10, 27), *range(28, 32))))  # a line break, or what needs a look

Places = NDArray[np.int64]


class UnwrappedLines(NamedTuple):
    """The lines out of their envelopes, and what of these tells the facts: `heads`, which are parts of the lines if they are `within`."""

    data: bytes
    heads: Heads
    within: bool


class _Value(NamedTuple):
    """A value that differs from line to line; of one that is `said` the entry's facts depend."""

    said: bool
    quoted: bool


@dataclass(slots=True)
class _Side:
    """What stands on one side of the log line: texts that all lines share, and the values between them."""

    literals: list[bytes]
    values: list[_Value]

    def add(self, value: _Value) -> None:
        """A value behind the last text."""
        self.literals[-1] += b'"' * value.quoted
        self.literals.append(b'"' * value.quoted)
        self.values.append(value)


class _Spans(NamedTuple):
    """Where in each line the log line stands, and the values that are said."""

    payload: tuple[Places, Places]
    said: list[tuple[Places, Places]]


class JsonForm:
    """The envelopes of lines that have the same keys in the same order, spaced alike.

    A text is found by the quotes: no value outside of the log line has one, so that the n-th quote of a line, counted from its beginning
    or its end, always stands at the same place of the form.
    """

    def __init__(self, name: str, before: _Side, after: _Side) -> None:
        self.name, self._before, self._after = name, before, after
        literals = [*before.literals, *after.literals]
        self.text = b"\n".join(literals).decode("latin-1")
        self._quotes = sum(text.count(b'"') for text in literals)
        self._backslashes = sum(text.count(b"\\") for text in literals)
        self._kinds: dict[bytes, bool] = {}

    def taken_off(self, block: TextBlock, clock: Clock) -> UnwrappedLines | None:
        """Take the envelopes off a block's lines; None where not all have this form, or one is to be looked at by itself."""
        data, starts, ends = block.data, block.starts, block.ends
        data = data if data.endswith(b"\n") else data + b"\n"
        spans = self._spans(data, starts, ends)
        if spans is None or np.count_nonzero(np.frombuffer(data, np.uint8) < ord(" ")) != len(ends):
            return None
        bounds = zip(spans.payload[0].tolist(), spans.payload[1].tolist(), strict=True)
        written = b"\n".join([data[start:end] for start, end in bounds]) + b"\n"
        if _count(data, b"\\") != _count(written, b"\\") + self._backslashes * len(ends):
            return None
        text = _unescaped(written)
        heads = _heads(data, spans.said)
        kinds = _kinds(heads)
        within = kinds is not None
        if kinds is None:
            heads = _joined(data, spans.said)
            kinds = _kinds_of_each(heads)
        if text is None or len(self._kinds) + len(kinds) > _MOST_KINDS:
            return None
        for kind, row in kinds.items():
            if kind not in self._kinds:
                self._kinds[kind] = self._is_one_line(block.line_bytes(row), clock)
        return UnwrappedLines(text, heads, within) if all(self._kinds[kind] for kind in kinds) else None

    def _spans(self, data: bytes, starts: Places, ends: Places) -> _Spans | None:
        codes = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(codes == ord('"'))
        first, last = np.searchsorted(quotes, starts), np.searchsorted(quotes, ends)
        if (last - first < self._quotes).any():
            return None
        places: list[Places] = [starts]
        number = self._before.literals[0].count(b'"')
        for literal in self._before.literals[1:]:
            places.append(quotes[first + number] - literal.find(b'"'))
            number += literal.count(b'"')
        begins = _stood(data, self._before, places)
        places = [ends - len(self._after.literals[-1])]
        number = self._after.literals[-1].count(b'"') + 1
        for literal in self._after.literals[-2::-1]:
            places.insert(0, quotes[last - number] - literal.rfind(b'"'))
            number += literal.count(b'"')
        follows = _stood(data, self._after, places)
        if begins is None or follows is None:
            return None
        payload = (begins[1], places[0])
        return _Spans(payload, [*begins[0], *follows[0]]) if (payload[0] <= payload[1]).all() else None

    def _is_one_line(self, line: bytes, clock: Clock) -> bool:
        spans = self._spans(line + b"\n", np.zeros(1, np.int64), np.array([len(line)]))
        peeled = _only(line.decode("utf-8", "replace"), clock)
        if spans is None or peeled is None:
            return False
        return _decoded(line[int(spans.payload[0][0]) : int(spans.payload[1][0])]) == peeled.text.removesuffix("\n")

    def with_head(self, line: bytes, head: bytes) -> bytes:
        """The line with other values that are said, of the same sizes."""
        spans = self._spans(line + b"\n", np.zeros(1, np.int64), np.array([len(line)]))
        assert spans is not None
        said = [(int(start[0]), int(end[0])) for start, end in spans.said]
        at = 0
        for start, end in said:
            line = line[:start] + head[at : at + end - start] + line[end:]
            at += end - start + 1
        return line


def _stood(data: bytes, side: _Side, places: list[Places]) -> tuple[list[tuple[Places, Places]], Places] | None:
    """Where the values that are said stand, and the side's end, if in all lines its texts stand at `places`."""
    said: list[tuple[Places, Places]] = []
    before: Places | None = None
    for number, (literal, at) in enumerate(zip(side.literals, places, strict=True)):
        if (at < 0).any() or (at > len(data) - len(literal)).any() or (before is not None and (at < before).any()):
            return None
        if literal and (_fetched(data, at, len(literal)) != np.frombuffer(literal, np.uint8)).any():
            return None
        if before is not None:
            value = side.values[number - 1]
            if not value.quoted and not _are_numbers(data, before, at - before):
                return None
            said += [(before, at)] * value.said
        before = at + len(literal)
    assert before is not None
    return said, before


def _fetched(data: bytes, places: Places, width: int) -> NDArray[np.uint8]:
    view = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    found: NDArray[np.uint8] = view[places].view(np.uint8).reshape(len(places), width)
    return found


def _are_numbers(data: bytes, places: Places, sizes: Places) -> bool:
    if not sizes.all() or sizes.max() > _LONGEST_NUMBER:
        return False
    numbers = {data[at : at + size] for at, size in zip(places.tolist(), sizes.tolist(), strict=True)}
    return bool(_NUMERIC[np.frombuffer(b"".join(numbers), np.uint8)].all()) and not any(
        n.startswith(b".") or b"-" in n[1:] or n == b"-" for n in numbers
    )


def _heads(data: bytes, said: list[tuple[Places, Places]]) -> Heads:
    """From the first value that is said to the last one."""
    return Heads(data, said[0][0], said[-1][1] - said[0][0])


def _joined(data: bytes, said: list[tuple[Places, Places]]) -> Heads:
    """The values that are said, and nothing else."""
    bounds = [zip(start.tolist(), end.tolist(), strict=True) for start, end in said]
    heads = [b"\0".join([data[start:end] for start, end in line]) for line in zip(*bounds, strict=True)]
    sizes = np.fromiter(map(len, heads), np.int64, len(heads))
    return Heads(b"".join(heads), np.cumsum(sizes) - sizes, sizes)


def _kinds(heads: Heads) -> dict[bytes, int] | None:
    """The different heads but for their digits, and a line of each; None where they are too many."""
    kinds: dict[bytes, int] = {}
    sizes = np.unique(heads.sizes)
    if len(sizes) > _MOST_SIZES or sizes[0] < 1 or sizes[-1] > _LONGEST_HEAD:
        return None
    for size in sizes.tolist():
        rows = np.flatnonzero(heads.sizes == size)
        found = _fetched(heads.data, heads.starts[rows], size)
        for row in distinct_rows(np.where(found - np.uint8(ord("0")) <= 9, np.uint8(ord("0")), found))[0].tolist():
            kinds[found[row].tobytes().translate(_MASK)] = int(rows[row])
        if len(kinds) > _FEW_KINDS:
            return None
    return kinds


def _kinds_of_each(heads: Heads) -> dict[bytes, int]:
    places = zip(heads.starts.tolist(), (heads.starts + heads.sizes).tolist(), strict=True)
    masked = heads.data.translate(_MASK)
    return {masked[start:end]: row for row, (start, end) in enumerate(places)}


def distinct_rows(lines: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One row of each kind, and of which kind each row is. Only the columns that vary are compared, eight at a time."""
    varied = lines[:, (lines != lines[0]).any(axis=0)]
    codes = np.zeros(len(lines), np.int64)
    heads = np.zeros(1, np.int64)
    for at in range(0, varied.shape[1], 8):
        part = np.zeros((len(lines), 8), np.uint8)
        columns = varied[:, at : at + 8]
        part[:, : columns.shape[1]] = columns
        kinds, which = np.unique(part.view("<u8")[:, 0], return_inverse=True)
        _, heads, codes = np.unique(codes * len(kinds) + which, return_index=True, return_inverse=True)
    return heads, codes


def json_form(line: bytes, clock: Clock) -> JsonForm | None:
    """The form of a line's envelope; None where it has none that lines in great number have."""
    text = line.decode("utf-8", "replace")
    peeled = _only(text, clock)
    tokens = list(_tokens(line))
    if peeled is None or not peeled.text or b"".join(tokens) != line:
        return None
    before, after = _Side([b""], []), _Side([rb'\n"' if peeled.text.endswith("\n") else b'"'], [])
    side, keys = before, set()
    for place, token in enumerate(tokens):
        if token[:1] == b'"' and _is_key(tokens, place):
            if token in keys:
                return None
            keys.add(token)
            side.literals[-1] += token
        elif side is before and token[:1] == b'"' and _decoded(token[1:-1]) == peeled.text:
            side.literals[-1] += b'"'
            side = after
        elif token[:1] not in b'"-0123456789' or token[:1] == b"" or b"\\" in token:
            side.literals[-1] += token
        else:
            silent = bool(_DIGIT.search(token)) and _says_nothing(tokens, place, peeled, clock)
            side.add(_Value(not silent, token[:1] == b'"'))
    found = [*before.literals[1:], *after.literals[:-1]]  # those that are found by a quote
    if side is before or not any(v.said for v in before.values + after.values) or not all(b'"' in t for t in found):
        return None
    return JsonForm(peeled.outer.envelope, before, after)


def _tokens(line: bytes) -> Iterator[bytes]:
    return (found[0] for found in _TOKENS.finditer(line))


def _is_key(tokens: list[bytes], place: int) -> bool:
    after = next((token for token in tokens[place + 1 :] if token.strip()), b"")
    return after == b":"


def _says_nothing(tokens: list[bytes], place: int, peeled: Unwrapped, clock: Clock) -> bool:
    """Whether the digits of a text may be others, and the entry is the same: it is tried."""
    for digit in (b"7", b"3"):
        tried = [*tokens[:place], _DIGIT.sub(digit, tokens[place]), *tokens[place + 1 :]]
        if _only(b"".join(tried).decode("utf-8", "replace"), clock) != peeled:
            return False
    return True


def _only(text: str, clock: Clock) -> Unwrapped | None:
    """The entry of a line that holds one whole one."""
    found = from_line(text, clock)
    return found[0] if len(found) == 1 and not found[0].partial and found[0].record is None else None


def _decoded(raw: bytes) -> str | None:
    value = parse('"' + raw.decode("utf-8", "replace") + '"')
    return value if isinstance(value, str) else None


def _unescaped(data: bytes) -> bytes | None:
    """The texts of JSON strings as lines; None where one holds what is no line, or ends within."""
    if b"\\" not in data:
        return None if b'"' in data else data
    codes = np.frombuffer(data, np.uint8)
    quotes, marks = np.count_nonzero(codes == ord('"')), codes == ord("\\")
    if (codes[1:][marks[:-1]] == ord('"')).all():  # no other character is escaped, nearly always
        return codes[~marks].tobytes() if np.count_nonzero(marks) == quotes else None
    data = data.replace(b"\\\\", b"\0")
    escaped, data = len(data), data.replace(b'\\"', b'"')
    if escaped - len(data) != quotes:
        return None
    if b"\\" in data:
        data = _ESCAPE.sub(_character, data)
        if b"\\" in data:
            return None
    return data.replace(b"\0", b"\\")


def _count(data: bytes, character: bytes) -> int:
    """`data.count`, for a character that is not rare."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord(character)))


def _character(found: re.Match[bytes]) -> bytes:
    if found[2]:
        return b"\t" if found[2] == b"t" else b"/"
    character = chr(int(found[1], 16))
    if character in _NO_LINE or "\ud800" <= character <= "\udfff":
        return found[0]
    return b"\0" if character == "\\" else character.encode()
