"""What the hardware holds: accelerators, the shape of a model, and how many KV blocks fit.

`GPUS` is the table of accelerators that people serve on, each with its source; `find_gpu` finds one by any common spelling.
`ModelShape` and `Parallel` (how it is split over devices) tell bytes of weights and of KV.
`kv_capacity` answers for a server that nobody has seen yet, `rescaled_num_blocks` for one whose log gave the number.
Both follow the sizing of vLLM's workers: memory x gpu_memory_utilization, less weights, less what the profiling run and
the runtime take; the rest is cut into blocks, and the device with the least room decides for all.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field, replace

from reference_engine.model import ConfigError

__all__ = [
    "GIB",
    "GPUS",
    "Gpu",
    "KvCapacity",
    "ModelShape",
    "Parallel",
    "Placement",
    "find_gpu",
    "kv_bytes_per_token",
    "kv_capacity",
    "rescaled_num_blocks",
    "runtime_bytes",
]
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. Bytes, bytes per second, floating-point operations per second; peaks, not what kernels reach.

    `memory_bytes` is what the runtime reports as the device's total (the base of `gpu_memory_utilization`), which is
    less than the name on the box. `fp16_flops` and `fp8_flops` are dense tensor-core rates with 32-bit accumulation
    (None: the device has no such units, fp8 weights are computed at the fp16 rate). `link_bytes_per_s` is one
    direction of the device's fastest link to its peers: half of the figure that datasheets print.
    """

    name: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    fp16_flops: float
    fp8_flops: float | None
    link_bytes_per_s: float
    link: str
    source: str
    aliases: tuple[str, ...] = ()


def _gpu(
    name: str,
    gib: float,
    gb_per_s: float,
    tflops: float,
    fp8: float | None,
    link: tuple[str, float],
    source: str,
    *aliases: str,
) -> Gpu:
    """One row of the table: GiB of memory, GB/s, TFLOP/s, and the link's GB/s in both directions together."""
    kind, both_ways = link
    return Gpu(
        name=name,
        memory_bytes=round(gib * GIB),
        bandwidth_bytes_per_s=gb_per_s * 1e9,
        fp16_flops=tflops * 1e12,
        fp8_flops=None if fp8 is None else fp8 * 1e12,
        link_bytes_per_s=both_ways * 1e9 / 2,
        link=kind,
        source=source,
        aliases=aliases,
    )


_PCIE3 = ("PCIe 3.0 x16", 32.0)
_PCIE4 = ("PCIe 4.0 x16", 64.0)
_PCIE5 = ("PCIe 5.0 x16", 128.0)
_ADA = "NVIDIA Ada GPU architecture whitepaper"
_HOPPER = "NVIDIA H100 Tensor Core GPU datasheet"
_AMD = "AMD Instinct {} accelerator data sheet"

# Datasheets print tensor rates with sparsity; the table holds the dense half. The memory is the total that the driver
# reports on cloud machines (ECC on), not part of the datasheets.
GPUS: tuple[Gpu, ...] = (
    _gpu("V100-SXM2-16GB", 15.77, 900, 125, None, ("NVLink 2", 300), "NVIDIA V100 datasheet", "V100", "V100-16GB"),
    _gpu("V100-SXM2-32GB", 31.74, 900, 125, None, ("NVLink 2", 300), "NVIDIA V100 datasheet", "V100-32GB"),
    _gpu("V100-PCIE-16GB", 15.77, 900, 112, None, _PCIE3, "NVIDIA V100 datasheet", "V100-PCIe"),
    _gpu("V100-PCIE-32GB", 31.74, 900, 112, None, _PCIE3, "NVIDIA V100 datasheet"),
    _gpu("T4", 14.58, 320, 65, None, _PCIE3, "NVIDIA T4 datasheet"),
    _gpu("RTX 3090", 23.69, 936, 71, None, _PCIE4, "NVIDIA Ampere GA102 GPU architecture whitepaper"),
    _gpu("RTX A6000", 47.54, 768, 154.8, None, ("NVLink 3 bridge", 112.5), "NVIDIA RTX A6000 datasheet", "A6000"),
    _gpu("A10", 22.1, 600, 125, None, _PCIE4, "NVIDIA A10 datasheet"),
    _gpu("A10G", 22.06, 600, 70, None, _PCIE4, "NVIDIA A10G datasheet (AWS G5)"),
    _gpu("A30", 23.5, 933, 165, None, ("NVLink 3 bridge", 200), "NVIDIA A30 datasheet"),
    _gpu("A40", 44.35, 696, 149.7, None, ("NVLink 3 bridge", 112.5), "NVIDIA A40 datasheet"),
    _gpu("A100-SXM4-40GB", 39.39, 1555, 312, None, ("NVLink 3", 600), "NVIDIA A100 datasheet", "A100-40GB", "A100-40"),
    _gpu("A100-PCIE-40GB", 39.39, 1555, 312, None, _PCIE4, "NVIDIA A100 datasheet", "A100 PCIe 40GB"),
    _gpu("A100-SXM4-80GB", 79.15, 2039, 312, None, ("NVLink 3", 600), "NVIDIA A100 datasheet", "A100", "A100-80GB", "A100-80", "A100 SXM"),
    _gpu("A100-PCIE-80GB", 79.15, 1935, 312, None, _PCIE4, "NVIDIA A100 datasheet", "A100 80GB PCIe", "A100 PCIe"),
    _gpu("A800-SXM4-80GB", 79.15, 2039, 312, None, ("NVLink 3", 400), "NVIDIA A800 datasheet", "A800"),
    _gpu("L4", 22.03, 300, 121, 242, _PCIE4, "NVIDIA L4 datasheet"),
    _gpu("L20", 44.39, 864, 119.5, 239, _PCIE4, "NVIDIA L20 product brief"),
    _gpu("L40", 44.39, 864, 181, 362, _PCIE4, "NVIDIA L40 datasheet"),
    _gpu("L40S", 44.39, 864, 362, 733, _PCIE4, "NVIDIA L40S datasheet"),
    _gpu("RTX 4090", 23.65, 1008, 165.2, 330.3, _PCIE4, _ADA, "RTX4090", "4090"),
    _gpu("RTX 6000 Ada", 47.4, 960, 364.2, 728.5, _PCIE4, _ADA, "RTX 6000 Ada Generation"),
    _gpu("RTX 5090", 31.36, 1792, 209.5, 419, _PCIE5, "NVIDIA RTX Blackwell GPU architecture whitepaper", "5090"),
    _gpu("RTX PRO 6000 Blackwell", 94.97, 1792, 503.8, 1007.6, _PCIE5, "NVIDIA RTX Blackwell GPU architecture whitepaper", "RTX PRO 6000", "RTX PRO 6000 Blackwell Workstation Edition"),
    _gpu("H100-SXM5-80GB", 79.18, 3350, 989.4, 1978.9, ("NVLink 4", 900), _HOPPER, "H100", "H100 SXM", "H100 SXM5", "H100-80GB", "H100 80GB HBM3"),
    _gpu("H100-PCIe-80GB", 79.18, 2000, 756, 1513, _PCIE5, _HOPPER, "H100 PCIe"),
    _gpu("H100-NVL-94GB", 93.1, 3900, 835, 1671, ("NVLink 4 bridge", 600), _HOPPER, "H100 NVL"),
    _gpu("H800-SXM5-80GB", 79.18, 3350, 989.4, 1978.9, ("NVLink 4", 400), "NVIDIA H800 datasheet", "H800"),
    _gpu("H20", 95.1, 4000, 148, 296, ("NVLink 4", 900), "NVIDIA H20 product brief", "H20-96GB", "H20 SXM"),
    _gpu("GH200-96GB", 94.5, 4000, 989.4, 1978.9, ("NVLink 4", 900), "NVIDIA GH200 datasheet", "GH200", "GH200 480GB"),
    _gpu("H200-SXM-141GB", 139.8, 4800, 989.4, 1978.9, ("NVLink 4", 900), "NVIDIA H200 datasheet", "H200", "H200 SXM"),
    _gpu("H200-NVL-141GB", 139.8, 4800, 835, 1671, ("NVLink 4 bridge", 900), "NVIDIA H200 datasheet", "H200 NVL"),
    # The datasheet rounds to 8 TB/s; the bus of 7,680 bits at 3,996 MHz, as the driver reports it, gives 7.67.
    _gpu("B200", 178.35, 7670, 2250, 4500, ("NVLink 5", 1800), "NVIDIA DGX B200 datasheet", "B200 SXM", "B200-180GB"),
    _gpu("GB200", 184.0, 8000, 2500, 5000, ("NVLink 5", 1800), "NVIDIA GB200 NVL72 datasheet"),
    _gpu("B300", 267.0, 7670, 2250, 4500, ("NVLink 5", 1800), "NVIDIA DGX B300 datasheet", "B300 SXM"),
    _gpu("MI210", 63.98, 1638, 181, None, ("Infinity Fabric", 300), _AMD.format("MI210")),
    # The runtime shows each of the card's two dies as a device of its own: one row is one die, half of the card.
    _gpu("MI250X", 63.98, 1638, 191.5, None, ("Infinity Fabric", 400), _AMD.format("MI250X"), "MI250X GCD"),
    _gpu("MI250", 63.98, 1638, 181, None, ("Infinity Fabric", 400), _AMD.format("MI250"), "MI250 GCD"),
    _gpu("MI300X", 191.98, 5300, 1307.4, 2614.9, ("Infinity Fabric", 896), _AMD.format("MI300X")),
    _gpu("MI325X", 255.98, 6000, 1307.4, 2614.9, ("Infinity Fabric", 896), _AMD.format("MI325X")),
    _gpu("MI350X", 287.98, 8000, 2306.9, 4613.7, ("Infinity Fabric", 1075), _AMD.format("MI350X")),
    _gpu("MI355X", 287.98, 8000, 2516.6, 5033.2, ("Infinity Fabric", 1075), _AMD.format("MI355X")),
)  # fmt: skip

_MAKERS = re.compile(r"nvidia|tesla|quadro|geforce|amd|radeon|instinct|oam|[^a-z0-9]+")


def _key(name: str) -> str:
    return _MAKERS.sub("", name.lower())


_BY_KEY = {_key(spelling): gpu for gpu in GPUS for spelling in (gpu.name, *gpu.aliases)}


def find_gpu(name: str) -> Gpu:
    """The table's row for a name: its own, an alias, or the device name of the driver ("NVIDIA A100-SXM4-80GB").

    Raises `ConfigError` with near names when there is none.
    """
    found = _BY_KEY.get(_key(name))
    if found is not None:
        return found
    near = difflib.get_close_matches(_key(name), _BY_KEY, n=3, cutoff=0.6)
    known = ", ".join(dict.fromkeys(_BY_KEY[k].name for k in near)) or ", ".join(gpu.name for gpu in GPUS)
    raise ConfigError(f"hardware {name!r} is not in the GPU table; known: {known}")


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
