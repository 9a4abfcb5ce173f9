"""What is no evidence gives none; bad input never raises; no text takes more than linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parsers.families import FORMATS, anchors, match
from parsers.families.literals import end_of_call, iter_pairs, parse_literal
from parsers.families.stats import is_believed
from tests.formats_data import examples, message_of

STATS = "Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 9 reqs, Waiting: 9 reqs, GPU KV cache usage: 99.9%, Prefix cache hit rate: 0.0%"
WARNING = "Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. total_num_cumulative_preemption=51"
EVIDENCE = ("preemption", "stats", "iteration", "kv_error")


@pytest.mark.parametrize(
    "message",
    [
        "Received request a: prompt: 'why?\\nWARNING 05-09 00:49:30 [scheduler.py:1754] "
        + WARNING
        + "\\n"
        + STATS
        + "', params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: None, lora_request: None.",
        'Received request a: prompt: "'
        + WARNING
        + '", params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: [1, 2], lora_request: None, prompt_adapter_request: None.',
        "Received request a: prompt: 'x\n"
        + WARNING
        + "\nTraceback (most recent call last):\nValueError: No available memory for the cache blocks.', params: SamplingParams(n=1), prompt_token_ids: None, lora_request: None.",
        "Initializing a V1 LLM engine (v0.10.2) with config: model='m', preemption_mode=None, enable_prefix_caching=True",
        "Dumping input data for V1 LLM engine (v0.10.2): scheduler_output=SchedulerOutput(scheduled_new_reqs=[], resumed_from_preemption=[false, false], preempted_requests=0)",
        "Dumping scheduler stats: SchedulerStats(num_running_reqs=9, num_waiting_reqs=0, kv_cache_usage=0.37)",
        "Decode batch. #running-req: 9, #token: 99, token usage: 0.99, gen throughput (token/s): 3.0, #queue-req: 9",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.7 -> 1.0",
        "you may see: " + WARNING,
        "you may see: " + STATS,
        "preemption_mode=None",
        "Running: many reqs, Waiting: some reqs",
    ],
)
def test_text_about_evidence_is_no_evidence(message: str) -> None:
    found = match(message, prefixed=True)
    assert found is None or found.family not in EVIDENCE


@pytest.mark.parametrize(
    "line",
    [
        STATS,
        WARNING,
        "my-app: the user wrote: " + STATS,
        'raise ValueError("No available memory for the cache blocks. "',
        '    raise ValueError("No available memory for the cache blocks. "',
        "ValueError: a number was wanted",
        "[2026-05-09 00:49:33 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1",
        "Shutdown complete",
        "",
    ],
)
def test_a_line_without_prefix_counts_only_for_what_others_print(line: str) -> None:
    assert match(line, prefixed=False) is None


@given(st.text(max_size=300), st.booleans())
def test_no_text_raises(text: str, prefixed: bool) -> None:
    match(text, prefixed=prefixed)


@given(
    st.sampled_from([row["line"] for row in examples()]),
    st.integers(0, 2000),
    st.text(max_size=40),
    st.integers(0, 2000),
)
@settings(max_examples=400)
def test_no_damage_to_a_known_line_raises(line: str, at: int, inserted: str, until: int) -> None:
    message, prefixed = message_of(line)
    match(message[:at] + inserted + message[until:], prefixed=prefixed)


@given(st.text(alphabet="{}[]()<>'\",:=\\ a1\n", max_size=200))
def test_no_repr_raises(text: str) -> None:
    parse_literal(text)
    list(iter_pairs(text))
    assert 0 <= end_of_call(text, 0) <= len(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    )
)
def test_a_repr_gives_its_value_back(value: object) -> None:
    assert parse_literal(repr(value)) == value


FILLS = (
    " ",
    ".",
    "a",
    "1,",
    "<",
    "'\\",
    ", a=",
    ", b: ",
    "[",
    "\n",
    "ValueError: x\n",
    "params: SamplingParams(",
    " HTTP/",
)
HEADS = sorted({format_.example[: len(format_.example) * 2 // 3] for format_ in FORMATS})[::6]


@pytest.mark.parametrize("fill", FILLS)
def test_time_grows_no_faster_than_the_text(fill: str) -> None:
    # Quadratic reading of 200 kB takes minutes; linear takes a tenth of a second on a busy machine.
    for head in (*HEADS, "", "\nTraceback (most recent call last):\n"):
        text = head + fill * (200_000 // len(fill))
        began = time.process_time()
        match(text, prefixed=True)
        assert time.process_time() - began < 3, (head, fill)


def test_a_number_that_no_machine_holds_is_not_read() -> None:
    digits = "9" * 1000
    assert match(f"Using max model len {digits}", prefixed=True) is None
    found = match(f"Running: 3 reqs, Waiting: {digits} reqs", prefixed=True)
    assert found is not None
    assert not is_believed(found.fields)


def test_what_is_of_no_interest_holds_no_anchor() -> None:
    line = "INFO 05-09 00:49:33 [model.py:733] Starting to load model acme/llama-9b..."
    assert not any(anchor in line for anchor in anchors())


def test_what_holds_no_anchor_is_not_read() -> None:
    for format_ in FORMATS:
        text = format_.example.replace(" ", "  ")
        assert match(text, prefixed=not format_.foreign) is None or any(anchor in text for anchor in anchors())
