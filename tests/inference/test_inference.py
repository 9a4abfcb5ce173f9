"""From statistics and request lines to what happened: against logs whose truth the reference engine wrote down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from logscope.inference.result import Effort, InferredReplay
from logscope.inference.windows.estimate import infer
from logscope.inference.windows.observations import observe
from logscope.server.engines import engine_config
from logscope.server.scenario import Scenario
from reference_engine.model.request import LABELS
from reference_engine.replay.plain import PlainReplay

from .statistics_log import SMALL, STEP_TIME, Served, burst, parsed, parsed_file, serve, with_blocks

PRESSED = burst(90, seed=5, rate=4.0, long_share=0.3)


@pytest.fixture(scope="module")
def pressed() -> Served:
    """Ninety requests on a cache that is too small for them."""
    return serve(SMALL, PRESSED)


def inferred(served: Served, folder: Path, seed: int = 0) -> InferredReplay:
    log = parsed(served.text, folder)
    found = infer(log.frames, log.facts, Effort(seed))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def from_requests(pressed: Served, tmp_path_factory: pytest.TempPathFactory) -> InferredReplay:
    """What is inferred with request lines."""
    return inferred(pressed, tmp_path_factory.mktemp("requests"))


@pytest.fixture(scope="module")
def from_statistics(tmp_path_factory: pytest.TempPathFactory) -> InferredReplay:
    """What is inferred of the same server without them."""
    return inferred(serve(SMALL, PRESSED, received=False), tmp_path_factory.mktemp("statistics"))


IDLE = (
    "(APIServer pid=11) INFO 11-29 10:00:20 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
    "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%\n"
)


def bare(served: Served) -> Served:
    """The same log without any line that tells of a request."""
    lines = served.text.splitlines(keepends=True)
    kept = [x for x in lines if "Received" not in x and "POST" not in x]
    return replace(served, text="".join(kept))


def close(said: float | None, truth: float, share: float) -> bool:
    return said is not None and abs(said - truth) <= share * max(truth, 0.5)


def test_the_truth_of_the_test_holds_preemptions_and_a_queue(pressed: Served) -> None:
    assert pressed.preemptions > 15
    assert pressed.percentile("first_token", 90) > 3.0


def test_preemptions_are_found_though_no_line_shows_them(pressed: Served, from_requests: InferredReplay) -> None:
    counts = from_requests.preemptions
    assert close(counts.value, pressed.preemptions, 0.3)
    assert counts.low <= pressed.preemptions <= counts.high
    assert counts.high - counts.low <= 0.6 * pressed.preemptions
    assert from_requests.pressure == "thrash"
    assert sum(s.value for s in counts.timeline) == pytest.approx(counts.value, abs=1.5)


def test_latencies_with_request_lines(pressed: Served, from_requests: InferredReplay) -> None:
    for name, what in (("ttft_s", "first_token"), ("e2e_s", "end")):
        for percent, share in ((50, 0.25), (90, 0.15), (99, 0.15)):
            said = from_requests.latency[name][f"p{percent}"]
            assert close(said, pressed.percentile(what, percent), share), (name, percent)


def test_latencies_from_statistics_and_access_lines_alone(pressed: Served, from_statistics: InferredReplay) -> None:
    assert from_statistics.level == "statistics"
    assert close(from_statistics.preemptions.value, pressed.preemptions, 0.4)
    for name, what in (("ttft_s", "first_token"), ("e2e_s", "end")):
        for percent in (90, 99):
            said = from_statistics.latency[name][f"p{percent}"]
            assert close(said, pressed.percentile(what, percent), 0.3), (name, percent)


def test_statistics_lines_alone_tell_of_preemptions_and_latencies(pressed: Served, tmp_path: Path) -> None:
    found = inferred(bare(pressed), tmp_path)
    assert found.level == "bare"
    assert close(found.requests, len(PRESSED), 0.4)
    assert found.preemptions.low <= pressed.preemptions <= found.preemptions.high
    assert found.pressure == "thrash"
    assert close(found.latency["e2e_s"]["p99"], pressed.percentile("end", 99), 0.5)


def test_statistics_lines_alone_of_a_roomy_cache_mean_no_preemption(tmp_path: Path) -> None:
    calm = serve(with_blocks(2000), burst(25, seed=3, rate=0.5, long_share=0.0))
    found = inferred(bare(calm), tmp_path)
    assert (found.preemptions.low, found.preemptions.value) == (0, 0)
    assert found.preemptions.high <= 1


def test_statistics_lines_alone_show_a_limit_of_seats(tmp_path: Path) -> None:
    served = serve(replace(with_blocks(3000), max_num_seqs=4), burst(60, seed=4, rate=1.5))
    slow = inferred(bare(served), tmp_path).ledger["slow_s"]
    assert slow["queued_for_seat"] > 10 * slow["queued_for_kv"]


def test_latencies_have_bounds_and_are_never_longer_than_the_log(
    from_statistics: InferredReplay, pressed: Served
) -> None:
    span = max(r.end for r in pressed.records if r.end is not None) / 1e9 + 20
    for name, what in (("ttft_s", "first_token"), ("e2e_s", "end")):
        found = from_statistics.latency[name]
        for percent in (50, 90, 99):
            low, value, high = (found["low"][f"p{percent}"], found[f"p{percent}"], found["high"][f"p{percent}"])
            assert low <= value <= high <= span
            assert low <= pressed.percentile(what, percent) <= high, (name, percent)


def test_what_still_runs_at_the_end_is_counted_and_no_latency_outgrows_the_log(pressed: Served, tmp_path: Path) -> None:
    lines = pressed.text.splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if "Avg prompt" in line]
    found = inferred(replace(pressed, text="".join(lines[: ends[1] + 1])), tmp_path)
    assert found.latency["censored"] > 10
    values = [found.latency[name][p] for name in ("ttft_s", "e2e_s") for p in ("p50", "p90", "p99")]
    assert all(v is None or v <= 27.0 for v in values)
    assert (found.latency["withheld"] is None) == (None not in values)


def test_outputs_that_are_all_of_a_length_end_together(tmp_path: Path) -> None:
    same = [replace(r, output_tokens=300) for r in burst(60, seed=8, rate=20.0)]
    served = serve(replace(with_blocks(3000), max_num_seqs=24), same, received=False)
    found = inferred(served, tmp_path)
    assert close(found.latency["e2e_s"]["p99"], served.percentile("end", 99), 0.25)
    assert close(found.latency["ttft_s"]["p99"], served.percentile("first_token", 99), 0.25)


def test_equally_likely_workloads_each_have_a_ledger(from_requests: InferredReplay) -> None:
    assert len(from_requests.slow_each) == len(from_requests.samples.workloads)
    assert all(set(ledger) == set(LABELS) for ledger in from_requests.slow_each)


def test_the_fit_is_told_for_each_series(from_requests: InferredReplay) -> None:
    assert set(from_requests.fit) == {"running", "waiting", "kv_usage", "generation"}
    assert all(v is not None and v > 0.8 for v in from_requests.fit.values())


def test_step_costs_come_out_of_the_log(from_requests: InferredReplay) -> None:
    cost = from_requests.step_time
    for requests, kv in ((6, 2500), (14, 5000)):
        truth = STEP_TIME.seconds(0, requests, kv, requests)
        assert cost.seconds(0, requests, kv, requests) == pytest.approx(truth, rel=0.3)


def test_the_ledger_blames_the_kv_space(from_requests: InferredReplay) -> None:
    slow = from_requests.ledger["slow_s"]
    assert set(slow) == set(LABELS)
    delay = sum(slow.values()) - slow["prefill"] - slow["decode"]
    kv = slow["queued_for_kv"] + slow["preempted_wait"] + slow["recompute"]
    assert kv > 0.5 * delay


def test_replays_are_the_particles_own_runs(from_requests: InferredReplay) -> None:
    told = from_requests.latency["e2e_s"]["p50"]
    assert from_requests.predict(None)["e2e_s"]["p50"] == pytest.approx(told, rel=0.1)
    frame = from_requests.requests_frame
    assert frame.height == len(PRESSED)
    assert from_requests.steps_frame.height > 100


def test_a_change_is_predicted(from_requests: InferredReplay) -> None:
    """Four tenths more blocks on the real engine, against the prediction from the log before."""
    after = PlainReplay(with_blocks(350), STEP_TIME, keep_steps=False)
    after.run(PRESSED)
    truth = Served("", after.all_records(), after.preemptions)
    told = from_requests.predict(Scenario(with_blocks(350), {}))
    assert abs(told["preemptions"] - truth.preemptions) <= 12
    assert close(told["ttft_s"]["p99"], truth.percentile("first_token", 99), 0.35)
    assert close(told["e2e_s"]["p99"], truth.percentile("end", 99), 0.2)
    before = from_requests.predict(None)
    assert (told["ttft_s"]["p99"] or 0) < 0.7 * (before["ttft_s"]["p99"] or 0)


def test_load_and_replicas_go_the_expected_way(from_requests: InferredReplay) -> None:
    before, now = from_requests.predict(None), from_requests.samples.config
    double = from_requests.predict(Scenario(now, {}, arrival_scale=2.0))
    halves = from_requests.predict(Scenario(now, {}, replicas=2))
    assert (double["e2e_s"]["p99"] or 0) > (before["e2e_s"]["p99"] or 0)
    assert (halves["e2e_s"]["p99"] or 0) < (before["e2e_s"]["p99"] or 0)
    assert halves["preemptions"] < before["preemptions"]


def test_same_seed_same_answer_and_another_seed_another(tmp_path: Path) -> None:
    served = serve(with_blocks(100), burst(20, seed=2, rate=2.0))
    first, again, other = (inferred(served, tmp_path, seed) for seed in (0, 0, 1))
    assert again.latency == first.latency
    assert again.preemptions == first.preemptions
    assert other.latency != first.latency


def test_a_calm_server_has_no_preemption_and_its_speed_is_known(tmp_path: Path) -> None:
    calm = serve(with_blocks(2000), burst(25, seed=3, rate=0.5, long_share=0.0))
    found = inferred(calm, tmp_path)
    assert found.preemptions.high <= 1
    assert found.pressure == "none"
    assert close(found.latency["e2e_s"]["p50"], calm.percentile("end", 50), 0.3)


def test_a_seat_limit_is_no_shortage_of_blocks(tmp_path: Path) -> None:
    served = serve(replace(with_blocks(3000), max_num_seqs=4), burst(60, seed=4, rate=1.5))
    found = inferred(served, tmp_path)
    slow = found.ledger["slow_s"]
    assert found.preemptions.high <= 2
    assert slow["queued_for_seat"] > 10 * slow["queued_for_kv"]
    assert close(found.latency["ttft_s"]["p99"], served.percentile("first_token", 99), 0.15)


def test_outputs_under_a_large_limit_are_inferred_from_the_totals(tmp_path: Path) -> None:
    served = serve(SMALL, PRESSED, certain=False)
    found = inferred(served, tmp_path)
    seen = observe(parsed(served.text, tmp_path).frames)
    assert seen is not None
    assert all(a.output_tokens is None and a.max_tokens == 4000 for a in seen.arrivals)
    assert close(found.latency["e2e_s"]["p90"], served.percentile("end", 90), 0.35)


def test_nothing_to_replay_is_no_inference(pressed: Served, tmp_path: Path) -> None:
    kept = pressed.text.splitlines(keepends=True)
    without_statistics = [x for x in kept if "Avg prompt" not in x]
    idle = [x for x in kept if "Received" not in x and "POST" not in x and "Avg prompt" not in x] + [IDLE]
    for name, lines in (("a", idle), ("b", without_statistics), ("c", [])):
        log_text = "".join(lines) or kept[0]
        log = parsed(log_text, tmp_path, f"{name}.log")
        assert infer(log.frames, log.facts) is None


def test_one_line_of_statistics_is_enough_not_to_fail(pressed: Served, tmp_path: Path) -> None:
    lines = pressed.text.splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if "Avg prompt" in line)
    log = parsed("".join(lines[: first + 1]), tmp_path)
    found = infer(log.frames, log.facts)
    assert found is not None
    assert found.requests > 0


def test_a_real_server_under_pressure(sample_under_pressure: Path) -> None:
    """The sample's own server counted 63 preemptions; its client saw an E2E p99 of 33.4 s and a TTFT p99 of 15.1 s."""
    log = parsed_file(sample_under_pressure)
    found = infer(log.frames, log.facts)
    assert found is not None
    assert engine_config(log.facts) is not None
    assert 40 <= found.preemptions.value <= 85
    assert found.latency["e2e_s"]["p99"] == pytest.approx(33.4, rel=0.2)
    assert found.latency["ttft_s"]["p99"] == pytest.approx(15.1, rel=0.2)
