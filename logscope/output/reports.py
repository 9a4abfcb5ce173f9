"""The report of an analysis: one page for a server, an index and a page for each where there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logscope.analysis import Analysis
from logscope.execution.summary import servers_of
from logscope.output.files import frames_of_report
from logscope.output.json import analysis_document
from logscope.output.report.fleet_index import report_name, write_fleet_index
from logscope.output.report.page import write_html

__all__ = ["write_reports"]


def write_reports(
    found: Analysis,
    document: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    target: Path,
    *,
    plotlyjs: str | None = None,
) -> None:
    """Write the report to the file `target`, or to its `index.html` where it is a folder (or, for several servers, to be one: its name
    has no suffix).

    The reports of several servers share one script beside them, unless `plotlyjs` says otherwise; a single report holds it.
    """
    several = len(rows) > 1
    folder = target.is_dir() or (several and not target.suffix and not target.exists())
    if folder:
        target.mkdir(parents=True, exist_ok=True)
        target = target / "index.html"
    if not several:
        write_html(document, frames_of_report(found), target, plotlyjs=plotlyjs or "inline")
        return
    for server, part in servers_of(found).items():
        page = target.with_name(report_name(target, server))
        own = analysis_document(part)
        write_html(own, frames_of_report(part), page, plotlyjs=plotlyjs or "directory")
    write_fleet_index(rows, found.data.coverage.lines, target)
