"""Records behind what no form knows: launchers' prefixes, other loggers' layouts, no header at all."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from parsers.reading.by_line import read_events
from parsers.reading.events import Coverage, Event
from parsers.sources.source import expand

STATS = "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 70{n}.0 tokens/s, Running: 34 reqs, Waiting: 18 reqs, GPU KV cache usage: 99.2%, Prefix cache hit rate: 0.0%"
HEADED = "INFO 01-02 10:00:{n}0 [loggers.py:271] " + STATS
PREFIXES = {
    "Go's clock": "2026/01/02 10:00:{n}0 ",
    "a pod": "llm-0 ",
    "a pod with a hash": "vllm-7d9f8c6b5-x2{n}kz: ",
    "a viewer": "INFO 2026-01-02T10:00:{n}0.0965Z [resource.labels.containerName: vllm] ",
    "a rank": "[rank0] [node-3] ",
}
LAYOUTS = {
    "asctime, name, level": "2026-01-02 10:00:{n}0,123 - vllm.v1.metrics.loggers - INFO - ",
    "loguru": "2026-01-02 10:00:{n}0.123 | INFO     | vllm.v1.metrics.loggers:log:481 - ",
    "glog": "I0102 10:00:{n}0.123456  1234 loggers.py:271] ",
    "brackets": "[2026-01-02 10:00:{n}0,123][vllm.v1.metrics.loggers][INFO] - ",
    "a letter": "[2026-01-02 10:00:{n}0][loggers][I] ",
    "a year in vLLM's header": "INFO 2026-01-02 10:00:{n}0 [loggers.py:271] ",
    "no clock": "INFO:vllm.v1.metrics.loggers:",
    "no header": "",
}


def read(tmp_path: Path, lines: list[str]) -> tuple[list[Event], Coverage]:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    coverage = Coverage()
    return list(read_events(expand([str(path)]), coverage, year=2026)), coverage


@pytest.mark.parametrize("name", PREFIXES)
def test_an_unknown_prefix_is_taken_off(tmp_path: Path, name: str) -> None:
    events, coverage = read(tmp_path, [(PREFIXES[name] + HEADED).replace("{n}", str(n)) for n in range(6)])
    assert [event.fields["generation_throughput"] for event in events] == [700, 701, 702, 703, 704, 705]
    assert not coverage.partly


@pytest.mark.parametrize("name", LAYOUTS)
def test_another_loggers_layout_is_read(tmp_path: Path, name: str) -> None:
    events, coverage = read(tmp_path, [(LAYOUTS[name] + STATS).replace("{n}", str(n)) for n in range(6)])
    times = [event.time for event in events]
    assert [(b - a).total_seconds() for a, b in pairwise(times) if a and b] == [10.0] * 5
    assert bool(coverage.skipped_sources) is (name in ("no clock", "no header"))


@pytest.mark.parametrize("name", ["asctime, name, level", "loguru", "brackets"])
def test_vllms_own_logger_is_known_by_its_name_beside_one_known_message(tmp_path: Path, name: str) -> None:
    head = LAYOUTS[name].replace("{n}", "1")
    said = [
        "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        "WorkerProc shutting down.",
        "Bye.",
    ]
    events, coverage = read(tmp_path, [head + text for text in said])
    assert [event.variant for event in events] == ["coredied"]
    assert (coverage.partly, coverage.foreign_lines) == (False, 0)


def test_records_behind_prefixes_of_no_one_shape_are_counted(tmp_path: Path) -> None:
    shapes = ["a b ", "c=d e ", "#7 f ", "<g> h ", "(i) j ", "~ k/l "]
    events, coverage = read(tmp_path, [shape + HEADED.replace("{n}", "1") for shape in shapes])
    assert (len(events), coverage.partly) == (0, True)
    assert "6 lines hold a record behind a prefix" in coverage.skipped_sources[0]["problem"]


def test_a_refused_command_line(tmp_path: Path) -> None:
    events, _ = read(
        tmp_path, ["usage: vllm serve [model_tag] [options]", "vllm serve: error: unrecognized arguments: --x"]
    )
    assert [(event.variant, event.fields["error"]) for event in events] == [
        ("usage_error", "unrecognized arguments: --x")
    ]
