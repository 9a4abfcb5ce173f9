"""Servers with drafts: what their logs tell of acceptance, of recomputation, and what the inference makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from logscope.inference.prediction import replay_workload
from logscope.inference.steps.observed import prompts_begun, read_steps, recomputations
from logscope.inference.windows.estimate import infer
from logscope.server.engines import EngineLog, engine_config
from logscope.server.scenario import scenario_of
from logscope.server.settings import Acceptance, acceptance_of
from tests.inference.drafting_log import Truth, at_level, drafting_requests, engine, write_log
from tests.inference.statistics_log import parsed

SERVERS = {
    "eagle": (
        drafting_requests(150, 3.0, 1, accept=0.7, drafts=3),
        engine(num_spec_tokens=3, spec_method="eagle", num_blocks=210),
    ),
    "ngram": (
        drafting_requests(130, 1.8, 3, accept=0.1, drafts=5, ngram=True),
        engine(num_spec_tokens=5, spec_method="ngram", num_blocks=210),
    ),
}


@pytest.fixture(scope="module", params=sorted(SERVERS))
def served(request: pytest.FixtureRequest) -> tuple[str, str, Truth]:
    """A drafting server under pressure: its name, log and truth."""
    requests, config = SERVERS[request.param]
    return (request.param, *write_log(requests, config))


def _log(served: tuple[str, str, Truth], level: str, folder: Path) -> EngineLog:
    return parsed(at_level(served[1], level), folder)


def test_the_server_was_under_pressure(served: tuple[str, str, Truth]) -> None:
    assert len(served[2].preempted) > 30


def test_acceptance_is_that_of_a_requests_steps(served: tuple[str, str, Truth], tmp_path: Path) -> None:
    """A look-up that often proposes nothing accepts fewer a step than its lines say of each verification."""
    found = acceptance_of(_log(served, "bare", tmp_path).frames["stats"])
    assert found is not None
    if served[0] == "eagle":
        assert found.drafted == pytest.approx(3.0, rel=0.02)
        assert found.accepted == pytest.approx(0.7 + 0.7**2 + 0.7**3, rel=0.1)
    else:
        assert found.drafted == pytest.approx(2.0, rel=0.1)
        assert found.accepted < 0.1
    assert sum(found.by_position) == pytest.approx(found.accepted, rel=0.01)


def test_the_marks_of_recomputation_hold_with_drafts(served: tuple[str, str, Truth], tmp_path: Path) -> None:
    """Every decode line has more tokens than requests; only what exceeds the usual is recomputed."""
    truth = served[2]
    frame = _log(served, "iterations", tmp_path).frames["iteration"]
    config = SERVERS[served[0]][1]
    steps = read_steps(frame, config.num_blocks - 1)
    marks = recomputations(steps, config.num_spec_tokens, config.max_num_batched_tokens)
    assert marks.tokens == pytest.approx(truth.recomputed, rel=0.06)
    assert 0.6 * len(truth.preempted) <= len(marks.ends) <= marks.least <= len(truth.preempted)
    assert len(prompts_begun(steps, config.max_num_batched_tokens, config.num_spec_tokens)) == marks.started


@pytest.mark.parametrize("level", ["iterations", "requests", "statistics"])
def test_the_inference_replays_drafts(served: tuple[str, str, Truth], level: str, tmp_path: Path) -> None:
    log = _log(served, level, tmp_path)
    assert log.facts.unsupported == ()
    answer = infer(log.frames, log.facts)
    assert answer is not None
    truth = served[2]
    count = answer.preemptions
    share = {"iterations": 0.15, "requests": 0.25, "statistics": 0.4}[level]
    assert count.value == pytest.approx(len(truth.preempted), rel=share)
    assert count.low <= len(truth.preempted) <= count.high
    if level == "iterations":
        assert count.recomputed_tokens == pytest.approx(truth.recomputed, rel=0.06)
        assert count.high - count.low <= 0.4 * count.value
    assert answer.latency["e2e_s"]["p50"] == pytest.approx(truth.percentile("finished", 50), rel=0.25)
    assert answer.replay.config.num_spec_tokens > 0


def test_a_calm_server_with_drafts_preempts_nobody(tmp_path: Path) -> None:
    requests = drafting_requests(40, 1.0, 5, accept=0.8, drafts=1)
    text, truth = write_log(requests, engine(num_spec_tokens=1, spec_method="mtp", num_blocks=900))
    assert not truth.preempted
    log = parsed(text, tmp_path)
    answer = infer(log.frames, log.facts)
    assert answer is not None
    assert answer.preemptions.value == 0
    assert answer.preemptions.high <= 1
    assert answer.latency["e2e_s"]["p50"] == pytest.approx(truth.percentile("finished", 50), rel=0.15)


def test_the_number_of_drafts_is_a_what_if(served: tuple[str, str, Truth], tmp_path: Path) -> None:
    log = _log(served, "requests", tmp_path)
    now = engine_config(log.facts)
    assert now is not None
    fewer = scenario_of(log.facts, {"num_spec_tokens": 1}).config
    none = scenario_of(log.facts, {"num_spec_tokens": 0}).config
    assert fewer.num_spec_tokens == 1
    assert none.num_spec_tokens == 0
    assert now.acceptance * now.num_spec_tokens >= fewer.acceptance * 1
    answer = infer(log.frames, log.facts)
    assert answer is not None
    each = [
        max(r.end or 0 for r in replay_workload(answer.samples.first, config).records)
        for config in (replace(c, enable_prefix_caching=False) for c in (now, none))
    ]
    # drafts that are accepted save steps; those that are not cost time
    assert (each[1] > each[0]) == (served[0] == "eagle")


@pytest.mark.parametrize(("drafts", "accepted"), [(1, 0.6), (2, 0.9), (3, 1.0), (4, 1.0 + 0.1 / 3), (0, 0.0)])
def test_positions_tell_what_other_numbers_of_drafts_give(drafts: int, accepted: float) -> None:
    found = Acceptance(1.0, 3.0, 0.01, (0.6, 0.3, 0.1))
    assert found.with_drafts(drafts, 3) == pytest.approx(accepted)


def test_without_positions_each_draft_has_the_same_chance() -> None:
    found = Acceptance(0.5 + 0.25, 2.0, 0.01)
    assert found.with_drafts(1, 2) == pytest.approx(0.5)


def test_lines_that_cannot_be_true_tell_nothing() -> None:
    frame = pl.DataFrame(
        {"order": [1], "accepted_tokens": [90], "drafted_tokens": [30], "mean_acceptance_length": [9.0]}
    )
    assert acceptance_of(frame) is None
    assert acceptance_of(frame.drop("drafted_tokens")) is None
