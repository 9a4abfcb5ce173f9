"""An event as the contract's JSON object, or as a CSV row that a spreadsheet will not execute."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from logscope.sanitize import escaped, visible
from parsers.reading.events import Event, event_row

__all__ = ["CSV_COLUMNS", "csv_row", "event_object", "iso", "to_json"]

CSV_COLUMNS = list(event_row(Event("", 0, "", "", {})))
# What a spreadsheet begins a formula at, also in its wide forms, and the blanks that it passes over before one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def iso(time: datetime | None) -> str | None:
    """ISO 8601, to the second where there is no fraction; UTC as `Z`."""
    if time is None:
        return None
    text = time.isoformat()
    return text.replace("+00:00", "Z")


def event_object(event: Event) -> dict[str, Any]:
    """The keys of CONTRACT's event, and `variant`; `repeated` where Ray folded lines."""
    found = event_row(event)
    for clock in ("time", "outer_time"):
        found[clock] = iso(found[clock])
    if event.repeated > 1:
        found["repeated"] = event.repeated
    return found


def csv_row(event: Event) -> list[str]:
    """The cells of one event; cells that a spreadsheet would take for a formula are quoted with an apostrophe."""
    found = event_object(event)
    return [_cell(found[name]) for name in CSV_COLUMNS]


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON without NaN (what is not a finite number is null), and without a character that a terminal obeys: those are escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=_default)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent, default=_default)
    return escaped(text)


def _default(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    text = value if isinstance(value, str) else to_json(value)
    text = visible(text, len(text))
    return "'" + text if text.lstrip(" ").startswith(_FORMULA) else text
