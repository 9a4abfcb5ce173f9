"""Logs with one line a step tell what the scheduler did: counted, timed and labelled as it really was."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from logscope.inference.result import InferredReplay, StepAccount
from logscope.inference.steps.reconstruct import reconstruct
from logscope.server.engines import EngineLog, engine_logs
from parsers.reading.by_line import read_events
from parsers.reading.events import Coverage
from parsers.reading.frames import frames_of
from parsers.sources.source import expand
from reference_engine.model.config import EngineConfig
from tests.inference.iteration_log import START, Printing, Truth, config, workload, write_log

REAL = Path(__file__).resolve().parents[1] / "data" / "iterations" / "v1-under-pressure.log.gz"
Read = Callable[[str], EngineLog]


def engine_log(path: Path) -> EngineLog:
    frames = frames_of(read_events(list(expand([str(path)])), Coverage()))
    (log,) = engine_logs(frames)
    return log


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reading(text: str) -> EngineLog:
        path = tmp_path / "server.log"
        path.write_text(text, encoding="utf-8")
        return engine_log(path)

    return reading


def account(log: EngineLog) -> InferredReplay:
    found = reconstruct(log.frames, log.facts)
    assert found is not None
    return found


def steps_of(found: InferredReplay) -> StepAccount:
    assert found.steps is not None
    return found.steps


def percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 99)}


CASES: dict[str, tuple[EngineConfig, Printing]] = {
    "one batch at a time": (config(), Printing()),
    "asynchronous": (config(async_scheduling=True), Printing()),
    "second model runner": (config(), Printing(second_runner=True)),
    "second model runner, asynchronous": (config(async_scheduling=True), Printing(second_runner=True)),
    "lines of the engine's process, without KV usage": (config(version="0.16.0"), Printing(engine_process=True)),
    "prefix caching": (config(enable_prefix_caching=True), Printing()),
    "watermark": (config(watermark=0.05), Printing()),
    "few seats": (config(max_num_seqs=4), Printing()),
    "a pool whose usage figure does not tell single blocks": (
        config(num_blocks=2500, block_size=1, async_scheduling=True),
        Printing(second_runner=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_preemption_is_found_where_it_happened(case: str, read: Read) -> None:
    engine, printing = CASES[case]
    text, truth = write_log(workload(100, 3.5, seed=1), engine, printing)
    found = account(read(text))
    low, value, high = found.preemptions.bounds
    # the asynchronous scheduler may evict a request whose last token is on its way: that leaves no trace in the steps
    unseen = 0.06 if engine.async_scheduling else 0.0
    assert value == pytest.approx(len(truth.preempted), rel=unseen)
    assert low <= len(truth.preempted) <= high
    assert high - low <= max(2, 0.3 * value)
    when = [t for t, _ in truth.preempted]
    ours = [(t - START.replace(tzinfo=None)).total_seconds() for t in steps_of(found).evictions]
    near = [min(abs(t - moment) for t in when) < 0.2 for moment in ours]
    assert sum(near) >= 0.9 * len(near)
    assert sum(s.value for s in found.preemptions.timeline) == value
    assert found.preemptions.recomputed_tokens == pytest.approx(truth.recomputed, rel=0.1, abs=50)
    assert steps_of(found).explained > 0.8
    assert steps_of(found).trusted


@pytest.mark.parametrize("case", CASES)
def test_latencies_are_those_of_the_run(case: str, read: Read) -> None:
    engine, printing = CASES[case]
    text, truth = write_log(workload(100, 3.5, seed=2), engine, printing)
    summary = account(read(text)).replay.summary()
    assert summary.finished == 100
    for ours, theirs in (
        (summary.ttft_s, truth.latencies("first_token")),
        (summary.e2e_s, truth.latencies("finished")),
    ):
        for name, value in percentiles(theirs).items():
            assert ours[name] == pytest.approx(value, rel=0.06, abs=0.06), name


def test_the_ledger_adds_up_to_each_request_s_life(read: Read) -> None:
    text, truth = write_log(workload(100, 3.5, seed=3), config())
    found = account(read(text))
    for record in found.replay.records:
        assert record.end is not None
        assert sum(record.ledger) == record.end - record.arrival
        assert min(record.ledger) >= 0
        name = str(record.request.id).removeprefix("cmpl-")
        assert record.output == truth.outputs[name]
    evicted = [r for r in found.replay.records if r.preemptions]
    assert evicted
    table = found.replay.requests()
    assert table["preempted_wait"].sum() > 0
    assert table["recompute"].sum() > 0
    assert table["queued_for_kv"].sum() > 10 * table["queued_for_seat"].sum()


def test_prompt_lengths_are_solved_from_what_steps_computed_and_freed(read: Read) -> None:
    text, truth = write_log(workload(100, 3.5, seed=4), config())
    found = account(read(text))
    off = [abs(r.prompt_tokens - truth.prompts[str(r.id).removeprefix("cmpl-")]) for r in found.samples.first.requests]
    assert np.median(off) == 0
    assert np.percentile(off, 90) < 60


def test_the_step_time_is_measured(read: Read) -> None:
    text, _ = write_log(workload(60, 3.0, seed=5), config(num_blocks=2000))
    found = account(read(text))
    assert found.step_time.per_prefill_token_s == pytest.approx(0.0003, rel=0.1)
    assert found.step_time.base_s == pytest.approx(0.0095, rel=0.15)  # the time between steps included
    assert steps_of(found).step_time_error < 0.03


def test_where_elapsed_is_only_a_wait_the_stamps_tell_the_step_times(read: Read) -> None:
    """Asynchronous scheduling on a GPU: a step's result was launched earlier, and hardly any wait is left."""
    text, _ = write_log(workload(100, 3.5, seed=1), config(async_scheduling=True))
    waits = re.sub(r"elapsed time: [\d.]+ ms", "elapsed time: 0.05 ms", text)
    honest, found = account(read(text)), account(read(waits))
    assert (steps_of(honest).by_stamps, steps_of(found).by_stamps) == (False, True)
    assert found.preemptions.bounds == honest.preemptions.bounds
    for name in ("ttft_s", "e2e_s"):
        assert found.latency[name]["p99"] == pytest.approx(honest.latency[name]["p99"], rel=0.05, abs=0.1)
    assert found.latency["itl_s"]["p50"] == pytest.approx(honest.latency["itl_s"]["p50"], rel=0.25)


def test_a_calm_server_has_none(read: Read) -> None:
    text, _ = write_log(workload(40, 1.0, seed=6), config(num_blocks=2000))
    found = account(read(text))
    assert found.preemptions.bounds == (0, 0, 0)
    assert found.preemptions.timeline == ()
    assert found.preemptions.recomputed_tokens == 0


BOUNDS: dict[str, tuple[EngineConfig, Printing]] = {
    "limits four times too long": (config(), Printing(ignore_eos=False, slack=4)),
    "the same, asynchronous": (config(async_scheduling=True), Printing(ignore_eos=False, slack=4)),
    "access lines only": (config(), Printing(requests=False)),
    "access lines, no KV usage": (config(version="0.16.0"), Printing(requests=False, engine_process=True)),
}


@pytest.mark.parametrize("case", BOUNDS)
def test_where_nothing_tells_when_a_request_ends_blocks_do(case: str, read: Read) -> None:
    engine, printing = BOUNDS[case]
    text, truth = write_log(workload(100, 3.5, seed=1), engine, printing)
    found = account(read(text))
    low, value, high = found.preemptions.bounds
    assert value == pytest.approx(len(truth.preempted), rel=0.25, abs=2)
    assert low - 1 <= len(truth.preempted) <= high + 1
    ours = found.replay.summary().ttft_s
    for name, seconds in percentiles(truth.latencies("first_token")).items():
        assert ours[name] == pytest.approx(seconds, rel=0.15, abs=0.1), name


def test_without_any_arrival_the_waiting_requests_place_them(read: Read) -> None:
    text, truth = write_log(workload(150, 6.0, seed=7), config(), Printing(requests=False))
    text = re.sub(r"(?m)^INFO: .*POST.*\n", "", text)
    found = account(read(text))
    assert not steps_of(found).known_arrivals
    assert found.preemptions.value == pytest.approx(len(truth.preempted), rel=0.3, abs=2)
    middle = found.replay.summary().ttft_s["p50"]
    assert middle == pytest.approx(percentiles(truth.latencies("first_token"))["p50"], rel=0.35)


def test_by_priority_anyone_may_be_the_victim(read: Read) -> None:
    requests = [dataclasses.replace(r, priority=int(i % 3 > 0)) for i, r in enumerate(workload(80, 3.0, seed=13))]
    text, truth = write_log(requests, config(policy="priority"))
    text = text.replace("'max_num_seqs'", "'scheduling_policy': 'priority', 'max_num_seqs'", 1)
    log = read(text)
    assert log.facts.config["policy"] == "priority"
    found = account(log)
    low, value, high = found.preemptions.bounds
    assert value == pytest.approx(len(truth.preempted), rel=0.15, abs=1)
    assert low <= len(truth.preempted) <= high
    middle = percentiles(truth.latencies("finished"))["p50"]
    assert found.replay.summary().e2e_s["p50"] == pytest.approx(middle, rel=0.2)


def iteration_lines(text: str) -> list[tuple[int, str]]:
    return [(i, line) for i, line in enumerate(text.splitlines(True)) if "Iteration(" in line]


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_missing_lines_are_passed_over(share: float, read: Read) -> None:
    text, truth = write_log(workload(120, 3.5, seed=8), config())
    steps = iteration_lines(text)
    first = int(share * len(steps))
    gone = {i for i, _ in steps[first : first + 25]}
    kept = [line for i, line in enumerate(text.splitlines(True)) if i not in gone]
    found = account(read("".join(kept)))
    assert found.preemptions.value == pytest.approx(len(truth.preempted), rel=0.3, abs=4)
    assert found.replay.summary().finished >= 100


def test_a_log_may_begin_in_the_middle(read: Read) -> None:
    text, truth = write_log(workload(150, 4.0, seed=9), config())
    head, lines = text.splitlines(True)[:2], text.splitlines(True)
    later = lines[len(lines) // 2 :]
    found = account(read("".join([*head, *later])))
    since = len(truth.preempted) - sum(t < 0.5 * max(truth.finished.values()) for t, _ in truth.preempted)
    assert found.preemptions.value == pytest.approx(since, rel=0.5, abs=6)
    assert found.replay.summary().finished > 20


def test_aborted_requests_leave(read: Read) -> None:
    text, _ = write_log(workload(40, 2.0, seed=10), config(num_blocks=2000))
    line = "(APIServer pid=7) INFO 11-29 10:00:07 [async_llm.py:700] Aborted request(s) cmpl-r0039,cmpl-unknown.\n"
    found = account(read(text + line))
    assert found.preemptions.bounds == (0, 0, 0)


@pytest.mark.parametrize("damage", ["half the lines are lost", "no order", "false numbers"])
def test_a_damaged_log_still_adds_up(damage: str, read: Read) -> None:
    text, _ = write_log(workload(30, 4.0, seed=14), config())
    chance = random.Random(1)
    lines = text.splitlines(True)
    head, body = lines[:2], lines[2:]
    if damage == "half the lines are lost":
        body = [line for line in body if chance.random() < 0.5]
    elif damage == "no order":
        chance.shuffle(body)
    else:
        body = [re.sub(r"Iteration\(\d+", lambda _: f"Iteration({chance.randint(0, 10**9)}", x) for x in body]
        body = [re.sub(r"usage: [\d.]+%", "usage: 250.0%", x) for x in body]
    for record in account(read("".join([*head, *body]))).replay.records:
        assert record.end is None or sum(record.ledger) == record.end - record.arrival
        assert min(record.ledger) >= 0


@pytest.mark.parametrize("keep", [0, 1, 2, 3])
def test_hardly_any_lines_are_no_reason_to_fail(keep: int, read: Read) -> None:
    text, _ = write_log(workload(5, 2.0, seed=11), config())
    gone = {i for i, _ in iteration_lines(text)[keep:]}
    log = read("".join(line for i, line in enumerate(text.splitlines(True)) if i not in gone))
    found = reconstruct(log.frames, log.facts)
    assert (found is None) == (keep < 2)


def test_without_the_size_of_the_cache_there_is_no_account(read: Read) -> None:
    text, _ = write_log(workload(5, 2.0, seed=11), config())
    log = read(text)
    unknown = dict(log.facts.config, num_blocks=None)
    assert reconstruct(log.frames, dataclasses.replace(log.facts, config=unknown)) is None


@pytest.fixture(scope="module")
def real() -> InferredReplay:
    return account(engine_log(REAL))


def test_a_real_server_s_preemptions(real: InferredReplay) -> None:
    """vLLM 0.32.0; its own counter ended at 63, and 13,758 tokens were computed again."""
    assert real.preemptions.value == 63
    assert real.preemptions.low <= 63 <= real.preemptions.high
    assert real.preemptions.recomputed_tokens == pytest.approx(13758, rel=0.05)
    # the counter was read each second, so that windows differ at their edges
    ours = {f"{w.start:%H:%M:%S}": w.value for w in real.preemptions.timeline}
    counter = {"23:57:40": 5, "23:57:50": 19, "23:58:00": 8, "23:58:10": 16, "23:58:20": 11, "23:58:30": 4}
    assert ours.keys() <= counter.keys()
    assert all(abs(ours.get(w, 0) - counter[w]) <= 4 for w in counter)


def test_a_real_server_s_latencies(real: InferredReplay) -> None:
    """As its client measured them, in seconds."""
    summary = real.replay.summary()
    assert summary.finished == 216
    assert summary.ttft_s["p50"] == pytest.approx(0.274, abs=0.05)
    assert summary.ttft_s["p99"] == pytest.approx(15.15, rel=0.01)
    assert summary.e2e_s["p50"] == pytest.approx(5.86, rel=0.01)
    assert summary.e2e_s["p99"] == pytest.approx(33.41, rel=0.01)
    queued = sum(v for k, v in summary.ledger_s.items() if k.startswith("queued"))
    assert queued == pytest.approx(703, rel=0.03)
    assert all(value is not None and value > 0.95 for value in real.fit.values())


def test_a_real_server_s_lines_agree_with_themselves(real: InferredReplay) -> None:
    assert steps_of(real).coverage == pytest.approx(1.0, abs=0.01)
    assert steps_of(real).explained > 0.9
    finished = [r for r in real.replay.records if r.status == "finished"]
    assert all(r.output == r.request.output_tokens for r in finished)
    assert sum(r.output for r in finished) == 42589


def test_truth_is_what_it_says() -> None:
    """The generator's own account: every request finishes after its first token, which comes after its arrival."""
    _, truth = write_log(workload(30, 3.0, seed=12), config())
    assert isinstance(truth, Truth)
    for name, arrival in truth.arrival.items():
        assert arrival <= truth.admitted[name] < truth.first_token[name] <= truth.finished[name]
