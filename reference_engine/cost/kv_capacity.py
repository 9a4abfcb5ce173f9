"""How many KV blocks fit: from the device's memory and the model, or from a known capacity under a change.

`kv_capacity` answers for a server that nobody has seen yet, `rescaled_num_blocks` for one whose log gave the number.
Both follow the sizing of vLLM's workers: memory x gpu_memory_utilization, less weights, less what the profiling run and
the runtime take; the rest is cut into blocks, and the device with the least room decides for all.

What the clock and the KV capacity need to know of a model: bytes of weights, bytes of KV, and its proportions.

`ModelShape`, `Parallel` (how it is split over devices), `kv_bytes_per_token`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from reference_engine.cost.hardware import GIB, Gpu
from reference_engine.model.errors import ConfigError

__all__ = [
    "KvCapacity",
    "ModelShape",
    "Parallel",
    "Placement",
    "kv_bytes_per_token",
    "kv_capacity",
    "rescaled_num_blocks",
    "runtime_bytes",
]
# Dense decoders hold about 12 h^2 parameters a layer (attention 4, feed-forward 8) and are built with a hidden size of
# about 128 times their depth; both together give depth and width from the parameter count alone.
_PARAMETERS_PER_LAYER = 12
_WIDTH_PER_LAYER = 128


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, bytes_per_value: int = 2) -> int:
    """Bytes that one token's keys and values take over all layers (1 byte a value for fp8, 2 for fp16 and bf16)."""
    return 2 * num_layers * num_kv_heads * head_size * bytes_per_value


@dataclass(frozen=True, slots=True)
class Parallel:
    """How many devices a layer is split over (tensor) and into how many stages the layers are cut (pipeline)."""

    tensor: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        for name, size in (("tensor", self.tensor), ("pipeline", self.pipeline)):
            if size < 1:
                raise ConfigError(f"{name}_parallel_size is {size}: it must be at least 1")

    @property
    def devices(self) -> int:
        """Devices of one engine."""
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model, whole (not split). Bytes; `parameters` defaults to two bytes a parameter.

    `active_share` is the part of the parameters that one token passes through (1 for dense models, for instance
    0.055 for a mixture of experts that uses 37 of 671 billion). `num_layers` and `hidden_size` are estimated from the
    parameter count when they are not given. `num_kv_heads` bounds how far tensor parallelism can split the KV cache
    (None: as far as it goes). `fp8_compute`: matrix products run on the device's fp8 units.
    """

    weight_bytes: float
    kv_bytes_per_token: float
    parameters: float | None = None
    active_share: float = 1.0
    num_layers: int | None = None
    hidden_size: int | None = None
    num_kv_heads: int | None = None
    fp8_compute: bool = False

    def __post_init__(self) -> None:
        for name in ("weight_bytes", "kv_bytes_per_token", "active_share"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"model.{name} is {value}: it must be a positive number")
        if self.active_share > 1:
            raise ConfigError(f"model.active_share is {self.active_share}: it must be at most 1")
        for name in ("parameters", "num_layers", "hidden_size", "num_kv_heads"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"model.{name} is {value}: it must be a positive number")

    @property
    def parameter_count(self) -> float:
        """Parameters, given or from the weights' bytes."""
        return self.weight_bytes / 2 if self.parameters is None else self.parameters

    @property
    def layers(self) -> int:
        """Decoder layers, given or estimated (8 billion parameters: 34; the real ones have 32 to 36)."""
        if self.num_layers is not None:
            return self.num_layers
        dense = self.parameter_count * self.active_share
        cube = dense / (_PARAMETERS_PER_LAYER * _WIDTH_PER_LAYER**2)
        return max(1, round(math.pow(cube, 1 / 3)))

    @property
    def width(self) -> int:
        """Hidden size, given or estimated from the depth."""
        return self.hidden_size if self.hidden_size is not None else _WIDTH_PER_LAYER * self.layers

    def weight_bytes_per_device(self, parallel: Parallel) -> float:
        """Weights that one device holds: split evenly over tensor and pipeline ranks."""
        return self.weight_bytes / parallel.devices

    def kv_bytes_per_token_per_device(self, parallel: Parallel) -> float:
        """KV bytes of one token on the fullest device.

        Tensor ranks beyond the number of KV heads hold copies of a head, so they save nothing; of the pipeline's stages
        the one with the most layers decides, because all stages keep the same number of blocks.
        """
        heads = self.num_kv_heads
        split = parallel.tensor if heads is None else min(parallel.tensor, heads)
        stage = 1 / parallel.pipeline
        if self.num_layers is not None:
            stage = math.ceil(self.num_layers / parallel.pipeline) / self.num_layers
        return self.kv_bytes_per_token * stage / split


# Basis: memory lines of vLLM logs with 7 to 70 billion parameters: peak activations of the profiling run 0.5 to 1.5 GiB
# at 2,048 to 8,192 batched tokens, memory outside the allocator 0.1 to 0.3 GiB, captured graphs 0.3 to 1 GiB;
# communication buffers add about 0.8 GiB a device as soon as there are peers.
_RUNTIME_GIB = 2.0
_PEERS_GIB = 0.8


def runtime_bytes(parallel: Parallel) -> float:
    """Bytes of a device that neither weights nor KV blocks can have: activations, graphs, communication buffers."""
    return (_RUNTIME_GIB + (_PEERS_GIB if parallel.devices > 1 else 0.0)) * GIB


@dataclass(frozen=True, slots=True)
class Placement:
    """What changes the room for KV blocks on given devices.

    `kv_scale` is the size of a KV value against the one in `ModelShape.kv_bytes_per_token` (0.5: fp8 instead of fp16).
    """

    gpu_memory_utilization: float = 0.9
    parallel: Parallel = field(default_factory=Parallel)
    kv_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}: it must be above 0 and at most 1"
            )
        if not (math.isfinite(self.kv_scale) and self.kv_scale > 0):
            raise ConfigError(f"the KV value size ratio is {self.kv_scale}: it must be positive")


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """The KV cache of one engine. `num_blocks` is vLLM's own count (V1's includes the null block), 0: nothing fits.

    `bytes_per_device` may be negative: by so much the weights do not fit.
    """

    num_blocks: int
    block_size: int
    bytes_per_device: float

    @property
    def tokens(self) -> int:
        """Tokens that the blocks hold."""
        return self.num_blocks * self.block_size


def kv_capacity(
    gpu: Gpu, model: ModelShape, placement: Placement | None = None, block_size: int = 16, runtime: float | None = None
) -> KvCapacity:
    """The KV capacity of an engine on `placement.parallel.devices` devices of kind `gpu`.

    `runtime`: bytes a device for everything but weights and KV (default: `runtime_bytes`).
    """
    place = placement or Placement()
    taken = runtime_bytes(place.parallel) if runtime is None else runtime
    room = gpu.memory_bytes * place.gpu_memory_utilization - model.weight_bytes_per_device(place.parallel) - taken
    return KvCapacity(_blocks(room, model, place, block_size), block_size, room)


def rescaled_num_blocks(
    num_blocks: int, block_size: int, memory_bytes: float, model: ModelShape, before: Placement, after: Placement
) -> int:
    """Blocks of the same size after a change of utilization, parallel sizes or KV type; 0 when nothing fits.

    What the runtime takes cancels out, so only the device's memory and the model are needed; peers that appear with the
    change cost their communication buffers. An unchanged placement gives `num_blocks` again.
    """
    if before == after:
        return num_blocks
    # The smallest room that gives `num_blocks`: what was left of the last, broken block is not in the number.
    room = num_blocks * block_size * before.kv_scale
    room *= model.kv_bytes_per_token_per_device(before.parallel)
    room += memory_bytes * (after.gpu_memory_utilization - before.gpu_memory_utilization)
    room += model.weight_bytes_per_device(before.parallel)
    room -= model.weight_bytes_per_device(after.parallel)
    room += runtime_bytes(before.parallel) - runtime_bytes(after.parallel)
    return _blocks(room, model, after, block_size)


def _blocks(room: float, model: ModelShape, place: Placement, block_size: int) -> int:
    if block_size < 1:
        raise ConfigError(f"block_size is {block_size}: it must be at least 1")
    scaled = replace(model, kv_bytes_per_token=model.kv_bytes_per_token * place.kv_scale)
    block_bytes = block_size * scaled.kv_bytes_per_token_per_device(place.parallel)
    # A hair more than exact, so that a whole number of blocks is not lost to rounding.
    return max(0, math.floor(room / block_bytes + 1e-9))
