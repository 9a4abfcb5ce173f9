"""Small workload and trace files of each kind, and damage to them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence

from tests.conftest import DATA

__all__ = ["CONFIG", "DAMAGES", "WORKLOADS", "Damage", "damaged"]

Damage = tuple[str, float, bytes]
DAMAGES = ("number", "insert", "cut", "drop", "repeat")
CONFIG = {"num_blocks": 64, "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 256, "max_model_len": 512}
_NUMBER = re.compile(rb"\d[\d.]*")


def _workloads() -> dict[str, bytes]:
    found = {
        "rows.jsonl": b"\n".join(
            json.dumps({"id": f"r{i}", "arrival_s": i * 0.1, "prompt_tokens": 30, "output_tokens": 8}).encode()
            for i in range(12)
        ),
        "mooncake.jsonl": b"\n".join(
            json.dumps({"timestamp": 100 * i, "input_length": 40, "output_length": 8, "hash_ids": [i]}).encode()
            for i in range(12)
        ),
        "azure.csv": b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + b"\n".join(b"2023-11-16 18:17:%02d.9799600,40,8" % i for i in range(12)),
    }
    golden = gzip.decompress((DATA / "golden" / "v0-0.2.7.jsonl.gz").read_bytes())
    found["golden.jsonl"] = b"\n".join(golden.split(b"\n")[:40])
    return found


WORKLOADS = _workloads()


def damaged(data: bytes, damages: Sequence[Damage]) -> bytes:
    """The file after all damages: a kind, where as a share of it, and a text that some kinds put in."""
    for kind, where, text in damages:
        at = int(where * len(data))
        if kind == "number" and (found := _NUMBER.search(data, at)):
            data = data[: found.start()] + text + data[found.end() :]
        elif kind == "insert":
            data = data[:at] + text + data[at:]
        elif kind == "cut":
            data = data[:at]
        elif kind == "drop":
            data = data[:at] + data[at + 40 :]
        elif kind == "repeat":
            data += data[at : at + 400]
    return data
