"""Servers with little to do: their lines tell the load, hardly the speed, and must not make the engine look faster than it is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from logscope.inference.windows import estimate
from logscope.inference.windows.estimate import infer
from logscope.inference.windows.particles import count_misfit

from .statistics_log import SMALL, STEP_TIME, burst, parsed, serve


@pytest.mark.parametrize("told", [0, 1, 2, 5, 20, 60])
def test_what_a_line_may_say_of_a_count_is_equally_likely_in_all(told: int) -> None:
    weights = [math.exp(-count_misfit(seen, told, 0.03) / 2) for seen in range(200)]
    assert sum(weights) == pytest.approx(math.sqrt(2 * math.pi), rel=0.06)


@pytest.mark.parametrize("told", [0, 1, 3, 10])
def test_a_line_shows_on_average_what_is_there(told: int) -> None:
    weights = [math.exp(-count_misfit(seen, told, 0.03) / 2) for seen in range(200)]
    mean = sum(seen * w for seen, w in enumerate(weights)) / sum(weights)
    assert mean == pytest.approx(told, abs=0.16)


@pytest.mark.parametrize("seed", [1, 3])
def test_statistics_alone_do_not_make_a_quiet_server_faster(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits, so that the tokens of a window tell the answers' lengths, and not how long a step takes."""
    monkeypatch.setattr(estimate, "_SECONDS", 2.0)  # so that chance has little part in it
    served = serve(SMALL, burst(150, seed, 1.0), received=False)
    found = infer(*(lambda log: (log.frames, log.facts))(parsed(served.text, tmp_path)))
    assert found is not None
    true = STEP_TIME.base_s + 2 * STEP_TIME.per_decode_s + 800 * STEP_TIME.per_kv_token_s
    assert found.step_time.seconds(0, 2, 800, 2) == pytest.approx(true, rel=0.3)
    median = found.latency["e2e_s"]["p50"]
    assert median == pytest.approx(served.percentile("end", 50), rel=0.3)
