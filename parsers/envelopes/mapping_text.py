"""The little of YAML that log entries need: nested keys, quoted and plain texts, block texts.

Also the console's form, which is no YAML and no JSON: `key: "text"` between braces. A full YAML reader is not
needed for it, and would be a dependency that reads hostile input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parsers.surrogates import json_without_lone_surrogates

__all__ = ["mapping_of"]

_KEY = re.compile(r'(?P<indent> *)(?P<key>"?[\w@./-]+"?)\s?:(?: (?P<value>.*)|\Z)')
_BLOCK = re.compile(r"[|>][+-]?\d?\Z")
_DEPTH = 20


def mapping_of(lines: Sequence[str]) -> dict[str, object]:
    """The lines as nested mappings of texts; what is no `key: value` is passed over."""
    root: dict[str, object] = {}
    stack: list[tuple[int, dict[str, object]]] = [(-1, root)]
    index = 0
    while index < len(lines):
        found = _KEY.match(lines[index])
        index += 1
        if found is None:
            continue
        indent, value = len(found["indent"]), (found["value"] or "").strip()
        while len(stack) > 1 and stack[-1][0] >= indent:
            stack.pop()
        holder, key = stack[-1][1], found["key"].strip('"')
        if value in ("", "{", "{,"):
            inner: dict[str, object] = {}
            holder.setdefault(key, inner)
            if len(stack) < _DEPTH:
                stack.append((indent, inner))
            continue
        more = _deeper(lines, index, indent)
        index += len(more)
        holder.setdefault(key, _block(more) if _BLOCK.match(value) else _scalar(value, more))
    return root


def _deeper(lines: Sequence[str], start: int, indent: int) -> list[str]:
    """The lines that belong to a value: indented more than its key, empty ones between them included."""
    end = start
    for at in range(start, len(lines)):
        line = lines[at]
        if line.strip():
            if len(line) - len(line.lstrip(" ")) <= indent:
                break
            end = at + 1
    return list(lines[start:end])


def _block(lines: Sequence[str]) -> str:
    margin = min((len(t) - len(t.lstrip(" ")) for t in lines if t.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def _scalar(value: str, more: Sequence[str]) -> str:
    """A text on one line, or folded over several."""
    text = " ".join([value, *(line.strip() for line in more)]).rstrip(",")
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            decoded = json.loads(json_without_lone_surrogates(text))
        except ValueError:
            return text[1:-1]
        return decoded if isinstance(decoded, str) else text
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text
