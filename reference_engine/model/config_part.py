"""The configuration of an engine: what the scheduler is allowed to do, in vLLM's own terms."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineConfig"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine's configuration. Lengths in tokens, `num_blocks` of V1 includes its null block.

    None means: the default of `version`. The fields from `num_cpu_blocks` to `max_long_partial_prefills` are V0's.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    engine: str = "vllm-v1"
    version: str = "0.33.0"
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    long_prefill_adaptive: bool = False
    max_num_active_seqs: int | None = None
    reserve_full_isl: bool | None = None
    watermark: float | None = None
    async_scheduling: bool = False
    num_cpu_blocks: int = 0
    preemption_mode: str | None = None
    delay_factor: float = 0.0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
