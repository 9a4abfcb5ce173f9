"""What comes from outside made harmless, since logs are hostile: prompts come from strangers, and others read the answer.

Numbers and JSON from files and addresses: `believed_number` and `json_document`, the one place that decides what may be believed.

`visible` for a line that is shown, `stripped` and `clean` for a terminal, `escaped` for JSON, `redacted` for a line of a known kind, `beginning` for a line
of no known kind, which may say anything after its first words.

Data and labels for the report's scripts, made harmless: `script_json` for data inside a script element, `axis_text` for text which
plotly would read as its own small HTML. Lines of the log: `visible` and `redacted` of `logscope.sanitize`. Escaping for HTML itself is the
template's (autoescape).
"""

from __future__ import annotations

import html
import json
import math
import re
from typing import Any

import regex

__all__ = [
    "LAST_SECOND",
    "LEFT_OUT",
    "OBEYED",
    "axis_text",
    "believed_number",
    "clean",
    "escaped",
    "json_document",
    "message_head",
    "redacted",
    "script_json",
    "stripped",
    "visible",
    "without_client_text",
]
LARGEST_NUMBER = 1e15
"""No count, time or size that a server or a client measures is larger; sums and products of such numbers stay finite."""
LAST_SECOND = 253_402_300_799.0
"""The last second of the year 9999, in seconds since the epoch."""


def believed_number(value: Any, *, least: float = 0.0, most: float = LARGEST_NUMBER) -> float | None:
    """`value` (a number, or its text) where it is finite and within `least` and `most`; None for all else, whatever its type."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and least <= number <= most else None


def json_document(text: str | bytes) -> Any:
    """One JSON document from outside. Raises ValueError for what is none, is nested too deep, or holds a number of thousands of digits."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


MAX_LINE = 600  # characters of a log line that is shown

# Characters that turn text around or hide in it: bidirectional marks, overrides and isolates, joiners, a byte order mark.
_HIDDEN = (
    0x061C,
    0x180E,
    *range(0x200B, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2060, 0x2070),
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
)
_SURROGATES = range(0xD800, 0xE000)  # lone ones cannot be written
_CONTROLS = (*(c for c in range(0x20) if c != 0x09), *range(0x7F, 0xA0))
# As their pictures (␛ for ESC), else as U+FFFD.
_PICTURES = dict.fromkeys((*_HIDDEN, *range(0x80, 0xA0), *_SURROGATES), "\ufffd")
_PICTURES |= {code: chr(0x2400 + code) for code in _CONTROLS if code < 0x20} | {0x7F: "␡"}


def _class_of(codes: tuple[int, ...]) -> str:
    return "".join(re.escape(chr(code)) for code in codes)


OBEYED = re.compile(f"[{_class_of((*_CONTROLS, *_HIDDEN))}\ud800-\udfff]")
"""A character that a terminal or a page obeys rather than shows; a tab is none."""
_ESCAPED = re.compile(f"[\x7f-\x9f{_class_of(_HIDDEN)}\ud800-\udfff]")

# Received request cmpl-1: prompt: 'why is …', params: SamplingParams(…)
# From `prompt:` to the last mark of parameters, since a prompt may hold such a mark too; without one to the line's end.
_PROMPT = regex.compile(r"(?P<key>\bprompt: )(?:.*(?P<rest>, (?:params|sampling_params): )|.*)", regex.S)
# prompt_token_ids: [1, 2, 3] and output_token_ids: [7, 8]
_IDS = regex.compile(r"(?P<key>\b(?:prompt|output)_token_ids: ?)\[[^\]]*\]?")
# Generated response cmpl-1: output: '…', output_token_ids: [7, 8], finish_reason: stop
_OUTPUT = regex.compile(r"(?P<key>\boutput: )(?:.*(?P<rest>, (?:output_token_ids|finish_reason): )|.*)", regex.S)
# INFO:     192.0.2.7:51908 - "POST /v1/completions HTTP/1.1" 200 OK
# INFO:     ('192.0.2.7', 51908) - "WebSocket /v1/realtime" [accepted]
_CLIENT = regex.compile(
    r"(?P<key>INFO:\s{1,8})(?:(?:\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9A-Fa-f:.]{3,45}\]?):\d{1,5}|\('[^']{1,64}', \d{1,5}\)) - "
)
LEFT_OUT = "(left out)"
# What stands before the first value of an unknown message: up to a quote, a brace, `: ` or `=`.
_VALUES = re.compile(r"['\"`{\[<(=]|: |:$")
_RECORD_HEAD = re.compile(
    r"(?:\([^()]{1,120}\) ){0,3}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]{5} [\d:]{8} \[?[^\s\]]{1,200}\]? "
)


def visible(text: str, limit: int = MAX_LINE) -> str:
    """One line of text with every control character, escape and text-turning mark shown, not obeyed; cut at `limit`."""
    shown = text[: limit + 1].translate(_PICTURES)
    return shown if len(shown) <= limit else shown[:limit] + "…"


def stripped(text: str) -> str:
    """Text without what a terminal obeys; line ends and tabs become blanks."""
    return OBEYED.sub("", text.replace("\t", " ").replace("\n", " "))


def clean(text: str, width: int = 200) -> str:
    """Text from a log for one line of a terminal: `stripped`, and at most `width` characters."""
    text = stripped(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def escaped(document: str) -> str:
    """A JSON document in which what a terminal obeys stands as an escape; its values stay what they are."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def redacted(text: str, limit: int = MAX_LINE) -> str:
    """`visible`, and without prompts, outputs, token ids and the client's address."""
    text = text[: 64 * 1024]  # what follows would not be shown anyway
    for pattern in (_PROMPT, _OUTPUT):
        text = pattern.sub(lambda m: f"{m['key']}{LEFT_OUT}{m['rest'] or ''}", text)
    text = _IDS.sub(lambda m: f"{m['key']}{LEFT_OUT}", text)
    return visible(_CLIENT.sub(r"\g<key>(client) - ", text), limit)


def message_head(text: str, limit: int = 200) -> str:
    """The first words of a message that nobody knows, its prefix included, up to where its values begin: those may be a client's text."""
    head = _RECORD_HEAD.match(text)
    start = head.end() if head else 0
    found = _VALUES.search(text, start)
    if found is None:
        return redacted(text, limit)
    return visible(text[: found.start()].rstrip(), limit) + f": {LEFT_OUT}"


# CUDA error: an illegal memory access was encountered; NCCL error in: …; Worker failed with error …; [Errno 28] No space left on device
_FROM_ENGINE = re.compile(
    r"(?:CUDA|HIP|HCCL|NCCL|RCCL|cuBLAS|CUBLAS|cuDNN|Triton|XPU|level_zero backend|EngineCore|Engine core|Worker|Executor|RPC call|The actor (?:died|is dead))\b|\[Errno \d{1,3}\] "
)
_WORDS = re.compile(r"[^\W\d_]+(?:_\w+)?")
# Messages of Python, PyTorch and vLLM are made of these words, numbers and names in code's spelling; a client's text hardly is.
_ENGINE_WORDS = frozenset(
    _WORDS.findall("""
    a all allowed already an and are arg args argument arguments array assert assertion at attribute attributes available axis be block
    blocks bool boundary bounds broadcast buffer bytes cache call called can cannot capacity changed class closed code connection contains copy
    count current data deque device devices dict dictionary did dimension dimensions division does done dtype during either element elements
    empty encountered engine error exceeded exception execute execution exist expected failed file first float for forward found from full
    function got graph group had has have id illegal in index indices inf info input inputs int integer invalid is it items iterable iteration
    iterator kernel key kwargs layer layers len length less list load local loop lost max memory method min missing mismatch model module more
    multiplied multiply must mutated nan neither no node none nor not null number object of on one only open operand operands operation or
    order out output pool popped positional probability process processes queue range rank read reached refused remote request requests
    required reset response result returned running same sampled schedule scheduled scheduler sequence sequences set shape shapes shared
    should size slot slots space state step steps stop storage str stream supported task tasks tensor tensors than that the thread timed
    timeout to token tokens too tuple type types unable unexpected unhashable unknown unpack unspecified unsupported up valid value values
    vector view was were when while width with within without work worker workers write wrong zero
""")
)
_PLAIN = re.compile(r"[\w\s()\[\]{}<>=!+*/:;,.'-]{1,200}")
_NAMED = re.compile(r"'(?:NoneType|[a-z]+|[A-Z][A-Za-z]+)'(?= object| and '| for )|'[a-z_]+'$")

_CLASS = re.compile(r"[A-Za-z_][\w.]{0,160}")


def without_client_text(text: str) -> str:
    """Once a server takes requests, an exception's message may quote one; what the engine and its libraries say themselves stays.

    `text` is `Class: message`, or either of them alone.
    """
    name, colon, message = text.strip().partition(": ")
    if not colon:
        return text if _CLASS.fullmatch(name) or _is_engines(name) else LEFT_OUT
    if _CLASS.fullmatch(name) is None:
        return text if _is_engines(text.strip()) else LEFT_OUT
    return text if _is_engines(message) else f"{name}: {LEFT_OUT}"


def _is_engines(message: str) -> bool:
    if _FROM_ENGINE.match(message):
        return True
    named = "object has no attribute" in message or "unsupported operand" in message
    plain = _NAMED.sub("", message) if named else message
    return _PLAIN.fullmatch(plain) is not None and all(w.lower() in _ENGINE_WORDS for w in _WORDS.findall(plain))


def script_json(value: Any) -> str:
    """JSON that cannot end the script element around it, nor open a comment in it. Raises ValueError for NaN."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def axis_text(text: str) -> str:
    """Text for a label or hover of a plotly chart, which reads tags, entities and line breaks: all of them disarmed."""
    return html.escape(visible(text, 80), quote=True)
