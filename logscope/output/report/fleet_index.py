"""The page that leads to one report for each server: `write_fleet_index`."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logscope import __version__
from logscope.atomic_files import write_whole
from logscope.output.terminal.words import clean, duration, number

__all__ = ["report_name", "write_fleet_index"]

HERE = Path(__file__).resolve().parent


def report_name(index: Path, server: int) -> str:
    """The file name of a server's report, beside the index."""
    return f"{index.stem}-server-{server}.html"


def write_fleet_index(rows: Sequence[Mapping[str, Any]], lines: int, out: Path) -> None:
    """Write the index of `rows` (see `logscope.execution.summary`), whole or not at all; it runs no script and loads nothing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    css = (HERE / "fleet_index.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined
    )
    text = environment.get_template("fleet_index.html.j2").render(
        version=__version__,
        rows=[_shown(row, out) for row in rows],
        suffering=sum(r["verdict"] not in ("healthy", "not-enough-evidence") for r in rows),
        lines=number(lines),
        css=css,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    )
    write_whole(out, text.encode("utf-8", errors="replace"))


def _shown(row: Mapping[str, Any], out: Path) -> dict[str, Any]:
    return {
        "server": row["server"],
        "name": clean(", ".join(row["names"]), 120),
        "link": report_name(out, row["server"]),
        "verdict": row["verdict"],
        "pressure": row["pressure"],
        "preemptions": "" if row["preemptions"] is None else number(row["preemptions"]),
        "e2e": "" if row["p99_e2e_s"] is None else duration(row["p99_e2e_s"]),
        "ttft": "" if row["p99_ttft_s"] is None else duration(row["p99_ttft_s"]),
        "engines": row["engines"],
        "imbalance": row["imbalance"],
    }
