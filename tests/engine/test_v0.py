"""V0: what must hold in every step of every workload, and the rules that are easily got wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.model import EngineError, NoProgressError, SchedulerFailedError
from reference_engine.model.config import EngineConfig
from reference_engine.model.request import Request
from reference_engine.model.step import Iteration
from reference_engine.replay.plain import drive
from reference_engine.v0.blocks import CachingPool
from reference_engine.v0.profile import V0Profile, profile_for
from reference_engine.v0.scheduler import V0Scheduler
from reference_engine.v0.step import V0State, V0Step
from reference_engine.v1.blocks import Contents

MODEL_LENGTH = 96


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    chunked = draw(st.booleans())
    seats = draw(st.integers(1, 6))
    budget = st.sampled_from([7, 16, 33, 64]) if chunked else st.sampled_from([48, 96, 200])
    return EngineConfig(
        engine="vllm-v0",
        version=draw(st.sampled_from(["0.9.2", "0.8.5", "0.6.6", "0.5.5", "0.4.2", "0.2.7"])),
        num_blocks=draw(st.integers(3, 40)),
        num_cpu_blocks=draw(st.sampled_from([0, 8, 60])),
        block_size=draw(st.sampled_from([4, 8, 16])),
        max_num_seqs=seats,
        max_num_batched_tokens=max(seats, draw(budget)),
        max_model_len=MODEL_LENGTH,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        preemption_mode=draw(st.sampled_from([None, "recompute", "swap"])),
        delay_factor=draw(st.sampled_from([0.0, 0.0, 1.5])),
        max_num_partial_prefills=draw(st.integers(1, 3)),
        max_long_partial_prefills=draw(st.integers(1, 2)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 10])),
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    requests: list[Request] = []
    for number in range(draw(st.integers(1, 9))):
        kinds = st.sampled_from(["shared", "own", "both", "answer"])
        shared = (f"p{draw(st.integers(0, 1))}", draw(st.integers(1, 40)))
        own = (f"u{number}", draw(st.integers(1, 50)))
        before = requests[-1].prompt if requests else None
        prompt = {
            "shared": (shared,),
            "own": (own,),
            "both": (shared, own),
            "answer": (*(before or ()), (f"o{number - 1}", 5)) if before else (own,),
        }[draw(kinds)]
        requests.append(
            Request(
                id=number,
                prompt_tokens=sum(length for _stream, length in prompt),
                output_tokens=draw(st.integers(1, 40)),
                arrival_step=draw(st.integers(0, 20)),
                arrival_time=float(number),
                priority=draw(st.integers(0, 3)),
                prompt=prompt,
            )
        )
    return requests


def turns_of(scheduler: V0Scheduler, requests: list[Request]) -> tuple[list[Iteration], EngineError | None]:
    turns: list[Iteration] = []
    try:
        turns.extend(drive(scheduler, requests))
    except EngineError as error:
        return turns, error
    return turns, None


def watched(scheduler: V0Scheduler, requests: list[Request]) -> Iterator[Iteration]:
    """The turns of a run; one that the real scheduler would end, or that hangs, just ends."""
    try:
        yield from drive(scheduler, requests)
    except (SchedulerFailedError, NoProgressError):
        return


def used_blocks(scheduler: V0Scheduler, states: Iterable[V0State]) -> int:
    """Blocks that these requests hold; with prefix caching shared ones count once."""
    if scheduler.config.enable_prefix_caching:
        return len({block for state in states for block in state.blocks})
    return sum(state.num_blocks for state in states)


@settings(max_examples=150, deadline=None)
@given(configs(), workloads())
def test_blocks_are_conserved_on_gpu_and_cpu(config: EngineConfig, requests: list[Request]) -> None:
    scheduler = V0Scheduler(config)
    gpu, cpu = scheduler.memory.gpu, scheduler.memory.cpu
    seen: dict[Any, V0State] = {}
    for turn in watched(scheduler, requests):
        seen.update(scheduler.states)
        assert turn.outcome is not None
        assert turn.outcome.free_blocks == gpu.num_free_blocks
        running = [state for state in seen.values() if state.status == "running"]
        assert gpu.num_free_blocks + used_blocks(scheduler, running) == gpu.total
        # a swapped request that is given up keeps its CPU blocks, as in the real engine
        outside = [s for s in seen.values() if s.status in ("swapped", "finished")]
        assert cpu.num_free_blocks + used_blocks(scheduler, outside) == cpu.total


@settings(max_examples=150, deadline=None)
@given(configs(), workloads())
def test_no_request_is_lost_or_served_twice(config: EngineConfig, requests: list[Request]) -> None:
    scheduler = V0Scheduler(config)
    alive: set[Any] = set()
    tokens: Counter[Any] = Counter()
    ends: Counter[Any] = Counter()
    turns, error = turns_of(scheduler, requests)
    for turn in turns:
        step, outcome = turn.step, turn.outcome
        assert isinstance(step, V0Step)
        assert outcome is not None
        alive |= set(turn.added)
        alive -= set(step.ignored)
        queued = [*step.running, *step.waiting, *step.swapped]
        assert sorted(queued) == sorted(alive)
        assert len(set(outcome.tokens)) == len(outcome.tokens)
        assert set(outcome.tokens) == set(step.sampled) <= set(step.scheduled)
        tokens.update(outcome.tokens)
        ends.update(step.ignored + outcome.finished)
        alive -= set(outcome.finished)
    assert set(ends.values()) <= {1}
    if error is None:
        assert set(ends) == {r.id for r in requests}
        assert scheduler.unfinished == 0
        ignored = {i for turn in turns if turn.step for i in turn.step.ignored}
        for request in requests:
            longest = max(1, MODEL_LENGTH + 1 - request.prompt_tokens)
            if request.id not in ignored:
                assert tokens[request.id] == min(request.output_tokens, longest)


@settings(max_examples=150, deadline=None)
@given(configs(), workloads())
def test_budget_seats_and_positions(config: EngineConfig, requests: list[Request]) -> None:
    num_computed_tokens: dict[Any, int] = {}
    for turn in watched(V0Scheduler(config), requests):
        step = turn.step
        assert isinstance(step, V0Step)
        work = sum(end - start for start, end in step.spans.values())
        assert work <= config.max_num_batched_tokens
        assert len(step.scheduled) <= config.max_num_seqs
        assert len(step.running) <= config.max_num_seqs
        for request_id in step.preempted:
            num_computed_tokens[request_id] = 0
        for request_id, (start, end) in step.spans.items():
            before = num_computed_tokens.get(request_id, 0)
            assert before <= start < end
            assert start - before <= step.hits.get(request_id, 0)  # only what is cached is skipped
            assert end - before == step.scheduled[request_id]
            num_computed_tokens[request_id] = end
        prefills = list(step.scheduled.values())[: step.prefill_groups]
        assert step.prompt_tokens == sum(prefills)
        assert all(n == 1 for n in list(step.scheduled.values())[step.prefill_groups :])


@settings(max_examples=60, deadline=None)
@given(configs(), workloads())
def test_the_same_input_gives_the_same_steps(config: EngineConfig, requests: list[Request]) -> None:
    first, error = turns_of(V0Scheduler(config), requests)
    again, same_error = turns_of(V0Scheduler(config), requests)
    assert first == again
    assert str(error) == str(same_error)


@settings(max_examples=60, deadline=None)
@given(configs(), workloads(), st.integers(0, 8), st.integers(0, 30))
def test_an_aborted_request_leaves_its_blocks_and_is_never_heard_of_again(
    config: EngineConfig, requests: list[Request], preempted_req: int, when: int
) -> None:
    scheduler = V0Scheduler(config)
    gone = False
    for turn in watched(scheduler, requests):
        if gone and turn.step and turn.outcome:
            assert preempted_req not in {*turn.step.running, *turn.step.waiting, *turn.step.swapped}
            assert preempted_req not in turn.outcome.tokens
        if turn.number >= when and preempted_req in scheduler.states:
            scheduler.abort(preempted_req)
            gone = True
            gpu = scheduler.memory.gpu
            running = [s for s in scheduler.states.values() if s.status == "running"]
            assert gpu.num_free_blocks + used_blocks(scheduler, running) == gpu.total


def engine(**settings: Any) -> V0Scheduler:
    values: dict[str, Any] = {
        "engine": "vllm-v0",
        "version": "0.8.5",
        "num_blocks": 10,
        "max_num_batched_tokens": 512,
        "max_model_len": 512,
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
    }
    return V0Scheduler(EngineConfig(**{**values, **settings}))


def request(number: int, prompt: int, output: int = 40, **more: Any) -> Request:
    return Request(number, prompt, output, arrival_time=float(number), **more)


def test_the_last_block_with_room_does_not_help_so_a_victim_is_recomputed_again_and_again() -> None:
    # request 1 fits again each time, and each time the block that request 0 must see free is gone
    turns, _ = turns_of(engine(num_blocks=10), [request(0, 60), request(1, 60)])
    events = [(t.number, t.step.preempted, t.step.resumed) for t in turns if t.step]
    assert events[6:10] == [(6, [1], []), (7, [], [1]), (8, [1], []), (9, [], [1])]


def test_prompt_statistics_count_what_is_recomputed() -> None:
    turns, error = turns_of(engine(num_blocks=9), [request(0, 60), request(1, 60)])
    credited = sum(turn.step.prompt_tokens for turn in turns if isinstance(turn.step, V0Step))
    recomputed = credited - 120
    assert error is None
    assert recomputed > 60  # request 1 and what it had generated, at each of its preemptions


@pytest.mark.parametrize(
    ("settings", "prompts"),
    [
        ({"max_num_batched_tokens": 128}, [129]),  # longer than a step may be
        ({"max_model_len": 128}, [129]),
        ({}, [161]),  # more blocks than there are
        ({"num_blocks": 200, "max_num_batched_tokens": 4000, "max_model_len": 4000}, [3190]),  # watermark of 2
    ],
)
def test_a_prompt_that_can_never_run_is_ignored_and_blocks_nobody(settings: dict[str, Any], prompts: list[int]) -> None:
    turns, error = turns_of(engine(**settings), [request(i, n) for i, n in enumerate([*prompts, 20])])
    assert error is None
    assert turns[0].step is not None
    assert turns[0].step.ignored == [0]
    assert turns[0].step.new == [1]


def test_a_swapped_request_that_outgrew_the_pool_is_given_up() -> None:
    scheduler = engine(num_blocks=4, num_cpu_blocks=20, preemption_mode="swap")
    turns, error = turns_of(scheduler, [request(0, 60, 100)])
    assert error is None
    assert [i for turn in turns if turn.step for i in turn.step.ignored] == [0]


def test_no_cpu_block_left_to_swap_to_ends_the_engine() -> None:
    scheduler = engine(num_cpu_blocks=1, preemption_mode="swap")
    _, error = turns_of(scheduler, [request(0, 60), request(1, 60), request(2, 20)])
    assert isinstance(error, SchedulerFailedError)
    assert "CPU blocks are needed" in str(error)


def test_priority_with_swapping_ends_the_engine_when_a_victim_heads_the_queue() -> None:
    scheduler = engine(num_cpu_blocks=50, preemption_mode="swap", policy="priority")
    urgent = request(1, 60, priority=0, arrival_step=3)
    _, error = turns_of(scheduler, [request(0, 120, priority=5), urgent])
    assert isinstance(error, SchedulerFailedError)
    assert "priority policy" in str(error)


def test_a_request_swapped_out_within_its_prefill_waits_for_a_budget_of_its_whole_rest() -> None:
    scheduler = engine(
        num_blocks=18, num_cpu_blocks=60, preemption_mode="swap", max_num_batched_tokens=33,
        enable_chunked_prefill=True,
    )  # fmt: skip
    turns, error = turns_of(scheduler, [request(0, 60, 60), request(1, 200, 5, arrival_step=2)])
    assert isinstance(error, NoProgressError)
    assert "request 1 cannot progress" in str(error)
    assert turns[-1].step is not None
    assert turns[-1].step.swapped == [1]


@pytest.mark.parametrize(
    ("version", "different"),
    [
        ("0.10.2", {}),
        ("0.9.2", {}),
        ("dev", {}),
        ("0.9.1", {"hits_looked_up_anew": False}),
        ("0.8.5.post1", {"hits_looked_up_anew": False}),
        ("0.7.2", {"hits_looked_up_anew": False, "partial_prefills": False}),
        ("0.6.6", {"hits_looked_up_anew": False, "partial_prefills": False}),
    ],
)
def test_a_release_has_the_rules_of_the_last_change_before_it(version: str, different: dict[str, bool]) -> None:
    assert profile_for(version) == V0Profile(**different)


def test_the_oldest_releases_have_neither_chunks_nor_priorities() -> None:
    profile = profile_for("v0.2.7")
    assert (profile.chunked, profile.priority, profile.mode_selectable) == (False, False, False)
    assert profile.padded_prefill
    assert profile_for("0.4.2").chunked


def test_up_to_0_3_a_prefill_batch_costs_its_longest_prompt_for_each_prompt() -> None:
    requests = [request(0, 300), request(1, 40), request(2, 40)]
    roomy = {"num_blocks": 100, "max_num_batched_tokens": 900}
    (first, *_), _ = turns_of(engine(version="0.2.7", **roomy), requests)
    (later, *_), _ = turns_of(engine(version="0.4.2", **roomy), requests)
    assert first.step is not None
    assert first.step.new == [0]  # with request 1 it would hold 260 tokens of padding, 256 are allowed
    assert later.step is not None
    assert later.step.new == [0, 1, 2]


@pytest.mark.parametrize("name", [f"c{number}" for number in range(12)])
def test_an_entry_of_the_evictor_that_is_out_of_date_does_not_count(name: str) -> None:
    pool = CachingPool(1, Contents(4))

    def use(stream: str) -> None:
        state = V0State(Request(stream, 4, 1, prompt=((stream, 4),)), 100)
        pool.allocate(state)
        pool.free(state)

    use("a")
    use("a")  # a hit: its first entry stays behind
    use(name)
    use("d")  # whatever the contents hash to, it is the block of `name` that goes
    assert pool.num_free_blocks == 1


def test_cached_blocks_go_oldest_first_then_deepest_then_lowest() -> None:
    pool = CachingPool(6, Contents(4))

    def hold(stream: str, tokens: int, last_access: float) -> V0State:
        state = V0State(Request(stream, tokens, 1, prompt=((stream, tokens),)), 100)
        pool.allocate(state)
        state.last_access = last_access
        return state

    states = [hold("old", 8, 1.0), hold("new", 8, 2.0), hold("twin", 8, 2.0)]
    pool.mark_computed()
    for state in states:
        pool.free(state)
    left = []
    for taken in range(1, 7):
        pool.allocate(V0State(Request(f"x{taken}", 1, 1), 100))
        left.append(tuple(pool.cached_tokens(state) for state in states))
    assert left == [(4, 8, 8), (0, 8, 8), (0, 4, 8), (0, 4, 4), (0, 0, 4), (0, 0, 0)]
