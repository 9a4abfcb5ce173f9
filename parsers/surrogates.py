"""Lone surrogates out of text: JSON and Python's reprs can spell half a UTF-16 pair (`\\ud800`), which no UTF-8 can hold."""

from __future__ import annotations

import re

__all__ = ["json_without_lone_surrogates", "without_lone_surrogates"]

_LONE = re.compile("[\ud800-\udfff]")
# Escapes one after the other, so that the second half of `\\\\ud800` (a backslash, then text) is none: a pair, a lone half, any other.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89aAbB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|(?P<lone>u[dD][89a-fA-F][0-9A-Fa-f]{2})|.)",
    re.S,
)


def without_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a pair."""
    return _LONE.sub("\ufffd", text)


def json_without_lone_surrogates(text: str) -> str:
    """A JSON text with U+FFFD for each escape that is half of a pair; whole pairs stay."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\\ufffd" if found["lone"] else found[0], text)
