"""The JSON Schemas that ship are schemas, and every kind of real answer keeps to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from logscope.commands.cli import _VERBS
from logscope.inference.windows import estimate
from tests.conftest import DATA, SAMPLES
from tests.logs import minutes_under_pressure, stats_v1, v0_warning, v1_start
from tests.running import invoke, log, run

SCHEMAS = files("logscope.output") / "schemas"
WITH_JSON = {"analyze", "whatif", "capacity", "compare", "replay", "formats", "watch", "parse"}
UNDER_PRESSURE = SAMPLES / "v1-under-pressure.log"


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")))


def faults(name: str, document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]


@pytest.mark.parametrize("name", sorted(WITH_JSON))
def test_each_is_a_schema_of_its_draft(name: str) -> None:
    schema = validator(name).schema
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == f"logscope {name}"


def test_every_command_with_json_has_one() -> None:
    shown = {verb for verb in _VERBS if "--json" in invoke(verb, "--help").output}
    assert shown - {"report"} | {"parse"} == WITH_JSON  # report prints the document of analyze


def answers(folder: Path) -> Iterator[tuple[str, list[object]]]:
    short = log(folder, *minutes_under_pressure(), name="short.log")
    crash = [
        *v1_start(),
        *(stats_v1(10 * i, 8, 9, 99.0) for i in range(1, 12)),
        "(EngineCore pid=2) ERROR 05-09 00:51:10 [core.py:5] EngineCore encountered a fatal error.",
    ]
    v0 = log(folder, *(v0_warning(i, 50 * i + 1) for i in range(1, 4)), name="v0.log")
    for path in (
        *sorted(SAMPLES.glob("*.log*")),
        log(folder, *crash, name="crash.log"),
        v0,
        log(folder, *v1_start(), name="start.log"),
    ):
        yield "analyze", [path, "--no-replay", "--json", "-"]
    for path in sorted((DATA / "unsupported").glob("*.log*"))[:6]:
        yield "analyze", [path, "--json", "-"]
    yield "analyze", [short, SAMPLES / "v1-calm.log", "--json", "-"]
    yield "analyze", [SAMPLES / "v0-with-warnings.log.gz", "--json", "-"]
    yield "whatif", [short, "--set", "max_num_seqs=12", "--json", "-"]
    yield "capacity", [short, "--slo", "ttft_p95=2s", "--gpu-hour", "2", "--json", "-"]
    yield "compare", [short, SAMPLES / "v1-under-pressure-12-seats.log.gz", "--json", "-"]
    yield "compare", [UNDER_PRESSURE, SAMPLES / "v1-calm.log", "--no-replay", "--json", "-"]
    yield "formats", ["--json", "-"]


def test_real_answers_keep_to_them(answered: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "_SECONDS", 0.2)
    assert faults("analyze", json.loads((answered[0] / "a.json").read_text())) == []
    wrong = {}
    for verb, arguments in answers(tmp_path):
        done = invoke(verb, *arguments)
        assert done.exit_code in (0, 4), (verb, arguments, done.output[-300:])
        if found := faults(verb, json.loads(done.stdout)):
            wrong[verb, str(arguments[0])] = found[:5]
    assert wrong == {}


@pytest.mark.parametrize("verb", ["watch", "parse"])
def test_every_line_of_a_stream_keeps_to_them(verb: str, tmp_path: Path) -> None:
    arguments = ["-", "--json", "-"] if verb == "watch" else ["-"]
    for path in (UNDER_PRESSURE, SAMPLES / "v1-start-failed.log"):
        done = run(verb, *arguments, stdin=path.read_bytes())
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines
        checked = validator(verb)
        assert [e.message for line in lines for e in checked.iter_errors(line)][:5] == []


def test_a_replay_keeps_to_its_schema(answered: tuple[Path, str]) -> None:
    workload = answered[0] / "w.jsonl"
    done = invoke("replay", workload, "--config", f"{workload}.config.json", "--json", "-")
    assert faults("replay", json.loads(done.stdout)) == []


WRONG = [
    ("verdict", "no-such-verdict"),
    ("schema_version", 2),
    ("findings", None),
    ("verdict_confidence", 1.5),
    ("preemptions", {"low": 0}),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_what_breaks_the_contract_is_found(field: str, value: object) -> None:
    document = json.loads(invoke("analyze", SAMPLES / "v1-calm.log", "--no-replay", "--json", "-").stdout)
    assert faults("analyze", document) == []
    assert faults("analyze", {**document, field: value})
    assert faults("analyze", {k: v for k, v in document.items() if k != field})
