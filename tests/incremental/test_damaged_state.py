"""A state folder that was damaged is told from a whole one by its checksums: refused in one sentence, never half believed."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from logscope.commands.cli import cli
from logscope.log.state.read_state import StateError
from tests.conftest import ROOT

LOG = ROOT / "samples" / "v1-calm.log"
COMMANDS = (("analyze", "--no-replay", "-q", "--json", "-"), ("parse", "-q"))


def run(command: tuple[str, ...], log: Path, folder: Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [command[0], str(log), *command[1:], "--state", str(folder)])
    if isinstance(result.exception, StateError):
        assert "\n" not in str(result.exception)
        return 2, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return Path(shutil.copy(LOG, tmp_path / "server.log"))


def _truncated(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def _flipped(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _no_text(path: Path, _: random.Random) -> None:
    path.write_bytes(b"\xff\xfe\x00" * 9)


def _deep(path: Path, _: random.Random) -> None:
    path.write_bytes(b"[" * 200_000)


def _empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def _gone(path: Path, _: random.Random) -> None:
    path.unlink()


def _pipe(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _other_types(path: Path, chance: random.Random) -> None:
    if path.suffix != ".json":
        path.write_text("{}")
        return
    document = json.loads(path.read_text())
    name = chance.choice([k for k in document if k != "seal"])
    others = [None, 1, "x", [1], {"a": 1}]
    document[name] = chance.choice([value for value in others if value != document[name]])
    path.write_text(json.dumps(document))


DAMAGES = (_truncated, _flipped, _no_text, _deep, _empty, _gone, _pipe, _folder, _other_types)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__[1:])
def test_any_damage_of_any_file_is_refused(
    command: tuple[str, ...], damage: Callable[[Path, random.Random], None], log: Path, tmp_path: Path
) -> None:
    chance = random.Random(damage.__name__)
    whole = tmp_path / "whole"
    assert run(command, log, whole)[0] == 0
    for name in sorted(p.name for p in (whole / command[0]).iterdir() if p.name != "lock"):
        folder = tmp_path / f"damaged-{name}"
        shutil.copytree(whole, folder)
        damage(folder / command[0] / name, chance)
        status, said = run(command, log, folder)
        if name == "state.json" and damage is _gone:
            assert status == 0  # a folder that is new
            continue
        assert status == 2, (name, said)
        assert name in said
        assert "remove the folder" in said


def test_only_its_owner_reads_it(log: Path, tmp_path: Path) -> None:
    assert run(COMMANDS[0], log, tmp_path / "state")[0] == 0
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "state").rglob("*") if p.is_file()} == {0o600}


def test_a_whole_state_is_read_on(log: Path, tmp_path: Path) -> None:
    first = run(COMMANDS[0], log, tmp_path / "state")
    assert run(COMMANDS[0], log, tmp_path / "state") == first
