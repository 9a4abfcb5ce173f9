"""What is unfinished at the end of a log comes in the order of its lines, in whatever order its places were met."""

from __future__ import annotations

from click.testing import CliRunner

from logscope.commands.cli import cli
from logscope.sanitize import OBEYED
from parsers.lines import Line, Outer
from parsers.records.record import read_records
from tests.logs import stats_v1


def test_unfinished_records_of_several_places() -> None:
    a, b = Outer("kubectl-prefix", pod="a"), Outer("kubectl-prefix", pod="b")
    lines = [
        Line(1, stats_v1(10, 1, 0, 5.0), a),
        Line(2, stats_v1(20, 1, 0, 5.0), b),
        Line(3, stats_v1(30, 1, 0, 5.0), a),
    ]
    assert [record.number for record in read_records(lines)] == [1, 2, 3]


def test_what_was_typed_is_shown_not_obeyed() -> None:
    done = CliRunner().invoke(cli, ["whatif", "x.log", "--set", "arrival_scale=\u202e\x1b[2J"])
    assert done.exit_code == 2
    assert "arrival_scale must be a number" in done.stderr
    assert OBEYED.search(done.stderr.replace("\n", " ")) is None
