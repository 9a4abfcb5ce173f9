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

from logscope.atomic_files import write_whole
from logscope.commands.options import (
    Display,
    NameType,
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
from logscope.wording import VERDICTS, period

if TYPE_CHECKING:
    from logscope.analysis import Analysis
    from logscope.output.answer import Answer

__all__ = ["STDOUT", "chosen_script", "command", "view_options", "write_views"]


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
    save: Path | None
    md: str | None
    bundle: Path | None

    def write(self, found: Analysis, answer: Answer) -> None:
        """Write them all; raises OSError where one cannot be."""
        from logscope.output.files import write_frames, write_replay_trace, write_workload

        if self.frames is not None:
            write_frames(found, self.frames)
        if self.workload is not None:
            write_workload(found, self.workload)
        if self.trace is not None:
            write_replay_trace(found, self.trace)
        if self.save is not None:
            answer.save(self.save)
        if self.bundle is not None:
            from logscope.output.answer import bundle

            write_whole(self.bundle, bundle(answer))
        write_views(answer, html=self.html, plotlyjs=self.plotlyjs, md=self.md, json=self.json)

    def check(self) -> None:
        """Refuse two documents on standard output."""
        asked = [o for o, t in (("--json", self.json), ("--html", self.html), ("--md", self.md)) if t in ("-", STDOUT)]
        if len(asked) > 1:
            raise click.UsageError(f"{asked[0]} - and {asked[1]} - cannot both go to standard output")

    @property
    def on_stdout(self) -> bool:
        """Whether a document goes to standard output, so that the answer for people does not."""
        return self.json == "-" or self.md == "-" or self.html == STDOUT


def write_views(answer: Answer, *, html: Path | None, plotlyjs: str | None, md: str | None, json: str | None) -> None:
    """Write an answer as HTML, Markdown and JSON, each where it is asked for (`-`: standard output)."""
    from logscope.output.answer import markdown, write_reports

    if html is not None:
        made = {"time": datetime.now().astimezone().isoformat(timespec="seconds"), "command": command_line()}
        if html != STDOUT:
            write_reports(answer, html, plotlyjs=plotlyjs, made=made)
        elif len(answer.rows) > 1:
            raise click.UsageError("--html -: several servers make several pages; give a folder")
        elif plotlyjs == "directory":
            raise click.UsageError("--html -: --plotlyjs directory needs a file to stand beside")
        else:
            click.echo(answer.html(plotlyjs=plotlyjs or "inline", made=made).encode("utf-8", errors="replace"))
    if md == "-":
        click.echo(markdown(answer), nl=False)
    elif md is not None:
        write_whole(Path(md), markdown(answer).encode("utf-8", errors="replace"))
    if json is not None:
        write_document(answer.document, json)


def chosen_script(plotlyjs: str) -> str | None:
    """`--plotlyjs`, None where the user left the choice to the report."""
    source = click.get_current_context().get_parameter_source("plotlyjs")
    return None if source == ParameterSource.DEFAULT else plotlyjs


def view_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """An answer's forms: `json_target`, `html_target`, `plotlyjs`, `md_target`."""
    return in_order(
        function,
        json_option(),
        click.option(
            "--html",
            "html_target",
            type=TargetType(folder=None, dash=True),
            metavar="FILE|-",
            help="Write the HTML report; for several servers an index (DIR/index.html for a folder) with one report per server.",
        ),
        click.option(
            "--md",
            "md_target",
            type=TargetType(dash=True, text=True),
            metavar="FILE|-",
            help="Write a summary in Markdown, for tickets and chats.",
        ),
        click.option(
            "--plotlyjs",
            type=click.Choice(["inline", "cdn", "directory"]),
            default="inline",
            show_default=True,
            help="How the report loads its chart library.",
        ),
    )


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
        save: Path | None,
        md_target: str | None,
        bundle: Path | None,
        **others: Any,
    ) -> Any:
        script = chosen_script(plotlyjs)
        outputs = _Outputs(json_target, html_target, script, frames, workload_out, trace, save, md_target, bundle)
        return function(*args, outputs=outputs, **others)

    return in_order(
        gathered,
        view_options,
        click.option(
            "--save",
            type=TargetType(),
            metavar="FILE",
            help="Keep the answer, for `logscope report`: no replay is needed again.",
        ),
        click.option(
            "--bundle",
            type=TargetType(),
            metavar="FILE",
            help="Write a zip for a bug report: figures and statistics, no names, no text of the log.",
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
    type=NameType(),
    multiple=True,
    metavar="FILE|URL",
    help="Cross-check against server metrics: Prometheus text, OpenMetrics, a query_range answer, or JSON scrapes.",
)
@click.option(
    "--latencies",
    type=NameType(),
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
    from logscope.execution.fleet import analyze_on, read_on
    from logscope.inference.result import Effort
    from logscope.log.frames import SETUP_FAMILIES
    from logscope.log.span import partly_read
    from logscope.output.answer import answer_of
    from logscope.output.terminal.answer import progress_bar
    from logscope.output.terminal.tables import show
    from logscope.witness.latencies import read_latencies
    from logscope.witness.metrics import read_metrics

    outputs.check()
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
            covered = "" if units or state else _covered(opened, reading)
            display.note(f"no log lines between --since and --until{covered}; showing start-up lines only")
        with progress_bar(quiet=display.quiet, color=display.color) as progress:
            found = analyze_on(executor, data, given=given, replay=not no_replay, effort=Effort(seed, progress))
    if clients is not None or counters is not None:
        from logscope.witness.attach import witnessed

        found = witnessed(found, counters, clients)
    answer = answer_of(found, {"replay": not no_replay, "seed": seed, "timezone": span.zone})
    outputs.write(found, answer)
    if not outputs.on_stdout:
        show(answer, verbose=display.verbose, color=display.color)
    if _reached(fail_on, answer.document):
        ctx.exit(1)
    if partly_read(data.coverage):
        ctx.exit(4)


def _covered(sources: Sequence[Any], reading: Reading) -> str:
    """Of files that hold nothing in the span that was asked for: the span that they hold."""
    from logscope.log.frames import read
    from logscope.log.span import Span

    if any(source.path is None or not source.path.is_file() for source in sources):
        return ""
    frames = read(sources, replace(reading, span=Span(zone=reading.span.zone), wanted=None)).frames.values()
    times = [t for frame in frames for t in (frame["time"].min(), frame["time"].max()) if isinstance(t, datetime)]
    return f" (the log covers {period(min(times).isoformat(), max(times).isoformat())})" if times else ""


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
