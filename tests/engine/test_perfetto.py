"""The trace file: valid JSON, a lane a request whose phases touch and add up to its life, and a bounded size."""

from __future__ import annotations

import io
import itertools
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Step
from reference_engine.replay.plain import drive, make_scheduler
from reference_engine.replay.recording import PHASES, CounterPoint, Phase, PhaseTracker, thinned, write_trace


def written(phases: list[Phase], points: list[CounterPoint], **bounds: int) -> dict[str, Any]:
    out = io.StringIO()
    write_trace(out, phases, points, **bounds)
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def events(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == kind]


def tracked(config: EngineConfig, requests: list[Request]) -> tuple[PhaseTracker, dict[Any, int]]:
    """Phases of a run with one second a step, and the second at which each request ended."""
    tracker = PhaseTracker()
    ended: dict[Any, int] = {}
    by_id = {request.id: request for request in requests}
    for turn in drive(make_scheduler(config), requests):
        for request_id in turn.added:
            tracker.arrive(request_id, by_id[request_id].prompt_tokens, turn.number)
        if turn.step is not None:
            tracker.step(turn.step, turn.number)
        if turn.outcome is not None:
            tracker.end(turn.outcome.finished, turn.number + 1)
            ended.update(dict.fromkeys(turn.outcome.finished, turn.number + 1))
    return tracker, ended


def test_a_preempted_request_has_all_five_phases() -> None:
    config = EngineConfig(num_blocks=9, block_size=4, max_num_seqs=4, enable_prefix_caching=False)
    requests = [Request(number, 11, 12, arrival_step=0) for number in range(2)]
    tracker, ended = tracked(config, requests)
    lane = [phase for phase in tracker.phases if phase.request_id == 1]
    assert [phase.name for phase in lane] == ["prefill", "decode", "preempted", "recompute", "decode"]
    assert all(before.end_s == after.start_s for before, after in itertools.pairwise(lane))
    assert lane[-1].end_s == ended[1]


def test_what_waits_is_queued_and_a_lane_without_an_end_is_closed() -> None:
    tracker = PhaseTracker()
    tracker.arrive("a", 4, 0.0)
    tracker.step(Step(spans={"a": (0, 4)}), 1.0)
    tracker.step(Step(spans={"a": (4, 5)}), 2.0)
    tracker.step(Step(swapped_out=["a"]), 3.0)
    tracker.close(5.0)
    assert [(p.name, p.start_s, p.end_s) for p in tracker.phases] == [
        ("queued", 0.0, 1.0),
        ("prefill", 1.0, 2.0),
        ("decode", 2.0, 3.0),
        ("preempted", 3.0, 5.0),
    ]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=12
    ),
    st.integers(25, 60),
    st.booleans(),
)  # fmt: skip
def test_lanes_add_up_to_the_life_of_every_request(
    shapes: list[tuple[int, int, int]], blocks: int, caching: bool
) -> None:
    config = EngineConfig(
        num_blocks=blocks, block_size=4, max_num_seqs=6, max_num_batched_tokens=32, enable_prefix_caching=caching
    )  # fmt: skip
    requests = [
        Request(number, prompt, output, arrival_step=step) for number, (prompt, output, step) in enumerate(shapes)
    ]
    tracker, ended = tracked(config, requests)
    assert set(ended) == {request.id for request in requests}
    document = written(tracker.phases, [])
    lanes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events(document, "X"):
        assert event["name"] in PHASES
        assert event["dur"] > 0
        lanes[event["tid"]].append(event)
    names = {event["tid"]: event["args"]["name"] for event in events(document, "M") if event["name"] == "thread_name"}
    assert set(lanes) == set(names)
    for lane, parts in lanes.items():
        request = requests[int(names[lane].removeprefix("request "))]
        parts.sort(key=lambda event: event["ts"])
        assert parts[0]["ts"] == (request.arrival_step or 0) * 1e6
        for before, after in itertools.pairwise(parts):
            assert before["ts"] + before["dur"] == after["ts"]
        life = ended[request.id] - (request.arrival_step or 0)
        assert sum(event["dur"] for event in parts) == pytest.approx(life * 1e6, abs=0.01)


def test_counters_show_usage_in_percent_and_both_queues() -> None:
    document = written([], [CounterPoint(0.5, 0.25, 3, 1)])
    assert [(e["name"], e["ts"], e["args"]) for e in events(document, "C")] == [
        ("KV usage", 500000.0, {"percent": 25.0}),
        ("running", 500000.0, {"requests": 3}),
        ("waiting", 500000.0, {"requests": 1}),
    ]


def test_unchanged_points_are_written_once() -> None:
    points = [CounterPoint(float(at), 0.5, 2, 0) for at in range(100)]
    assert list(thinned(points, 1000)) == points[:1]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 99), st.integers(0, 99)), max_size=400), st.integers(6, 60))
def test_thinning_is_bounded_ordered_and_keeps_the_extremes(states: list[tuple[float, int, int]], limit: int) -> None:
    points = [CounterPoint(float(at), *state) for at, state in enumerate(states)]
    kept = list(thinned(points, limit))
    assert len(kept) <= limit + 6
    assert [point.time_s for point in kept] == sorted({point.time_s for point in kept})
    for pick in (min, max):
        for name in ("kv_usage", "running", "waiting"):
            values = [getattr(point, name) for point in points]
            assert pick([getattr(p, name) for p in kept], default=0) == pick(values, default=0)


def test_with_too_many_requests_those_that_suffered_most_stay() -> None:
    phases = [Phase(number, "decode", number, number + 5.0) for number in range(10)]
    phases += [Phase(3, "preempted", 8.0, 9.0), Phase(7, "queued", 6.0, 7.0)]
    document = written(phases, [], max_lanes=2)
    names = [e["args"]["name"] for e in events(document, "M") if e["name"] == "thread_name"]
    assert names == ["request 3", "request 7"]
    assert document["otherData"] == {"requests_left_out": 8}


def test_a_hostile_request_id_stays_inside_its_string() -> None:
    document = written([Phase('"}],"x":["\n</script>', "queued", 0.0, 1.0)], [])
    assert events(document, "M")[2]["args"]["name"] == 'request "}],"x":["\n</script>'
