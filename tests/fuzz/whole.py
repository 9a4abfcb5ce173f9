"""One run of `analyze` over one log, as a user calls it, and what must hold for any bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from logscope.commands.cli import cli
from logscope.errors import LogscopeError
from tests.fuzz.contract import violations

__all__ = ["OBEYED", "check_log"]

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal or a page obeys rather than shows: controls but for line ends, and what turns text around."""


def check_log(lines: Sequence[bytes], folder: Path, *, replay: bool) -> dict[str, Any] | None:
    """Analyse a log into a terminal answer, a JSON document and a report; the document, or None where nothing was in the log.

    Raises AssertionError where a promise is broken, and lets every exception through but those that are a user's sentence.
    LOGSCOPE_DEBUG must be set, or a failed replay would be hidden by the net that users have.
    """
    log, answer, report = folder / "server.log", folder / "answer.json", folder / "report.html"
    log.write_bytes(b"\n".join(lines) + b"\n")
    arguments = ["analyze", str(log), "-v", "--jobs", "1", "--json", str(answer)]
    arguments += ["--html", str(report), "--plotlyjs", "cdn"]
    arguments += [] if replay else ["--no-replay"]
    try:
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    except LogscopeError as told:
        assert told.status == 3  # noqa: PT017
        assert not OBEYED.search(str(told))  # noqa: PT017
        return None
    assert result.exit_code in (0, 4), result.output
    assert not OBEYED.search(result.output), "a control character in the terminal answer"
    text = answer.read_text(encoding="utf-8")
    assert not OBEYED.search(text), "a control character in the JSON"
    document: dict[str, Any] = json.loads(text)
    assert violations(document) == []
    page = report.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert not OBEYED.search(page), "a control character in the report"
    return document
