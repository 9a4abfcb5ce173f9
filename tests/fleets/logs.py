"""Logs of several servers, as files."""

from __future__ import annotations

from pathlib import Path

import zstandard

from tests.logs import access, stats_v1, v1_start

__all__ = ["busy", "fleet", "quiet", "two_engines"]


def busy(at: float = 0, minutes: int = 3) -> list[str]:
    """A server whose cache is full while requests wait."""
    steps = range(6 * minutes)
    lines = v1_start(at)
    for i in steps:
        lines += [stats_v1(at + 10 * (i + 1), 6, 4 + i % 3, 97.0 + i % 3), access("/v1/completions", "POST")]
    return lines


def quiet(at: float = 0, minutes: int = 3) -> list[str]:
    """A server with hardly anything to do."""
    return v1_start(at) + [stats_v1(at + 10 * (i + 1), 1, 0, 5.0) for i in range(6 * minutes)]


def two_engines(at: float = 0, minutes: int = 3) -> list[str]:
    """Data-parallel engines, of which the first gets nearly all."""
    lines = v1_start(at)
    for i in range(6 * minutes):
        now = at + 10 * (i + 1)
        lines += [stats_v1(now, 8, 9, 99.0, engine="Engine 000"), stats_v1(now, 1, 0, 8.0, engine="Engine 001")]
    return lines


def fleet(folder: Path) -> list[str]:
    """Three servers: one in two rotated files, one compressed, one with a pod's stamps; gives the glob."""
    text = "\n".join(busy()) + "\n"
    cut = text.index("\n", len(text) // 2) + 1
    (folder / "a.log.1").write_text(text[:cut])
    (folder / "a.log").write_text(text[cut:])
    (folder / "b.log.zst").write_bytes(zstandard.ZstdCompressor().compress(("\n".join(quiet()) + "\n").encode()))
    (folder / "c.log").write_text("\n".join(two_engines()) + "\n")
    return [str(folder / "*.log*")]
