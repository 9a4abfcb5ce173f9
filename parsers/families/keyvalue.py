"""Reads vLLM's `Name: value unit, Name: value` lines by key, so that an added, missing or moved field breaks nothing."""

from __future__ import annotations

import regex

from parsers.families.formats import number
from parsers.families.formats_part import Fields

__all__ = ["assign", "slug", "split_pairs"]

_PAIR = regex.compile(r"\s*+([^:,\n]{1,80}?): ?(.*)\Z", regex.DOTALL)
_MISSING_COMMA = regex.compile(r"(?<=\d reqs) (?=[^,:]{1,40}: )")
_VALUE = regex.compile(
    r"([-+]?\d{1,18}(?:,\d{3}(?!\d)){0,5}(?:\.\d{1,18})?+)\s?(%|[A-Za-zµ/]++)?(?:\s[a-z]++)?\.?\Z"
)
_NOT_WORD = regex.compile(r"[^0-9A-Za-z]++")
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
    fields[name] = number(found[1])
