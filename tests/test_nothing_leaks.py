"""What clients sent, and from where, reaches no answer; what a terminal obeys reaches no terminal; nothing of a log is executed."""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logscope.errors import fault_of
from logscope.output.events import to_json
from logscope.sanitize import OBEYED, escaped, message_head, redacted, stripped, visible, without_client_text
from tests.conftest import ROOT
from tests.logs import stats_v1, v0_warning, v1_start

SECRET = "canary-7781"
TOKEN = "7781778177"
CLIENT = "203.0.113.77"
BIDI = "\u202e\u2066\u200f\u061c"
HEAD = "(APIServer pid=1) {} 05-09 00:50:00 [serving_chat.py:207] "
LEAKING = [
    HEAD.format("INFO")
    + f"Received request c-1: prompt: 'tell me {SECRET}', params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: [{TOKEN}], lora_request: None.",
    HEAD.format("INFO")
    + f"Generated response c-1: output: 'so {SECRET}', output_token_ids: [{TOKEN}], finish_reason: stop",
    HEAD.format("WARNING") + f"The following fields were ignored: {{'{SECRET}'}}",
    HEAD.format("WARNING") + f"Cannot parse the tool call: {SECRET}",
    HEAD.format("ERROR") + f'Error in preprocessing "{SECRET}"',
    HEAD.format("ERROR") + "Error in preprocessing prompt inputs",
    "Traceback (most recent call last):",
    '  File "serving_chat.py", line 5, in f',
    f"jinja2.exceptions.TemplateError: {SECRET} is no template",
    f"ValueError: Invalid grammar: root ::= {SECRET}",
    f"  Value error, {SECRET} [type=value_error, input_value='{SECRET}', input_type=str]",
    f'INFO:     {CLIENT}:51908 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
    f"INFO:     ('{CLIENT}', 51908) - \"WebSocket /v1/realtime\" [accepted]",
    "(EngineCore pid=2) ERROR 05-09 00:51:00 [core.py:700] EngineCore encountered a fatal error.",
    "(EngineCore pid=2) ERROR 05-09 00:51:00 [core.py:700] Traceback (most recent call last):",
    f"(EngineCore pid=2) ERROR 05-09 00:51:00 [core.py:700] ValueError: token {SECRET} is out of the vocabulary",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
]


@pytest.fixture
def leaking_log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    stats = [stats_v1(10 * i, 4, 0, 5.0) for i in range(1, 8)]
    path.write_text("\n".join([*v1_start(), *stats, *LEAKING, stats_v1(130, 1, 0, 1.0)]) + "\n")
    return path


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "logscope", *map(str, args)], capture_output=True, text=True, timeout=120, check=False
    )


def test_no_answer_holds_what_a_client_sent_or_where_from(leaking_log: Path, tmp_path: Path) -> None:
    report, answer = tmp_path / "a.html", tmp_path / "a.json"
    result = run("analyze", leaking_log, "-v", "--html", report, "--json", answer)
    assert result.returncode == 0, result.stderr
    document = json.loads(answer.read_text())
    assert "engine-crash" in {f["id"] for f in document["findings"]}
    assert len(document["input"]["warning_samples"]) >= 3
    for text in (result.stdout, result.stderr, answer.read_text(), report.read_text()):
        assert SECRET not in text
        assert TOKEN not in text
        assert CLIENT not in text


def test_parse_leaves_out_the_texts_of_requests(leaking_log: Path) -> None:
    for form in ("jsonl", "csv"):
        found = run("parse", leaking_log, "--format", form).stdout
        assert f"tell me {SECRET}" not in found
        assert f"so {SECRET}" not in found


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ValueError: Invalid grammar: root", False),
        ("jinja2.exceptions.TemplateError: hello", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", True),
        ("RuntimeError: NCCL error in: x.cpp:5", True),
        ("OSError: [Errno 28] No space left on device", True),
        ("RuntimeError: CUDAphile wrote this", False),
        ("KeyboardInterrupt", True),
    ],
)
def test_an_exception_of_a_serving_engine_is_shown_only_where_no_client_wrote_it(text: str, kept: bool) -> None:
    assert (without_client_text(text) == text) is kept


def test_why_a_start_failed_is_shown_in_full(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    reason = "OSError: acme/missing-model is not a local folder and is not a valid model identifier"
    path.write_text("\n".join([*v1_start()[:2], "Traceback (most recent call last):", reason, ""]))
    assert "acme/missing-model is not a local folder" in run("analyze", path, "--no-replay").stdout


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("WARNING 05-09 00:50:00 [a.py:1] ignored: {'x'}", "WARNING 05-09 00:50:00 [a.py:1] ignored: (left out)"),
        (
            "WARNING 05-09 00:50:00 [a.py:1] Casting torch.bfloat16 to torch.float16.",
            "WARNING 05-09 00:50:00 [a.py:1] Casting torch.bfloat16 to torch.float16.",
        ),
        ("Some words: a value", "Some words: (left out)"),
        ("'quoted' at once", ": (left out)"),
    ],
)
def test_an_unknown_warning_is_shown_up_to_its_first_value(text: str, shown: str) -> None:
    assert message_head(text) == shown


def test_a_fault_of_our_own_names_its_place_and_not_its_text() -> None:
    from parsers.families.formats import number

    try:
        number(SECRET)
    except ValueError as error:
        said = fault_of(error)
    assert said.startswith("ValueError at parsers.families.formats:")
    assert SECRET not in said


# --- what a terminal obeys


@given(st.text(st.characters(codec=None), max_size=80))
def test_nothing_that_is_obeyed_gets_through(text: str) -> None:
    for shown in (visible(text), stripped(text), redacted(text), message_head(text)):
        assert OBEYED.search(shown) is None
        shown.encode("utf-8")
    document = to_json({"a": text})
    assert OBEYED.search(document) is None
    assert json.loads(document) == {"a": text}
    assert escaped(document) == document


def test_nor_do_marks_in_the_name_of_a_file(tmp_path: Path) -> None:
    """Names come from strangers too: folders and stores are filled by others."""
    evil = f"{BIDI}\x1b]0;owned\x07\u009b2J.log"
    (tmp_path / f"a{evil}").write_text("\n".join([*v1_start(), stats_v1(10, 4, 0, 5.0), ""]))
    (tmp_path / f"b{evil}").write_bytes(b"\x1f\x8b\x08 a damaged one")
    for verb in (["analyze", "--no-replay", "-v"], ["parse", "--all", "-v"]):
        done = run(*verb, tmp_path)
        assert "owned" in done.stderr
        for text in (done.stdout, done.stderr):
            assert OBEYED.search(text.replace("\n", " ")) is None
    alone = run("analyze", tmp_path / f"b{evil}")
    assert "damaged" in alone.stderr
    assert OBEYED.search(alone.stderr.replace("\n", " ")) is None


def test_marks_that_turn_text_around_reach_no_output(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    evil = f"{BIDI}\x1b]0;owned\x07\x9b2J"
    lines = [*v1_start(), v0_warning(5, 1) + evil, stats_v1(10, 4, 0, 5.0)]
    lines += [
        f"WARNING 05-09 00:50:00 [a.py:1] unknown {evil} warning",
        f"(Eng{evil} pid=3) INFO 05-09 00:50:00 [a.py:1] x",
    ]
    path.write_text("\n".join(lines) + "\n")
    report = tmp_path / "a.html"
    outputs = [
        run("analyze", path, "--no-replay", "-v", "--html", report).stdout,
        run("analyze", path, "--no-replay", "--json", "-").stdout,
        run("parse", path, "--all").stdout,
        run("parse", path, "--all", "--format", "csv").stdout,
        report.read_text(),
    ]
    for text in outputs:
        assert text
        assert OBEYED.search(text.replace("\n", "").replace("\r", "")) is None


@pytest.mark.parametrize(
    "cell", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "  =1", "＝1", '=HYPERLINK("http://x")']
)
def test_no_cell_is_a_formula(cell: str) -> None:
    from logscope.output.events import csv_row
    from parsers.reading.events import Event

    out = io.StringIO()
    csv.writer(out).writerow(csv_row(Event(cell, 1, "other", cell, {}, process=cell, host=cell)))
    (row,) = csv.reader(io.StringIO(out.getvalue()))
    for value in row:
        assert not value.lstrip(" \t\r\n").startswith(("=", "+", "-", "@", "＝"))


# --- nothing is executed

FORBIDDEN = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "shelve",
    "marshal",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "xml",
    "telnetlib",
    "code",
}


def sources() -> list[Path]:
    return [p for room in ("parsers", "logscope", "reference_engine") for p in sorted((ROOT / room).rglob("*.py"))]


def test_nothing_evaluates_unpickles_or_calls_a_shell() -> None:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
                assert not names & FORBIDDEN_MODULES, where
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").partition(".")[0] not in FORBIDDEN_MODULES, where
            elif isinstance(node, ast.Call):
                name = getattr(node.func, "id", None)
                assert name not in FORBIDDEN, where
                owner = getattr(getattr(node.func, "value", None), "id", "")
                assert (owner, getattr(node.func, "attr", "")) not in {("os", "system"), ("os", "popen")}, where
                for keyword in node.keywords:
                    on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                    assert not (keyword.arg == "shell" and on), where


def test_the_security_rules_of_the_linter_are_on_for_all_that_is_shipped() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert [rule for rule in lint["ignore"] if rule.startswith("S") and rule[1:].isdigit()] == ["S101"]
    shipped = ("logscope", "parsers", "reference_engine", "*")
    assert not [g for g in lint["per-file-ignores"] if g.partition("/")[0] in shipped]


VENDORED = {
    "LICENSE.plotly.js": "8c45d9eaf50c2f72dd9c7ab9ef440788ba58a3538484b5c51c1f17d5128752e7",
    "plotly-basic-3.7.0.css": "2da83512634a9f6e6293a3bf090bead745182b8fd7b8de386619a9c0ee35f442",
    "plotly-basic-3.7.0.min.js.gz": "f6ad9b2e84c4d46d1cceef112f5ffe9185c6cf994b0ef62d3ec87abbc436acbf",
}


def test_the_vendored_files_are_those_that_were_reviewed() -> None:
    folder = ROOT / "logscope" / "output" / "report" / "vendor"
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
    assert found == VENDORED
