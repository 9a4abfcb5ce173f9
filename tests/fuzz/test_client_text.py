"""What a client can write: the table beside the families is complete, stands in the docs, and each part of it is attacked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from parsers.families import CLIENT_TEXT, FORMATS
from parsers.reading.by_line import read_events
from parsers.reading.events import Coverage
from parsers.sources.source import expand
from tests.fuzz.client_text import CLIENT_TARGETS, FORGED, written
from tests.logs import stats_v1

DOCS = Path(__file__).parents[2] / "docs" / "threat-model.md"


def families_of(path: Path) -> list[str]:
    coverage = Coverage()
    return [event.family for event in read_events(expand([str(path)]), coverage, year=2026)]


def test_the_table_stands_in_the_threat_model() -> None:
    rows = [
        f"| {row.family} | {', '.join(row.variants)} | {', '.join(f'`{part}`' for part in row.parts)} | {row.printed} |"
        for row in CLIENT_TEXT
    ]
    assert "\n".join(rows) in DOCS.read_text(encoding="utf-8")


def test_the_table_names_formats_and_all_texts_of_users() -> None:
    known = {(format_.family, format_.variant) for format_ in FORMATS}
    named = {(row.family, variant): set() for row in CLIENT_TEXT for variant in row.variants}
    for row in CLIENT_TEXT:
        for variant in row.variants:
            named[row.family, variant] |= set(row.parts)
    assert set(named) <= known
    for format_ in FORMATS:
        if "request_id" in format_.template and format_.family != "kv_sizing":
            assert "request_id" in named[format_.family, format_.variant] | {"request_ids"}
        shown = {part for part in format_.prompt_fields if "{" + part in format_.template}
        assert shown <= named.get((format_.family, format_.variant), set())


def test_each_kind_of_part_is_attacked() -> None:
    attacked = {(row.family, part) for row, part, _ in written()}
    assert {
        ("request", part) for part in ("request_id", "prompt", "params", "lora_request", "output", "error")
    } <= attacked
    assert {("preemption", "request_id"), ("http", "path"), ("shutdown", "request_id")} <= attacked


def test_hostile_text_gives_the_events_of_the_honest_record(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(40):
        folder = tmp_path / str(number)
        folder.mkdir()
        CLIENT_TARGETS["client"].check(CLIENT_TARGETS["client"].make(chance), folder)


OPEN = "INFO 05-09 00:49:33 [logger.py:39] Received request cmpl-1: prompt: 'hello"
CLOSE = "bye', params: SamplingParams(n=1, max_tokens=5), prompt_token_ids: None, lora_request: None."


@pytest.mark.parametrize("lines", [0, 2_500, 60_000])
@pytest.mark.parametrize("dress", ["{}", "vllm-1  | {}", "2026-05-09T00:49:33.3Z stderr F {}"])
def test_an_open_prompt_holds_whatever_its_size(tmp_path: Path, lines: int, dress: str) -> None:
    path = tmp_path / "server.log"
    inside = [dress.replace("{}", forged) for forged in FORGED] + ["x" * 80] * lines
    path.write_text("\n".join([stats_v1(1, 1, 0, 1.0), OPEN, *inside, CLOSE, stats_v1(40, 1, 0, 1.0), ""]))
    assert families_of(path) == ["stats", "request", "stats"]


def test_a_prompt_that_is_never_closed_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join([OPEN, *(stats_v1(at, 1, 0, 1.0) for at in range(3_000)), ""]))
    assert families_of(path).count("stats") == 3_000
