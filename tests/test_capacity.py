"""`logscope capacity`: the highest rate that keeps a target, on a real log and on loads that are easy to reckon."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logscope.commands.cli import cli
from logscope.diagnosis.capacity import CapacityError, Target, binding_of, parse_target
from logscope.output.terminal.tables import print_capacity
from tests.conftest import SAMPLES
from tests.logs import stats_v1, v1_start
from tests.running import run as in_a_process


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, ["capacity", *map(str, args)])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, str]:
    """The document, what is printed and the page, of a real server short of KV space."""
    folder = tmp_path_factory.mktemp("capacity")
    files = ("--json", folder / "c.json", "--html", folder / "c.html")
    done = run(
        SAMPLES / "v1-under-pressure.log", "--slo", "ttft_p95=2s", "--slo", "e2e_p99=30s", "--gpu-hour", 2, *files
    )
    assert done.exit_code == 0, done.output
    return json.loads((folder / "c.json").read_text()), done.stdout, (folder / "c.html").read_text()


def test_the_rate_that_is_named_keeps_the_targets(real: tuple[dict[str, Any], str, str]) -> None:
    document, _, _ = real
    assert document["slo"] == {"ttft_p95": 2.0, "e2e_p99": 30.0}
    first = document["highest"][0]
    assert (first["change"], first["flag"]) == ({}, None)
    rates = first["rate_per_s"]
    assert 0 < rates["low"] <= rates["value"] <= rates["high"]
    assert rates["value"] < document["now"]["rate_per_s"]
    assert not document["now"]["meets"]
    assert first["ttft_s"]["p95"] <= 2.0
    assert first["e2e_s"]["p99"] <= 30.0
    assert first["binding"] in ("kv", "seats", "budget", "compute")


def test_at_its_own_rate_it_says_what_whatif_says(real: tuple[dict[str, Any], str, str]) -> None:
    found, path = real[0]["now"], SAMPLES / "v1-under-pressure.log"
    done = CliRunner().invoke(cli, ["whatif", str(path), "--set", "arrival_scale=1", "--json", "-"])
    expected = json.loads(done.stdout)["baseline"]
    for name in ("ttft_s", "e2e_s"):
        assert found[name]["p99"] == pytest.approx(expected[name]["p99"])


def test_nothing_gets_better_at_a_higher_rate(real: tuple[dict[str, Any], str, str]) -> None:
    rates = real[0]["rates"]
    assert [r["rate_per_s"] for r in rates] == sorted(r["rate_per_s"] for r in rates)
    for name in ("ttft_s", "e2e_s"):
        for point in ("p50", "p99"):
            values = [r[name][point] for r in rates]
            assert values == sorted(values)
    kept = [r["meets"] for r in rates]
    assert kept == sorted(kept, reverse=True)
    assert [r["own"] for r in rates].count(True) == 1


def test_free_changes_and_twice_the_hardware_are_tried(real: tuple[dict[str, Any], str, str]) -> None:
    rows = real[0]["highest"]
    costs = [r["cost"] for r in rows]
    assert costs == sorted(costs)
    assert {"replicas": 2} in [r["change"] for r in rows]
    assert any("max_num_seqs" in r["change"] and r["flag"].startswith("--max-num-seqs") for r in rows)
    twice = next(r for r in rows if r["change"] == {"replicas": 2})
    assert twice["rate_per_s"]["value"] > 1.5 * rows[0]["rate_per_s"]["value"]
    # a token costs what its GPUs cost: twice of them, and fewer than twice the tokens or more
    price = 2 / 3600 / rows[0]["rate_per_s"]["value"]
    doubled = 2 * 2 / 3600 / twice["rate_per_s"]["value"]
    assert twice["cost_per_million_tokens"] / rows[0]["cost_per_million_tokens"] == pytest.approx(doubled / price)


def test_what_is_printed_and_the_page(real: tuple[dict[str, Any], str, str]) -> None:
    document, text, page = real
    assert " ".join(text.split()).startswith("This server keeps TTFT p95 within 2.0 s and E2E p99 within 30.0 s up to ")
    for words in ("(this log)", "cost per 1M tokens", "as it is now", "--num-gpu-blocks-override 4096"):
        assert words in text
        assert words in page
    assert document["at_once"]["seats"] == 48
    assert "<polyline" in page
    assert "<script" not in page


TARGETS = [
    ("ttft_p95=2s", Target("ttft_s", 95, 2.0)),
    ("e2e_p99=500ms", Target("e2e_s", 99, 0.5)),
    ("itl_p99.9=0.25", Target("itl_s", 99.9, 0.25)),
    ("e2e_p50=2min", Target("e2e_s", 50, 120.0)),
]


@pytest.mark.parametrize(("text", "target"), TARGETS)
def test_targets(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert text.startswith(target.name)


@pytest.mark.parametrize(
    "text", ["ttft=2s", "ttft_p95", "ttft_p95=-1", "ttft_p95=0", "tpot_p95=1", "ttft_p100=1", "e2e_p99=1h", ""]
)
def test_what_is_no_target(text: str, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="is no target; write ttft_p95=2s"):
        parse_target(text)
    assert run(tmp_path, "--slo", text).exit_code == 2


BINDING = [
    ({"decode": 9.0, "queued_for_kv": 1.0}, "compute"),
    ({"decode": 1.0, "queued_for_kv": 1.0, "preempted_wait": 1.0, "queued_for_seat": 1.5}, "kv"),
    ({"decode": 1.0, "queued_for_seat": 3.0}, "seats"),
    ({"decode": 1.0, "interference": 2.0, "queued_for_budget": 2.0}, "budget"),
    ({}, "compute"),
]


@pytest.mark.parametrize(("ledger", "binding"), BINDING)
def test_what_binds(ledger: dict[str, float], binding: str) -> None:
    assert binding_of(ledger) == binding


def test_a_log_that_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("\n".join([*v1_start(), stats_v1(10, 0, 0, 0.0)]) + "\n")
    done = in_a_process("capacity", log, "--slo", "ttft_p95=2s")
    assert done.returncode == 3
    assert b"does not hold what a replay needs" in done.stderr


@pytest.mark.parametrize("columns", [60, 80, 100, 160])
def test_its_tables_fit_the_screen(
    real: tuple[dict[str, Any], str, str],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A row of a rate is one line at every width; what has no room is said below it once, not in a paragraph for each row."""
    monkeypatch.setenv("COLUMNS", str(columns))
    print_capacity(real[0])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    rates = lines[next(i for i, line in enumerate(lines) if line.startswith("rate ")) :]
    rows = [line for line in rates if re.match(r"[\d.]+/s", line)]
    assert len(rows) == len(real[0]["rates"])
    assert len(rates) <= len(rows) + 10
