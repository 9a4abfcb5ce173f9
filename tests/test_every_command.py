"""Every command is explained, has help and an example that works, and is completed by shells; what container tools print is read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from logscope.commands.cli import cli
from tests.conftest import ROOT
from tests.logs import stats_v1, v1_start

VERBS = cli.list_commands(click.Context(cli))


def command_of(verb: str) -> click.Command:
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_what_it_does_and_shows_an_example(verb: str) -> None:
    done = CliRunner().invoke(cli, [verb, "--help"])
    assert done.exit_code == 0
    assert re.search(r"^  Examples?:\n    .*logscope " + verb, done.output, re.M)
    assert verb in CliRunner().invoke(cli, ["--help"]).output


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_described(verb: str) -> None:
    context = click.Context(command_of(verb))
    records = [
        p.get_help_record(context) for p in command_of(verb).params if isinstance(p, click.Option) and p.name != "color"
    ]
    assert [r for r in records if r is None or not r[1].strip()] == []


@pytest.mark.parametrize("verb", VERBS)
def test_it_stands_in_the_documents(verb: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"logscope {verb}" in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_of_its_examples_exist(verb: str) -> None:
    command = command_of(verb)
    known = {option for parameter in command.params for option in parameter.opts}
    lines = [x for x in (command.help or "").split("\n") if f"logscope {verb}" in x]
    assert lines
    for line in lines:
        words = shlex.split(line.partition(f"logscope {verb}")[2].split("|")[0].split(">")[0])
        assert [w for w in words if re.match(r"--?[a-z]", w) and w not in known] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_LOGSCOPE_COMPLETE" in done.output
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run([program, "-n"], input=done.output.encode(), capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_words_are_completed() -> None:
    from click.shell_completion import BashComplete

    complete = BashComplete(cli, {}, "logscope", "_LOGSCOPE_COMPLETE")
    assert [c.value for c in complete.get_completions([], "an")] == ["analyze"]
    found = [c.value for c in complete.get_completions(["watch"], "--un")]
    assert found == ["--unit"]


LOG = [*v1_start(), *[stats_v1(10 * i, 6, 4, 97.0) for i in range(1, 5)]]
STAMP = "2026-05-09T00:49:00.{0:09d}"
RECIPES = {
    "docker logs": lambda i, x: x,
    "docker logs -t": lambda i, x: f"{STAMP.format(i)}Z {x}",
    "podman logs --timestamps": lambda i, x: f"{STAMP.format(i)}+02:00 {x}",
    "docker compose logs": lambda i, x: f"vllm-1  | {x}",
    "kubectl logs": lambda i, x: x,
    "kubectl logs --timestamps": lambda i, x: f"{STAMP.format(i)}Z {x}",
    "kubectl logs --prefix --timestamps": lambda i, x: f"[pod/vllm-7d9f6c5b8-x2x7k/vllm] {STAMP.format(i)}Z {x}",
}


@pytest.mark.parametrize("tool", RECIPES)
def test_what_container_tools_print_is_piped_in(tool: str) -> None:
    text = "".join(RECIPES[tool](i, x) + "\n" for i, x in enumerate(LOG))
    analysed = CliRunner().invoke(cli, ["analyze", "-", "--no-replay", "--json", "-"], input=text)
    assert analysed.exit_code == 0
    document = json.loads(analysed.stdout)
    assert (document["pressure"], document["engines"][0]["config"]["max_num_seqs"]) == ("saturated", 8)
    watched = subprocess.run(
        [sys.executable, "-m", "logscope", "watch", "-"],
        input=text.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"KV pressure started" in watched.stdout


def test_the_man_page_is_made(tmp_path: Path) -> None:
    out = tmp_path / "logscope.1"
    subprocess.run([sys.executable, ROOT / "docs" / "make_man.py", out], check=True)
    page = out.read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"logscope {verb}" in page
