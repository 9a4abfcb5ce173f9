"""Every compiled pattern of the project, and the texts on which a pattern that is not linear takes for ever.

A pattern is taken apart: before each of its repetitions stands a text that reaches it, then the repetition's own body is pumped, then
something that fails. Its literals, and signs that stand in any log, are pumped as well.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import regex

from parsers.lines import Later

if sys.version_info >= (3, 11):
    from re import _constants as codes
    from re import _parser as sre
else:
    import sre_constants as codes
    import sre_parse as sre

__all__ = ["Used", "attacks", "used_patterns"]

# File names, which no file system lets grow over 255 characters.
SHORT_TEXT = "parsers.sources.discovery."
ROOMS = ("parsers", "logscope", "reference_engine")
# Signs of any log that a repetition might run over.
FILLS = (
    "a",
    "A",
    "0",
    " ",
    ",",
    ".",
    "-",
    "_",
    ":",
    "=",
    "'",
    '"',
    "(",
    "[",
    "{",
    "<",
    "\\",
    "/",
    "a ",
    "1,",
    "a=",
    "é",
    "\t",
    "it/s]",
    "\x1b[0m",
    "a: ",
)
_POSSESSIVE = re.compile(r"(?<!\\)([*+?}])\+")
_TEMPLATE = re.compile(r"\{[a-z_]{1,40}:[a-z]{1,4}\}")
_SEARCHING = ("search", "findall", "finditer", "sub", "subn", "split")


class Used(NamedTuple):
    """A pattern, where it stands, and whether it is searched for (`match` otherwise)."""

    place: str
    pattern: Any
    searched: bool


def _modules() -> Iterator[ModuleType]:
    for room in ROOMS:
        package = importlib.import_module(room)
        yield package
        for found in pkgutil.walk_packages(package.__path__, room + "."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def _patterns_in(value: object, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, (re.Pattern, regex.Pattern, Later)):
        assert value.match  # one that is compiled when it is first used is compiled now
        yield value
    elif isinstance(getattr(value, "pattern", None), (re.Pattern, regex.Pattern, Later)):
        yield from _patterns_in(value.pattern)  # type: ignore[attr-defined]  # a template that was compiled
    elif depth < 4 and isinstance(value, dict):
        for inner in value.values():
            yield from _patterns_in(inner, depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple, frozenset, set)):
        for inner in value:
            yield from _patterns_in(inner, depth + 1)


def _templates_in(value: object) -> Iterator[str]:
    """Templates that are compiled when a message of their kind is first read."""
    if isinstance(value, str) and _TEMPLATE.search(value):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _templates_in(inner)


def _searched_names(module: ModuleType) -> set[str]:
    """Names on which a searching method is called, or which are handed on (then nobody knows), but not to what anchors them."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
    functions = {node.name: node for node in reversed(nodes) if isinstance(node, ast.FunctionDef)}
    called: set[str] = set()
    anchored: set[str] = set()
    owners: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owners.add(id(node.value))
            if node.attr in _SEARCHING:
                called.add(node.value.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            of_each_line = node.func.id == "of_each_line"  # which anchors
            for index, argument in enumerate(node.args):
                if isinstance(argument, ast.Name) and (
                    of_each_line or _only_matched(functions.get(node.func.id), index)
                ):
                    anchored.add(argument.id)
    loaded = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in owners)
    return called | {n.id for n in loaded} - anchored


@cache
def _only_matched(function: ast.FunctionDef | None, index: int) -> bool:
    """Whether a function does no more than match with its argument `index`."""
    if function is None:
        return False
    name = function.args.args[index].arg if index < len(function.args.args) else ""
    nodes = list(ast.walk(function))
    uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
    owned = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == name]
    return len(uses) == len(owned) and all(n.attr in ("match", "fullmatch") for n in owned)


@cache
def used_patterns() -> tuple[Used, ...]:
    """All patterns of the three rooms, those of the formats' templates included; each once."""
    from parsers.families import FORMATS
    from parsers.families.formats import compile_template

    found: dict[tuple[Any, bool], Used] = {}
    for module in _modules():
        searched = _searched_names(module)
        for name, value in vars(module).items():
            if f"{module.__name__}.".startswith(SHORT_TEXT):
                continue
            for pattern in _patterns_in(value):
                used = Used(f"{module.__name__}.{name}", pattern, name in searched)
                found.setdefault((pattern.pattern, used.searched), used)
    for format_ in FORMATS:
        pattern = compile_template(format_.body).pattern
        place = f"{format_.family}/{format_.variant}"
        found.setdefault((pattern.pattern, False), Used(place, pattern, False))
    for module in _modules():
        for name, value in vars(module).items():
            for text in _templates_in(value):
                pattern = compile_template(text).pattern
                used = Used(f"{module.__name__}.{name}", pattern, False)
                found.setdefault((pattern.pattern, False), used)
    return tuple(found.values())


def attacks(pattern: Any) -> list[tuple[str, str]]:
    """Pairs of a beginning and what to repeat after it."""
    text = pattern.pattern
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    pairs = [("", fill) for fill in FILLS]
    parsed = _parsed(text)
    if parsed is not None:
        pairs += [(head, pump) for head, pump in _repetitions(list(parsed), "") if pump and len(head) < 500]
    heads = {head for head, _ in pairs}
    pumps = {pump for _, pump in pairs if pump not in FILLS}
    pairs += [(head, pump) for head in sorted(heads)[:6] for pump in (*sorted(pumps)[:4], " ", "a")]
    pairs += [("", head) for head in sorted(heads)[-4:] if head]  # the beginning again and again
    return list(dict.fromkeys(pairs))


def _parsed(text: str) -> Any:
    """The standard library's parse of a pattern; possessive marks, which it does not know before 3.11, make no difference here."""
    with warnings.catch_warnings(), suppress(re.error):
        warnings.simplefilter("ignore")
        return sre.parse(_POSSESSIVE.sub(r"\1", text))
    return None


_REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, getattr(codes, "POSSESSIVE_REPEAT", None)}


def _repetitions(items: list[Any], before: str) -> Iterator[tuple[str, str]]:
    """(what reaches a repetition, its body) for each repetition that may be long, also within groups and branches."""
    for index, (code, given) in enumerate(items):
        head = before + _sample(items[:index])
        if code in _REPEATS:
            _, high, body = given
            inner = list(body)
            if high is codes.MAXREPEAT or high >= 16:
                for sample in _samples(inner):
                    yield head, sample
            yield from _repetitions(inner, head)
        elif code is codes.SUBPATTERN:
            yield from _repetitions(list(given[-1]), head)
        elif code is codes.BRANCH:
            for branch in given[1]:
                yield from _repetitions(list(branch), head)
        elif code is getattr(codes, "ATOMIC_GROUP", None):
            yield from _repetitions(list(given), head)


def _samples(items: list[Any]) -> list[str]:
    """Some texts that a repetition's body matches: of a class of characters, several."""
    if len(items) == 1 and items[0][0] in (codes.IN, codes.NOT_LITERAL, codes.ANY):
        one = items[0]
        return [c for c in " a0,.:'\"([<\\-é" if _holds(one, c)][:6]
    if len(items) == 1 and items[0][0] is codes.BRANCH:
        return [_sample(list(branch)) for branch in items[0][1][1]][:6]
    return [_sample(items)]


def _sample(items: list[Any]) -> str:
    """One text that the items match (look-arounds and conditions are passed over)."""
    out = ""
    for code, given in items:
        if code is codes.LITERAL:
            out += chr(given)
        elif code in (codes.IN, codes.NOT_LITERAL, codes.ANY):
            out += next((c for c in "a0A-.: '\"([{<]),/\\\x1b\n%|" if _holds((code, given), c)), "a")
        elif code in _REPEATS:
            low, high, body = given
            out += _sample(list(body)) * (low or (1 if high == 1 else 0))
        elif code is codes.SUBPATTERN:
            out += _sample(list(given[-1]))
        elif code is codes.BRANCH:
            out += _sample(list(given[1][0]))
        elif code is getattr(codes, "ATOMIC_GROUP", None):
            out += _sample(list(given))
    return out


_CATEGORIES = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_NOT_DIGIT: lambda c: not c.isdecimal(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda c: not c.isspace(),
    codes.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
    codes.CATEGORY_NOT_WORD: lambda c: not (c.isalnum() or c == "_"),
}


def _holds(item: Any, char: str) -> bool:
    code, given = item
    if code is codes.ANY:
        return char != "\n"
    if code is codes.NOT_LITERAL:
        return given != ord(char)
    negated = any(kind is codes.NEGATE for kind, _ in given)
    inside = False
    for kind, value in given:
        if kind is codes.LITERAL:
            inside |= value == ord(char)
        elif kind is codes.RANGE:
            inside |= value[0] <= ord(char) <= value[1]
        elif kind is codes.CATEGORY:
            inside |= _CATEGORIES[value](char)
    return inside is not negated
