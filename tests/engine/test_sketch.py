"""The sketch makes the decisions of the plain replay, and its copies are independent."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.cost.step_time import StepCost
from reference_engine.model.config import EngineConfig
from reference_engine.model.kv_group import KvGroup
from reference_engine.model.request import Request
from reference_engine.replay.plain import PlainReplay
from reference_engine.sketch.engine import SketchReplay
from reference_engine.sketch.hybrid import make_sketch
from reference_engine.sketch.request import Lengths, SketchRules

COST = StepCost(0.011, 0.0004, 0.0007, 2e-6)

CONFIGS = [
    EngineConfig(40, 16, 8, 256, 512, version="0.32.0", enable_prefix_caching=False),
    EngineConfig(40, 16, 8, 256, 512, version="0.9.0", enable_prefix_caching=False),
    EngineConfig(40, 16, 8, 256, 512, version="0.26.0", enable_prefix_caching=False, watermark=0.1),
    EngineConfig(60, 8, 4, 64, 512, version="0.32.0", enable_prefix_caching=False),
    EngineConfig(60, 16, 6, 512, 512, version="0.32.0", enable_prefix_caching=False, long_prefill_token_threshold=64),
    EngineConfig(
        40,
        16,
        8,
        512,
        512,
        engine="vllm-v0",
        version="0.8.5",
        enable_chunked_prefill=False,
        enable_prefix_caching=False,
    ),
    *(
        EngineConfig(blocks, 16, 8, 64, 512, version="0.32.0", enable_prefix_caching=False, kv_groups=groups)
        for blocks, groups in (
            (60, (KvGroup(), KvGroup("sliding", window=48), KvGroup("sliding", window=48))),
            (60, (KvGroup(), KvGroup("chunked_local", window=64))),
            (40, (KvGroup(), KvGroup("mamba", 512), KvGroup("mamba", 512))),
            (60, (KvGroup(), KvGroup("mamba", mode="align"), KvGroup("mamba", mode="align"))),
        )
    ),
]

REQUESTS = st.lists(st.tuples(st.integers(1, 250), st.integers(1, 120), st.floats(0, 2.0)), min_size=1, max_size=14)


def workload(rows: list[tuple[int, int, float]]) -> list[Request]:
    at = 0.0
    found = []
    for i, (prompt, output, gap) in enumerate(rows):
        at += gap
        found.append(Request(i, prompt, output, round(at, 6)))
    return found


def sketched(config: EngineConfig, requests: list[Request]) -> SketchReplay:
    engine = make_sketch(SketchRules.of(config), COST)
    for request in requests:
        engine.add(int(request.id), Lengths(request.prompt_tokens, request.output_tokens), request.arrival_s)
    return engine


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.engine} {c.version} {c.num_blocks}")
@settings(max_examples=40, deadline=None)
@given(rows=REQUESTS)
def test_times_and_preemptions_equal_the_plain_replay(config: EngineConfig, rows: list[tuple[int, int, float]]) -> None:
    requests = workload(rows)
    plain = PlainReplay(config, COST, keep_steps=False)
    plain.run(requests)
    sketch = sketched(config, requests)
    sketch.advance(math.inf)

    ends = {r.id: r.end for r in sketch.done}
    assert sketch.preemptions == plain.preemptions
    assert len(ends) == len(plain.finished)
    for record in plain.finished:
        assert ends[record.request.id] == pytest.approx(record.end / 1e9, abs=1e-4)
    assert sketch.num_free_blocks == sketch.rules.blocks
    assert sketch.generated == sum(r.output_tokens for r in requests)


@settings(max_examples=40, deadline=None)
@given(rows=REQUESTS, cuts=st.lists(st.floats(0.1, 20.0), min_size=1, max_size=5))
def test_a_run_in_pieces_and_forks_is_the_same_run(rows: list[tuple[int, int, float]], cuts: list[float]) -> None:
    requests = workload(rows)
    whole = sketched(CONFIGS[0], requests)
    whole.advance(math.inf)

    engine = sketched(CONFIGS[0], requests)
    done = []
    for cut in sorted(cuts):
        fork = engine.fork()
        stray = engine.fork()
        stray.cost = COST.scaled(3.0)
        stray.advance(cut)  # what a copy does is no matter of the others
        fork.advance(cut)
        done += fork.done
        engine = fork
    last = engine.fork()
    last.advance(math.inf)
    done += last.done

    assert {r.id: r.end for r in done} == pytest.approx({r.id: r.end for r in whole.done})
    assert last.preemptions == whole.preemptions


def drafting(acceptance: float, method: str = "eagle") -> EngineConfig:
    return replace(CONFIGS[0], num_spec_tokens=3, spec_method=method, acceptance=acceptance)


@settings(max_examples=40, deadline=None)
@given(rows=REQUESTS, method=st.sampled_from(["ngram", "eagle"]))
def test_drafts_that_are_all_rejected_cost_time_and_blocks(rows: list[tuple[int, int, float]], method: str) -> None:
    config = replace(drafting(0.0, method), num_blocks=400)
    requests = workload(rows)
    plain = PlainReplay(config, COST, keep_steps=False)
    plain.run(requests)
    sketch = sketched(config, requests)
    sketch.advance(math.inf)
    ends = {r.id: r.end for r in sketch.done}
    for record in plain.finished:
        assert ends[record.request.id] == pytest.approx(record.end / 1e9, abs=1e-4)
    assert sketch.num_free_blocks == sketch.rules.blocks


@settings(max_examples=60, deadline=None)
@given(rows=REQUESTS, acceptance=st.sampled_from([0.0, 1 / 3, 0.5, 1.0]))
def test_with_drafts_ends_and_preemptions_are_about_those_of_the_plain_replay(
    rows: list[tuple[int, int, float]], acceptance: float
) -> None:
    config = drafting(acceptance)
    requests = workload(rows)
    plain = PlainReplay(config, COST, keep_steps=False)
    plain.run(requests)
    sketch = sketched(config, requests)
    sketch.advance(math.inf)
    assert sketch.generated == sum(r.output_tokens for r in requests)
    assert sketch.num_free_blocks == sketch.rules.blocks
    # The sketch spreads the mean of the accepted drafts evenly and holds a prompt's places for drafts from its first chunk.
    # Where two requests fill the pool, that decides whether one of them comes back too early and is preempted again.
    assert abs(sketch.preemptions - plain.preemptions) <= 4 + plain.preemptions // 2
    last = max(record.end for record in plain.finished) / 1e9
    assert max(r.end for r in sketch.done) == pytest.approx(last, rel=0.25, abs=0.15)


def test_the_shown_state_is_that_of_the_last_finished_step() -> None:
    config = CONFIGS[0]
    requests = workload([(100, 40, 0.0), (60, 80, 0.3), (200, 30, 0.1), (90, 70, 0.2)])
    plain = PlainReplay(config, COST, keep_steps=False)
    sketch = sketched(config, requests)
    for request in requests:
        plain.add(request)
    for moment in (0.05, 0.4, 0.7, 1.3, 2.0, 3.5):
        plain.advance(moment)
        sketch.advance(moment)
        seen = plain.observe()
        assert (sketch.shown_running, sketch.shown_waiting) == (seen.running, seen.waiting)
        assert sketch.usage == pytest.approx(seen.kv_usage)
        assert sketch.generated == seen.generated_tokens
        assert sketch.credited == seen.prompt_tokens


def test_a_shared_head_is_computed_and_held_once() -> None:
    config = EngineConfig(100, 16, 8, 1024, 2048, version="0.32.0")
    engine = SketchReplay(SketchRules.of(config), COST)
    for i in range(4):
        engine.add(i, Lengths(320 + 16, 50, shared=320, group=0), 0.5 * i)
    engine.advance(1.6)
    assert engine.credited == (320 + 16) + 3 * 16
    assert engine.rules.blocks - engine.shown_free < 20 + 4 * 5
    engine.advance(math.inf)
    assert engine.num_free_blocks == engine.rules.blocks


def test_an_abort_frees_what_the_request_held() -> None:
    engine = SketchReplay(SketchRules.of(CONFIGS[0]), COST)
    engine.add(0, Lengths(100, 300), 0.0, abort=1.0)
    engine.add(1, Lengths(50, 20), 0.2)
    engine.advance(math.inf)
    assert [r.id for r in engine.done] == [1]
    assert engine.num_free_blocks == engine.rules.blocks


def test_a_request_that_can_never_fit_does_not_stop_the_clock() -> None:
    config = EngineConfig(10, 16, 8, 2048, 2048, version="0.32.0", enable_prefix_caching=False)
    engine = SketchReplay(SketchRules.of(config), COST)
    engine.add(0, Lengths(1000, 5), 0.0)
    engine.add(1, Lengths(50, 5), 0.1)
    engine.advance(math.inf)
    assert [r.id for r in engine.done] == [1]


def test_a_stall_is_one_long_step_at_the_token_asked_for() -> None:
    engine = SketchReplay(SketchRules.of(CONFIGS[0]), COST)
    engine.add(0, Lengths(50, 100), 0.0)
    engine.stall = (10, 9.0)
    engine.advance(8.9)
    assert engine.generated == 10
    engine.advance(math.inf)
    assert engine.now > 9.0
    assert engine.stalls == [(pytest.approx(10 * 0.012, abs=0.05), 9.0)]
