"""Records: prefixes of all ages, continuation lines, glued and wrapped lines, client text."""

from __future__ import annotations

import pytest

from parsers.lines import JsonRecord, Line, Outer
from parsers.records.prefix import parse_header, split_repeated, strip_ansi
from parsers.records.record import Assembler, read_records

HEADS = [
    ("INFO 02-01 06:36:05 llm_engine.py:921] hi", None, None, "INFO", "llm_engine.py:921"),
    ("WARNING 07-28 06:40:59 [loggers.py:118] hi", None, None, "WARNING", "loggers.py:118"),
    ("(APIServer pid=1) INFO 03-18 10:00:00 [loggers.py:259] hi", "APIServer", 1, "INFO", "loggers.py:259"),
    ("(VllmWorker rank=1 pid=7) INFO 03-18 10:00:00 gpu_worker.py:25] hi", "VllmWorker", 7, "INFO", "gpu_worker.py:25"),
    (
        "(VllmWorker rank=0 engine_index=0 pid=7) ERROR 03-18 10:00:00 [gpu_worker.py:25] hi",
        "VllmWorker",
        7,
        "ERROR",
        "gpu_worker.py:25",
    ),
    ("(VllmWorker-0 pid=7) INFO 03-18 10:00:00 [vllm.py:25] hi", "VllmWorker-0", 7, "INFO", "vllm.py:25"),
    ("(WorkerDict pid=7, ip=192.0.2.4) WARNING 03-18 10:00:00 [s.py:25] hi", "WorkerDict", 7, "WARNING", "s.py:25"),
    (
        "(MapWorker(MapBatches(vLLMEngineStageUDF)) pid=9) INFO 03-18 10:00:00 [s.py:25] hi",
        "MapWorker(MapBatches(vLLMEngineStageUDF))",
        9,
        "INFO",
        "s.py:25",
    ),
    (
        "(ServeReplica:app:LLMServer:m pid=1) (EngineCore pid=2) (Worker pid=4) INFO 03-18 10:00:00 [s.py:25] hi",
        "Worker",
        4,
        "INFO",
        "s.py:25",
    ),
    ("[node-a] INFO 03-18 10:00:00 s.py:25] hi", None, None, "INFO", "s.py:25"),
    ("(APIServer pid=3) [node-a] INFO 03-18 10:00:00 [s.py:25] hi", "APIServer", 3, "INFO", "s.py:25"),
    ("[node-a] (APIServer pid=3) INFO 03-18 10:00:00 [s.py:25] hi", "APIServer", 3, "INFO", "s.py:25"),
    (
        "(EngineCore pid=7) DEBUG 05-09 00:49:33 [v1/core/sched/scheduler.py:88] hi",
        "EngineCore",
        7,
        "DEBUG",
        "v1/core/sched/scheduler.py:88",
    ),
    (
        "(APIServer pid=7) DEBUG 05-09 00:49:33 [distributed/.../v1/metrics.py:88] hi",
        "APIServer",
        7,
        "DEBUG",
        "distributed/.../v1/metrics.py:88",
    ),
    ("WARNING 05-09 00:49:33 scheduler.py:1057 hi", None, None, "WARNING", "scheduler.py:1057"),
    (
        "\x1b[1;36m(APIServer pid=3)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m03-18 10:00:00\x1b[0m \x1b[90m[s.py:25]\x1b[0m hi",
        "APIServer",
        3,
        "INFO",
        "s.py:25",
    ),
    ("[0;36m(APIServer pid=3)[0;0m INFO 03-18 10:00:00 [s.py:25] hi", "APIServer", 3, "INFO", "s.py:25"),
    ("^[[1;36m(APIServer pid=3)^[[0;0m INFO 03-18 10:00:00 [s.py:25] hi", "APIServer", 3, "INFO", "s.py:25"),
    ("^[[B^[[BINFO 03-18 10:00:00 [s.py:25] hi", None, None, "INFO", "s.py:25"),
]


@pytest.mark.parametrize(("line", "process", "pid", "level", "origin"), HEADS)
def test_every_form_of_the_prefix(line: str, process: str | None, pid: int | None, level: str, origin: str) -> None:
    text = strip_ansi(line)
    header = parse_header(text)
    assert header is not None
    assert (header.process, header.pid, header.level, header.origin) == (process, pid, level, origin)
    assert text[header.start :] == "hi"


@pytest.mark.parametrize(
    "line",
    [
        "my-app: docs say you may see: WARNING 05-09 00:49:33 scheduler.py:1057] Sequence group 1 is preempted",
        'INFO:     192.0.2.7:51908 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "[2026-05-09 00:49:33 TP0] Decode batch. #running-req: 9",
        "INFO 13-09 00:49:33 [a.py:1] no such month",
        "INFO 05-09 25:49:33 [a.py:1] no such hour",
        "[2025-08-21 07:17:09,753] LMCache INFO: Stored 5 (cache_engine.py:1050:lmcache)",
        "",
    ],
)
def test_what_only_looks_like_a_prefix(line: str) -> None:
    assert parse_header(line) is None


def test_actors_around_a_process_are_kept() -> None:
    header = parse_header("(ServeReplica:app pid=1) (EngineCore pid=2) INFO 03-18 10:00:00 [s.py:25] hi")
    assert header is not None
    assert header.actors == ("ServeReplica:app pid=1",)


def test_rays_count_of_repetitions_is_taken_off() -> None:
    assert split_repeated("text =1 [repeated 2x across cluster]") == ("text =1", 2)
    assert split_repeated("text [repeated 3x across cluster] (Ray deduplicates logs by default.)") == ("text", 3)
    assert split_repeated("text") == ("text", 1)


def records(*lines: str) -> list[tuple[int, bool, str, list[str]]]:
    found = read_records(Line(i + 1, text) for i, text in enumerate(lines))
    return [(r.number, r.header is not None, r.message, [t.text for t in r.tail]) for r in found]


H = "INFO 03-18 10:00:00 [a.py:1] "


def test_continuation_lines_after_a_carriage_return_join() -> None:
    assert records(H + "one\r", H + "two\r", H + "three", H + "four") == [
        (1, True, "one\ntwo\nthree", []),
        (4, True, "four", []),
    ]


def test_equal_prefixes_do_not_join_where_the_stream_marks_its_continuations() -> None:
    assert records(H + "a:\r", H + "b", H + "c:", H + "d") == [
        (1, True, "a:\nb", []),
        (3, True, "c:", []),
        (4, True, "d", []),
    ]


def test_without_carriage_returns_only_openers_of_several_lines_join() -> None:
    assert records(H + "", H + "  logo version 0.32.0", H + "", H + "Route: /x", H + "Route: /y") == [
        (1, True, "\n  logo version 0.32.0\n", []),
        (4, True, "Route: /x", []),
        (5, True, "Route: /y", []),
    ]


def test_a_carriage_return_inside_a_line_is_a_progress_bar() -> None:
    bar = "\r".join(f"Loading: {i:3d}%|{'#' * (i // 10)}| {i}/100 [00:01<00:00, 9.9it/s]" for i in range(101))
    found = records(bar + H + "after")
    assert found[-1][:3] == (1, True, "after")
    assert len(found) == 102


def test_two_records_on_one_line() -> None:
    first = "Maximum concurrency for 4096 tokens per request: 3.10x"
    assert records(H + first + H + "second") == [(1, True, first, []), (1, True, "second", [])]


@pytest.mark.parametrize(
    "text",
    [
        "ut: 3.0 tokens/s, Running: 4 reqs",
        H + "what nobody knows may quote a client: ",
        H + "Added request cmpl-",
        H + "Request cmpl-1 failed due to ValueError: ",
    ],
)
def test_no_record_is_glued_to_what_a_client_may_have_written(text: str) -> None:
    assert len(records(text + H + "second")) == 1


def test_a_record_quoted_in_another_programs_line_is_not_one() -> None:
    assert [r[1] for r in records(H + "start", "my-app says: " + H + "quoted")] == [True]


def test_lines_without_prefix_follow_as_tail_then_stand_alone() -> None:
    found = records(H + "one", *[f"line {i}" for i in range(12)])
    assert found[0][3] == [f"line {i}" for i in range(8)]
    assert [r[2] for r in found[1:]] == [f"line {i}" for i in range(8, 12)]


PROMPT = H + "Received request c-1: prompt: 'why?"
CLOSE = "', params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: None, lora_request: None."


def test_a_prompt_with_real_line_breaks_stays_in_its_record() -> None:
    inside = "WARNING 03-18 09:00:00 [scheduler.py:1] Sequence group 7 is preempted"
    found = records(PROMPT + "\r", inside + "\r", "more" + CLOSE, H + "next")
    assert [r[:2] for r in found] == [(1, True), (4, True)]
    assert "Sequence group 7" in found[0][2]


def test_a_request_record_that_was_cut_does_not_swallow_the_log() -> None:
    next_one = H.replace("10:00:00", "10:00:01") + "next"
    found = records(PROMPT, next_one, H + "Received request c-2: prompt: 'x" + CLOSE, H + "last")
    assert [r[0] for r in found] == [1, 2, 3, 4]


def test_no_record_is_glued_to_a_request_whose_id_may_have_written_its_end() -> None:
    found = records(PROMPT + CLOSE + H + "next")
    assert [r[2][:16] for r in found] == ["Received request"]


def test_a_prefix_inside_a_prompt_does_not_split_it() -> None:
    found = records(PROMPT + "\\n" + H + "hit rate: 0.0%" + H + "x" + CLOSE)
    assert len(found) == 1


def test_a_json_record_brings_its_own_time_and_process() -> None:
    import datetime as dt

    moment = dt.datetime(2026, 9, 22, 10, 0, 0, 123000)
    line = Line(5, "x", None, JsonRecord("INFO", moment, "vllm.v1.metrics.loggers", "EngineCore", 7, "one\r\ntwo"))
    (record,) = read_records([line])
    assert (record.moment, record.process, record.pid, record.message) == (moment, "EngineCore", 7, "one\ntwo")


def test_records_of_two_pods_do_not_mix() -> None:

    a, b = Outer("kubernetes", pod="a"), Outer("kubernetes", pod="b")
    lines = [Line(1, H + "one:\r", a), Line(2, H + "other", b), Line(3, H + "two", a)]
    assert sorted(r.message for r in read_records(lines)) == ["one:\ntwo", "other"]


def test_of_many_places_only_those_are_asked_that_may_hold_a_clients_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of thousands of pods costs what its lines cost: a new place does not look at all others."""
    asked = 0
    waits = Assembler.waits.fget
    assert waits is not None

    def counted(self: Assembler) -> bool:
        nonlocal asked
        asked += 1
        return bool(waits(self))

    monkeypatch.setattr(Assembler, "waits", property(counted))
    places = 500
    lines = [Line(i, "INFO 05-09 00:49:33 [loggers.py:1] one", Outer("docker", pod=f"pod-{i}")) for i in range(places)]
    assert len(list(read_records(lines))) == places
    assert asked <= 4 * places
