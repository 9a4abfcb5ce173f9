"""Every envelope gives back the same lines of the same real log, with its own facts beside them."""

from __future__ import annotations

import json
import random
import re
from datetime import datetime

import pytest

from parsers.envelopes import unwrap
from parsers.lines import JsonRecord, Line, Outer
from tests.dress import DRESSES, Dress
from tests.dressers import Stamped, cri, iso
from tests.sources.reading import LOG, START_US, read, stamped

BARE = {"plain, journal cat", "loki raw, newest first"}


ODD = [
    "(EngineCore pid=7) ERROR 11-29 23:07:01 [core.py:1] Traceback (most recent call last):",
    '  File "/vllm/core.py", line 3, in step',
    "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 11-29 23:07:01 [loggers.py:1] Engine 000: ünïcode 100%|██████|",
    "[2025-08-21 07:17:09,753] LMCache INFO: Reqid: 1, stored 256 tokens (cache.py:1050:lmcache)",
    "2025-05-14 17:45:10.901 1647689 kserve.trace requestId: 1, preprocess_ms: 0.01",
    "",
    "INFO 11-29 23:07:01 [logger.py:40] Received request cmpl-1: prompt: '" + "x" * 40_000 + "', params: None",
    "(APIServer pid=1) INFO 11-29 23:07:02 [loggers.py:1] Engine 000: the end",
]


@pytest.mark.parametrize("name", DRESSES)
def test_same_log_in_every_envelope(name: str) -> None:
    dress: Dress = DRESSES[name]
    lines = read(dress.dress(LOG))
    if name not in BARE:  # the brackets around a JSON document are bare lines
        lines = [line for line in lines if line.outer is not None]
    assert [line.text for line in lines] == [s.text for s in LOG]
    outer = [line.outer for line in lines]
    if dress.clock_us:
        assert [o and o.time_us and o.time_us // dress.clock_us for o in outer] == [
            s.time_us // dress.clock_us for s in LOG
        ]
    for fact, value in dress.facts.items():
        assert {getattr(o, fact) for o in outer} == {value}


@pytest.mark.parametrize("name", [n for n in DRESSES if not re.search("newest|without line", n)])
def test_odd_lines_in_every_envelope(name: str) -> None:
    """Colours, indents, an empty line, a line of 40 kB (cut in parts by some), foreign loggers' stamps."""
    lines = read(DRESSES[name].dress(stamped(ODD)))
    if name not in BARE:
        lines = [line for line in lines if line.outer is not None]
    assert [line.text for line in lines] == ODD


# not here: what must be one document or begin a source
MIXABLE = [
    n
    for n in DRESSES
    if not re.search("newest|without line", n) and n not in ("gcloud json", "aws get-log-events", "journal export")
]


SINGLE = [n for n in MIXABLE if not re.search("verbose|pretty|yaml|console", n)]


def test_sections_of_different_envelopes_in_one_stream() -> None:
    names = random.Random(7).sample(MIXABLE, len(MIXABLE))
    cuts = [LOG[i % 9 * 40 : i % 9 * 40 + 40] for i in range(len(names))]
    data = b"".join(DRESSES[name].dress(cut) for name, cut in zip(names, cuts, strict=True))
    assert [line.text for line in read(data)] == [s.text for cut in cuts for s in cut]


def test_each_line_in_another_envelope() -> None:
    records = [s for s in LOG if s.text.startswith("(")]
    pick = random.Random(3)
    data = b"".join(DRESSES[pick.choice(SINGLE)].dress([s]) for s in records)
    assert [line.text for line in read(data)] == [s.text for s in records]


@pytest.mark.parametrize("outside", ["kubectl --prefix", "docker json-file", "cri", "journal short", "loki jsonl"])
@pytest.mark.parametrize("inside", ["compose -t", "docker json-file", "cri", "syslog 5424", "ndjson msg", "stern -t"])
def test_nested(outside: str, inside: str) -> None:
    inner = DRESSES[inside].dress(LOG).decode().removesuffix("\n").split("\n")
    wrapped = [Stamped(s.time_us + 5_000_000, text) for s, text in zip(LOG, inner, strict=True)]
    lines = read(DRESSES[outside].dress(wrapped))
    assert [line.text for line in lines] == [s.text for s in LOG]
    # the clock nearest to the process, the outermost envelope's name
    assert [line.outer and line.outer.time_us for line in lines] == [s.time_us for s in LOG]
    [envelope] = {line.outer and line.outer.envelope for line in lines}
    assert envelope == read(DRESSES[outside].dress(LOG[:2]))[1].outer.envelope


PLAIN = [
    "(APIServer pid=1) INFO 11-29 23:07:01 [loggers.py:1] Engine 000: Running: 1 reqs",
    "[2025-08-21 07:17:09,753] LMCache INFO: Reqid: 1, stored 256 tokens (cache.py:1050:lmcache)",
    "2025-05-14 17:45:10.901 1647689 kserve.trace requestId: 1, preprocess_ms: 0.01",
    "(EngineCore_DP0 pid=2) INFO 11-29 23:07:01 [core.py:1] step",
    "2024-09-04 15:08:30,038 xinference.core.worker 3657471 DEBUG    Leave get_model",
    "2025-11-04T12:27:16.535413Z  INFO vllm_router::server: ready",
    "2024-04-27 10:13:05 | ERROR | stderr | Traceback",
    "[rank0]:[W318 08:42:30.255 ProcessGroupNCCL.cpp:715] Warning: destroy_process_group()",
    'INFO:     192.0.2.7:51908 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "INFO:root:a line of the root logger",
    "(MapWorker(MapBatches(vLLMEngineStageUDF)) pid=9) INFO 11-29 23:07:01 [core.py:1] step",
    "(WorkerDict pid=7, ip=192.0.2.4) WARNING 11-29 23:07:01 [x.py:1] [repeated 2x across cluster]",
    "[node-a] INFO 11-29 23:07:01 [loggers.py:1] with VLLM_LOGGING_PREFIX",
    "[0;36m(EngineCore pid=7)[0;0m INFO 11-29 23:07:01 [core.py:1] colours whose escape is lost",
    "^[[1;36m(EngineCore pid=7)^[[0;0m INFO 11-29 23:07:01 [core.py:1] colours in caret form",
    "{'model': 'm', 'log': 'a Python dict'}",
    '{"id": "cmpl-1", "object": "text_completion", "choices": []}',
    "{",
    "  max_model_len: 4096",
    "}",
    "---",
    "_ENV=1",
    "| a table | of the user |",
    "> quoted by a user",
    "- a list",
    "the user wrote WARNING 05-09 00:49:33 scheduler.py:1057] Sequence group 7 is preempted",
    "ValueError: No available memory for the cache blocks.",
    'RuntimeError: {"message": "INFO 05-09 00:49:33 [a.py:1] x"}',
    "    raise ValueError(",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01]\r\x1b[A",
    "Capturing CUDA graphs: 100%|██████| 67/67\r",
    "tab\tand unit: no",
    "[W pod/x] no pod",
    "Mar 2026 was cold",
    "<think> said the model",
    "127 <13>1 bottle",
]


def test_plain_lines_stay_as_they_are() -> None:
    """What other loggers, Python and users write looks like an envelope at times."""
    text = "\n".join(PLAIN * 2)
    for line, want in zip(read(text.encode()), PLAIN * 2, strict=True):
        assert (line.text, line.outer) == (want.rstrip("\r"), None)


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_line_alone_stays_as_it_is(text: str) -> None:
    assert list(unwrap([(4, text)])) == [Line(4, text)]


def test_json_formatter_of_vllm() -> None:
    row = {
        "asctime": "2026-09-22 10:00:00,123",
        "levelname": "WARNING",
        "name": "vllm.v1.metrics.loggers",
        "processName": "EngineCore_DP1",
        "process": 4217,
        "message": "Engine 000: two\nlines",
    }
    at = datetime(2026, 9, 22, 10, 0, 0, 123000)
    want = JsonRecord("WARNING", at, "vllm.v1.metrics.loggers", "EngineCore_DP1", 4217, row["message"])
    [line] = read(json.dumps(row).encode())
    assert line == Line(1, row["message"], Outer("vllm-json"), want)
    [line] = read(cri([Stamped(START_US, json.dumps(row))]))
    assert (line.record, line.outer and line.outer.time_us) == (want, START_US)


@pytest.mark.parametrize(
    ("row", "record"),
    [
        (
            {"timestamp": "2026-09-22T10:00:00.5+02:00", "level": "info", "logger": "uvicorn.access", "message": "GET"},
            JsonRecord("INFO", datetime(2026, 9, 22, 10, 0, 0, 500000), "uvicorn.access", None, None, "GET"),
        ),
        (
            {
                "ts": "2026-09-22 10:00:00",
                "severity": "WARN",
                "name": "vllm.engine",
                "msg": "m",
                "exc_info": "Traceback",
            },
            JsonRecord("WARNING", datetime(2026, 9, 22, 10), "vllm.engine", None, None, "m\nTraceback"),
        ),
        ({"levelname": "INFO", "message": "no time"}, JsonRecord("INFO", None, None, None, None, "no time")),
        ({"level": "info", "time": "2026-09-22T10:00:00Z", "message": "a shipper's level"}, None),
        ({"level": "chatty", "name": "vllm", "message": "no level"}, None),
    ],
)
def test_json_of_other_formatters(row: dict[str, object], record: JsonRecord | None) -> None:
    [line] = read(json.dumps(row).encode())
    assert line.record == record
    assert line.text == (record.message if record else row["message"])


def test_several_lines_in_one_entry() -> None:
    """A message with line feeds gives a line for each, all with the number and facts of the entry."""
    text = "(APIServer pid=1) ERROR 11-29 23:07:01 [a.py:1] one\r\n(APIServer pid=1) ERROR 11-29 23:07:01 [a.py:1] two"
    want = [part.rstrip("\r") for part in text.split("\n")]
    for name in (
        "journal json",
        "journal export",
        "journal json-pretty",
        "docker json-file",
        "loki jsonl",
        "gcp jsonl",
    ):
        lines = read(DRESSES[name].dress([Stamped(START_US, text)] * 2))
        assert [line.text for line in lines] == want * 2
        assert len({(line.number, line.outer) for line in lines}) == 2


def test_continuation_lines_of_journalctl() -> None:
    """journalctl's short forms indent the further lines of a message under the first."""
    head = "Sep 22 23:46:42 host-a vllm[361991]: "
    lines = read(f"{head}one\n{' ' * len(head)}  two\n{head}three\n".encode())
    assert [line.text for line in lines] == ["one", "  two", "three"]
    assert lines[0].outer == lines[1].outer


def test_bare_lines_continue_the_stamped_entry_before_them() -> None:
    head = "2026-05-12T08:01:39.331Z (APIServer pid=1) ERROR 05-12 08:01:39 [a.py:1] "
    lines = read(f"{head}Traceback\n  File a\nValueError: b\n{head}next\n".encode())
    assert [line.text.rpartition("] ")[2] for line in lines] == ["Traceback", "  File a", "ValueError: b", "next"]
    assert len({line.outer for line in lines}) == 1


def test_parts_are_joined_by_stream() -> None:
    t = iso(START_US)
    rows = [
        (1, "stdout P INFO 05-0"),
        (2, "stderr P (A pi"),
        (3, "stdout F 9 x"),
        (4, "stderr F d=1) y"),
        (5, "stdout P never ended"),
    ]
    lines = read("".join(f"{t} {row}\n" for _, row in rows).encode())
    assert [(line.number, line.text) for line in lines] == [(1, "INFO 05-09 x"), (2, "(A pid=1) y"), (5, "never ended")]


def test_rsyslog_escapes() -> None:
    [line] = read(
        b"Sep 22 23:46:42 host-a vllm[3]: #033[0;36m(EngineCore pid=7)#033[0;0m INFO 09-22 23:46:42 [a.py:1] x#015\n"
    )
    assert line.text == "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m INFO 09-22 23:46:42 [a.py:1] x"
