"""What a configuration and a workload must obey before they are replayed; each breach is one sentence.

The configuration of an engine: what the scheduler is allowed to do, in vLLM's own terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from reference_engine.model import ConfigError, WorkloadError
from reference_engine.model.kv_group import KvGroup, alignment_of
from reference_engine.model.request import Request

__all__ = ["EngineConfig", "check_config", "check_request", "check_workload"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine's configuration. Lengths in tokens, `num_blocks` of V1 includes its null block.

    None means: the default of `version`. The fields from `num_cpu_blocks` to `max_long_partial_prefills` are V0's.
    `num_spec_tokens`: drafts a step of speculative decoding (0: off), proposed by `spec_method`; `mtp_layers`: its MTP
    modules. `acceptance`: share of the drafts that are accepted, for requests that do not say themselves.
    `prefill_schedule_interval`: prompts only in every so many steps while others decode (0.33.0 on).
    `kv_groups`: the groups where they are not one group of full attention with `block_size`; `retention_interval`: "dense"
    registers all that can be hit, 0 only the ends of prompts and of shared prefixes, N > 0 also every N tokens.
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
    num_spec_tokens: int = 0
    spec_method: str | None = None
    mtp_layers: int = 1
    acceptance: float = 0.0
    disable_eagle_block_drop: bool = False
    disable_lookahead_block_hashes: bool = False
    prefill_schedule_interval: int = 1
    num_cpu_blocks: int = 0
    preemption_mode: str | None = None
    delay_factor: float = 0.0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    kv_groups: tuple[KvGroup, ...] | None = None
    retention_interval: int | str | None = None

    @property
    def max_num_running_reqs(self) -> int:
        """How many requests run at once at most, in a version that has `max_num_active_seqs`."""
        return min(self.max_num_seqs, self.max_num_active_seqs or self.max_num_seqs)


LATEST_S = 4e9
"""Seconds: 127 years, and what nanoseconds in 64 bits can hold with room for the replay."""

MOST_TOKENS = 1 << 40
MOST_BLOCKS, MOST_BLOCK_SIZE = 1 << 24, 1 << 20
MOST_SPEC_TOKENS = 1 << 10
SPEC_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model")
_SIZES = ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


def check_config(config: EngineConfig) -> None:
    """Refuse what no engine could run. A token budget below one block is allowed, as the real scheduler allows it.

    Raises:
        ConfigError: names the setting and what it must be.
    """
    least = 2 if config.engine == "vllm-v1" else 1
    if config.num_blocks < least:
        note = " (one of them is V1's null block)" if least == 2 else ""
        raise ConfigError(f"num_blocks is {config.num_blocks}, it must be at least {least}{note}")
    for name in _SIZES:
        least = 2 if name == "max_model_len" else 1  # a token of the prompt, and one of the output
        if getattr(config, name) < least:
            raise ConfigError(f"{name} is {getattr(config, name)}, it must be at least {least}")
    most = dict.fromkeys(_SIZES, MOST_TOKENS) | {"block_size": MOST_BLOCK_SIZE}
    for name, limit in {**most, "num_blocks": MOST_BLOCKS, "num_cpu_blocks": MOST_BLOCKS}.items():
        if getattr(config, name) > limit:
            raise ConfigError(f"{name} is larger than any server has (at most {limit})")
    if config.policy not in ("fcfs", "priority"):
        raise ConfigError(f"policy is {config.policy!r}, it must be fcfs or priority")
    if config.watermark is not None and not 0 <= config.watermark < 1:
        raise ConfigError(f"watermark is {config.watermark}, it must be from 0 to below 1")
    _check_groups(config)
    if config.max_num_active_seqs is not None and config.max_num_active_seqs < 1:
        raise ConfigError(f"max_num_active_seqs is {config.max_num_active_seqs}, it must be at least 1")
    if config.prefill_schedule_interval < 1:
        raise ConfigError(f"prefill_schedule_interval is {config.prefill_schedule_interval}, it must be at least 1")
    _check_drafts(config)


def _check_drafts(config: EngineConfig) -> None:
    """Refuse drafts that nothing proposes, and those of V0, which this engine does not know."""
    drafts, method = config.num_spec_tokens, config.spec_method
    if not 0 <= drafts <= MOST_SPEC_TOKENS:
        raise ConfigError(f"num_spec_tokens is {drafts}, it must be from 0 to {MOST_SPEC_TOKENS}")
    if method is not None and method not in SPEC_METHODS:
        raise ConfigError(f"spec_method is {method!r}: known are {', '.join(SPEC_METHODS)}")
    if not 0 <= config.acceptance <= 1:
        raise ConfigError(f"acceptance is {config.acceptance}, it must be from 0 to 1")
    if config.mtp_layers < 1:
        raise ConfigError(f"mtp_layers is {config.mtp_layers}, it must be at least 1")
    if drafts and method is None:
        raise ConfigError(f"num_spec_tokens needs a spec_method: {', '.join(SPEC_METHODS)}")
    if drafts and config.engine != "vllm-v1":
        raise ConfigError("speculative decoding of V0 is not modelled: num_spec_tokens must be 0")


def _check_groups(config: EngineConfig) -> None:
    groups = config.kv_groups or ()
    if groups and config.engine != "vllm-v1":
        raise ConfigError("kv_groups: only V1 has several KV-cache groups")
    if any(group.is_state and group.mode == "none" for group in groups) and config.enable_prefix_caching:
        raise ConfigError('kv_groups: with prefix caching the mode of a state group is "align" or "all", not "none"')
    interval = config.retention_interval
    if not groups or interval is None:
        return
    if isinstance(interval, str):
        if interval != "dense":
            raise ConfigError(f"retention_interval is {interval!r}, it must be dense or a number of tokens")
        return
    unit = alignment_of(groups)
    if interval < 0 or interval % unit:
        raise ConfigError(
            f"retention_interval is {interval}, it must be a multiple of {unit}, where the blocks of all groups end"
        )


def check_request(config: EngineConfig, request: Request) -> None:
    """Refuse a request that the server's front end would refuse, or that has no place in time.

    A prompt of `max_model_len` tokens or more is refused as V1's input processor refuses it (v1/engine/processor.py);
    V0's scheduler takes it and ignores it.

    Raises:
        WorkloadError: names the request.
    """
    where = f"request {request.id!r}"
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise WorkloadError(f"{where} must have at least one prompt token and one output token")
    if max(request.prompt_tokens, request.output_tokens) > MOST_TOKENS:
        raise WorkloadError(f"{where} has more tokens than any model takes")
    if request.prompt_tokens >= config.max_model_len and config.engine == "vllm-v1":
        raise WorkloadError(
            f"{where} has a prompt of {request.prompt_tokens} tokens, it must be shorter than max_model_len, "
            f"{config.max_model_len}"
        )
    for name in ("arrival_s", "arrival_time", "abort_s"):
        value = getattr(request, name)
        if value is not None and not (math.isfinite(value) and 0 <= value <= LATEST_S):
            raise WorkloadError(f"{where} has {name} {value}, it must be a time from 0 to {LATEST_S:.0e} seconds")
    if request.abort_s is not None and request.abort_s < request.arrival_s:
        raise WorkloadError(f"{where} is aborted before it arrives")
    for name in ("accept", "drafts"):
        if any(number < 0 for number in getattr(request, name)):
            raise WorkloadError(f"{where} has a negative number in {name}")
    if request.prompt is not None:
        lengths = [length for _stream, length in request.prompt]
        if min(lengths, default=0) < 0 or sum(lengths) != request.prompt_tokens:
            raise WorkloadError(
                f"{where} has prompt pieces of {sum(lengths)} tokens for {request.prompt_tokens} prompt tokens"
            )


def check_workload(config: EngineConfig, requests: Iterable[Request]) -> None:
    """Check a configuration and all requests.

    Raises:
        ConfigError, WorkloadError: the first breach; a workload without requests and a repeated id are breaches too.
    """
    check_config(config)
    seen = set()
    for request in requests:
        check_request(config, request)
        if request.id in seen:
            raise WorkloadError(f"request id {request.id!r} is there twice")
        seen.add(request.id)
    if not seen:
        raise WorkloadError("the workload holds no request")
