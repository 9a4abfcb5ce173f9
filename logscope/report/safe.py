"""Text from a log made harmless: logs are hostile, since prompts come from strangers.

`visible` for a line that is shown, `redacted` also without prompts and client addresses, `script_json` for data
inside a script element, `axis_text` for text which plotly would read as its own small HTML. Escaping for HTML
itself is the template's (autoescape).
"""

from __future__ import annotations

import html
import json
from typing import Any

import regex

__all__ = ["axis_text", "redacted", "script_json", "visible"]

MAX_LINE = 600  # characters of a log line that the report shows

# Control characters as their pictures (␛ for ESC); what turns text around or hides in it as U+FFFD.
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if code != 0x09}
_PICTURES |= {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_HIDDEN = (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x061C, 0xFEFF)
_PICTURES |= dict.fromkeys(_HIDDEN, "\ufffd")
_PICTURES |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # lone surrogates cannot be written

# Received request cmpl-1: prompt: 'why is …', params: SamplingParams(…)
# From `prompt:` to the last mark of parameters, since a prompt may hold such a mark too; without one to the line's end.
_PROMPT = regex.compile(
    r"(?P<key>\bprompt: )(?:.*(?P<rest>, (?:params|sampling_params): )|.*)", regex.S
)
# prompt_token_ids: [1, 2, 3] and output_token_ids: [7, 8]
_IDS = regex.compile(r"(?P<key>\b(?:prompt|output)_token_ids: ?)\[[^\]]*\]?")
# Generated response cmpl-1: output: '…', output_token_ids: [7, 8], finish_reason: stop
_OUTPUT = regex.compile(
    r"(?P<key>\boutput: )(?:.*(?P<rest>, (?:output_token_ids|finish_reason): )|.*)", regex.S
)
# INFO:     192.0.2.7:51908 - "POST /v1/completions HTTP/1.1" 200 OK
_CLIENT = regex.compile(
    r"(?P<key>INFO:\s{1,8})(?:\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9A-Fa-f:.]{3,45}\]?):\d{1,5} - "
)
_LEFT_OUT = "(left out)"


def visible(text: str, limit: int = MAX_LINE) -> str:
    """One line of text with every control character, escape and text-turning mark shown, not obeyed; cut at `limit`."""
    shown = text[: limit + 1].translate(_PICTURES)
    return shown if len(shown) <= limit else shown[:limit] + "…"


def redacted(text: str, limit: int = MAX_LINE) -> str:
    """`visible`, and without prompts, outputs, token ids and the client's address."""
    text = text[: 64 * 1024]  # what follows would not be shown anyway
    for pattern in (_PROMPT, _OUTPUT):
        text = pattern.sub(lambda m: f"{m['key']}{_LEFT_OUT}{m['rest'] or ''}", text)
    text = _IDS.sub(lambda m: f"{m['key']}{_LEFT_OUT}", text)
    return visible(_CLIENT.sub(r"\g<key>(client) - ", text), limit)


def script_json(value: Any) -> str:
    """JSON that cannot end the script element around it, nor open a comment in it. Raises ValueError for NaN."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def axis_text(text: str) -> str:
    """Text for a label or hover of a plotly chart, which reads tags, entities and line breaks: all of them disarmed."""
    return html.escape(visible(text, 80), quote=True)
