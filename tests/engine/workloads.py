"""Random engines and workloads: small, crowded, of every version and kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reference_engine.cost.step_time import LinearStepTime
from reference_engine.model.config import EngineConfig
from reference_engine.model.kv_group import KvGroup, alignment_of
from reference_engine.model.request import Request

VERSIONS = ["0.8.5", "0.9.2", "0.10.2", "0.11.1", "0.12.0", "0.18.0", "0.19.1", "0.23.0", "0.24.0", "0.28.0", "0.33.0"]  # fmt: skip
LINEAR = LinearStepTime(0.01, 0.0001, 0.0003, 1e-6)


class Roofline:
    """A step time that is no sum: the larger of a compute and a memory time, and a launch cost a request."""

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int, requests: int) -> float:
        compute = 0.0002 * (prefill_tokens + decode_requests)
        return max(compute, 0.004 + 1e-5 * kv_tokens) + 1e-4 * requests


@st.composite
def configs(draw: st.DrawFn, **fixed: Any) -> EngineConfig:
    size = draw(st.sampled_from([1, 4, 16]))
    fields: dict[str, Any] = {
        "num_blocks": draw(st.integers(5, 40)) * (16 // size),
        "block_size": size,
        "max_num_seqs": draw(st.sampled_from([2, 4, 16])),
        "max_num_batched_tokens": draw(st.sampled_from([8, 32, 64, 256])),
        "max_model_len": draw(st.sampled_from([64, 200])),
        "version": draw(st.sampled_from(VERSIONS)),
        "enable_chunked_prefill": draw(st.sampled_from([True, True, False])),
        "enable_prefix_caching": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 10, 40])),
        "long_prefill_adaptive": draw(st.booleans()),
        "max_num_active_seqs": draw(st.sampled_from([None, None, 3])),
        "reserve_full_isl": draw(st.sampled_from([None, None, False])),
        "watermark": draw(st.sampled_from([None, None, 0.1])),
        "async_scheduling": draw(st.booleans()),
    }
    return EngineConfig(**{**fields, **fixed})


@st.composite
def hybrid_configs(draw: st.DrawFn, **fixed: Any) -> EngineConfig:
    """Engines of models with several KV-cache groups, of the releases whose groups are known."""
    version = draw(st.sampled_from(["0.24.0", "0.28.0", "0.32.0", "0.33.0"]))
    config = draw(configs(**{"version": version, **fixed}))
    size = config.block_size
    window = draw(st.sampled_from([3, 8, 20, 48]))
    state = KvGroup("mamba", config.max_model_len)
    if config.enable_prefix_caching:
        state = KvGroup("mamba", size, mode="align", checkpoint=draw(st.booleans()))
        if version < "0.29" and draw(st.booleans()):
            state = KvGroup("mamba", size, mode="all")
    second = draw(
        st.sampled_from(
            [KvGroup("sliding", size, window=window), KvGroup("chunked_local", size, window=window), state]
            + [KvGroup("sliding", 2 * size, window=window)] * (state.mode != "all")
        )
    )
    groups = (KvGroup("full", size), *[second] * draw(st.sampled_from([1, 1, 3])))
    retention = draw(st.sampled_from([None, "dense", 0, 2 * alignment_of(groups)]))
    return replace(config, kv_groups=groups, retention_interval=retention)


@st.composite
def workloads(draw: st.DrawFn, config: EngineConfig, sharing: bool, aborts: bool = True) -> list[Request]:
    requests: list[Request] = []
    arrival = 0.0
    for number in range(draw(st.integers(1, 14))):
        arrival += draw(st.sampled_from([0.0, 0.0, 0.0004, 0.013, 0.11]))
        tokens = draw(st.integers(1, draw(st.sampled_from([10, 60, config.max_model_len - 1]))))
        prompt = None
        if sharing and draw(st.booleans()):
            stream = draw(st.sampled_from(["a", "b", "o0", "o1"]))
            shared = draw(st.integers(0, tokens))
            prompt = ((stream, shared), (f"u{number}", tokens - shared))
        abort = draw(st.sampled_from([None] * 9 + [0.05, 0.4])) if aborts else None
        requests.append(
            Request(
                number,
                tokens,
                draw(st.integers(1, draw(st.sampled_from([3, 30, 80])))),
                arrival_s=arrival,
                arrival_time=arrival + number * 1e-6,  # ties are an error of old versions
                priority=draw(st.integers(0, 2)),
                prompt=prompt,
                abort_s=None if abort is None else arrival + abort,
            )
        )
    return requests


@st.composite
def cases(draw: st.DrawFn, several: bool = False, **fixed: Any) -> tuple[EngineConfig, list[Request], bool]:
    """(configuration, workload, whether prompts may share content); `several`: KV-cache groups."""
    config = draw(hybrid_configs(**fixed) if several else configs(**fixed))
    sharing = draw(st.booleans())
    return config, draw(workloads(config, sharing)), sharing
