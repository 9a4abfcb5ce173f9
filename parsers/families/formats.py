"""The little language in which a log line's text is declared, and its translation to an anchored, linear pattern.

| in a template | means |
|---|---|
| `{name:d}` | a whole number, thousands separators allowed |
| `{name:f}` | a number |
| `{name:dev}` | a device as vLLM names it: `GPU`, `CPU`, `GPU + host` |
| `{name:gib}` | a number with its unit (`GiB`, `GB`, `MiB`, …), read as GiB; vLLM prints `GB` where it means GiB |
| `{name}` | one word: anything without white space |
| `{name:s}` | any text within the line (at most one in a template, or the last) |
| `{name:v}` | the same, read as a Python literal where it is one |
| `{a|b|}` | one of these literal texts, the last here being nothing |
| `[[…]]` | may be missing; its fields are then None |
| `...` at the end | whatever follows is accepted: the tail of the text has been reworded over the versions |

A blank stands for any run of white space (documents wrap lines), a quote for any kind of quote (vLLM prints back-ticks).
A full stop at the end is optional, and lines after the first (a traceback, say) do not matter.

What a message family's table is made of: one `Format` a line of text, and the `Match` that reading it gives.

Reads vLLM's `Name: value unit, Name: value` lines by key, so that an added, missing or moved field breaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import regex

from parsers.families.literals import parse_literal
from parsers.lines import later_regex

__all__ = [
    "Compiled",
    "Fields",
    "Format",
    "Kind",
    "Match",
    "Reader",
    "anchor_of",
    "assign",
    "compile_template",
    "first_word",
    "number",
    "slug",
    "split_pairs",
]
# Bounded, so that a number fits 64 bits.
_WHOLE = r"(?:\d{1,3}(?:,\d{3}){1,5}(?!,?\d)|\d{1,18})(?!\d)"
_NUMBER = rf"[-+]?(?:{_WHOLE}(?:\.\d{{1,18}})?+(?:[eE][-+]?\d{{1,2}})?+|nan|inf)"
_SPECS = {
    "d": "-?" + _WHOLE,
    "f": _NUMBER,
    "gib": _NUMBER + r"\s?[KMGT]i?[bB](?:ytes)?",
    "dev": r"[A-Z0-9]{2,12}(?: \+ host)?+",
    "": r"\S+?",
    "s": r"[^\n]*?",
    "v": r"[^\n]*?",
}
_TOKEN = later_regex(
    r"(?P<open>\[\[)|(?P<close>\]\])|\{(?P<choice>[^{}:|]*(?:\|[^{}|]*)+)\}|\{(?P<name>\w+)(?::(?P<spec>\w+))?\}"
)
_ANCHOR_MIN, _ANCHOR_MAX = 10, 36  # characters
_FIRST_WORD = later_regex(r"[^\W\d_]++|\S")
_LONG = 1 << 14  # characters
_TOO_LARGE = 1 << 63  # for a column
_PATIENCE_S = 5.0
_UNIT_GIB = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0}


class Kind(Enum):
    """What a field is, and its column in a frame."""

    TEXT = "String"
    TEXTS = "List"
    WHOLE = "Int64"
    NUMBER = "Float64"
    FLAG = "Boolean"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A template's pattern and how to read each of its fields."""

    pattern: regex.Pattern[str]
    readers: tuple[tuple[str, Callable[[str], object]], ...]

    def read(self, text: str) -> dict[str, object] | None:
        """The fields of `text`, or None where it is another line."""
        found = self.pattern.match(text) if len(text) < _LONG else self._match_in_time(text)
        if found is None:
            return None
        fields: dict[str, object] = {}
        for name, reader in self.readers:
            value = found[name]
            fields[name] = None if value is None else reader(value)
        return fields

    def _match_in_time(self, text: str) -> regex.Match[str] | None:
        """A net under patterns that are linear, and tested to be: a limit costs ten times a short match, and nothing on a long one."""
        try:
            return self.pattern.match(text, timeout=_PATIENCE_S)
        except TimeoutError:
            return None


@cache
def compile_template(template: str) -> Compiled:
    """Translate a template (see the module's table) to its pattern; done once, on first use."""
    tolerant = template.endswith("...")
    body = template.removesuffix("...").rstrip(" .")
    parts: list[str] = []
    readers: list[tuple[str, Callable[[str], object]]] = []
    at = 0
    for token in _TOKEN.finditer(body):
        parts.append(_literal(body[at : token.start()]))
        at = token.end()
        if token["open"]:
            parts.append("(?:")
        elif token["close"]:
            parts.append(")?")
        elif token["choice"] is not None:
            parts.append("(?:" + "|".join(map(_literal, token["choice"].split("|"))) + ")")
        else:
            spec = token["spec"] or ""
            parts.append(f"(?P<{token['name']}>{_SPECS[spec]})")
            readers.append((token["name"], _READERS[spec]))
    parts.append(_literal(body[at:]))
    tail = "" if tolerant else r"[.\s]{0,3}(?:\n|\Z)"
    return Compiled(regex.compile(r"\s*+" + "".join(parts) + tail), tuple(readers))


def _literal(text: str) -> str:
    pieces = []
    for piece in regex.split(r"(\s+|['`\"])", text):
        if not piece:
            continue
        if piece.isspace():
            pieces.append(r"\s{1,16}+")  # bounded: a lazy field before it would make `++` quadratic
        elif piece in "'`\"":
            pieces.append("['`\"]")
        else:
            pieces.append(regex.escape(piece))
    return "".join(pieces)


def number(text: str) -> int | float:
    """A printed number, thousands separators and trailing full stop allowed. Raises ValueError on other text."""
    plain = text.replace(",", "").rstrip(".")
    try:
        return int(plain)
    except ValueError:
        return float(plain)


def _float(text: str) -> float | None:
    value = float(text.replace(",", ""))
    return value if abs(value) < float("inf") else None


def _gib(text: str) -> float | None:
    digits = text.rstrip("KMGTiBbytes ")
    value = _float(digits)
    return None if value is None else value * _UNIT_GIB[text[len(digits) :].strip()[0]]


_READERS: dict[str, Callable[[str], object]] = {
    "d": lambda text: int(text.replace(",", "")),
    "f": _float,
    "gib": _gib,
    "": str,
    "s": str.strip,
    "dev": str,
    "v": lambda text: parse_literal(text),
}


def first_word(text: str) -> str:
    """What a line is dispatched by: its leading letters, or its first other character."""
    found = _FIRST_WORD.search(text)
    return found[0] if found else ""


@cache
def anchor_of(template: str) -> str:
    """A literal that each line of this format holds: its first run of some length outside optional parts.

    The first rather than the longest: a wrapped line has it too.
    """
    body = template.removesuffix("...")
    runs, at, depth = [], 0, 0
    for token in _TOKEN.finditer(body):
        if depth == 0:
            runs.append(body[at : token.start()])
        at = token.end()
        depth += 1 if token["open"] else -1 if token["close"] else 0
    if depth == 0:
        runs.append(body[at:].rstrip(" ."))
    chunks = [chunk.strip() for run in runs for chunk in regex.split("['`\"]", run)]
    long_enough = [chunk for chunk in chunks if len(chunk) >= _ANCHOR_MIN]
    chunk: str = long_enough[0] if long_enough else max(chunks, key=len)
    if len(chunk) > _ANCHOR_MAX:
        chunk = chunk[:_ANCHOR_MAX].rpartition(" ")[0] or chunk[:_ANCHOR_MAX]
    return chunk


@cache
def _word_of(template: str) -> str:
    """A word that each line of this format holds: most lines are told by it, and the pattern of their template is not even made."""
    return max(anchor_of(template).split(), key=len)


_LOG_PREFIX = "{log_prefix}"
_NEEDLE_WITHIN = 4000  # characters

Fields = dict[str, object]
Reader = Callable[[str], "Fields | None"]


@dataclass(frozen=True, slots=True)
class Match:
    """A record's text, understood: `prompt_fields` names those of `fields` that hold users' text."""

    family: str
    variant: str
    fields: Fields
    prompt_fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Format:
    """One format of one family, declared once: it both reads lines and is listed by `logscope formats`.

    `engine` is `V0`, `V1` or `any`; `versions` is `first..last` of the releases that print it; `template` is in the
    language of `parsers.families.formats`. `read` takes over where a template does not suffice (key/value lines):
    it gets the whole message and gives its fields or None; the template's literal beginning still dispatches.
    `per_engine` True asks for the `Engine 000: ` (or `4 Engines Aggregated: `) in front, False for none; that prefix is
    taken off before the template is tried, and its numbers are among the match's fields. `foreign` text is printed by
    others (uvicorn), so it needs no record prefix of vLLM's.
    """

    family: str
    variant: str
    engine: str
    versions: str
    level: str
    template: str
    example: str
    read: Reader | None = None
    anchor: str = ""
    per_engine: bool | None = None
    foreign: bool = False
    prompt_fields: frozenset[str] = field(default=frozenset())

    @property
    def first(self) -> str:
        """The first release that prints it."""
        return self.versions.split("..")[0]

    @property
    def last(self) -> str:
        """The last release that prints it."""
        return self.versions.split("..")[-1]

    @property
    def raised(self) -> bool:
        """Whether the text is that of an exception, so that a traceback may end in it."""
        return self.level.startswith("raise")

    @property
    def keeps_prefix(self) -> bool:
        """Whether the engine prefix is itself a field, `log_prefix`."""
        return self.template.startswith(_LOG_PREFIX)

    @property
    def body(self) -> str:
        """The template without `{log_prefix}`."""
        return self.template.removeprefix(_LOG_PREFIX)

    @property
    def floating(self) -> bool:
        """Whether the text begins with a field, so that its first word does not tell the format."""
        return self.body.startswith(("{", "[["))

    @property
    def needle(self) -> str:
        """A literal that each line of this format holds."""
        return self.anchor or anchor_of(self.body)

    def fields(self, text: str) -> Fields | None:
        """The fields of a message of this format, or None where `text` is another message."""
        if self.read is not None:
            return self.read(text) if self.needle in text[:_NEEDLE_WITHIN] else None
        return compile_template(self.body).read(text) if _word_of(self.body) in text else None


_PAIR = later_regex(r"\s*+([^:,\n]{1,80}?): ?(.*)\Z", regex.DOTALL)
_MISSING_COMMA = later_regex(r"(?<=\d reqs) (?=[^,:]{1,40}: )")
_VALUE = later_regex(r"([-+]?\d{1,18}(?:,\d{3}(?!\d)){0,5}(?:\.\d{1,18})?+)\s?(%|[A-Za-zµ/]++)?(?:\s[a-z]++)?\.?\Z")
_NOT_WORD = later_regex(r"[^0-9A-Za-z]++")
_SUFFIXES = {
    "%": "_pct",
    "tokens/s": "_tokens_per_s",
    "tokens": "_tokens",
    "reqs": "",
    "ms": "_ms",
    "s": "_seconds",
    "secs": "_seconds",
    "seconds": "_seconds",
    "GiB": "_gib",
    "GB": "_gib",
    "MiB": "_mib",
    "MB": "_mb",
    "bytes": "_bytes",
    "blocks": "_blocks",
}


def slug(key: str) -> str:
    """`Foo rate (GPU)` → `foo_rate_gpu`."""
    return _NOT_WORD.sub("_", key).strip("_").lower()


def split_pairs(text: str) -> list[tuple[str, str]]:
    """Keys and value texts. A part without a key belongs to the value before it (`KV fetch: 1 waiting to start, 0 in …`)."""
    pairs: list[tuple[str, str]] = []
    for part in _MISSING_COMMA.sub(", ", text).split(", "):
        found = _PAIR.match(part)
        if found:
            pairs.append((found[1].strip(), found[2].strip()))
        elif pairs:
            key, value = pairs[-1]
            pairs[-1] = (key, f"{value}, {part.strip()}")
    return pairs


def assign(fields: Fields, key: str, value: str, name: str | None = None) -> None:
    """Put a pair into `fields`: under `name`, or under the key's slug with the unit's suffix (`Foo rate: 3.1%` → foo_rate_pct)."""
    found = _VALUE.match(value)
    if found is None:
        fields[name or slug(key)] = value.rstrip(".") or None
        return
    unit = found[2] or ""
    if name is None:
        name = slug(key)
        suffix = _SUFFIXES.get(unit, f"_{slug(unit)}" if unit else "")
        name = name if name.endswith(suffix) else name + suffix
    value_read = number(found[1])
    fields[name] = value_read if abs(value_read) < _TOO_LARGE else None
