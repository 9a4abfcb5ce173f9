"""The fast replay equals the plain one: decisions, times, ledgers, gaps and errors, also when it is run in pieces."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference_engine.cost.step_time import StepTime
from reference_engine.model import ConfigError, EngineError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Step
from reference_engine.replay.fast_v1 import FastReplay
from reference_engine.replay.plain import PlainReplay
from reference_engine.replay.results import make_replay
from reference_engine.v1.batch import fast_path_covers
from reference_engine.v1.fast_scheduler import V1FastScheduler
from tests.engine.workloads import LINEAR, Roofline, cases

DECISIONS = (
    "preempted", "new", "resumed", "hits", "running", "waiting", "num_computed_tokens", "free_blocks", "blocked",
)  # fmt: skip
STORY = ("arrival", "cached", "end", "first_token", "ledger", "preemptions", "recomputed", "status", "output")
MODELS = st.sampled_from([LINEAR, Roofline()])


def _decision(step: Step) -> dict[str, Any]:
    return {"scheduled": list(step.scheduled.items()), **{key: getattr(step, key) for key in DECISIONS}}


def _stories(replay: FastReplay | PlainReplay) -> dict[Any, dict[str, Any]]:
    return {r.request.id: {key: getattr(r, key) for key in STORY} for r in replay.all_records()}


def _run(replay: FastReplay | PlainReplay, requests: list[Request]) -> str | None:
    try:
        replay.run(requests)
    except EngineError as error:
        return str(error)
    return None


def _plain(config: EngineConfig, model: StepTime) -> tuple[PlainReplay, list[Step]]:
    """A plain replay and the list that will hold its steps."""
    replay, steps = PlainReplay(config, model), []
    schedule = replay.scheduler.schedule

    def noted(now: float) -> Step:
        steps.append(schedule(now))
        return steps[-1]

    replay.scheduler.schedule = noted  # type: ignore[method-assign]
    return replay, steps


def _assert_equal(plain: PlainReplay, fast: FastReplay) -> None:
    assert plain.log is not None
    assert fast.log is not None
    assert fast.log.rows == plain.log.rows
    assert fast.gaps == plain.gaps
    assert fast.observe() == plain.observe()
    assert [r.request.id for r in fast.finished] == [r.request.id for r in plain.finished]


@settings(max_examples=200, deadline=None)
@given(case=cases() | cases(several=True), model=MODELS)
def test_each_decision_is_the_plain_one(case: Any, model: StepTime) -> None:
    config, requests, sharing = case
    assume(fast_path_covers(config))
    plain, steps = _plain(config, model)
    written: list[Step] = []
    fast = FastReplay(config, model, sharing, keep_steps=True, on_step=written.append)
    error = _run(plain, requests)
    assert _run(fast, requests) == error
    assert len(written) == len(steps)
    for ours, wanted in zip(written, steps, strict=True):
        assert _decision(ours) == _decision(wanted)
    _assert_equal(plain, fast)


@settings(max_examples=200, deadline=None)
@given(case=cases() | cases(several=True), model=MODELS)
def test_times_ledgers_and_gaps_are_the_plain_ones(case: Any, model: StepTime) -> None:
    config, requests, sharing = case
    assume(fast_path_covers(config))
    plain, fast = PlainReplay(config, model), FastReplay(config, model, sharing, keep_steps=True)
    error = _run(plain, requests)
    assert _run(fast, requests) == error
    _assert_equal(plain, fast)
    if error is None:
        assert _stories(fast) == _stories(plain)


@settings(max_examples=60, deadline=None)
@given(case=cases() | cases(several=True), steps=st.lists(st.integers(0, 40), min_size=14, max_size=14))
def test_arrivals_in_steps(case: Any, steps: list[int]) -> None:
    config, requests, sharing = case
    assume(fast_path_covers(config))
    by_step = [
        Request(r.id, r.prompt_tokens, r.output_tokens, arrival_step=s, arrival_time=r.arrival_time, prompt=r.prompt)
        for r, s in zip(requests, steps, strict=False)
    ]  # fmt: skip
    plain, fast = PlainReplay(config, LINEAR), FastReplay(config, LINEAR, sharing, keep_steps=True)
    assert _run(fast, by_step) == _run(plain, by_step)
    _assert_equal(plain, fast)


@settings(max_examples=80, deadline=None)
@given(case=cases() | cases(several=True), marks=st.lists(st.floats(0, 1), min_size=1, max_size=5), plain=st.booleans())
def test_a_replay_in_pieces_is_the_whole_replay(case: Any, marks: list[float], plain: bool) -> None:
    config, requests, sharing = case
    whole = make_replay(config, LINEAR, sharing, keep_steps=True, plain=plain)
    assume(_run(whole, requests) is None)
    pieces = make_replay(config, LINEAR, sharing, keep_steps=True, plain=plain)
    announced = 0
    for until in [mark * whole.now / 1e9 for mark in sorted(marks)] + [math.inf]:
        while announced < len(requests) and requests[announced].arrival_s < until:
            pieces.add(requests[announced])
            announced += 1
        pieces.advance(until)
    assert pieces.log.rows == whole.log.rows
    assert _stories(pieces) == _stories(whole)
    assert pieces.gaps == whole.gaps
    assert pieces.observe() == whole.observe()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("sharing", [False, True])
def test_steps_between_events_are_not_decided_one_by_one(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, sharing: bool
) -> None:
    decided = 0
    decide = V1FastScheduler.decide

    def counted(scheduler: V1FastScheduler) -> Any:
        nonlocal decided
        decided += 1
        return decide(scheduler)

    monkeypatch.setattr(V1FastScheduler, "decide", counted)
    config = EngineConfig(num_blocks=1001, async_scheduling=asynchronous)
    replay = FastReplay(config, LINEAR, sharing)
    replay.run([Request(number, 50, 300) for number in range(4)])
    assert replay.observe().generated_tokens == 1200
    assert replay.steps >= 300
    assert decided <= 8


def test_observations_are_those_of_the_last_completed_step() -> None:
    config = EngineConfig(num_blocks=101, max_num_seqs=4, async_scheduling=False)
    replay = FastReplay(config, LINEAR)
    replay.add(Request(0, 40, 10))
    replay.advance(0.005)  # the first step is under way
    assert replay.observe().running == 0
    replay.advance(0.0141)  # 10 ms + 40 * 0.1 ms + 40 * 1 us
    seen = replay.observe()
    assert (seen.running, seen.generated_tokens, seen.prompt_tokens, seen.steps) == (1, 1, 40, 1)
    assert seen.kv_usage == pytest.approx(3 / 100)
    replay.advance(math.inf)
    seen = replay.observe()
    assert (seen.running, seen.generated_tokens, seen.finished, seen.kv_usage) == (0, 10, 1, 0.0)


@pytest.mark.parametrize(
    ("version", "policy", "asynchronous", "fast"),
    [
        ("0.33.0", "priority", True, True),
        ("0.8.5", "priority", False, True),  # ignored there
        ("0.10.2", "priority", False, False),
        ("0.10.2", "fcfs", True, False),
        ("0.10.2", "fcfs", False, True),
    ],
)
def test_versions_outside_the_fast_path_are_replayed_plainly(
    version: str, policy: str, asynchronous: bool, fast: bool
) -> None:
    config = EngineConfig(num_blocks=20, version=version, policy=policy, async_scheduling=asynchronous)
    assert isinstance(make_replay(config, LINEAR), FastReplay if fast else PlainReplay)


def test_a_prompt_with_content_needs_sharing() -> None:
    replay = FastReplay(EngineConfig(num_blocks=20), LINEAR)
    with pytest.raises(ConfigError, match="sharing"):
        replay.add(Request(0, 4, 1, prompt=(("a", 4),)))
