"""PyTorch's out-of-memory errors, as the family `runtime` names them (variant `torch_oom`). Sizes are GiB.

PyTorch names each amount in the unit that suits its size, KiB to TiB.
"""

from __future__ import annotations

import regex

from parsers.families.formats_part import Fields, Format

__all__ = ["FORMATS"]

_OOM = regex.compile(
    r"\s*+(?:CUDA|HIP|XPU|NPU|MUSA)? ?out of memory\. Tried to allocate (?P<tried>[\d.]++) ?(?P<tried_unit>[KMGT])i?B"
)
# "GPU 0 has a total capacity of 79.11 GiB" (torch 2.1 misspells capacty), "(GPU 0; 79.11 GiB total capacity; …" before.
_GPU = regex.compile(
    r"GPU (?P<gpu>\d++)(?: has a total capaci?ty of |; )(?P<total>[\d.]++) ?(?P<unit>[KMGT])i?B"
)
_GIB = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0}


def _oom(text: str) -> Fields | None:
    found = _OOM.match(text)
    if found is None:
        return None
    fields: Fields = {"tried_gib": float(found["tried"].strip(".")) * _GIB[found["tried_unit"]]}
    gpu = _GPU.search(text[:4000])
    fields["gpu"] = int(gpu["gpu"]) if gpu else None
    fields["total_gib"] = float(gpu["total"]) * _GIB[gpu["unit"]] if gpu else None
    return fields


FORMATS = tuple(
    Format(
        "runtime",
        "torch_oom",
        "any",
        "0.1.0..0.33.0",
        "raise OutOfMemoryError",
        f"{device} out of memory. Tried to allocate {{tried_gib:gib}}. GPU {{gpu:d}} has a total capacity of {{total_gib:gib}}...",
        f"torch.OutOfMemoryError: {device} out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 79.11 GiB of which 812.38 MiB is free.",
        read=_oom,
        anchor="out of memory. Tried to allocate",
    )
    for device in ("CUDA", "HIP", "XPU", "NPU")
)
