"""Values that no server can have measured: the line is not believed, that is counted, and nothing takes the answer or the machine with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logscope.analysis import analyze
from logscope.log.frames import read_log
from parsers.sources.source import expand
from tests.logs import document, stats_v1, v1_start
from tests.running import run

GAUGES = ("Running: 4", "Waiting: 1", "usage: 90.0", "Avg generation throughput: 100.0")


def lines(old: str = "", new: str = "") -> list[str]:
    """A server under some pressure; in its first statistics line one text is exchanged."""
    first, *rest = (stats_v1(10 * i, 4, 1, 90.0) for i in range(1, 9))
    return [*v1_start(), first.replace(old, new), *rest]


@pytest.mark.parametrize("gauge", GAUGES)
@pytest.mark.parametrize("value", ["-5", "9" * 17, "9" * 19, "9" * 40, "9" * 5000])
def test_a_statistics_line_of_impossible_values_is_not_believed_and_counted(
    gauge: str, value: str, tmp_path: Path
) -> None:
    honest = document(tmp_path, lines())
    found = document(tmp_path, lines(gauge, f"{gauge.rpartition(' ')[0]} {value}"))
    assert honest["input"]["unbelieved"] == 0
    # a line without a number for Running is no statistics line at all
    assert found["input"]["unbelieved"] + found["input"]["other_records"] == 1 + honest["input"]["other_records"]
    assert found["verdict"] == honest["verdict"]


def test_watch_does_not_believe_it_either() -> None:
    log = lines("usage: 90.0", "usage: 99999.0")
    done = run("watch", "-", "--json", "-", stdin="\n".join([*log, ""]).encode())
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said
    assert all(row["kv_usage"] is None or row["kv_usage"] <= 1.01 for row in said)


def test_a_stamp_that_is_no_date_is_counted(tmp_path: Path) -> None:
    found = document(tmp_path, [*lines(), stats_v1(100, 1, 0, 1.0).replace("05-09", "02-30")])
    assert found["input"]["unbelieved"] == 1


def test_more_requests_than_can_be_inferred_are_not(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines("Running: 4", "Running: 900000")) + "\n")
    result = analyze(read_log(expand([str(path)]), year=2026)).engines[0]
    assert result.answer is None
    assert any("at once" in finding.title for finding in result.findings)


@pytest.mark.parametrize("setting", ["max_num_seqs': 8", "max_num_batched_tokens': 2048", "block_size': 16"])
def test_a_setting_that_no_server_has_is_not_replayed(setting: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    started = v1_start(more=", 'block_size': 16")
    text = "\n".join([*started, *lines()[len(started) :], ""])
    path.write_text(text.replace(setting, f"{setting.rpartition(' ')[0]} {'9' * 17}"))
    result = analyze(read_log(expand([str(path)]), year=2026)).engines[0]
    assert result.answer is None
    assert any("no server" in finding.title for finding in result.findings)
