"""What a user imports stands in `logscope`, costs nothing until it is used, and does what the documents show."""

from __future__ import annotations

import re
import subprocess
import sys
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
