"""From a log file to the HTML file, through the command: also for a log that wants to be a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from logscope.commands.cli import cli
from tests.conftest import SAMPLES
from tests.test_report_html import Outline

EVIL = "</script></pre><img src=x onerror=alert(1)><svg onload=alert(2)>\x1b]0;owned\x07\x1b[31m"


def report_of(log: Path, folder: Path, *options: str) -> tuple[str, dict[str, object]]:
    html, answer = folder / "report.html", folder / "answer.json"
    done = CliRunner().invoke(
        cli, ["analyze", str(log), "--html", str(html), "--json", str(answer), "--no-replay", *options]
    )
    assert done.exit_code == 0, done.output
    return html.read_text(encoding="utf-8"), json.loads(answer.read_text(encoding="utf-8"))


def without_blanks(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", sorted(p.name for p in SAMPLES.iterdir() if p.name != "README.md"))
def test_every_sample_has_a_report_that_agrees_with_its_json(name: str, tmp_path: Path) -> None:
    text, answer = report_of(SAMPLES / name, tmp_path)
    outline = Outline(text)
    given = answer["input"]
    assert isinstance(given, dict)
    assert f"{given['lines']:,} lines read" in outline.text
    findings = answer["findings"]
    assert isinstance(findings, list)
    page = without_blanks(outline.text)  # an option stands as code in the middle of a sentence
    said = [f["title"].removeprefix("Nothing was replayed: t") for f in findings]
    assert [title for title in said if without_blanks(title) not in page] == []
    assert outline.open == []


@pytest.mark.parametrize("name", sorted(p.name for p in SAMPLES.iterdir() if p.name != "README.md"))
def test_a_finding_covers_a_span_within_the_log(name: str, tmp_path: Path) -> None:
    _, answer = report_of(SAMPLES / name, tmp_path)
    assert_spans(answer)


def assert_spans(answer: dict[str, Any]) -> None:
    """Each finding begins before it ends, both within its engine's log, and covers its evidence."""
    engines = {(e["server"], e["run"], e["engine_index"]): e for e in answer["engines"]}
    for finding in answer["findings"]:
        engine = engines[finding["server"], finding["run"], finding["engine_index"]]
        if finding["start"] is None:
            assert finding["id"] in (
                "coverage",
                "unsupported-feature",
                "config-risk",
                "rejected-requests",
                "failed-requests",
            )
            continue
        assert engine["start"] <= finding["start"] <= (finding["end"] or engine["end"]) <= engine["end"], finding["id"]
        times = {line["time"] for line in finding["evidence"] if line["time"]}
        if finding["id"] not in ("coverage", "config-risk"):
            assert finding["start"] < finding["end"] or len(times) <= 1, f"{finding['id']} is no instant"


def test_a_hostile_log_makes_a_harmless_page(tmp_path: Path) -> None:
    lines = (SAMPLES / "v1-calm.log").read_text(encoding="utf-8").splitlines()
    head = "(APIServer pid=7) {} 11-30 01:03:30 [x.py:1] "
    lines[80:80] = [
        head.format("WARNING") + EVIL,
        head.format("ERROR") + "EngineCore encountered a fatal error. " + EVIL,
        head.format("INFO")
        + f"Received request {EVIL}: params: SamplingParams(n=1, max_tokens=16), lora_request: None.",
        f"ValueError: To serve at least one request {EVIL}",
        EVIL,
    ]
    log = tmp_path / "a<img src=x onerror=alert(3)>.log"
    log.write_text("\n".join(lines), encoding="utf-8")
    text, _ = report_of(log, tmp_path)
    outline = Outline(text)
    assert {tag for tag, _ in outline.tags} & {"img", "iframe", "object", "embed", "link"} == set()
    assert [a for _, a in outline.tags if any(k.startswith("on") for k in a)] == []
    assert not {"\x1b", "\x07"} & set(text)
    assert "onerror=alert(3)" in outline.text


def test_prompts_and_clients_are_not_in_the_report(tmp_path: Path) -> None:
    text, _ = report_of(SAMPLES / "v0-with-warnings.log.gz", tmp_path)
    assert "prompt_token_ids: [" not in text
    assert "127.0.0.1:" not in text
