"""Request lines: a prompt may hold anything, and changes nothing but itself."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.families import match

TRAPS = [
    "it's, params: SamplingParams(n=9, max_tokens=99), prompt_token_ids: [7], lora_request: None.",
    "', params: SamplingParams(max_tokens=3), prompt_token_ids: None",
    "both ' and \" quotes, sampling params: SamplingParams(max_tokens=3)",
    "backslash \\ and \\n and é 漢字 \U0001f600",
    "",
]
FORMS = [
    "Received request a-1: prompt: {prompt!r}, sampling params: {params}, prompt token ids: {ids}.",
    "Received request a-1: prompt: {prompt!r}, prefix_pos: None,sampling_params: {params}, prompt_token_ids: {ids}, lora_request: None.",
    "Received request a-1: prompt: {prompt!r}, params: {params}, prompt_token_ids: {ids}, lora_request: None, prompt_adapter_request: None.",
    "Received request a-1: prompt: {prompt!r}, params: {params}, prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None.",
]
PARAMS = "SamplingParams(n=1, temperature=0.7, stop=['max_tokens=5, ', ')'], max_tokens=512, min_tokens=0, guided_decoding=None)"


def read(form: str, prompt: str | None, ids: object = None, params: str = PARAMS) -> dict[str, object]:
    found = match(form.format(prompt=prompt, params=params, ids=ids), prefixed=True)
    assert found is not None
    assert (found.family, found.variant) == ("request", "received")
    assert found.prompt_fields >= {"prompt"}
    return found.fields


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prompt", TRAPS)
def test_the_last_parameters_count(form: str, prompt: str) -> None:
    fields = read(form, prompt, [1, 2, 3])
    assert fields["request_id"] == "a-1"
    assert fields["prompt"] == prompt
    assert fields["prompt_chars"] == len(prompt)
    assert fields["params"] == PARAMS
    assert (fields["max_tokens"], fields["num_prompt_token_ids"]) == (512, 3)


@given(st.text(max_size=200), st.integers(0, 40))
def test_any_prompt_comes_back(prompt: str, ids: int) -> None:
    fields = read(FORMS[2], prompt, list(range(ids)))
    assert (fields["prompt"], fields["num_prompt_token_ids"]) == (prompt, ids)


def test_what_was_not_logged_is_unknown() -> None:
    fields = read(FORMS[2], None)
    assert fields["prompt"] is None
    assert fields["prompt_chars"] is None
    assert fields["num_prompt_token_ids"] is None
    assert read(FORMS[2], "x", params="SamplingParams(max_tokens=None)")["max_tokens"] is None


def test_pooling_requests_have_no_output_limit() -> None:
    fields = read(FORMS[3], "x", params="PoolingParams(dimensions=None)")
    assert (fields["params"], fields["max_tokens"]) == ("PoolingParams(dimensions=None)", None)


def test_the_form_without_a_prompt() -> None:
    found = match(
        f"Received request a-1: params: {PARAMS}, lora_request: LoRARequest(lora_name='sql', lora_int_id=1).",
        prefixed=True,
    )
    assert found is not None
    assert found.fields["max_tokens"] == 512
    assert "prompt" not in found.fields
    assert found.fields["lora_request"] == "LoRARequest(lora_name='sql', lora_int_id=1)"


def test_a_record_of_300_kb_of_ids_is_quick() -> None:
    ids = list(range(60_000))
    began = time.process_time()
    assert read(FORMS[2], "x" * 300_000, ids)["num_prompt_token_ids"] == len(ids)
    assert time.process_time() - began < 1


@given(st.text(max_size=100))
def test_any_output_comes_back(output: str) -> None:
    found = match(
        f"Generated response a-1: output: {output!r}, output_token_ids: [1, 2], finish_reason: stop", prefixed=True
    )
    assert found is not None
    assert found.fields["output"] == output
    assert found.prompt_fields >= {"output"}
    assert (found.fields["num_output_token_ids"], found.fields["finish_reason"]) == (2, "stop")
