"""vLLM's message families: what a record's text says, as fields. One module a family holds all that is known of its formats.

`match` finds the format of a message by its first word, then by the few templates that begin with it; `anchors` let a caller skip
most lines before that; `FORMATS` is the table of all formats (family, variant, versions); `schema` gives the frame of a
family's fields. `CLIENT_TEXT` says which parts of a message a client can write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import regex

from parsers.families import (
    http,
    iteration,
    kv_error,
    kv_sizing,
    preemption,
    request,
    runtime,
    shutdown,
    startup,
    stats,
)
from parsers.families.formats import Fields, Format, Kind, Match, first_word
from parsers.lines import later, later_regex

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "CLIENT_TEXT",
    "FAMILIES",
    "FORMATS",
    "ClientText",
    "Fields",
    "Format",
    "Match",
    "anchors",
    "begins_as_servers_own",
    "columns",
    "is_servers_own",
    "match",
    "schema",
    "without_rank",
    "words_before_client_text",
]

_MOST_REMEMBERED = 1 << 13  # characters
_MODULES = {
    "preemption": preemption,
    "stats": stats,
    "iteration": iteration,
    "request": request,
    "startup": startup,
    "kv_sizing": kv_sizing,
    "kv_error": kv_error,
    "runtime": runtime,
    "http": http,
    "shutdown": shutdown,
}
FAMILIES: tuple[str, ...] = tuple(_MODULES)
FORMATS: tuple[Format, ...] = tuple(format_ for module in _MODULES.values() for format_ in module.FORMATS)

# "Engine 000: " (0.8.3 on), "4 Engines Aggregated: ", "4 Engines: " (0.11.1 on).
_ENGINE = later_regex(r"\s*+(?:Engine (\d{1,9})|(\d{1,9}) Engines( Aggregated)?+): ")
# "ValueError: ", "torch.cuda.OutOfMemoryError: ", "vllm.v1.engine.exceptions.EngineDeadError: "
_RAISED = later_regex(r"(?:[A-Za-z_]\w*+\.)*+([A-Za-z_]\w*+): ")
# "AssertionError", "asyncio.exceptions.TimeoutError"
_BARE = later_regex(r"(?:[A-Za-z_]\w*+\.)*+[A-Za-z_]\w*+(?<=Error|Exception)")
# "RuntimeError('Aborted due to …')": V0's engine process logs the repr.
_RAISED_REPR = later_regex(r"([A-Za-z_]\w*+)\((['\"])(.*)\2\)\s*+\Z")
_CLASS_ENDS = ("Error", "Exception")
# torch's hook says which rank a traceback is of.
_RANK = later(r"\A\[rank\d{1,4}\]: ")
_UVICORN_LEVEL = later(r"\A\s*(?:TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL):\s+")
_FLOATING_CHARS = 2000
_TRACEBACK = "Traceback (most recent call last)"
_MAX_ERROR_CHARS = 500
# Functions of a traceback that only a running engine is in, and those of its start.
_STEP_FRAME = later_regex(r", in (execute_model|sample_tokens|run_busy_loop|run_engine_loop|engine_step)\b")
_START_FRAME = later_regex(
    r", in (?:profile_run|_dummy_run|determine_\w{1,40}|load_model|init_device|_?initialize_\w{1,40}|compile_or_warm_up_model|capture_model)\b"
)


def _index(formats: tuple[Format, ...]) -> tuple[dict[str, tuple[Format, ...]], tuple[Format, ...]]:
    """Formats by the first word of their text, and those that begin with a field."""
    by_word: defaultdict[str, list[Format]] = defaultdict(list)
    floating = []
    for format_ in formats:
        if format_.floating:
            floating.append(format_)
        else:
            by_word[first_word(format_.body)].append(format_)
    return {word: tuple(group) for word, group in by_word.items()}, tuple(floating)


_BY_WORD, _FLOATING = _index(FORMATS)


@cache
def anchors() -> tuple[str, ...]:
    """Texts of which each line of a known format holds one."""
    needles = sorted({format_.needle for format_ in FORMATS}, key=lambda text: (len(text), text))
    kept: list[str] = []
    for needle in needles:
        if not any(shorter in needle for shorter in kept):
            kept.append(needle)
    return tuple(kept)


_NEEDLES: defaultdict[tuple[str, str], list[Format]] = defaultdict(list)
for _format in FORMATS:
    _NEEDLES[_format.family, _format.variant].append(_format)


def _is_anchored(message: str, found: Match) -> bool:
    """Whether a message holds one of `anchors`: without, who looks for those alone would not have seen it."""
    own = any(format_.needle in message for format_ in _NEEDLES[found.family, found.variant])
    return own or any(anchor in message for anchor in anchors())


class ClientText(NamedTuple):
    """`parts` are fields of the family's `variants` that a client can write; `printed` says how they come into the line.

    All other formats are the server's own words, numbers and settings. A message that no family knows may hold anything.
    """

    family: str
    variants: tuple[str, ...]
    parts: tuple[str, ...]
    printed: str


_RAW = "as it was sent"
_REPR = "as a Python repr, line breaks escaped"
_LIVES = ("added", "aborted", "finished", "req_aborted", "req_failed", "queue_full")

CLIENT_TEXT = (
    ClientText("request", ("received", "details", "generated", *_LIVES), ("request_id",), _RAW),
    ClientText("request", ("aborted",), ("request_ids",), _RAW),
    ClientText("request", ("received", "details"), ("prompt",), _REPR),
    ClientText("request", ("received",), ("params", "lora_request"), _REPR),
    ClientText("request", ("generated",), ("output",), _REPR),
    ClientText("request", ("req_failed",), ("error",), _RAW),
    ClientText("preemption", ("v0_preempt_warning",), ("request_id",), _RAW),
    ClientText("runtime", ("grammar",), ("request_id",), _RAW),
    ClientText("shutdown", ("httpstop", "component"), ("request_id",), _RAW),
    ClientText("kv_sizing", ("simple_offload",), ("request_id",), _RAW),
    ClientText("http", ("access",), ("path",), "percent-encoded, without blanks"),
    ClientText("runtime", ("worker_exc", "coredied", "output_handler", "dead"), ("error",), "the text of an exception"),
    ClientText("runtime", ("dump",), ("scheduler_output",), "the repr of what the step was given, request ids in it"),
)
_OPEN = frozenset((row.family, variant) for row in CLIENT_TEXT for variant in row.variants)


# Behind these words a client's text may follow, which may read as any format that begins with a field.
_CLIENT_BEGINNINGS = tuple(
    {f.body.split("{")[0] for f in FORMATS if (f.family, f.variant) in _OPEN and not f.floating and "{" in f.body}
)


_OWN_BEGINNINGS = tuple(
    {
        f.body.split("{")[0]
        for f in FORMATS
        if f.family in ("stats", "iteration") and not f.floating and "{" in f.body[1:]
    }
    - {""}
)


def is_servers_own(family: str, variant: str) -> bool:
    """Whether no client can write into messages of this format."""
    return (family, variant) not in _OPEN


def words_before_client_text(message: str) -> str | None:
    """The server's words at the beginning of a message into which a client can write; None for other messages."""
    if not message.startswith(_CLIENT_BEGINNINGS):
        return None
    return max((words for words in _CLIENT_BEGINNINGS if message.startswith(words)), key=len)


def begins_as_servers_own(message: str) -> bool:
    """Whether a message, perhaps damaged, begins with the words of a format that prints no text of a client's."""
    engine = _ENGINE.match(message)
    body = message[engine.end() :] if engine else message
    return body.startswith(_OWN_BEGINNINGS)


def columns(family: str) -> Mapping[str, Kind]:
    """The fields of a family's frame; fields outside it (new ones) stay in the event only. Raises KeyError if unknown."""
    fields: Mapping[str, Kind] = _MODULES[family].SCHEMA
    return fields


def schema(family: str) -> dict[str, pl.DataType]:
    """The columns of a family's frame. Raises KeyError if unknown."""
    import polars as pl  # half of the time that a command takes to start

    kinds: dict[Kind, pl.DataType] = {
        kind: pl.List(pl.String()) if kind is Kind.TEXTS else getattr(pl, kind.value)() for kind in Kind
    }
    return {name: kinds[kind] for name, kind in columns(family).items()}


def match(message: str, *, prefixed: bool) -> Match | None:
    """Read a record's text, or None where it is of no known format.

    `message` is what follows vLLM's own prefix, continuation lines joined by a line feed. `prefixed` False means that the
    line had none: then only texts that others print (uvicorn, the last line of a traceback) count, never vLLM's own.
    A record that holds a traceback is what its exception says, where that is known. Blanks at the end mean nothing: a terminal pads its rows.
    """
    message = message.rstrip()
    if len(message) > _MOST_REMEMBERED:
        return _match(message, prefixed)
    found = _remembered(message, prefixed)
    if found is None:
        return None
    fields = {name: v.copy() if isinstance(v, (dict, list)) else v for name, v in found.fields.items()}
    return replace(found, fields=fields)


def _match(message: str, prefixed: bool) -> Match | None:
    found = _unanchored_match(message, prefixed)
    return found if found is not None and _is_anchored(message, found) else None


def _unanchored_match(message: str, prefixed: bool) -> Match | None:
    if not prefixed:
        message = without_rank(message)
    raised = _raised(message)
    if not prefixed:
        return raised or _read(_UVICORN_LEVEL.sub("", message, count=1), foreign=True)
    if raised is not None:
        return raised
    found = _read(message, foreign=False)
    if found is not None and found.prompt_fields:
        return found  # a prompt may quote a traceback
    at = message.find(_TRACEBACK)
    if at < 0 and found is not None and found.family == "runtime" and "error" not in found.fields:
        at = message.find("\n")  # of the traceback only its end was kept
    return found if at < 0 else _with_traceback(message, at, found)


def without_rank(text: str) -> str:
    """A line of a traceback without torch's `[rank0]: `."""
    return _RANK.sub("", text, count=1)


_remembered = lru_cache(maxsize=1 << 9)(_match)  # a server that starts again and again says the same each time


def _read(message: str, *, foreign: bool, raised: bool = False) -> Match | None:
    engine = _ENGINE.match(message)
    body = message[engine.end() :] if engine else message
    for format_ in (*_BY_WORD.get(first_word(body[:200]), ()), *_FLOATING):
        if (foreign and not format_.foreign) or (raised and not format_.raised):
            continue
        if format_.per_engine is not None and format_.per_engine is not (engine is not None):
            continue
        if format_.floating and (format_.needle not in body[:_FLOATING_CHARS] or body.startswith(_CLIENT_BEGINNINGS)):
            continue
        fields = format_.fields(body)
        if fields is not None:
            return _matched(format_, fields, engine)
    return None


def _matched(format_: Format, fields: Fields, engine: regex.Match[str] | None) -> Match:
    if format_.keeps_prefix:
        fields["log_prefix"] = engine[0] if engine else ""
    if engine is not None:
        if engine[1] is not None:
            fields["engine"] = int(engine[1])
        else:
            fields["num_engines"] = int(engine[2])
            fields["aggregated"] = engine[3] is not None
    return Match(format_.family, format_.variant, fields, format_.prompt_fields)


def _raised(line: str) -> Match | None:
    """`SomeError: text` or `SomeError('text')` where the text is one that vLLM or torch raises."""
    found = _RAISED.match(line)
    quoted = _RAISED_REPR.match(line) if found is None else None
    name = found or quoted
    if name is None or not name[1].endswith(_CLASS_ENDS):
        return None
    known = _read(quoted[3] if quoted else line[name.end() :], foreign=False, raised=True)
    if known is not None:
        known.fields.setdefault("error", name[1])
    return known


def _with_traceback(message: str, at: int, header: Match | None) -> Match | None:
    """The exception that a record's traceback ends in, the most telling one of a chain; else the record's first line."""
    first_line = message.partition("\n")[0]
    best: Match | None = None
    error: str | None = None
    for line in reversed(message[at:].split("\n")):
        if not _RAISED.match(line):
            if best is None and error is None and _BARE.fullmatch(line.rstrip()):
                error = line.rstrip()
            continue
        error = error or line[:_MAX_ERROR_CHARS]
        known = _raised(line)
        if known is not None and (best is None or _telling(known) > _telling(best)):
            best = known
    if best is not None:
        best.fields["logged_as"] = first_line[:_MAX_ERROR_CHARS]
    elif header is not None and error is not None:
        header.fields["error"] = header.fields.get("error") or error
    found = best or header
    if found is not None and found.family == "runtime":
        step = _STEP_FRAME.search(message, at)
        if step is not None and _START_FRAME.search(message, at) is None:
            found.fields.setdefault("method", step[1])
    return found


def _telling(found: Match) -> int:
    # A chain ends in "the engine died" or "initialisation failed"; what explains it stands above.
    if found.family in ("kv_error", "preemption") or found.variant in ("torch_oom", "oom_sampler"):
        return 2
    return 0 if found.variant in ("coredied", "engine_dead", "dead") else 1
