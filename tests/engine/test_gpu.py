"""The roofline clock and the KV capacity: what must hold for any device and model, and figures that people measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_engine.cost.hardware import (
    GIB,
    GPUS,
    ModelShape,
    Parallel,
    Placement,
    find_gpu,
    kv_bytes_per_token,
    kv_capacity,
    rescaled_num_blocks,
    runtime_bytes,
)
from reference_engine.cost.step_time import Efficiency, RooflineStepTime
from reference_engine.model import ConfigError

LLAMA_8B = ModelShape(16.06e9, 131072, num_layers=32, hidden_size=4096, num_kv_heads=8)
LLAMA_70B = ModelShape(141e9, 327680, num_layers=80, hidden_size=8192, num_kv_heads=8)

gpus = st.sampled_from(GPUS)
models = st.builds(
    ModelShape,
    weight_bytes=st.floats(1e8, 2e12),
    kv_bytes_per_token=st.floats(1e3, 1e6),
    active_share=st.floats(0.01, 1.0),
    num_kv_heads=st.none() | st.integers(1, 32),
)
splits = st.builds(Parallel, tensor=st.sampled_from([1, 2, 4, 8]), pipeline=st.integers(1, 4))
clocks = st.builds(RooflineStepTime, gpu=gpus, model=models, parallel=splits, async_scheduling=st.booleans())
tokens = st.integers(0, 200_000)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H100 PCIe", "H100-PCIe-80GB"),
        ("NVIDIA H100 NVL", "H100-NVL-94GB"),
        ("h200", "H200-SXM-141GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("a10g", "A10G"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_a_gpu_is_found_by_every_common_spelling(spelling: str, name: str) -> None:
    assert find_gpu(spelling).name == name


def test_an_unknown_gpu_is_an_error_that_names_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"'A110'.*A10"):
        find_gpu("A110")


def test_every_row_of_the_table_is_complete_and_spelled_once() -> None:
    for gpu in GPUS:
        assert find_gpu(gpu.name) is gpu
        assert all(find_gpu(alias) is gpu for alias in gpu.aliases)
        assert gpu.source
        assert 10 * GIB < gpu.memory_bytes < 300 * GIB
        assert gpu.fp16_flops > 5e13
        assert gpu.fp8_flops is None or gpu.fp8_flops >= 1.9 * gpu.fp16_flops
        # A machine balance out of this range would be a slip of units.
        assert 30 < gpu.fp16_flops / gpu.bandwidth_bytes_per_s < 450


def test_one_decode_takes_what_a_published_measurement_took() -> None:
    # Musgrave, "vLLM throughput-latency sweep on NVIDIA A100" (vLLM 0.23.0, bf16, 1,024 tokens in, one at a time): about
    # 75 tokens a second on the 40 GB device.
    clock = RooflineStepTime(find_gpu("A100-40GB"), LLAMA_8B)
    assert clock.seconds(0, 1, 1088, 1) == pytest.approx(1 / 75, rel=0.1)


@pytest.mark.parametrize("gpu", ["T4", "A10G", "L4", "A100", "H100", "H200", "MI300X"])
def test_a_lone_decode_is_bound_by_memory_and_a_long_prefill_by_arithmetic(gpu: str) -> None:
    device = find_gpu(gpu)
    clock = RooflineStepTime(device, LLAMA_8B)
    reading = LLAMA_8B.weight_bytes / device.bandwidth_bytes_per_s
    assert reading / 0.8 <= clock.seconds(0, 1, 500, 1) <= reading / 0.5
    arithmetic = 8192 * 16.06e9 / device.fp16_flops
    assert arithmetic / 0.6 <= clock.seconds(8192, 0, 8192, 1) <= arithmetic / 0.5


@given(clocks, tokens, st.integers(0, 512), st.integers(0, 4_000_000), st.integers(1, 5000))
def test_more_prefill_takes_no_less_time(
    clock: RooflineStepTime, prefill: int, decodes: int, kv: int, more: int
) -> None:
    requests = decodes + 1
    before = clock.seconds(prefill, decodes, kv, requests)
    after = clock.seconds(prefill + more, decodes, kv + more, requests)
    assert math.isfinite(after)
    assert after >= before * (1 - 1e-9) > 0


@given(clocks, tokens, st.integers(0, 512), st.integers(0, 4_000_000), st.integers(1, 50_000))
def test_longer_contexts_take_no_less_time(
    clock: RooflineStepTime, prefill: int, decodes: int, kv: int, more: int
) -> None:
    requests = decodes + bool(prefill)
    before = clock.seconds(prefill, decodes, kv, requests)
    assert clock.seconds(prefill, decodes, kv + more, requests) >= before * (1 - 1e-9)


@given(gpus, models, st.sampled_from([1, 2, 4, 8]), st.integers(1, 400), st.integers(1, 4000))
def test_one_more_decode_of_the_same_length_takes_no_less_time(
    gpu: object, model: ModelShape, tensor: int, decodes: int, context: int
) -> None:
    clock = RooflineStepTime(gpu, model, Parallel(tensor))  # type: ignore[arg-type]
    before = clock.seconds(0, decodes, decodes * context, decodes)
    after = clock.seconds(0, decodes + 1, (decodes + 1) * context, decodes + 1)
    assert after >= before * (1 - 1e-9)


@given(gpus, models, splits, tokens, st.integers(0, 300), st.integers(0, 2_000_000))
def test_better_hardware_is_never_slower(
    gpu: object, model: ModelShape, split: Parallel, prefill: int, decodes: int, kv: int
) -> None:
    load = (prefill, decodes, kv, decodes + bool(prefill))
    base = RooflineStepTime(gpu, model, split).seconds(*load)  # type: ignore[arg-type]
    for part in ("bandwidth_bytes_per_s", "fp16_flops", "link_bytes_per_s"):
        better = replace(gpu, **{part: 2 * getattr(gpu, part)})  # type: ignore[type-var]
        assert RooflineStepTime(better, model, split).seconds(*load) <= base * (1 + 1e-9)


@given(gpus, models, tokens, st.integers(1, 300), st.integers(0, 2_000_000))
def test_without_costs_of_communication_tensor_parallelism_divides_the_device_time(
    gpu: object, model: ModelShape, prefill: int, decodes: int, kv: int
) -> None:
    free = Efficiency(collective_s=0, layer_s=0, host_step_s=0, host_request_s=0)
    wide = replace(gpu, link_bytes_per_s=1e30)  # type: ignore[type-var]
    whole = replace(model, num_kv_heads=None)
    load = (prefill, decodes, kv, decodes + bool(prefill))
    one = RooflineStepTime(wide, whole, Parallel(1), free).seconds(*load)
    four = RooflineStepTime(wide, whole, Parallel(4), free).seconds(*load)
    assert four == pytest.approx(one / 4, rel=1e-6)


def test_tensor_parallelism_pays_for_its_all_reduces() -> None:
    fast = RooflineStepTime(find_gpu("A100"), LLAMA_70B, Parallel(4))
    slow = RooflineStepTime(find_gpu("A100 PCIe"), LLAMA_70B, Parallel(4))
    # 4,096 tokens x 8,192 values x 2 bytes x 160 all-reduces x 1.5 over 300 or 32 GB/s, three quarters of it reached.
    volume = 4096 * 8192 * 2 * 160 * 1.5
    difference = volume / (0.75 * 32e9) - volume / (0.75 * 300e9)
    got = slow.seconds(4096, 0, 4096, 1) - fast.seconds(4096, 0, 4096, 1)
    assert got == pytest.approx(difference, rel=0.05)


def test_pipeline_stages_share_the_arithmetic_of_many_requests_but_not_of_one() -> None:
    one = RooflineStepTime(find_gpu("H100"), LLAMA_70B)
    four = RooflineStepTime(find_gpu("H100"), LLAMA_70B, Parallel(1, 4))
    many = (8192, 0, 8192, 16)
    assert four.seconds(*many) == pytest.approx(one.seconds(*many) / 4, rel=0.1)
    alone = (8192, 0, 8192, 1)
    assert four.seconds(*alone) == pytest.approx(one.seconds(*alone), rel=0.1)


def test_pipeline_stages_do_not_speed_up_the_reading_of_weights() -> None:
    one = RooflineStepTime(find_gpu("H100"), LLAMA_70B).seconds(0, 4, 4000, 4)
    assert RooflineStepTime(find_gpu("H100"), LLAMA_70B, Parallel(1, 4)).seconds(0, 4, 4000, 4) == pytest.approx(
        one, rel=0.05
    )


def test_few_tokens_of_a_mixture_of_experts_read_few_weights() -> None:
    mixture = ModelShape(94e9, 131072, active_share=0.28, num_layers=32)
    clock = RooflineStepTime(find_gpu("H100"), mixture, Parallel(2))
    dense = RooflineStepTime(find_gpu("H100"), replace(mixture, active_share=1.0), Parallel(2))
    assert clock.seconds(0, 1, 500, 1) < 0.5 * dense.seconds(0, 1, 500, 1)
    assert clock.seconds(0, 64, 500, 64) == pytest.approx(dense.seconds(0, 64, 500, 64), rel=0.05)


def test_asynchronous_scheduling_hides_the_shorter_of_host_and_device() -> None:
    gpu = find_gpu("H100")
    small = ModelShape(1e9, 20_000)
    sync = RooflineStepTime(gpu, small)
    hidden = RooflineStepTime(gpu, small, async_scheduling=True)
    load = (0, 256, 256 * 200, 256)
    host = Efficiency().host_step_s + 256 * Efficiency().host_request_s
    assert hidden.seconds(*load) == pytest.approx(max(host, sync.seconds(*load) - host))


@pytest.mark.parametrize(
    ("model", "layers", "width"), [(ModelShape(16.06e9, 1.0), 32, 4096), (ModelShape(141e9, 1.0), 80, 8192)]
)
def test_depth_and_width_are_estimated_from_the_size(model: ModelShape, layers: int, width: int) -> None:
    assert model.layers == pytest.approx(layers, rel=0.15)
    assert model.width == pytest.approx(width, rel=0.15)


def test_kv_bytes_of_known_models() -> None:
    assert kv_bytes_per_token(32, 8, 128) == 131072
    assert kv_bytes_per_token(80, 8, 128, bytes_per_value=1) == 163840


def test_kv_capacity_is_the_memory_that_is_left() -> None:
    # 79.15 GiB x 0.9, less a quarter of 141 GB, less 2.8 GiB of runtime, at 327,680 / 4 bytes a token.
    capacity = kv_capacity(find_gpu("A100"), LLAMA_70B, Placement(0.9, Parallel(4)))
    room = 79.15 * GIB * 0.9 - 141e9 / 4 - 2.8 * GIB
    assert capacity.bytes_per_device == pytest.approx(room)
    assert capacity.num_blocks == int(room / (16 * 327680 / 4))
    assert capacity.tokens == 16 * capacity.num_blocks


def test_weights_that_do_not_fit_leave_no_block() -> None:
    capacity = kv_capacity(find_gpu("T4"), LLAMA_8B)
    assert capacity.num_blocks == 0
    assert capacity.bytes_per_device < 0


def test_splitting_past_the_kv_heads_saves_no_kv() -> None:
    assert LLAMA_8B.kv_bytes_per_token_per_device(Parallel(8)) == 131072 / 8
    assert LLAMA_8B.kv_bytes_per_token_per_device(Parallel(16)) == 131072 / 8


def test_the_stage_with_most_layers_decides() -> None:
    assert LLAMA_70B.kv_bytes_per_token_per_device(Parallel(1, 3)) == pytest.approx(327680 * 27 / 80)


@given(gpus, models, st.floats(0.3, 0.9), st.floats(0.01, 0.1), st.sampled_from([1, 2, 4]), st.sampled_from([16, 32]))
def test_more_memory_devices_or_smaller_values_never_hold_less(
    gpu: object, model: ModelShape, share: float, more: float, tensor: int, block: int
) -> None:
    def tokens_at(placement: Placement) -> int:
        return kv_capacity(gpu, model, placement, block).tokens  # type: ignore[arg-type]

    base = tokens_at(Placement(share, Parallel(tensor)))
    assert tokens_at(Placement(share + more, Parallel(tensor))) >= base
    assert tokens_at(Placement(share, Parallel(tensor), kv_scale=0.5)) >= base
    if tensor > 1:  # from one device to two the communication buffers come on top
        assert tokens_at(Placement(share, Parallel(2 * tensor))) >= base


@given(gpus, models, splits, splits, st.floats(0.5, 0.95), st.floats(0.5, 0.95), st.sampled_from([0.5, 1.0, 2.0]))
def test_rescaling_a_capacity_agrees_with_sizing_afresh(
    gpu: object, model: ModelShape, first: Parallel, second: Parallel, low: float, high: float, scale: float
) -> None:
    before, after = Placement(low, first), Placement(high, second, scale)
    known = kv_capacity(gpu, model, before)  # type: ignore[arg-type]
    fresh = kv_capacity(gpu, model, after)  # type: ignore[arg-type]
    if known.num_blocks == 0:
        return
    got = rescaled_num_blocks(
        known.num_blocks, 16, gpu.memory_bytes, model, before, after  # type: ignore[attr-defined]
    )  # fmt: skip
    # The rest of the last block before the change is lost: at most one block then, in units of blocks now.
    unit = model.kv_bytes_per_token_per_device(first) / model.kv_bytes_per_token_per_device(second)
    assert fresh.num_blocks - unit / scale - 2 <= got <= fresh.num_blocks + 1


def test_an_unchanged_placement_keeps_its_blocks() -> None:
    place = Placement(0.9, Parallel(2))
    assert rescaled_num_blocks(12345, 16, 80 * GIB, LLAMA_8B, place, place) == 12345


def test_peers_cost_communication_buffers() -> None:
    assert runtime_bytes(Parallel(2)) > runtime_bytes(Parallel())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ModelShape(0, 1), "weight_bytes is 0"),
        (lambda: ModelShape(math.nan, 1), "weight_bytes is nan"),
        (lambda: ModelShape(1e9, -1), "kv_bytes_per_token is -1"),
        (lambda: ModelShape(1e9, 1, active_share=1.5), "active_share is 1.5"),
        (lambda: ModelShape(1e9, 1, num_layers=0), "num_layers is 0"),
        (lambda: Parallel(0), "tensor_parallel_size is 0"),
        (lambda: Parallel(1, -1), "pipeline_parallel_size is -1"),
        (lambda: Placement(1.5), "gpu_memory_utilization is 1.5"),
        (lambda: Placement(0.9, kv_scale=0), "ratio is 0"),
        (lambda: kv_capacity(GPUS[0], LLAMA_8B, block_size=0), "block_size is 0"),
    ],
)
def test_impossible_values_are_refused_with_a_sentence(make: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make()  # type: ignore[operator]
