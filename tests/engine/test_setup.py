"""Configuration documents: what becomes an engine and a clock, and what is refused with which sentence."""

from __future__ import annotations

from typing import Any

import pytest

from reference_engine.cost.hardware import Parallel
from reference_engine.cost.step_time import LinearStepTime, RooflineStepTime
from reference_engine.model import ConfigError
from reference_engine.model.config import EngineConfig, check_config
from reference_engine.traces.config_file import nominal_setup, setup_from_document

CLOCK = {"base_s": 0.02, "per_prefill_token_s": 1e-4, "per_decode_s": 2e-4, "per_kv_token_s": 1e-8}
MODEL = {"weight_bytes": 16e9, "kv_bytes_per_token": 131072}


def test_every_key_reaches_the_engine() -> None:
    setup = setup_from_document(
        {
            "engine": "vllm-v0", "version": "0.8.5", "num_blocks": 100, "block_size": 32, "max_num_seqs": 8,
            "max_num_batched_tokens": 512, "max_model_len": 1024, "enable_chunked_prefill": False,
            "enable_prefix_caching": False, "policy": "priority", "preemption_mode": "swap", "num_cpu_blocks": 40,
            "delay_factor": 0.5, "async": False, "step_time": CLOCK,
        }
    )  # fmt: skip
    assert setup.config == EngineConfig(
        num_blocks=100, block_size=32, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=1024,
        engine="vllm-v0", version="0.8.5", enable_chunked_prefill=False, enable_prefix_caching=False,
        policy="priority", preemption_mode="swap", num_cpu_blocks=40, delay_factor=0.5,
    )  # fmt: skip
    assert setup.clock == LinearStepTime(**CLOCK)


def test_null_means_the_default() -> None:
    setup = setup_from_document({"num_blocks": 9, "max_num_seqs": None, "watermark": None, "reserve_full_isl": None})
    assert setup.config == EngineConfig(num_blocks=9)
    assert setup.clock is None


def test_hardware_and_model_give_a_roofline_and_the_blocks() -> None:
    model = {**MODEL, "tensor_parallel_size": 2, "pipeline_parallel_size": None}
    one = setup_from_document({"hardware": "A100", "model": MODEL, "async": True})
    two = setup_from_document({"hardware": "A100", "model": model})
    assert isinstance(one.clock, RooflineStepTime)
    assert one.clock.async_scheduling
    assert isinstance(two.clock, RooflineStepTime)
    assert two.clock.parallel == Parallel(2, 1)
    assert 20_000 < one.config.num_blocks < two.config.num_blocks / 2
    fuller = setup_from_document({"hardware": "A100", "model": MODEL, "gpu_memory_utilization": 0.95})
    assert fuller.config.num_blocks > one.config.num_blocks


def test_given_blocks_and_coefficients_win_over_the_model() -> None:
    setup = setup_from_document({"num_blocks": 77, "hardware": "A100", "model": MODEL, "step_time": CLOCK})
    assert setup.config.num_blocks == 77
    assert setup.clock == LinearStepTime(**CLOCK)


def test_the_stand_in_holds_a_long_context() -> None:
    setup = nominal_setup()
    assert setup.config.num_blocks * setup.config.block_size > setup.config.max_model_len
    assert setup.clock is not None


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "num_blocks is missing"),
        ({"num_blocks": 9, "max_num_seq": 4}, "unknown key 'max_num_seq'; did you mean max_num_seqs"),
        ({"num_blocks": 9.5}, "num_blocks is 9.5: it must be a whole number"),
        ({"num_blocks": True}, "num_blocks is True"),
        ({"num_blocks": "many"}, "num_blocks is 'many'"),
        ({"num_blocks": -1}, "num_blocks is -1: it must be at least 0"),
        ({"num_blocks": float("nan")}, "num_blocks is nan"),
        ({"num_blocks": 9, "engine": "sglang"}, "engine is 'sglang': known are vllm-v1, vllm-v0"),
        ({"num_blocks": 9, "policy": "lifo"}, "policy is 'lifo'"),
        ({"num_blocks": 9, "preemption_mode": "drop"}, "preemption_mode is 'drop'"),
        ({"num_blocks": 9, "enable_prefix_caching": "yes"}, "it must be true or false"),
        ({"num_blocks": 9, "version": 0.8}, "version is 0.8: it must be text"),
        ({"num_blocks": 9, "step_time": 5}, "step_time is 5: it must be an object"),
        ({"num_blocks": 9, "step_time": {"base_s": 1}}, "step_time.per_prefill_token_s is missing"),
        ({"num_blocks": 9, "step_time": {**CLOCK, "base_s": -1}}, "step_time.base_s is -1"),
        ({"num_blocks": 9, "step_time": {**CLOCK, "base": 1}}, "did you mean base_s"),
        ({"num_blocks": 9, "step_time": dict.fromkeys(CLOCK, 0)}, "time would stand still"),
        ({"num_blocks": 9, "hardware": "A100"}, "hardware and model belong together"),
        ({"num_blocks": 9, "hardware": "Abacus", "model": MODEL}, "'Abacus' is not in the GPU table"),
        ({"num_blocks": 9, "hardware": 5, "model": MODEL}, "hardware is 5"),
        ({"num_blocks": 9, "hardware": "A100", "model": {"weight_bytes": 1}}, "kv_bytes_per_token is missing"),
        ({"num_blocks": 9, "hardware": "A100", "model": {**MODEL, "weight_bytes": "big"}}, "model.weight_bytes is 'big'"),
        ({"num_blocks": 9, "hardware": "A100", "model": {**MODEL, "layers": 3}}, "unknown key 'layers'"),
        ({"num_blocks": 9, "hardware": "A100", "model": {**MODEL, "tensor_parallel_size": -2}}, "tensor_parallel_size"),
        ({"hardware": "T4", "model": MODEL}, "leaves no room for KV blocks on 1 x T4"),
    ],
)  # fmt: skip
def test_what_is_refused(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        setup_from_document(document)


@pytest.mark.parametrize("engine", ["vllm-v0", "vllm-v1"])
@pytest.mark.parametrize("name", ["num_blocks", "num_cpu_blocks", "block_size", "max_num_seqs", "max_model_len"])
def test_a_size_that_would_take_the_memory_of_the_machine_is_refused(engine: str, name: str) -> None:
    sizes = {"num_blocks": 300, "block_size": 16, name: 10**13}
    with pytest.raises(ConfigError, match=f"{name} is larger than any server has"):
        check_config(EngineConfig(engine=engine, **sizes))
