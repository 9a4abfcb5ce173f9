"""Envelopes that take several physical lines for an entry.

journalctl -o verbose and -o json-pretty, the export format in the middle of text, pretty-printed JSON (gcloud,
aws, jq, Loki's answers), Google Cloud entries as YAML (gcloud's default) or as copied from the console.
A collector takes lines until its entry is complete; lines that turn out to be none are given back untouched.
"""

from __future__ import annotations

import re
from typing import Protocol

from parsers.envelopes import structured
from parsers.envelopes.form import Clock, Unwrapped
from parsers.envelopes.rare import mapping_of
from parsers.envelopes.system_log import journal_entry
from parsers.lines import later

__all__ = ["Collector", "Progress", "collector_for"]


class Progress:
    """What a collector says of a line: it needs more, is complete with it, was complete before it, or gives up."""

    MORE = "more"
    DONE = "done"
    BEFORE = "before"
    NOT_MINE = "not mine"


class Collector(Protocol):
    """Collects an entry of several lines; `take` is called with each line, the first included."""

    def take(self, text: str) -> str:
        """What the line is to the entry: one of `Progress`."""

    def entries(self, clock: Clock) -> list[Unwrapped]:
        """The entries collected; empty when the lines were none."""


# Fri 2026-05-08 17:47:03.906123 UTC [s=0c4e...;i=1a;b=...;m=...;t=63f1a2b3c4d5e;x=...]
_VERBOSE = later(
    r"(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? [A-Z0-9+:-]{1,9} \[s=[0-9a-f]{1,64};[^\]]{1,400}\]\Z"
)
_VERBOSE_TIME = later(r";t=([0-9a-f]{1,16})")
_VERBOSE_FIELD = later(r" {4}(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.*)", re.S)


class _Verbose:
    def __init__(self) -> None:
        self._fields: dict[str, object] = {}
        self._name: str | None = None
        self._more: dict[str, list[str]] = {}

    def take(self, text: str) -> str:
        if not self._fields:
            found = _VERBOSE_TIME.search(text)
            self._fields["__REALTIME_TIMESTAMP"] = str(int(found[1], 16)) if found else ""
            return Progress.MORE
        if found := _VERBOSE_FIELD.match(text):
            self._name = found["name"]
            self._fields.setdefault(self._name, found["value"])
            return Progress.MORE
        indent = 5 + len(self._name or "")
        if self._name is not None and text.startswith(" " * indent):
            self._more.setdefault(self._name, []).append(text[indent:])
            return Progress.MORE
        return Progress.BEFORE

    def entries(self, clock: Clock) -> list[Unwrapped]:
        for name, more in self._more.items():
            self._fields[name] = "\n".join([str(self._fields[name]), *more])
        peeled = journal_entry(self._fields, clock, "journal-verbose")
        return [peeled] if peeled else []


_EXPORT_NAME = later(r"[A-Z_][A-Z0-9_]*(?P<equals>=|\Z)")


class _Export:
    """The export format after it was decoded as text: the lengths of binary values may be damaged.

    A length that can still be read bounds its value; the value ends where a field or an empty line follows.
    """

    def __init__(self) -> None:
        self._fields: dict[str, object] = {}
        self._binary: str | None = None
        self._value: list[str] = []
        self._wanted = 0  # the value has at least so many bytes
        self._size = 0  # and has so many

    def take(self, text: str) -> str:
        if self._binary is not None:
            if self._is_inside(text):
                self._value.append(text)
                self._size += len(text.encode("utf-8", "replace")) + 1
                return Progress.MORE
            self._close()
        if not text:
            return Progress.DONE
        found = _EXPORT_NAME.match(text)
        if found is None:
            return Progress.BEFORE
        if found["equals"]:
            self._fields.setdefault(text[: found.end() - 1], text[found.end() :])
        else:
            self._binary, self._value, self._wanted, self._size = text, [], 0, 0
        return Progress.MORE

    def _is_inside(self, text: str) -> bool:
        if not self._value:
            head = (text + "\n").encode("utf-8", "replace")[:8]
            length = int.from_bytes(head, "little") if len(head) == 8 else 0
            readable = "\ufffd" not in text[:8] and length < 1 << 24
            self._wanted = length if readable else 0
            return True
        missing = self._wanted - (self._size - 8) - len(self._value)  # each line may have lost a carriage return
        return missing > 0 or not (not text or _EXPORT_NAME.match(text))

    def _close(self) -> None:
        if self._binary is not None:
            self._fields.setdefault(self._binary, "\n".join(self._value)[8:])
        self._binary = None

    def entries(self, clock: Clock) -> list[Unwrapped]:
        self._close()
        peeled = journal_entry(self._fields, clock, "journal-export")
        return [peeled] if peeled else []


_OPENS_LIST = later(r'\s*"(?:events|entries|results?|hits|data|values|streams|logs|records|items)"\s*:\s*\[\s*\Z')
_JSON_LINE = later(r'\s*(?:"|[{}\[\]]|-?\d|true|false|null|[A-Za-z@_][\w@.]*\s*:)')


class _Pretty:
    """A JSON object over several lines, from a line `{` to the closing brace of the same indent."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = ""

    def take(self, text: str) -> str:
        bare = text.strip()
        if not self._lines:
            self._indent = text[: len(text) - len(text.lstrip())]
        elif bare == "{" and len(self._lines) <= 3 and _OPENS_LIST.match(self._lines[-1]):
            return Progress.NOT_MINE  # a document: its entries are collected one by one, from this line on
        elif bare and not _JSON_LINE.match(text):
            return Progress.NOT_MINE
        self._lines.append(text)
        closes = bare in ("}", "},") and text.startswith(self._indent + "}")
        return Progress.DONE if closes else Progress.MORE

    def entries(self, clock: Clock) -> list[Unwrapped]:
        text = "\n".join(self._lines).strip().rstrip(",")
        value = structured.parse(text)
        if value is None:
            value = mapping_of(self._lines)
        return [_named(entry, "journal-json-pretty") for entry in structured.entries(value, clock)]


def _named(entry: Unwrapped, name: str) -> Unwrapped:
    if entry.outer.envelope != "journal-json":
        return entry
    return entry._replace(outer=entry.outer._replace(envelope=name))


_TOP_KEY = later(
    r"(?P<key>insertId|textPayload|logName|receiveTimestamp|labels|resource|timestamp|jsonPayload|severity"
    r"|httpRequest|operation|trace|spanId|sourceLocation|protoPayload):(?: |\Z)"
)


_SCALARS = frozenset(("insertId", "logName", "receiveTimestamp", "timestamp", "severity", "trace", "spanId"))


class _CloudYaml:
    """A Google Cloud entry as YAML: `---`, then keys at the margin, to the next `---` or a key that comes again."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._keys: set[str] = set()
        self._may_nest = False

    def take(self, text: str) -> str:
        if text == "---":
            if self._keys:
                return Progress.BEFORE
            return Progress.NOT_MINE if self._lines else self._add(text)
        found = _TOP_KEY.match(text)
        if found is not None:
            if found["key"] in self._keys:
                return Progress.BEFORE
            self._keys.add(found["key"])
            self._may_nest = found["key"] not in _SCALARS
            return self._add(text)
        if self._keys and self._may_nest and (not text or text[0] in " -}"):
            return self._add(text)
        return Progress.BEFORE if {"textPayload", "timestamp"} <= self._keys else Progress.NOT_MINE

    def _add(self, text: str) -> str:
        self._lines.append(text)
        return Progress.MORE

    def entries(self, clock: Clock) -> list[Unwrapped]:
        return list(structured.entries(mapping_of(self._lines), clock))


_CLOUD_STARTS = ("insertId: ", "textPayload: ", "timestamp: ")


def collector_for(text: str) -> Collector | None:
    """The collector of an entry that starts with this line, or None."""
    first = text[0]
    if first in "{ \t":
        return _Pretty() if text.strip() == "{" else None
    if first == "_":
        return _Export() if text.startswith(("__CURSOR=", "__REALTIME_TIMESTAMP=")) else None
    if first in "-it":
        return _CloudYaml() if text == "---" or text.startswith(_CLOUD_STARTS) else None
    if text[-1] == "]" and "[s=" in text:
        return _Verbose() if _VERBOSE.match(text) else None
    return None
