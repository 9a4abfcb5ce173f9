"""Each step of each golden trace equals what the real scheduler decided."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from reference_engine.model import EngineError, NoProgressError, SchedulerFailedError, WorkloadError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.replay.plain import GUARD_STEPS, PlainReplay, drive, make_scheduler
from reference_engine.traces.golden import config_of, read_golden, step_record
from tests.engine.workloads import LINEAR

FOLDER = Path(os.environ.get("LOGSCOPE_GOLDEN") or Path(__file__).parent.parent / "data" / "golden")
COMPARED = ("add", "n", "pre", "new", "res", "hit", "run", "wait", "nct", "free", "gb", "tok", "fin", "free_end", "spec", "acc", "got")  # fmt: skip
MAPS = ("n", "spec", "acc", "got")
UPDATE_ONLY = ("tok", "fin", "free_end")


def _traces() -> list[Any]:
    cases = []
    for path in sorted(FOLDER.rglob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            lines = file.readlines()
        starts = [i for i, line in enumerate(lines) if line.startswith('{"schema"')]
        for start, end in itertools.pairwise([*starts, len(lines)]):
            header = json.loads(lines[start].partition(',"config"')[0] + "}")
            name = f"{header['engine']}-{header['version']}-{header['name']}"
            cases.append(pytest.param(lines[start:end], id=name))
    return cases


def _normal(record: dict[str, Any]) -> dict[str, Any]:
    """A step line with everything that it may leave out; the order of maps counts, but not that of `hit`."""
    full = {key: record.get(key) or [] for key in COMPARED}
    full.update({key: list((record.get(key) or {}).items()) for key in MAPS})
    full["hit"] = sorted((record.get("hit") or {}).items())
    return full


def read_header(line: str) -> tuple[EngineConfig, tuple[Request, ...]]:
    workload = read_golden("trace", io.StringIO(line))
    assert workload.setup is not None
    return workload.setup.config, workload.requests


def _decided(header: str) -> tuple[dict[int, dict[str, Any]], EngineError | None]:
    config, requests = read_header(header)
    steps = {}
    try:
        for turn in drive(make_scheduler(config), requests):
            record = json.loads(json.dumps(step_record(turn)))
            steps[turn.number] = record
    except EngineError as error:
        return steps, error
    return steps, None


@pytest.mark.parametrize("lines", _traces())
def test_decisions_equal_the_real_scheduler(lines: list[str]) -> None:
    records = [json.loads(line) for line in lines[1:]]
    want = [record for record in records if "s" in record]
    state = records[-1]["totals"]["state"]
    if state == "error":
        want = want[:-1]  # cut short where the real scheduler raised
    got, error = _decided(lines[0])

    last: dict[str, Any] = {}
    for line in want:
        if "n" not in line:
            ours = {key: got[line["s"]].get(key) or [] for key in UPDATE_ONLY}
            assert ours == {key: line.get(key) or [] for key in UPDATE_ONLY}, line["s"]
            continue
        last.update({key: line[key] for key in ("run", "wait") if key in line})
        assert _normal(got[line["s"]]) == _normal({**line, **last}), line["s"]
    if state == "finished":
        assert error is None
        assert set(got) == {line["s"] for line in want}
    else:
        assert isinstance(error, SchedulerFailedError if state == "error" else EngineError)


@pytest.mark.parametrize("lines", _traces()[::4])
def test_the_replay_counts_what_the_real_scheduler_counted(lines: list[str]) -> None:
    summary = json.loads(lines[-1])
    config, requests = read_header(lines[0])
    priority = config.policy == "priority" and config.version in ("0.9.2", "0.10.2")
    if priority or "summary" not in summary or summary["totals"]["state"] != "finished":
        return  # with that priority a victim keeps tokens by mistake
    replay = PlainReplay(config, LINEAR)
    replay.run(requests)
    unverified = config.num_spec_tokens if config.async_scheduling else 0
    for told in summary["summary"]:
        record = replay.records[told["id"]]
        counted = (record.preemptions, record.cached, record.output)
        assert counted == (told["preempt"], told["cached_first"] or 0, told["out"])
        # the real one also counts drafts in flight that are not verified yet
        assert 0 <= told["recomputed"] - record.recomputed <= unverified * record.preemptions
        assert sum(record.ledger) == (record.end or 0) - record.arrival


def test_all_versions_and_end_states_are_in_the_sample() -> None:
    ends = {json.loads(case.values[0][-1])["totals"]["state"] for case in _traces()}
    assert ends >= {"finished", "stalled", "error"}
    assert len({case.id.rsplit("-", 1)[0] for case in _traces()}) >= 8


HEADER = {
    "engine": "vllm-v1",
    "version": "0.32.0",
    "config": {"num_blocks": 5, "block_size": 16, "max_num_batched_tokens": 64, "max_model_len": 256},
    "requests": [
        {"id": 7, "max_tokens": 4, "prompt": [["u7", 90]], "arrival_step": 0},
        {"id": 8, "max_tokens": 4, "prompt": [["u8", 9]], "arrival_step": 3},
    ],
}


@pytest.mark.parametrize("version", ["0.8.5", "0.18.0", "0.32.0"])
@pytest.mark.parametrize("caching", [True, False])
def test_a_run_that_cannot_progress_is_ended_and_names_the_request(version: str, caching: bool) -> None:
    header = {**HEADER, "version": version}
    config, requests = read_header(json.dumps(header))
    config = config_of({**HEADER["config"], "enable_prefix_caching": caching}, version=version)
    turns = itertools.islice(drive(make_scheduler(config), requests), GUARD_STEPS + 20)
    with pytest.raises(NoProgressError, match="request 7 cannot progress"):
        list(turns)


@pytest.mark.parametrize(
    "line",
    ['{"config": 3, "requests": []}', '{"config": {}, "requests": []}',
     '{"config": {"num_blocks": 9}, "requests": [{"id": 1}]}',
     '{"config": {"num_blocks": 9}, "requests": [{"id": 1, "max_tokens": 1, "prompt": [["a"]]}]}',
     '{"config": {"num_blocks": "x"}, "requests": [{"id": 1, "max_tokens": 1, "prompt": [["a", 1]]}]}',
     '{"config": {"num_blocks": 9, "acceptance": "all"}, "requests": [{"id": 1, "max_tokens": 1, "prompt": [["a", 1]]}]}',
     '{"config": {"num_blocks": 9, "num_speculative_tokens": 2}, "requests": [{"id": 1, "max_tokens": 1}]}',
     '{"version": 3, "config": {"num_blocks": 9}, "requests": [{"id": 1, "max_tokens": 1, "prompt": [["a", 1]]}]}'],
)  # fmt: skip
def test_a_header_that_cannot_be_read_is_one_sentence(line: str) -> None:
    with pytest.raises(WorkloadError, match=r"\Atrace: [^\n]+\Z"):
        read_header(line)
