"""How long outputs are, narrow, as in chats, or short and long mixed, is learnt from the lines where `max_tokens` tells nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from logscope.inference.windows.lengths import LengthModel, length_model
from logscope.inference.windows.observations import observe
from logscope.inference.windows.shapes import with_shapes
from logscope.inference.windows.step_time_fit import first_guess
from reference_engine.sketch.request import SketchRules

from .statistics_log import SMALL, burst, parsed, serve


def learnt(outputs: list[int], folder: Path, *, received: bool = True, rate: float = 1.2) -> LengthModel:
    """What a server's lines tell of outputs that only it knows."""
    asked = burst(len(outputs), seed=3, rate=rate)
    requests = [replace(r, output_tokens=n, prompt_tokens=200) for r, n in zip(asked, outputs, strict=True)]
    log = parsed(serve(SMALL, requests, received=received, certain=False).text, folder)
    seen = observe(log.frames)
    assert seen is not None
    rules = SketchRules.of(SMALL)
    model = length_model(seen, SMALL.max_model_len - 1, rules)
    cost = first_guess(seen, SMALL.num_blocks * SMALL.block_size).cost
    return with_shapes(model, seen, rules, cost, 1.0, np.random.default_rng(0))


def spread(model: LengthModel) -> float:
    return float(np.mean([shape.spread for shape in model.shapes]))


def mixed(model: LengthModel) -> float:
    """Share of the shapes that have short and long outputs."""
    return float(np.mean([shape.longs > 0 for shape in model.shapes]))


def chats(rng: random.Random) -> int:
    return max(1, round(rng.lognormvariate(4.8, 0.6)))


def narrow(rng: random.Random) -> int:
    return rng.randint(140, 160)


def four_short_to_one_long(rng: random.Random) -> int:
    return rng.randint(500, 900) if rng.random() < 0.2 else rng.randint(12, 28)


@pytest.mark.parametrize("received", [True, False], ids=["request lines", "access lines"])
@pytest.mark.parametrize(
    ("draw", "least", "most"),
    [(narrow, 0.0, 0.4), (chats, 0.4, 0.85), (four_short_to_one_long, 0.95, 1.6)],
    ids=["narrow", "chats", "four short to one long"],
)
def test_the_spread_of_outputs_is_learnt(draw, least: float, most: float, received: bool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(11)
    found = spread(learnt([draw(rng) for _ in range(180)], tmp_path, received=received))
    assert least <= found <= most


def test_short_and_long_answers_are_told_from_one_wide_kind(tmp_path: Path) -> None:
    rng = random.Random(11)
    assert mixed(learnt([four_short_to_one_long(rng) for _ in range(180)], tmp_path)) > 0.8


def test_known_outputs_leave_nothing_to_learn(tmp_path: Path) -> None:
    served = serve(SMALL, burst(30, seed=3, rate=1.2))
    seen = observe(parsed(served.text, tmp_path).frames)
    assert seen is not None
    rules = SketchRules.of(SMALL)
    model = length_model(seen, SMALL.max_model_len - 1, rules)
    cost = first_guess(seen, SMALL.num_blocks * SMALL.block_size).cost
    assert with_shapes(model, seen, rules, cost, 1.0, np.random.default_rng(0)) is model
