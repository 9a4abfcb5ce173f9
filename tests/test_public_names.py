"""What a user imports stands in `logscope`, costs nothing until it is used, and does what the documents show."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import logscope
from tests.conftest import ROOT


@pytest.mark.parametrize("name", logscope.__all__)
def test_every_name_is_the_one_of_its_home(name: str) -> None:
    found = getattr(logscope, name)
    if name != "__version__":
        home = sys.modules[logscope._HOME_OF[name]]
        assert getattr(home, name) is found


def test_the_type_checker_sees_the_names_that_are_loaded() -> None:
    text = Path(logscope.__file__).read_text(encoding="utf-8")
    listed = re.findall(r"^    from (\S+) import (.+)$", text, re.M)
    assert {home: tuple(names.split(", ")) for home, names in listed} == logscope._HOMES
    assert sorted(logscope._HOME_OF) == sorted({*logscope.__all__} - {"__version__"})


def test_an_unknown_name_is_none() -> None:
    with pytest.raises(AttributeError, match="module 'logscope' has no attribute 'analyse'"):
        _ = logscope.analyse
    assert dir(logscope) == sorted(logscope.__all__)


def test_importing_it_loads_nothing() -> None:
    code = "import sys, logscope; print([m for m in ('polars', 'click', 'parsers', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_documents_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    monkeypatch.chdir(ROOT)
    for example in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(example, "docs/library.md", "exec"), {})


def test_an_answer_shows_itself_in_a_line_and_in_a_notebook(tmp_path: Path) -> None:
    """No frame is dumped, the worst engine stands out, and what a log says is text in the table."""
    log = tmp_path / "server.log"
    log.write_text((ROOT / "samples" / "v1-start-failed.log").read_text(encoding="utf-8"), encoding="utf-8")
    found = logscope.analyze(logscope.read_log(logscope.expand([str(log)]), logscope.Span()), replay=False)
    (engine,) = found.engines
    assert repr(found) == "<Analysis of 1 engine: startup-kv-too-small, first advice --max-model-len 6368>"
    assert repr(engine) == "<engine 0 of server 1, start 1: startup-kv-too-small, first advice --max-model-len 6368>"
    facts = replace(engine.log.facts, version="<script>alert(1)</script>")
    hostile = replace(found, engines=(replace(engine, log=replace(engine.log, facts=facts)),) * 60)
    page = hostile._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("font-weight:bold") == 1
    assert "and 10 more" in page
    assert "The server did not start: its KV cache is too small" in page
