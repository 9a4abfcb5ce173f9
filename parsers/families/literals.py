"""Reads the Python reprs that vLLM prints (dictionaries, `key=value, …` lists, `Namespace(…)`), without executing anything.

What is no plain literal (`torch.bfloat16`, `<Enum.X: 3>`, `SomeConfig(a=1)`) stays the text that it is. Bad input never
raises: it comes back as text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import regex

from parsers.lines import later_regex, without_lone_surrogates

__all__ = ["end_of_call", "iter_pairs", "parse_literal", "unquote"]

_MAX_DEPTH = 20
_LONGEST_NUMBER = 40  # characters
_TOO_LARGE = 1 << 63
_MAX_UNCLOSED = 8  # quotes and angles without an end cost a search each: only so many
_OPEN, _CLOSE = "([{", ")]}"
# What ends or nests a value; everything between two of these is skipped at native speed.
_STOP = later_regex(r"[\[\](){},:'\"<]")
_STRING = later_regex(r"'(?:[^'\\]++|\\.)*+'|\"(?:[^\"\\]++|\\.)*+\"", regex.DOTALL)
_NUMBER = later_regex(r"[-+]?\d++(?:\.\d*+)?+(?:[eE][-+]?\d++)?+\Z")
_KEY = later_regex(r"\s*+([A-Za-z_]\w*+)=")
_NAMES: dict[str, object] = {"None": None, "True": True, "False": False, "null": None, "true": True, "false": False}


def unquote(text: str) -> str:
    """The string that a repr (`'a\\nb'`) stands for; text that is no whole repr comes back as it is."""
    if _STRING.fullmatch(text) is None:
        return text
    if "\\" not in text:
        return text[1:-1]
    try:
        return without_lone_surrogates(str(ast.literal_eval(text)))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text[1:-1]


def parse_literal(text: str) -> object:
    """The value of a repr: None, bool, number, string, list (also for tuples and sets), dict, else `text` itself."""
    return _value(text.strip(), 0)


def _value(text: str, depth: int) -> object:
    if text in _NAMES:
        return _NAMES[text]
    if not text or depth > _MAX_DEPTH:
        return text
    first = text[0]
    if first in "'\"":
        return unquote(text)
    if first in _OPEN and text[-1] == _CLOSE[_OPEN.index(first)]:
        return _container(text, depth)
    if _NUMBER.match(text):
        return _number(text)
    return text


def _number(text: str) -> object:
    """A number that a column can hold; what is larger is no setting of anybody's, and None."""
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        value: int | float = int(text)
    except ValueError:
        value = float(text)
    return value if abs(value) < _TOO_LARGE else None


def _container(text: str, depth: int) -> object:
    items = [item for item in _split(text[1:-1]) if item[0] < item[1]]
    inner = text[1:-1]
    if text[0] == "{" and (not items or all(colon is not None for _, _, colon in items)):
        pairs: dict[str, object] = {}
        for start, end, colon in items:
            if colon is None:
                continue
            key = _value(inner[start:colon].strip(), depth + 1)
            pairs[key if isinstance(key, str) else str(key)] = _value(inner[colon + 1 : end].strip(), depth + 1)
        return pairs
    return [_value(part, depth + 1) for start, end, _ in items if (part := inner[start:end].strip())]


def _split(text: str) -> Iterator[tuple[int, int, int | None]]:
    """Top-level parts of a comma-separated list: start, end, and where its first top-level colon stands."""
    start = at = depth = unclosed = 0
    colon: int | None = None
    while (stop := _STOP.search(text, at)) is not None:
        char, at = stop[0], stop.end()
        if char in "'\"" and unclosed < _MAX_UNCLOSED:
            string = _STRING.match(text, stop.start())
            at = string.end() if string else at
            unclosed += string is None
        elif char == "<" and depth == 0 and unclosed < _MAX_UNCLOSED:
            at = _skip_angle(text, stop.start())
            unclosed += at == stop.end()
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(0, depth - 1)
        elif depth == 0 and char == ",":
            yield start, stop.start(), colon
            start, colon = at, None
        elif depth == 0 and char == ":" and colon is None:
            colon = stop.start()
    yield start, len(text), colon


def _skip_angle(text: str, at: int) -> int:
    """The end of a `<Name object at 0x…>` that begins at `at` (its inner `<locals>` included), else the next character."""
    window = text[at : at + 400]
    depth = 0
    for offset, char in enumerate(window):
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
            if depth == 0:
                return at + offset + 1
        elif char == "\n":
            break
    return at + 1


def end_of_call(text: str, at: int) -> int:
    """Where the `Name(…)` that begins at `at` ends (its closing bracket included); the text's end where it never closes."""
    at = text.find("(", at)
    if at < 0:
        return len(text)
    depth = unclosed = 0
    while (stop := _STOP.search(text, at)) is not None:
        char, at = stop[0], stop.end()
        if char in "'\"" and unclosed < _MAX_UNCLOSED:
            string = _STRING.match(text, stop.start())
            at = string.end() if string else at
            unclosed += string is None
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth == 0:
                return at
    return len(text)


def iter_pairs(text: str) -> Iterator[tuple[str, str]]:
    """`key`, raw value text of a flat `key=value, key=value` list; commas inside quotes and brackets do not split.

    A part without `key=` belongs to the value before it.
    """
    key: str | None = None
    value_from = value_to = 0
    for start, end, _ in _split(text):
        found = _KEY.match(text, start, end)
        if found is None:
            value_to = end
            continue
        if key is not None:
            yield key, text[value_from:value_to].strip()
        key, value_from, value_to = found[1], found.end(), end
    if key is not None:
        yield key, text[value_from:value_to].strip()
