"""Data and labels for the report's scripts, made harmless: `script_json` for data inside a script element, `axis_text` for text which
plotly would read as its own small HTML. Lines of the log: `visible` and `redacted` of `logscope.sanitize`. Escaping for HTML itself is the
template's (autoescape).
"""

from __future__ import annotations

import html
import json
from typing import Any

from logscope.sanitize import redacted, visible

__all__ = ["axis_text", "redacted", "script_json", "visible"]


def script_json(value: Any) -> str:
    """JSON that cannot end the script element around it, nor open a comment in it. Raises ValueError for NaN."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def axis_text(text: str) -> str:
    """Text for a label or hover of a plotly chart, which reads tags, entities and line breaks: all of them disarmed."""
    return html.escape(visible(text, 80), quote=True)
