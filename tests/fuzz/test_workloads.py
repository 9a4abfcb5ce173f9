"""Workload and trace files come from strangers too: damaged ones are refused in a sentence, by place, and never run for ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logscope.commands.cli import cli
from logscope.errors import LogscopeError
from tests.fuzz.mutations import HOSTILE, NUMBERS
from tests.fuzz.whole import OBEYED
from tests.fuzz.workload_files import CONFIG, DAMAGES, WORKLOADS, Damage, damaged

DAMAGE = st.tuples(st.sampled_from(DAMAGES), st.floats(0, 0.999), st.sampled_from([*NUMBERS, *HOSTILE[:30]]))


@given(st.sampled_from(sorted(WORKLOADS)), st.lists(DAMAGE, min_size=1, max_size=3))
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_damaged_workload_is_replayed_or_refused(tmp_path: Path, name: str, damages: list[Damage]) -> None:
    path, config, answer = tmp_path / name, tmp_path / "config.json", tmp_path / "answer.json"
    path.write_bytes(damaged(WORKLOADS[name], damages))
    config.write_text(json.dumps(CONFIG))
    answer.unlink(missing_ok=True)
    arguments = ["replay", str(path), "--json", str(answer)]
    arguments += [] if name == "golden.jsonl" else ["--config", str(config)]
    result = CliRunner().invoke(cli, arguments)
    if not isinstance(result.exception, (SystemExit, LogscopeError, type(None))):
        raise result.exception
    assert not OBEYED.search(result.output)
    if result.exit_code == 0:
        json.loads(answer.read_text(), parse_constant=pytest.fail)
