"""Request lines with any prompt, id, limits and parameters: in bulk they give what they give line by line."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parsers.reading.in_bulk import messages
from tests.columnar.test_same_as_line_by_line import Blocks, assert_same, record

ids = st.one_of(
    st.from_regex(r"\A(cmpl|chatcmpl)-[0-9a-f]{4,32}(-0)?\Z"),
    st.sampled_from(["a", "a:b", "a.", "x[0m", "é", "a: params: b", "r" * 300]),
)
limits = st.one_of(
    st.integers(0, 300).map(str),
    st.sampled_from(["None", "007", "1234567", "12345678", "99999999999999999999", "-1", "7"]),
)
prompts = st.one_of(
    st.text(max_size=60).map(repr),
    st.lists(st.sampled_from(["one", "two\n", "\\", "'", '"', "[1]", "[0m", "é", "INFO", "max_tokens=3,"]), max_size=9)
    .map(" ".join)
    .map(repr),
    st.sampled_from(
        [
            "None",
            "''",
            "'open",
            "'a', params: SamplingParams(n=1), b'",
            "'Traceback (most recent call last)'",
            "'x [repeated 3x across cluster]'",
            "'INFO 05-09 00:49:33 [loggers.py:259] glued'",
            "'a\\ud83d\\u2028b'",
            "'prompt: c'",
        ]
    ),
)
numbers = st.lists(st.integers(0, 150_000), max_size=6).map(str)
pytestmark = pytest.mark.usefixtures("short_stretches")

TAILS = [
    "lora_request: None.",
    "lora_request: None, prompt_adapter_request: None.",
    "prompt_embeds shape: None, lora_request: None.",
    "lora_request: LoRARequest(lora_name='a', lora_int_id=1).",
]
stops = st.sampled_from(["[]", "['max_tokens=3', 'x']", "[' max_tokens=7,']", "['\\n', ')']", "['[0m']"])


@st.composite
def requests(draw: st.DrawFn) -> str:
    temperature = draw(st.one_of(st.just("0.7"), st.floats(0, 9).map(str), st.just("1e-05")))
    params = (
        f"SamplingParams(n={draw(st.integers(1, 2))}, temperature={temperature}, seed={draw(limits)}, "
        f"stop={draw(stops)}, max_tokens={draw(limits)}, min_tokens={draw(limits)}, ignore_eos=True)"
    )
    prompt = ids_part = ""
    if draw(st.booleans()):
        prompt = f"prompt: {draw(prompts)}, "
        ids_part = f"prompt_token_ids: {draw(st.one_of(numbers, st.just('None')))}, "
    tail = draw(st.sampled_from(TAILS))
    return record(
        f"Received request {draw(ids)}: {prompt}params: {params}, {ids_part}{tail}", origin="request_logger.py:65"
    )


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=1, max_size=12), st.integers(1, 5))
def test_any_requests(lines: list[str], times: int) -> None:
    data = "\n".join([*lines * times, ""]).encode("utf-8", "surrogatepass")
    assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(ids, st.sampled_from(["Added", "Aborted", "Finished"]), st.sampled_from(["", "."])), max_size=30)
)
def test_any_ids(lives: list[tuple[str, str, str]]) -> None:
    lines = [record(f"{verb} request {name}{stop}") for name, verb, stop in lives]
    data = "\n".join([*lines, ""]).encode()
    assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.decimals(0, 10**9, places=1, allow_nan=False),
            st.integers(0, 10**9),
            st.decimals(0, 100, places=1),
            st.sampled_from(["", ", Prefix cache hit rate: 38.2%", ", MM cache hit rate: 1.0%"]),
        ),
        max_size=20,
    )
)
def test_any_gauges(gauges: list[tuple[object, int, object, str]]) -> None:
    lines = [
        record(
            f"Engine 000: Avg prompt throughput: {rate} tokens/s, Avg generation throughput: {rate} tokens/s, "
            f"Running: {count} reqs, Waiting: {count % 7} reqs, GPU KV cache usage: {usage}%{more}"
        )
        for rate, count, usage, more in gauges
    ]
    lines += [
        record(
            f"Iteration({count}): {count % 5} context requests, {count} context tokens, 61 generation requests, "
            f"61 generation tokens, iteration elapsed time: {rate} ms"
            + (f", GPU KV cache usage: {usage}%, encoder inputs: 2, encoder output embeddings: 7" * (more != "")),
            prefix="(EngineCore_DP1 pid=7) ",
        )
        for rate, count, usage, more in gauges
    ]
    data = "\n".join([*lines, ""]).encode()
    assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])


def test_parameters_that_vary_are_read_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        record(
            f"Received request cmpl-{i}: params: SamplingParams(n=1, temperature={i % 997 / 1000}, top_p=0.9, max_tokens={i % 9}, min_tokens=0), lora_request: None."
        )
        for i in range(3000)
    ]
    data = "\n".join([*lines, ""]).encode()
    others: list[int] = []
    read = messages._others
    monkeypatch.setattr(messages, "_others", lambda *a: (others.append(len(a[2])), read(*a))[1])
    assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])
    assert sum(others) < 100


@pytest.mark.parametrize("prompt", ["", "prompt: 'say \\'it\\'\\n[1]', ", 'prompt: "one\'s own\\n", '])
def test_limits_that_vary_are_read_in_bulk(prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[int] = []
    read = messages._others
    monkeypatch.setattr(messages, "_others", lambda *a: (others.append(len(a[2])), read(*a))[1])
    lines = [
        record(
            f"Received request cmpl-{i}: {prompt}params: SamplingParams(n=1, max_tokens={4096 - i}, min_tokens=0), lora_request: None."
        )
        for i in range(2000)
    ]
    data = "\n".join([*lines, ""]).encode()
    frames = assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])
    assert frames["request"]["max_tokens"].n_unique() == 2000
    assert sum(others) < 20


def test_an_id_that_no_format_reads_costs_no_other_request() -> None:
    names = ["a", "a: params: b", "cmpl-0f9a", "c"]
    data = "\n".join([*(record(f"Added request {name}.") for name in names), ""]).encode()
    frames = assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])
    assert frames["request"]["request_id"].to_list() == ["a", "cmpl-0f9a", "c"]


def test_a_prompt_that_looks_like_a_record_is_counted() -> None:
    prompts = ["one", "INFO 05-09 00:49:33 [loggers.py:259] glued", "two"]
    asked = "params: SamplingParams(n=1, max_tokens=3, min_tokens=0), prompt_token_ids: [], lora_request: None."
    lines = [record(f"Received request cmpl-{i}: prompt: {said!r}, {asked}") for i, said in enumerate(prompts)]
    data = "\n".join([*lines, ""]).encode()
    assert_same([Blocks(data, [1 << 20])], [Blocks(data, [1 << 20])])
