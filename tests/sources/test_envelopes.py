"""Every envelope gives back the same lines of the same real log, with its own facts beside them."""

from __future__ import annotations

import io
import json
import random
import re
import time
from datetime import datetime, timezone

import pytest
from dress import DRESSES, Dress, Stamped, cri, iso, real_log
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.envelopes import Clock, unwrap
from parsers.lines import JsonRecord, Line, Outer
from parsers.sources import expand

LOG = real_log()
START_US = LOG[0].time_us
BARE = {"plain, journal cat", "loki raw, newest first"}
ODD = [
    "(EngineCore pid=7) ERROR 11-29 23:07:01 [core.py:1] Traceback (most recent call last):",
    '  File "/vllm/core.py", line 3, in step',
    "\x1b[0;36m(APIServer pid=1)\x1b[0;0m INFO 11-29 23:07:01 [loggers.py:1] Engine 000: ünïcode 100%|██████|",
    "[2025-08-21 07:17:09,753] LMCache INFO: Reqid: 1, stored 256 tokens (cache.py:1050:lmcache)",
    "2025-05-14 17:45:10.901 1647689 kserve.trace requestId: 1, preprocess_ms: 0.01",
    "",
    "INFO 11-29 23:07:01 [logger.py:40] Received request cmpl-1: prompt: '"
    + "x" * 40_000
    + "', params: None",
    "(APIServer pid=1) INFO 11-29 23:07:02 [loggers.py:1] Engine 000: the end",
]


def read(data: bytes) -> list[Line]:
    source = expand(["-"], stdin=io.BytesIO(data))[0]
    lines = list(source.lines())
    assert source.problem is None
    assert source.loss.problem is None
    return lines


def stamped(texts: list[str]) -> list[Stamped]:
    return [Stamped(START_US + i * 1_000_000, text) for i, text in enumerate(texts)]


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
    if not re.search("newest|without line", n)
    and n not in ("gcloud json", "aws get-log-events", "journal export")
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


@pytest.mark.parametrize(
    "outside", ["kubectl --prefix", "docker json-file", "cri", "journal short", "loki jsonl"]
)
@pytest.mark.parametrize(
    "inside", ["compose -t", "docker json-file", "cri", "syslog 5424", "ndjson msg", "stern -t"]
)
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
    want = JsonRecord(
        "WARNING", at, "vllm.v1.metrics.loggers", "EngineCore_DP1", 4217, row["message"]
    )
    [line] = read(json.dumps(row).encode())
    assert line == Line(1, row["message"], Outer("vllm-json"), want)
    [line] = read(cri([Stamped(START_US, json.dumps(row))]))
    assert (line.record, line.outer and line.outer.time_us) == (want, START_US)


@pytest.mark.parametrize(
    ("row", "record"),
    [
        (
            {
                "timestamp": "2026-09-22T10:00:00.5+02:00",
                "level": "info",
                "logger": "uvicorn.access",
                "message": "GET",
            },
            JsonRecord(
                "INFO", datetime(2026, 9, 22, 10, 0, 0, 500000), "uvicorn.access", None, None, "GET"
            ),
        ),
        (
            {
                "ts": "2026-09-22 10:00:00",
                "severity": "WARN",
                "name": "vllm.engine",
                "msg": "m",
                "exc_info": "Traceback",
            },
            JsonRecord(
                "WARNING", datetime(2026, 9, 22, 10), "vllm.engine", None, None, "m\nTraceback"
            ),
        ),
        (
            {"levelname": "INFO", "message": "no time"},
            JsonRecord("INFO", None, None, None, None, "no time"),
        ),
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
    assert [line.text.rpartition("] ")[2] for line in lines] == [
        "Traceback",
        "  File a",
        "ValueError: b",
        "next",
    ]
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
    assert [(line.number, line.text) for line in lines] == [
        (1, "INFO 05-09 x"),
        (2, "(A pid=1) y"),
        (5, "never ended"),
    ]


def test_rsyslog_escapes() -> None:
    [line] = read(
        b"Sep 22 23:46:42 host-a vllm[3]: #033[0;36m(EngineCore pid=7)#033[0;0m INFO 09-22 23:46:42 [a.py:1] x#015\n"
    )
    assert line.text == "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m INFO 09-22 23:46:42 [a.py:1] x"


CLOCKS = [
    # stamp, zone, reference, UTC
    ("Dec 31 23:59:59", None, "2027-01-02", "2026-12-31T23:59:59"),
    ("Jan  1 00:00:01", None, "2027-01-02", "2027-01-01T00:00:01"),
    ("Jan  2 23:00:00", None, "2027-01-02", "2027-01-02T23:00:00"),
    ("Feb 29 12:00:00", None, "2027-01-02", "2024-02-29T12:00:00"),
    ("Sep 22 23:46:42", "Europe/Berlin", "2026-10-01", "2026-09-22T21:46:42"),
    ("Sep 22 23:46:42", "+08:00", "2026-10-01", "2026-09-22T15:46:42"),
]


@pytest.mark.parametrize(("stamp", "zone", "reference", "utc"), CLOCKS)
def test_year_and_zone_of_stamps_without(
    stamp: str, zone: str | None, reference: str, utc: str
) -> None:
    clock = Clock(zone, clock_us(f"{reference}T00:00:00"))
    [line] = unwrap([(1, f"{stamp} host-a vllm[1]: INFO 09-22 23:46:42 [a.py:1] x")], clock)
    assert line.outer is not None
    assert line.outer.time_us == clock_us(utc)


def clock_us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (1778262423, 1778262423000000),
        (1778262423.5, 1778262423500000),
        ("1778262423.906123", 1778262423906123),
        (1778262423906, 1778262423906000),
        ("1778262423906123", 1778262423906123),
        ("1778262423906123456", 1778262423906123),
        ("2026-05-08T17:47:03.906123456Z", 1778262423906123),
        ("2026-05-08 19:47:03,906 +0200", 1778262423906000),
        ("2026-05-08 17:47:03 UTC", 1778262423000000),
        ("2026-13-08 17:47:03", None),
        ("yesterday", None),
        (True, None),
        (float("nan"), None),
        (10**30, None),
    ],
)
def test_stamps_in_json(value: object, us: int | None) -> None:
    assert Clock().any(value) == us


def test_unknown_zone() -> None:
    with pytest.raises(ValueError, match="unknown time zone 'Mars/Olympus'"):
        Clock("Mars/Olympus")


def test_newest_first_keeps_numbers_and_is_flagged() -> None:
    data = DRESSES["web viewer, newest first"].dress(LOG)
    source = expand(["-"], stdin=io.BytesIO(data))[0]
    numbers = [line.number for line in source.lines()]
    assert source.newest_first
    assert numbers == list(range(len(LOG), 0, -1))


def test_a_restart_is_not_newest_first() -> None:
    source = expand(
        ["-"], stdin=io.BytesIO(DRESSES["docker logs -t"].dress(LOG[300:] + LOG[:300]))
    )[0]
    assert [line.number for line in source.lines()] == list(range(1, len(LOG) + 1))
    assert not source.newest_first


WORDS = st.sampled_from(
    [
        "{",
        "}",
        '{"log":"',
        '{"MESSAGE":[1,2',
        "[pod/a/b] ",
        "2026-05-08T17:47:03Z ",
        "stderr P ",
        "stderr F ",
        "\n",
        "\r\n",
        "\0",
        "---",
        "Sep 22 23:46:42 h v[1]: ",
        "<134>1 ",
        "__CURSOR=a",
        "MESSAGE\n",
        "a-b c ",
        "x  | ",
        "  | ",
        "> - ",
        "[",
        "]",
        "insertId: ",
        "INFO 05-09 00:49:33 ",
        "\x1e",
        "data: ",
        '"events": [',
        "    MESSAGE=",
        "timestamp: ",
        "textPayload: |-",
        "\x1b[36m",
        "\ufffd",
    ]
)


@given(st.lists(WORDS | st.text(max_size=5), max_size=40).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_survived_and_nothing_but_envelopes_is_lost(text: str) -> None:
    text = "INFO 05-09 00:49:33 [a.py:1] x\n" * 60 + text  # enough text to be no binary file
    physical = text.replace("\r\n", "\n").split("\n")
    physical = physical[:-1] if not physical[-1] else physical
    lines = read(text.encode("utf-8", "replace"))
    assert all(1 <= line.number <= len(physical) for line in lines)
    plain = [line for line in lines if line.outer is None]
    assert all(
        line.text == physical[line.number - 1].rstrip("\r") for line in plain if not line.record
    )


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_survived(data: bytes) -> None:
    source = expand(["-"], stdin=io.BytesIO(b"INFO 05-09 00:49:33 [a.py:1] x\n" * 60 + data))[0]
    lines = list(source.lines())
    assert source.problem is None
    assert len({line.number for line in lines}) <= 60 + data.count(b"\n") + 1
    assert [line.text for line in lines][:60] == ["INFO 05-09 00:49:33 [a.py:1] x"] * 60


HOSTILE = [
    "{" * 100_000,
    '{"a":' * 50_000,
    "[" * 100_000,
    "[pod/" + "a" * 100_000,
    "<134>1 2026-05-08T17:47:03Z h u p m [" + 'a b="' * 50_000,
    "<134>1 2026-05-08T17:47:03Z h u p m " + '[a b="c"]' * 50_000,
    "2026-05-08T17:47:03Z {" + '"' * 100_000,
    "2026-05-08T17:47:03Z " * 20_000,
    "a-" * 100_000 + " b ",
    "\x1b[0m" * 50_000,
    " " * 200_000 + "|",
    "x" + " " * 200_000 + "|",
    "> " * 100_000,
    "#015" * 50_000,
    "\r" * 500_000,
    '{"log":"' + "\\u0000" * 30_000 + '"}',
    '{"timestamp":1' + "0" * 100_000 + ',"message":"x"}',
    '{"result":' * 400 + "{}" + "}" * 400,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_cost_linear_time(text: str) -> None:
    started = time.process_time()
    lines = read(("INFO 05-09 00:49:33 [a.py:1] x\n" + (text + "\n") * 3).encode())
    assert lines
    assert time.process_time() - started < 2


def test_many_opened_braces_cost_linear_time() -> None:
    started = time.process_time()
    lines = read(b"{\n" * 60_000)
    assert [line.text for line in lines] == ["{"] * 60_000
    assert time.process_time() - started < 5
