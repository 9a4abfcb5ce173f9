"""Configuration dumps: every setting that is visible has one name, whatever the version printed."""

from __future__ import annotations

import pytest

from parsers.families import match
from parsers.families.literals import iter_pairs, parse_literal


def startup(message: str) -> dict[str, object]:
    found = match(message, prefixed=True)
    assert found is not None
    assert found.family == "startup"
    return found.fields


def test_the_engines_line_is_read_by_key() -> None:
    fields = startup(
        "Initializing a V1 LLM engine (v0.32.0) with config: model='a, b=c', max_seq_len=4096, new_setting=7, kv_cache_dtype=fp8_e4m3, "
        "quantization_config=<x.<locals>.C object at 0x7f>, compilation_config={'mode': <Mode.A: 3>, 'sizes': [1, 2]}, enable_chunked_prefill=True, "
        "structured_outputs_config=StructuredOutputsConfig(backend='auto', x=[1, 2]), pooler_config=None"
    )
    assert (fields["version"], fields["engine"]) == ("0.32.0", "V1")
    assert (fields["model"], fields["max_model_len"], fields["new_setting"]) == ("a, b=c", 4096, 7)
    assert fields["quantization_config"] == "<x.<locals>.C object at 0x7f>"
    assert fields["compilation_config"] == {"mode": "<Mode.A: 3>", "sizes": [1, 2]}
    assert fields["structured_outputs_config"] == "StructuredOutputsConfig(backend='auto', x=[1, 2])"
    assert fields["enable_chunked_prefill"] is True
    assert fields["pooler_config"] is None


@pytest.mark.parametrize("end", [")", ", ", ""])
def test_odd_ends_of_old_versions(end: str) -> None:
    assert startup(f"Initializing an LLM engine with config: model='m', seed=0{end}")["seed"] == 0


def test_namespace_and_dictionary_lift_the_same_settings() -> None:
    wanted = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "block_size": 32,
        "gpu_memory_utilization": 0.85,
        "enable_prefix_caching": False,
        "scheduling_policy": "priority",
        "swap_space": 4,
        "preemption_mode": None,
        "kv_cache_dtype": "fp8",
        "max_model_len": 16384,
    }
    pairs = ", ".join(f"{key}={value!r}" for key, value in wanted.items())
    for text in (
        f"args: Namespace(host=None, lora_modules=[LoRA(name='x', path='/y')], {pairs})",
        f"non-default args: {wanted!r}",
    ):
        fields = startup(text)
        assert {name: fields[name] for name in wanted} == wanted


def test_nothing_is_executed(tmp_path: object) -> None:
    text = "__import__('os').system('true')"
    assert parse_literal(text) == text
    assert startup(f"args: Namespace(model={text})")["model"] == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None), ("True", True), ("-1", -1), ("1e-3", 0.001), ("torch.bfloat16", "torch.bfloat16"), ("'it\\'s'", "it's"),
        ("(1, 2)", [1, 2]), ("{1, 2}", [1, 2]), ("{}", {}), ("[]", []), ("{'a': {'b': [1, None]}}", {"a": {"b": [1, None]}}), ("{'a'", "{'a'"), ("", ""),
    ],
)  # fmt: skip
def test_literals(text: str, value: object) -> None:
    assert parse_literal(text) == value


def test_depth_is_bounded() -> None:
    parse_literal("[" * 5_000 + "]" * 5_000)


def test_pairs_keep_commas_inside_brackets_and_quotes() -> None:
    assert list(iter_pairs("a=1, b=[1, 2], c='x, d=3', e=F(g=1, h=2), i=1, 2")) == [
        ("a", "1"), ("b", "[1, 2]"), ("c", "'x, d=3'"), ("e", "F(g=1, h=2)"), ("i", "1, 2"),
    ]  # fmt: skip
