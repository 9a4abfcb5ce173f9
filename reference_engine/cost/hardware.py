"""The accelerators that people serve on: memory, bandwidth, arithmetic and links, each with its source.

`Gpu` (one device as the scheduler's worker sees it), `GPUS` (the table), `find_gpu` (by any common spelling).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from reference_engine.model.errors import ConfigError

__all__ = ["GIB", "GPUS", "Gpu", "find_gpu"]

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
