"""Several servers: the table, the index, and engines that do not share the load."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from logscope.commands.cli import cli
from tests.fleets.logs import busy, fleet, quiet, two_engines
from tests.logs import document, stats_v1, v1_start


def run(*args: str | Path) -> Any:
    done = CliRunner().invoke(cli, ["analyze", "--no-replay", "--year", "2026", *map(str, args)])
    assert done.exit_code == 0, done.output
    return done


def test_the_worst_server_stands_first(tmp_path: Path) -> None:
    found = json.loads(run(*fleet(tmp_path), "--json", "-").stdout)
    rows = found["servers"]
    assert [r["server"] for r in rows][-1] == 1  # the quiet one
    assert {Path(n).name for n in rows[-1]["names"]} == {"b.log.zst"}
    assert rows[0]["verdict"] == found["verdict"]
    assert {r["server"]: r["engines"] for r in rows} == {0: 1, 1: 1, 2: 2}


def test_the_table_is_printed_for_several_servers_only(tmp_path: Path) -> None:
    assert "TTFT p99" in run(*fleet(tmp_path)).stdout.splitlines()[0]
    assert "TTFT p99" not in run(tmp_path / "b.log.zst").stdout.splitlines()[0]


def test_an_index_leads_to_a_report_for_each(tmp_path: Path) -> None:
    names, out = fleet(tmp_path), tmp_path / "out"
    run(*names, "--html", out)
    index = (out / "index.html").read_text()
    links = re.findall(r'href="([^"]+)"', index)
    assert len(links) == 3
    assert all("kv" in (out / link).read_text() for link in links)
    assert "<script" not in index
    run(*names, "--html", tmp_path / "fleet.html")
    assert (tmp_path / "fleet-server-2.html").exists()
    run(tmp_path / "b.log.zst", "--html", tmp_path / "one.html")
    assert not list(tmp_path.glob("one-server*"))


def imbalance(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in found["findings"] if f["id"] == "engine-imbalance"]


def test_an_engine_that_queues_beside_an_idle_one_is_a_warning(tmp_path: Path) -> None:
    (finding,) = imbalance(document(tmp_path, two_engines()))
    assert finding["severity"] == "warning"
    assert finding["facts"]["mean_requests"] == {"0": 17.0, "1": 1.0}


def test_even_engines_and_single_ones_are_no_finding(tmp_path: Path) -> None:
    even = v1_start() + [
        stats_v1(10 * i, 5 + (i + e) % 2, 0, 50.0, engine=f"Engine 00{e}") for i in range(1, 12) for e in (0, 1)
    ]
    assert imbalance(document(tmp_path, even)) == []
    assert imbalance(document(tmp_path, busy())) == []
    assert imbalance(document(tmp_path, quiet())) == []
