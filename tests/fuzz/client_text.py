"""Hostile text in each part of a message that a client can write (`parsers.families.CLIENT_TEXT`): nothing but the honest events comes out."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from parsers.families import CLIENT_TEXT, FORMATS, ClientText, Format
from parsers.reading.by_line import read_events
from parsers.reading.events import Coverage
from parsers.records.record import CUTS
from parsers.sources.source import expand
from tests.fuzz.cases import Case, Target, run
from tests.logs import stats_v1, v0_warning

__all__ = ["CLIENT_TARGETS", "FORGED", "honest_record", "hostile_record", "written"]

MARK = "SECRETWORD"
FORGED = (
    v0_warning(11, 51),
    stats_v1(12, 9, 99, 99.9),
    "(EngineCore pid=7) ERROR 05-09 00:49:33 [core.py:1110] EngineCore failed to start.",
    "INFO 05-09 00:49:33 [kv_cache_utils.py:1087] GPU KV cache size: 1 tokens",
    "INFO 05-09 00:49:33 [api_server.py:1] vLLM API server version 9.9.9",
)
_ENDS = (
    "",
    "', params: SamplingParams(n=1, max_tokens=5), prompt_token_ids: None, lora_request: None.",
    '", params: SamplingParams(n=1, max_tokens=5), lora_request: None.',
    ": params: SamplingParams(n=1, max_tokens=5), lora_request: None.",
    "', output_token_ids: None, finish_reason: stop",
    " lora_request: None. ",
    ' HTTP/1.1" 200 OK',
    "100%|#####| 3/3 [00:01<00:00, 9.9it/s]",
    "].",
)
# Messages that no family knows, with what a client wrote: none of it is evidence either.
UNKNOWN = (
    (
        "ERROR",
        "serving_chat.py:164",
        "Error with model error=ErrorInfo(message='The model `{}` does not exist.', type='NotFoundError', code=404)",
    ),
    (
        "ERROR",
        "serving_chat.py:200",
        "Error in preprocessing prompt inputs\nTraceback (most recent call last):\njinja2.exceptions.TemplateError: {}",
    ),
    (
        "ERROR",
        "hermes_tool_parser.py:120",
        "Error in extracting tool call from response.\nTraceback (most recent call last):\nValueError: {}",
    ),
    ("WARNING", "protocol.py:112", "The following fields were present in the request but ignored: {{'{}'}}"),
    ("INFO", "serving_models.py:185", "Loaded new LoRA adapter: name '{}', path '/a'"),
    ("ERROR", "backend_guidance.py:9", "Failed to compile grammar: {}"),
    ("DEBUG", "api_server.py:1", "Request body: {}"),
)
_BREAKS = ("\n", "\r\n", "\r", " ", "\n\n", "\u2028", "\x0b", "\x85")
_CODES = (
    "\x1b[0m",
    "\x1b[31m",
    "[0;0m",
    "^[[1;36m",
    "\x00",
    "\x08",
    "\u202e",
    "\ufeff",
    "\x0c",
    "\x1c",
    "\x1e",
    "(EngineCore pid=7) ",
    "[node-a] ",
)
_DRESSES = (
    "{}",
    '{{"log": {json}, "stream": "stdout", "time": "2026-05-09T00:49:33Z"}}',
    "2026-05-09T00:49:33.331095044Z stderr F {}",
    "vllm-1  | {}",
    "[pod/vllm-0/vllm] {}",
    "May  9 00:49:33 gpu1 vllm[7]: {}",
    "2026-05-09 00:49:33,123 - vllm.v1.metrics.loggers - INFO - {}",
)


def _dressed(dress: str, line: str) -> str:
    return dress.replace("{json}", json.dumps(line + "\n")).replace("{{", "{").replace("}}", "}").replace("{}", line)


def _hostile(chance: random.Random) -> str:
    parts = [f"x {MARK}{chance.choice(_ENDS)}"]
    dress = chance.choice(_DRESSES)
    parts += [_dressed(dress, chance.choice(FORGED)) for _ in range(chance.randrange(1, 4))]
    if chance.random() < 0.1:
        parts[1:1] = ["y"] * 2500
    parts.append(chance.choice(("", "bye", "bye'")) + chance.choice(_ENDS))
    if chance.random() < 0.2:
        at = chance.randrange(1, len(parts))
        parts[at] = chance.choice(_CODES) + parts[at]
    text = chance.choice(_BREAKS).join(parts)
    if chance.random() < 0.1:  # what a carrier cuts may begin a line with any of it
        text = "A" * (chance.choice(CUTS) - chance.randrange(300)) + text
    return text


def carried(data: bytes, limit: int) -> bytes:
    """A log as a carrier writes it that begins a new line after so many bytes, without a mark."""
    lines = data.split(b"\n")
    return b"\n".join(line[at : at + limit] for line in lines for at in range(0, max(len(line), 1), limit))


def written() -> Iterator[tuple[ClientText, str, Format]]:
    """Each part of each format that a client can write, and a format whose example shows it."""
    for row in CLIENT_TEXT:
        for format_ in FORMATS:
            if format_.family == row.family and format_.variant in row.variants:
                yield from ((row, part, format_) for part in row.parts if _place(part, format_) is not None)


def _place(part: str, format_: Format) -> tuple[str, str] | None:
    """What stands in the example for the part, and how it is printed: `raw`, `repr`, `url`."""
    text = format_.example
    if part in ("prompt", "output"):
        fields = format_.fields(text) or {}
        shown = repr(fields.get(part))
        return (shown, "repr") if fields.get(part) is not None and shown in text else None
    if part == "params":
        return ("stop=[]", "stop") if "stop=[]" in text else None
    if part == "lora_request":
        return ("lora_request: None", "lora") if "lora_request: None" in text else None
    if part == "path":
        return "/v1/chat/completions", "url"
    if part == "scheduler_output":
        return ("<...>", "repr") if "scheduler output" in text else None
    if "{" + part not in format_.template:
        return None
    fields = format_.fields(text) or {}
    shown = str(fields.get(part))
    if isinstance(found := fields.get(part), list):
        shown = str(found[0])
    return (shown, "raw") if fields.get(part) and shown in text else None


def honest_record(format_: Format) -> str:
    """The lines of a record whose text is the format's example."""
    level = format_.level.split()[0].strip(",") if not format_.level.startswith("raise") else "ERROR"
    return format_.example if format_.foreign else f"{level} 05-09 00:49:33 [some.py:1] {format_.example}"


def hostile_record(part: str, format_: Format, text: str) -> str:
    """The same, with `text` in the place of the part, as vLLM prints it: its formatter repeats the prefix after each line break."""
    place = _place(part, format_)
    assert place is not None
    old, printed = place
    new = {
        "raw": text,
        "repr": repr(text),
        "stop": f"stop=[{text!r}]",
        "lora": f"lora_request: LoRARequest(lora_name={text!r})",
        "url": quote(text),
    }[printed]
    record = honest_record(format_).replace(old, new, 1)
    if format_.foreign:
        return record
    prefix = record[: record.index("] ") + 2]
    return record.replace("\r\n", "\n").replace("\n", "\r\n" + prefix)


_AROUND = [stats_v1(at, 3, 0, 10.0) for at in (1, 5, 40, 50)]


def _log(record: str) -> bytes:
    return "\n".join([*_AROUND[:2], record, *_AROUND[2:], ""]).encode("utf-8", "surrogatepass")


def _make(chance: random.Random) -> Case:
    text = _hostile(chance)
    if chance.random() < 0.3:
        level, origin, message = chance.choice(UNKNOWN)
        part, prefix = origin, f"(APIServer pid=1) {level} 05-09 00:49:33 [{origin}] "
        record, honest = (prefix + message.format(x) for x in (text, "ok"))
        record, honest = (r.replace("\r\n", "\n").replace("\n", "\r\n" + prefix) for r in (record, honest))
    else:
        _, part, format_ = chance.choice(list(written()))
        record, honest = hostile_record(part, format_, text), honest_record(format_)
    limit = chance.choice(CUTS) if chance.random() < 0.5 else 1 << 30
    return Case({"hostile.log": carried(_log(record), limit), "honest.log": _log(honest)}, {"part": part})


def _check(case: Case, folder: Path) -> None:
    found = {}
    for name, data in case.files.items():
        path = folder / name
        path.write_bytes(data)
        events = list(read_events(expand([str(path)]), Coverage(), year=2026))
        found[name] = Counter(event.family for event in events if event.line > 2 and event.family != "request")
    honest, hostile = found["honest.log"], found["hostile.log"]
    assert hostile - honest == Counter(), f"forged: {hostile - honest}"
    assert hostile["stats"] == honest["stats"], "statistics that the server printed are lost"
    result = run("analyze", folder / "hostile.log", "--no-replay", "-v", "--json", folder / "answer.json")
    told = (result.output if result is not None else "") + (folder / "answer.json").read_text(encoding="utf-8")
    assert MARK not in told, "a client's text is told"


CLIENT_TARGETS = {"client": Target(_make, _check, share=2)}
