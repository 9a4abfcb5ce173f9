"""What is read in bulk is what is read line by line: any log, any damage, any border between blocks."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from parsers.families import FORMATS
from parsers.reading.by_line import Keep, read_events
from parsers.reading.events import Coverage, Event
from parsers.reading.frames import FrameBuilder
from parsers.reading.in_bulk import read_frames
from parsers.reading.in_bulk import reader as reading
from parsers.sources.source import Source, expand
from tests.logs import access, stats_v0, stats_v1, v0_warning, v1_start

pytestmark = pytest.mark.usefixtures("short_stretches")

SAMPLES = Path(__file__).parents[2] / "samples"
KEEP = Keep(exceptions=True)

PARAMS = "SamplingParams(n=1, temperature=0.7, seed=None, stop=[], ignore_eos=True, max_tokens=129, min_tokens=7), lora_request: None."
API = "(APIServer pid=19868) "


def record(
    message: str, at: str = "05-09 00:49:33", *, prefix: str = API, level: str = "INFO", origin: str = "loggers.py:259"
) -> str:
    return f"{prefix}{level} {at} [{origin}] {message}"


def request_lines(name: str, at: str = "05-09 00:49:33") -> list[str]:
    return [
        record(f"Received request {name}: params: {PARAMS}", at, origin="request_logger.py:65"),
        record(f"Added request {name}.", at, origin="async_llm.py:420"),
        access("/v1/completions", "POST"),
    ]


STEP = "Iteration(412): 3 context requests, 2048 context tokens, 61 generation requests, 61 generation tokens, iteration elapsed time: 34.12 ms"
ORDINARY = [
    *request_lines("cmpl-a-0"),
    *request_lines("cmpl-b-0", "05-09 00:49:35"),
    record("Aborted request cmpl-c."),
    record("Finished request chatcmpl-d..", prefix="", origin="async_llm_engine.py:211"),
    stats_v1(60, 3, 1, 45.5),
    stats_v1(70, 3, 1, 45.5, extra="Deferred: 1 reqs, "),
    stats_v1(80, 3, 1, 45.5, extra="Preemptions: 2, ", engine="Engine 001"),
    stats_v0(90, 3, 1, 45.5),
    record(STEP, prefix="(EngineCore_DP1 pid=7) "),
    record(f"Engine 003: {STEP}, GPU KV cache usage: 97.4%"),
    record("x" * (8192 - len(record("")))),
    record("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", level="ERROR"),
    record("AssertionError", level="ERROR", origin="core.py:517"),
    "[rank0]:[E509 00:59:21.538263561 ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600059 milliseconds before timing out.",
    record(f"{STEP} (dummy), encoder inputs: 2", prefix="(EngineCore pid=7) "),
    record("Something else", level="WARNING"),
    record("Something new", level="DEBUG", prefix="", origin="v1/core/sched/scheduler.py:88"),
    access(),
    API + access(),
    access().removeprefix("INFO:     "),  # a log configuration of one's own prints no level
    API + access().removeprefix("INFO:     "),
]
UNUSUAL = [
    record(STEP.replace(": 3 context", ": 3' context")),  # begins as a known message, and is none
    "",
    "   ",
    "a foreign line",
    "Waiting: 3 reqs, GPU KV cache usage: 4.0%",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    "torch.cuda.OutOfMemoryError: CUDA out of memory.",
    "RuntimeError: nobody knows",
    "ValueError: No available mem\nory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    "(EngineCore pid=3) ValueError: No available memory for",
    record('    raise ValueError("No available memory for the cache blocks. "', level="ERROR"),
    "[2026-05-09 00:49:12] INFO scheduler.py:9: #running-req: 3, #queue-req: 9",
    "(pid=3) word",
    "(EngineCore pid=3) a foreign line",
    API + "INFO 05-09 00:49:33 [loggers.py:259] ",
    record("Error in:"),
    record('  File "/a/b.py", line 3'),
    record("Traceback (most recent call last):", level="ERROR"),
    record(
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (100).",
        level="ERROR",
    ),
    record("Memory profiling takes 1.05 seconds"),
    record("the current vLLM instance can use total_gpu_memory (79.33GiB) x gpu_memory_utilization (0.90) = 71.39GiB"),
    record(f"Received request cmpl-p: prompt: 'one\\n two \\x04 {API}INFO 05-09', params: {PARAMS}"),
    record("Received request cmpl-q: prompt: 'open"),
    record(f"', params: {PARAMS}"),
    f"still the prompt', params: {PARAMS}",
    record(f"Received request cmpl-s: params: {PARAMS}".replace("stop=[]", "stop=['max_tokens=3', '\\n']")),
    record(f"Received request cmpl-t: params: {PARAMS}".replace("None.", "None, prompt_adapter_request: None.")),
    record(f"Received request cmpl-u: params: {PARAMS}", prefix="") + record("Added request cmpl-v."),
    record("Added request \u00e9\u2028x."),
    record("Added request cmpl-w. [repeated 3x across cluster]"),
    record("Added request cmpl-\x1b[0mx."),
    record("\x1b[32mAdded request cmpl-y.\x1b[0m"),
    record("[32mcoloured[0m text"),
    record("Running", prefix="(RayWorkerWrapper pid=11) (pid=12, ip=192.0.2.4) "),
    record("Added request cmpl-ray.", prefix="(ServeReplica:app pid=5) (EngineCore pid=6) "),
    record("Added request cmpl-node.", prefix="[node-a] "),
    record("cut at a ter"),
    record("Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 1 reqs,"),
    record("Added request cmpl-feb.", "02-30 00:00:00"),
    record("Added request cmpl-leap.", "02-29 00:00:00"),
    record("Added request cmpl-dec.", "12-31 23:59:60"),
    record("Added request cmpl-jan.", "01-01 00:00:00"),
    record("Added request cmpl-13.", "13-01 00:00:00"),
    record("Added request cmpl-cr.") + "\r",
    "50%|#####     | 1/2 [00:01<00:01,  1.00s/it]\r" + record("Added request cmpl-bar."),
    access() + record("Added request cmpl-glued."),
    'INFO:     fe80::1:51908 - "GET /health HTTP/1.1" 200 OK',
    'INFO:     192.0.2.7:51908 - "GET /a[0mb HTTP/1.1" 503 Service Unavailable',
    "INFO:     Started server process [4217]",
    "INFO:     Shutting down",
    "\ufffd\x00\x0c",
    v0_warning(100, 51),
    v0_warning(110, 1),
    *v1_start(),
    *(f"INFO 05-09 00:49:33 [some.py:1] {format_.example}" for format_ in FORMATS if "\n" not in format_.example),
]


TRACEBACK = [
    record("Error in chat completion stream generator.", level="ERROR", origin="serving_chat.py:1105"),
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3/dist-packages/vllm/v1/engine/async_llm.py", line 402, in generate',
    "    out = q.get_nowait() or await q.get()",
    "asyncio.exceptions.CancelledError",
]


class Blocks(Source):
    """Text in blocks of the sizes given, the last of them again and again."""

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        super().__init__("server.log", stream=io.BytesIO())
        self.data, self.sizes = data, sizes

    def blocks(self) -> Any:
        at = 0
        sizes = iter(self.sizes)
        size = 1
        while at < len(self.data):
            size = next(sizes, size)
            yield self.data[at : at + size]
            at += size


def assert_same(plain: list[Source], bulk: list[Source], *, year: int | None = 2026) -> dict[str, pl.DataFrame]:
    counts, expected = Coverage(), FrameBuilder()
    texts, found_texts = [], []

    def note(builder: FrameBuilder, into: list[Any], event: Event) -> None:
        if event.family == "exception":
            into.append((event.line, event.text))
            return
        builder.add(event)
        if event.family == "stats":
            into.append((event.line, event.text))

    for event in read_events(plain, counts, year=year, keep=KEEP):
        note(expected, texts, event)
    found_counts, found = Coverage(), FrameBuilder()
    read_frames(
        bulk,
        found_counts,
        found,
        year=year,
        keep=KEEP,
        take=lambda event: note(found, found_texts, event),
        evidence=lambda source, line, text: found_texts.append((line, text)),
    )
    frames, want = found.frames(), expected.frames()
    assert set(frames) == set(want)
    for family, frame in want.items():
        assert_frame_equal(frames[family], frame)
    assert found_counts == counts
    assert sorted(found_texts) == sorted(texts)
    return frames


@pytest.mark.parametrize("name", sorted(p.name for p in SAMPLES.glob("*.log*")))
@pytest.mark.parametrize("size", [1 << 23, 20_000])
def test_real_logs(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 1)
    data = (SAMPLES / name).read_bytes()
    data = gzip.decompress(data) if name.endswith(".gz") else data
    assert assert_same([Blocks(data, [1 << 23])], [Blocks(data, [size])])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.sampled_from(ORDINARY),
            st.sampled_from(ORDINARY),
            st.sampled_from([*UNUSUAL, "\n".join(TRACEBACK), *TRACEBACK]),
        ),
        max_size=60,
    ),
    st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    st.sampled_from(["\n", "\n", "\n", "\r\n", "\r\r\n"]),
    st.booleans(),
)
def test_any_lines_in_any_order(lines: list[str], sizes: list[int], end: str, ends: bool) -> None:
    data = end.join([*lines, ""] if ends else lines).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", 1)
        assert_same([Blocks(data, sizes)], [Blocks(data, sizes)])


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from([*ORDINARY, *UNUSUAL]), min_size=1, max_size=20),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4), st.integers(0, 40)), max_size=4),
    st.lists(st.integers(1, 3000), min_size=1, max_size=4),
)
def test_any_damage(lines: list[str], wounds: list[tuple[float, bytes, int]], sizes: list[int]) -> None:
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    for where, what, gone in wounds:
        at = int(where * len(data))
        data = data[:at] + what + data[at + gone :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", 1)
        assert_same([Blocks(data, sizes)], [Blocks(data, sizes)])


def test_what_is_common_is_read_in_bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = v1_start() + [line for i in range(2000) for line in request_lines(f"cmpl-{i}")]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    one_by_one: list[int] = []
    feed = reading.SourceInBulk._feed
    monkeypatch.setattr(
        reading.SourceInBulk, "_feed", lambda self, line: (one_by_one.append(line.number), feed(self, line))[1]
    )
    frames = assert_same(expand([str(path)]), expand([str(path)]))
    assert len(frames["request"]) == 4000
    assert len(one_by_one) < 20


def test_what_a_start_lists_in_one_second_is_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = [record(f"Route: /v1/{i}, Methods: GET", origin="launcher.py:46") for i in range(500)]
    data = "\n".join([*v1_start(), *routes, *request_lines("cmpl-a")]).encode()
    one_by_one: list[str] = []
    feed = reading.SourceInBulk._feed
    monkeypatch.setattr(
        reading.SourceInBulk, "_feed", lambda self, line: (one_by_one.append(line.text), feed(self, line))[1]
    )
    assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])
    assert sum("Route: " in text for text in one_by_one) < 3


@pytest.mark.usefixtures("short_stretches")
def test_a_record_that_a_client_wrote_behind_an_unknown_one_is_told_again() -> None:
    told = [record("Cannot compile the tool schema for x", origin="serving_chat.py:9")]
    told += [record("Route: /v1/x", origin="serving_chat.py:9"), record("Added request x.", origin="serving_chat.py:9")]
    for lines in (told, told[::-1], [told[0], told[2], told[1]], [told[1], told[2]] * 9):
        data = "\n".join([*v1_start(), *request_lines("a"), *lines, *request_lines("b", "05-09 00:49:34")]).encode()
        assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])


def test_a_message_that_no_family_knows_is_known_again_by_its_words_whatever_its_stamp(short_stretches: None) -> None:
    stamps = [
        "05-09 00:49:33",
        "05-09 00:49:34",
        "12-31 23:59:60",
        "13-01 00:00:00",
        "05-09 24:00:00",
        "05-09 00:49:35",
    ]
    lines = [f"(APIServer pid=7) ERROR {stamp} [serving_chat.py:1105] Error in the stream." for stamp in stamps * 3]
    data = "\n".join([*v1_start(), *lines, *lines[::-1]]).encode()
    assert_same([Blocks(data, [900])], [Blocks(data, [900])])


def test_the_year_is_carried_through_new_year_and_back(tmp_path: Path) -> None:
    stamps = ["12-30 23:59:58", "12-31 23:59:59", "01-01 00:00:01", "12-31 23:59:59", "01-02 00:00:00"]
    lines = [line for stamp in stamps for i in range(20) for line in request_lines(f"c{i}", stamp)]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    frames = assert_same(expand([str(path)]), expand([str(path)]), year=2025)
    assert sorted(frames["request"]["time"].dt.year().unique()) == [2025, 2026]
