"""`logscope formats` lists what the parsers know."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from logscope.commands.parse import formats
from parsers.families import FORMATS


def test_json_holds_every_format() -> None:
    result = CliRunner().invoke(formats, ["--json", "-"])
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert len(listed) == len(FORMATS)
    assert all(list(one) == ["family", "variant", "engine", "first", "last", "level", "example"] for one in listed)
    assert {one["engine"] for one in listed} == {"V0", "V1", "any"}


def test_one_family_to_a_file(tmp_path: Path) -> None:
    target = tmp_path / "formats.json"
    assert CliRunner().invoke(formats, ["--family", "preemption", "--json", str(target)]).exit_code == 0
    assert {one["family"] for one in json.loads(target.read_text(encoding="utf-8"))} == {"preemption"}


def test_the_list_names_versions() -> None:
    result = CliRunner().invoke(formats, ["--family", "preemption"])
    assert result.stdout.startswith("preemption\n")
    assert "v0_preempt_warning" in result.stdout
    assert "0.4.3 to 0.10.2" in result.stdout


def test_an_unknown_family_is_wrong_usage() -> None:
    assert CliRunner().invoke(formats, ["--family", "weather"]).exit_code == 2
