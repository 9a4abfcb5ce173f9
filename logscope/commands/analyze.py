"""`logscope analyze`: the main job."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from logscope.commands.options import (
    Display,
    TargetType,
    Verb,
    check_targets,
    command_line,
    display_options,
    given_settings,
    in_order,
    json_option,
    no_replay_option,
    open_sources,
    reading_options,
    seed_option,
    settings_option,
    source_argument,
    state_option,
    tell_and_check,
    trace_option,
    unit_option,
    write_document,
)
from logscope.log.span import Reading, Wanted
from logscope.wording import VERDICTS

if TYPE_CHECKING:
    from logscope.analysis import Analysis

__all__ = ["command"]


STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class _Outputs:
    """The files that the user asked for. `plotlyjs` is None where he left the choice to the report."""

    json: str | None
    html: Path | None
    plotlyjs: str | None
    frames: Path | None
    workload: Path | None
    trace: Path | None

    def write(self, found: Analysis, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
        """Write them all; raises OSError where one cannot be."""
        from logscope.output.files import write_frames, write_replay_trace, write_workload

        if self.frames is not None:
            write_frames(found, self.frames)
        if self.html is not None:
            self._write_html(found, document, rows)
        if self.workload is not None:
            write_workload(found, self.workload)
        if self.trace is not None:
            write_replay_trace(found, self.trace)
        if self.json is not None:
            write_document(document, self.json)

    @property
    def on_stdout(self) -> bool:
        """Whether a document goes to standard output, so that the answer for people does not."""
        return self.json == "-" or self.html == STDOUT

    def _write_html(self, found: Analysis, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
        from logscope.output.files import frames_of_report, write_reports

        assert self.html is not None
        made = {"time": datetime.now().astimezone().isoformat(timespec="seconds"), "command": command_line()}
        if self.html != STDOUT:
            write_reports(found, document, rows, self.html, plotlyjs=self.plotlyjs, made=made)
            return
        from logscope.output.report.page import render_html

        if len(rows) > 1:
            raise click.UsageError("--html -: several servers make several pages; give a folder")
        if self.plotlyjs == "directory":
            raise click.UsageError("--html -: --plotlyjs directory needs a file to stand beside")
        page = render_html(document, frames_of_report(found), plotlyjs=self.plotlyjs or "inline", made=made)
        click.echo(page.encode("utf-8", errors="replace"))


def _output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The files to write, as `outputs`."""

    @wraps(function)
    def gathered(
        *args: Any,
        json_target: str | None,
        html_target: Path | None,
        plotlyjs: str,
        frames: Path | None,
        workload_out: Path | None,
        trace: Path | None,
        **others: Any,
    ) -> Any:
        source = click.get_current_context().get_parameter_source("plotlyjs")
        script = None if source == ParameterSource.DEFAULT else plotlyjs
        outputs = _Outputs(json_target, html_target, script, frames, workload_out, trace)
        return function(*args, outputs=outputs, **others)

    return in_order(
        gathered,
        json_option(),
        click.option(
            "--html",
            "html_target",
            type=TargetType(folder=None, dash=True),
            metavar="FILE|-",
            help="Write the HTML report; for several servers an index (DIR/index.html for a folder) with one report per server.",
        ),
        click.option(
            "--plotlyjs",
            type=click.Choice(["inline", "cdn", "directory"]),
            default="inline",
            show_default=True,
            help="How the report loads its chart library.",
        ),
        click.option(
            "--frames",
            type=TargetType(folder=True),
            metavar="DIR",
            help="Write the parsed and replayed tables as Parquet files into DIR.",
        ),
        click.option(
            "--workload-out",
            type=TargetType(),
            metavar="FILE",
            help="Write the inferred requests, for `logscope replay`.",
        ),
        trace_option("Write the replay as a Chrome/Perfetto trace."),
    )


@click.command("analyze", cls=Verb)
@source_argument
@_output_options
@settings_option("Supply a setting that the log does not show, or override one.")
@no_replay_option("Skip inference and replay: fast, but no latencies, preemption counts or advice.")
@seed_option
@click.option(
    "--fail-on",
    metavar="LEVEL|VERDICT,…",
    callback=lambda _ctx, _param, text: _fail_on(text),
    help="Exit with status 1 if any finding is at least this severe (warning, critical), or any engine has one of these verdicts.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="FILE|URL",
    help="Cross-check against server metrics: Prometheus text, OpenMetrics, a query_range answer, or JSON scrapes.",
)
@click.option(
    "--latencies",
    metavar="FILE",
    help="Cross-check against client latencies: a result of vLLM bench serve or guidellm, or a CSV (sent,first_token,finished).",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Worker processes; the result does not depend on it. Default: one reader, up to three helpers for long replays.",
)
@click.option(
    "--on", type=click.Choice(["ray"]), help="Run on an existing Ray cluster (all nodes must see the same files)."
)
@state_option
@unit_option
@reading_options
@display_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    outputs: _Outputs,
    settings: tuple[str, ...],
    no_replay: bool,
    seed: int,
    fail_on: frozenset[str],
    metrics: tuple[str, ...],
    latencies: str | None,
    jobs: int | None,
    on: str | None,
    state: Path | None,
    units: tuple[str, ...],
    reading: Reading,
    display: Display,
) -> None:
    """Find out what makes a vLLM server's requests slow, and what to change.

    SOURCE: files (also .gz .zst .xz .bz2), folders, globs, journal files, - for standard input.

    \b
    Examples:
      logscope analyze server.log --html report.html
      journalctl -u vllm -o json | logscope analyze -
      logscope analyze --unit vllm --since today
      logscope analyze server.log --metrics http://localhost:8000/metrics
      logscope analyze 'logs/**/*.log.zst' --jobs 8
    """
    from logscope.execution.executors import executor_for
    from logscope.execution.fleet import analyze_on, read_on, server_rows
    from logscope.inference.result import Effort
    from logscope.log.frames import SETUP_FAMILIES
    from logscope.log.span import partly_read
    from logscope.output.json import analysis_document
    from logscope.output.terminal.answer import progress_bar
    from logscope.witness.latencies import read_latencies
    from logscope.witness.metrics import read_metrics

    if outputs.json == "-" and outputs.html == STDOUT:
        raise click.UsageError("--json - and --html - cannot both go to standard output")
    if jobs is not None and on is not None:
        raise click.UsageError("give --jobs N (processes here) or --on ray, not both")
    given = given_settings(settings)
    check_targets((*metrics, latencies))
    clients = read_latencies(latencies) if latencies is not None else None
    counters = read_metrics(metrics) if metrics else None
    span = reading.span
    opened = open_sources(sources, timezone=span.zone, units=units, span=span)
    with executor_for(jobs, on) as executor:
        wanted: Wanted = "findings" if no_replay else "replay"
        if outputs.frames is not None:
            wanted = "frames"
        data = read_on(executor, opened, replace(reading, wanted=wanted), state=state)
        tell_and_check(data.coverage, display)
        if not span.is_open and not data.frames.keys() - SETUP_FAMILIES:
            display.note("no log lines between --since and --until; showing start-up lines only")
        with progress_bar(quiet=display.quiet, color=display.color) as progress:
            found = analyze_on(executor, data, given=given, replay=not no_replay, effort=Effort(seed, progress))
    if clients is not None or counters is not None:
        from logscope.witness.attach import witnessed

        found = witnessed(found, counters, clients)
    document = analysis_document(found)
    document["servers"] = rows = server_rows(found)
    document["options"] = {"replay": not no_replay, "seed": seed, "timezone": span.zone}
    outputs.write(found, document, rows)
    if not outputs.on_stdout:
        _print(found, document, rows, display)
    if _reached(fail_on, document):
        ctx.exit(1)
    if partly_read(data.coverage):
        ctx.exit(4)


def _fail_on(text: str | None) -> frozenset[str]:
    """What `--fail-on` names: severities and verdicts."""
    from logscope.evidence.finding import SEVERITIES

    names = frozenset(name.strip() for name in (text or "").split(",") if name.strip())
    known = (*SEVERITIES, *VERDICTS)
    for name in sorted(names - {*known}):
        near = difflib.get_close_matches(name, known, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise click.BadParameter(f"'{name}' is neither a severity nor a verdict{hint} (all: {', '.join(known)})")
    return names


def _reached(names: frozenset[str], document: Mapping[str, Any]) -> bool:
    from logscope.evidence.finding import SEVERITIES

    worst = min((SEVERITIES.index(f["severity"]) for f in document["findings"]), default=len(SEVERITIES))
    asked = max((SEVERITIES.index(n) for n in names if n in SEVERITIES), default=-1)
    return worst <= asked or any(e["verdict"] in names for e in document["engines"])


def _print(found: Analysis, document: dict[str, Any], rows: Sequence[dict[str, Any]], display: Display) -> None:
    from logscope.execution.fleet import servers_of
    from logscope.output.json import analysis_document
    from logscope.output.terminal.answer import print_answer

    if len(rows) > 1:
        from logscope.output.terminal.tables import print_fleet

        print_fleet(rows, verbose=display.verbose, color=display.color)
        found = servers_of(found)[rows[0]["server"]]  # what follows is about the worst server alone
        document = {**document, **analysis_document(found), "input": document["input"]}
    print_answer(document, verbose=display.verbose, color=display.color, series=_series(found))


def _series(found: Analysis) -> dict[str, list[float | None]]:
    """The worst engine's observed series, for the bars of the terminal answer."""
    worst = found.worst_result
    if worst is None or worst.windows is None:
        return {}
    names = {"Running": "running", "Waiting": "waiting", "KV usage": "kv_pct"}
    return {word: worst.windows[name].to_list() for word, name in names.items()}
