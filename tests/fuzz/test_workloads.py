"""Workload and trace files come from strangers too: damaged ones are refused in a sentence, by place, and never run for ever."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logscope.cli import cli
from logscope.errors import LogscopeError
from tests.conftest import DATA
from tests.fuzz.mutations import HOSTILE, NUMBERS
from tests.fuzz.whole import OBEYED

CONFIG = {
    "num_blocks": 64,
    "block_size": 16,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "max_model_len": 512,
}


def workloads() -> dict[str, bytes]:
    found = {
        "rows.jsonl": b"\n".join(
            json.dumps(
                {"id": f"r{i}", "arrival_s": i * 0.1, "prompt_tokens": 30, "output_tokens": 8}
            ).encode()
            for i in range(12)
        ),
        "mooncake.jsonl": b"\n".join(
            json.dumps(
                {"timestamp": 100 * i, "input_length": 40, "output_length": 8, "hash_ids": [i]}
            ).encode()
            for i in range(12)
        ),
        "azure.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + b"\n".join(b"2023-11-16 18:17:%02d.9799600,40,8" % i for i in range(12)),
    }
    golden = gzip.decompress((DATA / "golden" / "v0-0.2.7.jsonl.gz").read_bytes())
    found["golden.jsonl"] = b"\n".join(golden.split(b"\n")[:40])
    return found


WORKLOADS = workloads()
_NUMBER = re.compile(rb"\d[\d.]*")
DAMAGE = st.tuples(
    st.sampled_from(["number", "insert", "cut", "drop", "repeat"]),
    st.floats(0, 0.999),
    st.sampled_from([*NUMBERS, *HOSTILE[:30]]),
)


def damaged(data: bytes, damages: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, text in damages:
        at = int(where * len(data))
        if kind == "number" and (found := _NUMBER.search(data, at)):
            data = data[: found.start()] + text + data[found.end() :]
        elif kind == "insert":
            data = data[:at] + text + data[at:]
        elif kind == "cut":
            data = data[:at]
        elif kind == "drop":
            data = data[:at] + data[at + 40 :]
        elif kind == "repeat":
            data += data[at : at + 400]
    return data


@given(st.sampled_from(sorted(WORKLOADS)), st.lists(DAMAGE, min_size=1, max_size=3))
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_damaged_workload_is_replayed_or_refused(
    tmp_path: Path, name: str, damages: list[tuple[str, float, bytes]]
) -> None:
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
