"""What the clock and the KV capacity need to know of a model: bytes of weights, bytes of KV, and its proportions.

`ModelShape`, `Parallel` (how it is split over devices), `kv_bytes_per_token`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference_engine.model.errors import ConfigError

__all__ = ["ModelShape", "Parallel", "kv_bytes_per_token"]

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
