"""What is read off a log: its clock, windows, arrivals and their bounds, and the part of a long log that is looked at."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from logscope.inference.windows.lengths import length_model, scaled_to_total
from logscope.inference.windows.observations import Arrival, Observations, Window, observe
from logscope.inference.windows.portion import with_inherited, worst_span
from reference_engine.sketch.request import SketchRules

from .statistics_log import SMALL, parsed, stamp

import numpy as np  # isort: skip

SETUP = "(APIServer pid=11) INFO 11-29 10:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0\n"
GET = 'INFO:     127.0.0.1:56058 - "GET /metrics HTTP/1.1" 200 OK\n'
POST = 'INFO:     127.0.0.1:50554 - "POST /v1/completions HTTP/1.1" 200 OK\n'


def statistics(at: float, running: int = 1, waiting: int = 0, prompt: float = 10.0, usage: float = 5.0) -> str:
    return (
        f"(APIServer pid=11) INFO {stamp(at)} [loggers.py:335] Engine 000: Avg prompt throughput: {prompt} tokens/s, "
        f"Avg generation throughput: 20.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
        f"GPU KV cache usage: {usage}%\n"
    )


def received(at: float, name: str, limits: str = "max_tokens=50, min_tokens=0, ignore_eos=True") -> str:
    return (
        f"(APIServer pid=11) INFO {stamp(at)} [request_logger.py:65] Received request {name}: "
        f"params: SamplingParams(n=1, {limits}), lora_request: None.\n"
    )


def seen_in(lines: list[tuple[float, str]], folder: Path) -> Observations:
    text = SETUP + "".join(line for _at, line in sorted(lines, key=lambda x: x[0]))
    found = observe(parsed(text, folder).frames)
    assert found is not None
    return found


def seconds_of_day(seen: Observations, at: float) -> float:
    """A moment of the inference's clock in seconds since ten o'clock."""
    return (seen.time(at) - datetime(seen.epoch.year, 11, 29, 10, 0, 0)).total_seconds()


@pytest.mark.parametrize("phase", [0.12, 0.5, 0.88])
def test_the_fraction_of_the_second_comes_from_the_lines_beside(phase: float, tmp_path: Path) -> None:
    lines = [(10 * k + phase, statistics(10 * k + phase)) for k in range(1, 13)]
    lines += [(3 + 0.37 * i, received(3 + 0.37 * i, f"r{i}")) for i in range(310)]
    seen = seen_in(lines, tmp_path)
    for k, window in enumerate(seen.windows, start=1):
        assert seconds_of_day(seen, window.end) == pytest.approx(10 * k + phase, abs=0.2)
        assert window.prompt_tokens == pytest.approx(100.0, abs=1.0)


def test_probes_at_a_fixed_rate_place_lines_without_a_time(tmp_path: Path) -> None:
    lines = [(10 * k + 0.5, statistics(10 * k + 0.5)) for k in range(1, 10)]
    lines += [(i + 0.3, GET) for i in range(2, 90)]
    arrivals = [4.1, 17.9, 18.05, 33.33, 61.7]
    lines += [(at, POST) for at in arrivals]
    seen = seen_in(lines, tmp_path)
    assert seen.level == "statistics"
    for at, found in zip(arrivals, seen.arrivals, strict=True):
        low, high = seconds_of_day(seen, found.low), seconds_of_day(seen, found.high)
        assert low - 0.5 <= at <= high + 0.5
        assert high - low <= 1.1


def test_stamps_and_order_bound_arrivals(tmp_path: Path) -> None:
    lines = [(10 * k + 0.5, statistics(10 * k + 0.5)) for k in range(1, 8)]
    lines += [(20.1, received(20.1, "a")), (20.3, received(20.3, "b")), (20.7, received(20.7, "c"))]
    seen = seen_in(lines, tmp_path)
    a, b, c = seen.arrivals
    line = seen.windows[1].end
    assert a.high <= line <= c.low
    assert a.low <= b.low <= c.low
    assert c.high - a.low <= 1.01


def test_several_answers_of_one_request_are_several_sequences(tmp_path: Path) -> None:
    lines = [(10.5, statistics(10.5))]
    line = received(5.0, "x").replace("n=1", "n=3")
    seen = seen_in([*lines, (5.0, line)], tmp_path)
    assert len(seen.arrivals) == 3
    assert all(a.output_tokens == 50 for a in seen.arrivals)


def test_a_limit_alone_is_no_certain_output(tmp_path: Path) -> None:
    lines = [(10.5, statistics(10.5)), (5.0, received(5.0, "x", "max_tokens=900, min_tokens=0"))]
    found = seen_in(lines, tmp_path).arrivals[0]
    assert (found.max_tokens, found.output_tokens) == (900, None)


def test_aborts_end_requests(tmp_path: Path) -> None:
    gone = f"(APIServer pid=11) INFO {stamp(7.0)} [async_llm.py:743] Aborted request(s) x-5f0c7d9e.\n"
    lines = [(10.5, statistics(10.5)), (5.0, received(5.0, "x")), (7.2, gone)]
    found = seen_in(lines, tmp_path).arrivals[0]
    assert found.abort is not None
    assert found.abort - found.low == pytest.approx(2.0, abs=1.0)


def test_short_windows_are_joined_and_missing_ones_leave_a_hole(tmp_path: Path) -> None:
    short = [(i + 0.5, statistics(i + 0.5, running=i)) for i in range(1, 13)]
    seen = seen_in([*short, (0.7, received(0.7, "x"))], tmp_path)
    assert [w.running for w in seen.windows] == [4, 8, 12]
    assert seen.windows[1].prompt_tokens == pytest.approx(40.0, abs=1.0)

    gaps = [(10 * k + 0.5, statistics(10 * k + 0.5)) for k in (1, 2, 3, 7, 8)]
    seen = seen_in([*gaps, (3.0, received(3.0, "x"))], tmp_path)
    assert seen.windows[3].end - seen.windows[3].start == pytest.approx(10.0, abs=0.2)
    assert seen.windows[3].start - seen.windows[2].end == pytest.approx(30.0, abs=0.5)


def test_answers_that_are_not_streamed_tell_no_arrivals(tmp_path: Path) -> None:
    """With a queue that grows, fewer lines than requests: those present are not yet among the lines."""
    lines = []
    for k in range(1, 9):
        lines.append((10 * k + 0.5, statistics(10 * k + 0.5, running=8, waiting=6 * k)))
        lines += [(10 * k - 5 + 0.1 * i, POST) for i in range(5)]
    seen = seen_in(lines, tmp_path)
    assert len(seen.arrivals) == 8 * 5 + 8 + 48
    assert max(a.high - a.low for a in seen.arrivals) == pytest.approx(10.0, abs=0.3)


def test_no_statistics_is_nothing_and_no_requests_are_no_arrivals(tmp_path: Path) -> None:
    only_requests = parsed(SETUP + received(5.0, "x"), tmp_path)
    assert observe(only_requests.frames) is None
    seen = observe(parsed(SETUP + statistics(10.5), tmp_path).frames)
    assert seen is not None
    assert (seen.level, seen.arrivals) == ("bare", ())


def test_a_log_that_goes_on_without_statistics_means_that_all_requests_had_ended(tmp_path: Path) -> None:
    busy = SETUP + received(5.0, "x") + statistics(10.5, running=4) + statistics(20.5, running=4)
    cut, goes_on = observe(parsed(busy, tmp_path).frames), observe(parsed(busy + received(60.0, "y"), tmp_path).frames)
    assert cut is not None
    assert goes_on is not None
    assert (cut.windows[-1].running, goes_on.windows[-1].running) == (4, 0)
    assert goes_on.windows[-1].end < 45


def long_log(loads: list[int]) -> Observations:
    """One window an entry, ten arrivals in each; the entry is how many wait."""
    windows = [Window(10.0 * k, 10.0 * k + 10, 5, w, 100.0, 200.0, 0.5) for k, w in enumerate(loads)]
    arrivals = [Arrival(10.0 * k + i, 10.0 * k + i + 0.5) for k in range(len(loads)) for i in range(10)]
    return Observations(datetime(2026, 11, 29), tuple(windows), tuple(arrivals), "requests", windows[-1].end)


def test_of_a_long_log_the_worst_span_is_kept() -> None:
    calm, pressed = [0] * 40, [9] * 10
    seen = long_log([*calm, *pressed, *calm, 9, 9, *calm])
    span, covered = worst_span(seen, most_arrivals=200, most_windows=1000)
    assert covered == pytest.approx(10 / 12)
    assert sum(w.waiting > 0 for w in span.windows) == 10
    assert span.windows[0].waiting == 0
    assert all(a.high <= span.windows[-1].end for a in span.arrivals)


def test_a_short_log_stays_whole() -> None:
    seen = long_log([0, 3, 9])
    assert worst_span(seen, 1000, 1000) == (seen, 1.0)


def test_a_log_that_begins_in_the_middle_has_requests_from_before() -> None:
    seen = long_log([0, 0, 0])
    cut = Observations(seen.epoch, seen.windows, seen.arrivals[28:], "requests", seen.end)
    with_old = with_inherited(cut)
    assert len(with_old.arrivals) == 2 + 5
    assert with_old.windows[0].prompt_tokens is None
    assert with_inherited(seen) is seen


def test_beliefs_about_lengths_follow_the_sums() -> None:
    seen = long_log([0] * 12)
    model = length_model(seen, 4000, SketchRules.of(SMALL))
    assert float(np.exp(model.mean_log + model.sd_log**2 / 2).mean()) == pytest.approx(10.0, rel=0.05)
    rng = np.random.default_rng(0)
    who = np.arange(30)
    assert model.draw_total(rng, who, 900.0).sum() == pytest.approx(900.0, abs=1.0)


@pytest.mark.parametrize("total", [10.0, 333.0, 5000.0])
def test_scaling_keeps_the_known_and_meets_the_sum(total: float) -> None:
    known = np.array([0.0, 50.0, 0.0, 0.0])
    scaled = scaled_to_total(np.array([10.0, 50.0, 200.0, 40.0]), known, total, 4000)
    assert scaled[1] == 50.0
    assert scaled.min() >= 1.0
    assert scaled.sum() == pytest.approx(max(total, 53.0))


def test_shared_heads_are_found_from_hit_rate_and_usage() -> None:
    """Four heads of 640 tokens before about 70 tokens of one's own, ten requests a window, each head computed once."""
    rates, prompts = [], []
    asked = hits = 0
    for k in range(12):
        first = 4 * 640 if k == 0 else 0
        asked += 10 * 710
        hits += 10 * 640 - first
        rates.append(hits / asked)
        prompts.append(10 * 70.0 + first)
    used = (4 * 640 + 8 * (70 + 100 + 16)) / (249 * 32)
    windows = tuple(Window(10.0 * k, 10.0 * k + 10, 8, 0, prompts[k], 2000.0, used, rates[k]) for k in range(12))
    arrivals = tuple(
        Arrival(10.0 * k + i, 10.0 * k + i + 0.5, output_tokens=200, max_tokens=200)
        for k in range(12)
        for i in range(10)
    )
    seen = Observations(datetime(2026, 11, 29), windows, arrivals, "requests", 120.0)
    model = length_model(seen, 4000, SketchRules.of(SMALL))
    assert model.sharing.tokens == 640
    assert model.sharing.groups in (3, 4, 6)
    assert float(np.exp(model.mean_log[0] + model.sd_log[0] ** 2 / 2)) == pytest.approx(70, rel=0.1)
