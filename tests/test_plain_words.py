"""Words: a native reader's English everywhere. `data/foreign_words.txt` holds what a review found foreign, a phrase a line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from logscope.commands.cli import _VERBS
from tests.conftest import ROOT
from tests.running import invoke

PHRASES = (Path(__file__).parent / "data" / "foreign_words.txt").read_text(encoding="utf-8").splitlines()


def literals(path: Path) -> str:
    """All texts of a module, an f-string with a mark in the place of its values."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(str(p.value) if isinstance(p, ast.Constant) else "#" for p in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return "\n".join(texts)


def plain(text: str) -> str:
    return re.sub(r"[\s`*]+", " ", text.replace("’", "'")).lower()


@pytest.fixture(scope="module")
def product() -> dict[str, str]:
    """Everything that people read, by file."""
    found = {
        str(p.relative_to(ROOT)): literals(p) for room in ("logscope", "parsers") for p in (ROOT / room).rglob("*.py")
    }
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "samples" / "README.md"]
    pages += [p for p in (ROOT / "logscope" / "output" / "report").glob("*") if p.suffix in (".j2", ".js")]
    found |= {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in pages}
    return {name: plain(text) for name, text in found.items()}


def test_no_foreign_phrase_is_left(product: dict[str, str]) -> None:
    left = [
        f"{name}: {phrase}" for phrase in PHRASES for name, text in product.items() if plain(phrase).strip() in text
    ]
    assert len(PHRASES) > 150
    assert left == []


@pytest.mark.parametrize("verb", ["", *_VERBS])
def test_help_speaks_vllm(verb: str) -> None:
    text = invoke(*filter(None, (verb, "--help"))).output
    for word in ("seat", "foretold", "second witness", "victim", "token budget", "anew"):
        assert word not in text.lower().replace("12-seats", "")


def test_the_everyday_options_stand_first() -> None:
    text = invoke("analyze", "--help").output
    places = [text.index(heading) for heading in ("\nOptions:", "\nCross-checks:", "\nReading:", "\nDisplay:")]
    assert places == sorted(places)
    everyday = text[places[0] : places[1]]
    assert all(f"--{name}" in everyday for name in ("html", "json", "since", "fail-on", "no-replay"))
    assert "More options" not in text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("analyse", "x"), "Did you mean 'analyze'?"),
        (("help",), "Did you mean '--help'?"),
        (("version",), "Did you mean '--version'?"),
        (("whatif", "x", "--set", "max_num_seq=12"), "did you mean max_num_seqs?"),
        (("whatif", "x", "--set", "max_num_seqs"), "value missing; write max_num_seqs=12"),
        (("parse", "x", "--output", "x.parquet"), "write --output x"),
        (("analyze", "x", "--json", "-", "--html", "-"), "cannot both go to standard output"),
        (("analyze", "x", "--since", "25:00"), "'25:00' is not a valid time"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_is_meant(typed: tuple[str, ...], meant: str) -> None:
    done = invoke(*typed)
    assert done.exit_code == 2
    assert meant in " ".join(done.output.split())
