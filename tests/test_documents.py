"""The documents keep their promises: links lead somewhere, commands exist, what the README prints is what is printed."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from logscope.commands.cli import cli
from logscope.wording import LEDGER_LABELS
from tests.conftest import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "samples" / "README.md",
]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)")
COMMAND = re.compile(r"^\$ (?:.*\| )?logscope (.*?)(?: \| .*)?$", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def commands() -> list[tuple[str, str]]:
    return [(page.name, found) for page in PAGES for found in COMMAND.findall(page.read_text(encoding="utf-8"))]


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 10


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_and_options_exist(page: str, line: str) -> None:
    words = shlex.split(line.split("  #")[0].split(";")[0].split(">")[0])
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    assert command is not None, words[0]
    known = {option for parameter in command.params for option in parameter.opts}
    assert [w for w in words[1:] if re.match(r"--?[a-z]", w) and w.split("=")[0] not in known] == []


def test_the_readme_shows_the_verdict_that_is_printed(answered: tuple[Path, str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^\$ logscope analyze samples/v1-under-pressure\.log\n(.*)$", readme, re.M)
    assert " ".join(answered[1].split()).startswith(shown)  # however wide this terminal is


def test_every_label_of_the_ledger_is_explained() -> None:
    explained = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert [label for label in LEDGER_LABELS if f"`{label}`" not in explained] == []


def test_a_readers_first_minute_is_short() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before = readme[: readme.index("## What it prints")]
    assert "make demo" in before
    assert len(before.split()) < 260


def test_the_man_page_knows_every_command_and_option() -> None:
    namespace = runpy.run_path(str(ROOT / "docs" / "make_man.py"))
    page = namespace["man_page"]().replace("\\-", "-")
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert f".SS logscope {name} " in page
        flags = [o for p in command.params for o in p.opts if o.startswith("--")]
        assert [flag for flag in flags if flag not in page] == []
    assert not re.search(r"^[.'](?![A-Z]{1,2}\b)", page, re.M)
