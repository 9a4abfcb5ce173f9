"""The report as one HTML file that needs no network: `write_html`.

The page is plain HTML first (verdict, numbers, advice, evidence); plotly charts come on top of it, each over its
table. A Content-Security-Policy names the hash of every script and style of the page, so that nothing else can run.

Which charts an analysis has: those for which it holds the data, each in its section of the page.

The page that leads to one report for each server: `write_fleet_index`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from logscope import __version__
from logscope.atomic_files import write_whole
from logscope.output.report.captions import (
    capacity_sentences,
    capacity_tables,
    engine_name,
    headline,
    is_overloaded,
    worst_engine,
)
from logscope.output.report.chart import DARK_TWIN, LEDGER, Chart, engine_key
from logscope.output.report.request_charts import gantt, tail
from logscope.output.report.timeline import timeline
from logscope.output.report.view import page
from logscope.output.report.view_advice import label_of
from logscope.output.report.view_facts import rows_of_engine
from logscope.sanitize import clean, script_json
from logscope.wording import VERDICTS, duration, estimate, moment, number, per_second, percent, period

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "PLOTLY_VERSION",
    "Charts",
    "FleetRow",
    "charts",
    "plotly_script",
    "render_html",
    "report_name",
    "write_capacity",
    "write_fleet_index",
    "write_html",
    "write_tables",
]
MAX_ENGINES = 4  # each with its own timeline; a fleet's other engines are rows of a table
MAX_ADVICE = 3


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts by section; `omitted` counts engines whose timeline is left out."""

    timelines: Sequence[Chart]
    tails: Sequence[Chart]
    gantt: Chart | None
    omitted: int

    @property
    def all(self) -> list[Chart]:
        """All charts in the page's order."""
        return [*self.timelines, *self.tails, *([self.gantt] if self.gantt else [])]


def charts(analysis: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> Charts:
    """The charts of an analysis; see `write_html` for the frames."""
    worst = worst_engine(analysis)
    engines = [e for e in analysis.get("engines") or [] if e is not worst]
    shown = ([worst] if worst else []) + engines[: MAX_ENGINES - 1]
    requests = _of(frames, "replay_requests", worst)
    return Charts(
        timelines=[c for e in shown if (c := _timeline(e, frames, analysis, shown))],
        # a healthy server's page is short: its percentiles are in the table
        tails=[] if analysis.get("verdict") == "healthy" else _tails(analysis, requests, frames.get("whatif_requests")),
        gantt=_gantt(worst, requests, _of(frames, "replay_spans", worst)),
        omitted=max(0, len(engines) + 1 - MAX_ENGINES),
    )


def _of(frames: Mapping[str, pl.DataFrame], name: str, engine: Mapping[str, Any]) -> pl.DataFrame | None:
    frame = frames.get(name)
    return None if frame is None else rows_of_engine(frame, engine)


def _timeline(
    engine: dict[str, Any],
    frames: Mapping[str, pl.DataFrame],
    analysis: Mapping[str, Any],
    shown: Sequence[Mapping[str, Any]],
) -> Chart | None:
    stats = _of(frames, "stats", engine)
    if stats is None:
        return None
    server, run, index = engine_key(engine)
    whose = engine_name(engine, analysis)
    title = f"{whose[:1].upper()}{whose[1:]}" or "What happened over time"
    name = f"timeline-{server}-{run}-{index}"
    together = [e for e in shown if (e.get("server"), e.get("run")) == (engine.get("server"), engine.get("run"))]
    span = _span(together, frames) if len(together) > 1 else None
    return timeline(name, title, stats, engine, _of(frames, "replay_steps", engine), span)


def _span(engines: Sequence[Mapping[str, Any]], frames: Mapping[str, pl.DataFrame]) -> tuple[datetime, datetime] | None:
    """The time that the charts of several engines of one start have in common, so that one stands below the other."""
    times: list[datetime] = []
    for engine in engines:
        for name in ("stats", "replay_steps"):
            frame = _of(frames, name, engine)
            if frame is not None and "time" in frame.columns:
                known = frame["time"].drop_nulls()
                times += [t for t in (known.min(), known.max()) if isinstance(t, datetime)]
        times += [t for part in engine.get("binding") or [] if (t := moment(part.get("start")))]
    return (min(times), max(times)) if times and min(times) < max(times) else None


def _tails(analysis: Mapping[str, Any], now: pl.DataFrame | None, advised: pl.DataFrame | None) -> list[Chart]:
    if now is None:
        return []
    sides = []
    replayed = [a for a in analysis.get("advice") or [] if a.get("scenario")]
    for place, advice in enumerate(replayed[:MAX_ADVICE]):
        if advised is not None:
            sides.append((label_of(advice), advised.filter(pl.col("advice") == place)))
    named = (("e2e_s", "Whole request (E2E)"), ("ttft_s", "Time to first token (TTFT)"))
    drawn = [tail(f"tail-{column[:-2]}", title, column, now, sides) for column, title in named]
    return [chart for chart in drawn if chart]


def _gantt(engine: Mapping[str, Any], requests: pl.DataFrame | None, spans: pl.DataFrame | None) -> Chart | None:
    spikes = engine.get("spikes") or []
    if requests is None or spans is None or not spikes:
        return None
    worst = max(spikes, key=lambda s: s.get("p99_e2e_s") or 0.0)
    return gantt("gantt", "Requests around the worst spike", spans, requests, worst)


HERE = Path(__file__).resolve().parent
PLOTLY_VERSION = "3.7.0"
PLOTLY_FILE = f"plotly-basic-{PLOTLY_VERSION}.min.js"
PLOTLY_SHA256 = "c23b03591a6bdad0bd0f47a0c5c52305a5519812b73ce254be65cd841553c9c2"
CDN = f"https://cdn.jsdelivr.net/npm/plotly.js-basic-dist-min@{PLOTLY_VERSION}/plotly-basic.min.js"
WHERE = ("inline", "cdn", "directory")
FRAMES = ("stats", "replay_steps", "replay_requests", "replay_spans", "whatif_requests")


@dataclass(frozen=True, slots=True)
class _Script:
    """How the page gets plotly: its text (inline) or an address, and what the policy must allow for it."""

    text: str | None
    address: str | None
    integrity: str | None
    allow: str


def write_html(
    analysis: Mapping[str, Any],
    frames: Mapping[str, pl.DataFrame],
    out: Path,
    *,
    plotlyjs: str = "inline",
    made: Mapping[str, Any] | None = None,
) -> None:
    """Write the report of `analysis` (the JSON of `analyze --json`) to `out`, whole or not at all.

    `frames`: typed frames a family; `stats` (time, server, run, engine_index, running, waiting,
    gpu_kv_cache_usage_pct, prompt_throughput, generation_throughput) and, from the replay and only where present,
    `replay_steps` (time, running, waiting, kv_usage_pct, …), `replay_requests` (id, arrival, ttft_s, e2e_s,
    preemptions, the ledger's labels), `replay_spans` (id, label, start, end) and `whatif_requests` (advice: its
    position, ttft_s, e2e_s). Times are datetimes on the log's clock.
    `plotlyjs`: "inline" puts the charts' script into the file, "cdn" loads it from the network, "directory" writes it
    beside the file once. `made` may say the report's `time` and `command`, the `index` that leads to it and the server's `name`. Raises ValueError for another word and OSError where nothing can be written.
    """
    text = render_html(analysis, frames, plotlyjs=plotlyjs, made=made)
    if plotlyjs == "directory":
        write_whole(out.parent / PLOTLY_FILE, plotly_script())
    write_whole(out, text.encode("utf-8", errors="replace"))


def render_html(
    analysis: Mapping[str, Any],
    frames: Mapping[str, pl.DataFrame],
    *,
    plotlyjs: str = "inline",
    made: Mapping[str, Any] | None = None,
) -> str:
    """The report's text; see `write_html`."""
    if plotlyjs not in WHERE:
        raise ValueError(f"plotlyjs is {plotlyjs!r}, but must be one of {', '.join(WHERE)}")
    frames = {name: _finite(frame) for name, frame in frames.items() if name in FRAMES}
    drawn = charts(analysis, frames)
    styles = [_plotly_css(), _text("report.css")]
    library = _library(plotlyjs) if drawn.all else _Script(None, None, None, "")
    own = _text("report.js")
    return (
        _environment()
        .get_template("template.html.j2")
        .render(
            version=__version__,
            page=page(analysis, frames, made),
            charts=drawn,
            figures={chart.id: chart.figure for chart in drawn.all},
            twins=DARK_TWIN,
            ledger_colors=LEDGER,
            policy=_policy(styles, [own], library),
            plotly_css=styles[0],
            css=styles[1],
            library=library,
            script=own,
        )
    )


def _environment() -> Environment:
    """How the pages are filled in: everything is escaped, and a name that is missing is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_glued,
    )
    environment.filters |= {"script_json": script_json, "by_option": _by_option}
    return environment


_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]{1,60})")


def _by_option(text: str) -> list[str]:
    """Text cut at the options of a command line: every other part is one, to stand as code that is not broken at its hyphens."""
    return _OPTION.split(text)


_UNIT = re.compile(r"(?<=\d) (?=(?:[µm]?s|min|h|days|tok/s|GiB|GPUs?)\b|%)")


def _glued(value: Any) -> Any:
    """A number and its unit stay on one line; text that is already HTML stays as it is."""
    return _UNIT.sub("\u00a0", value) if type(value) is str else value


def _finite(frame: pl.DataFrame) -> pl.DataFrame:
    """Without NaN and infinities, which a log may print and JSON does not know: they are unknown."""
    floats = pl.selectors.float()
    return frame.with_columns(pl.when(floats.is_finite()).then(floats))


def plotly_script() -> bytes:
    """The vendored plotly.js. Raises ValueError when it is not the file that this version was made with."""
    script = gzip.decompress((HERE / "vendor" / f"{PLOTLY_FILE}.gz").read_bytes())
    if hashlib.sha256(script).hexdigest() != PLOTLY_SHA256:
        raise ValueError(f"{PLOTLY_FILE} is damaged; install logscope again")
    return script


def _library(where: str) -> _Script:
    script = plotly_script()
    if where == "inline":
        text = script.decode("utf-8")
        return _Script(text, None, None, _source_hash(text))
    if where == "cdn":
        digest = base64.b64encode(hashlib.sha384(script).digest()).decode()
        return _Script(None, CDN, f"sha384-{digest}", CDN)
    return _Script(None, PLOTLY_FILE, None, "'self' file:")


def _source_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _policy(styles: list[str], scripts: list[str], library: _Script) -> str:
    """Nothing may load or run but the page's own scripts and styles, each known by its hash."""
    allowed = " ".join(filter(None, [*map(_source_hash, scripts), library.allow]))
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {allowed}",
            f"style-src {' '.join(map(_source_hash, styles))}",
            "img-src data: blob:",  # a chart saved as a picture
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


@cache
def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _plotly_css() -> str:
    # plotly puts these rules into the page by script, which the policy forbids; a style element of its name with the
    # class `no-inline-styles` tells it that they are already there.
    return _text(f"vendor/plotly-basic-{PLOTLY_VERSION}.css")


def report_name(index: Path, server: int) -> str:
    """The file name of a server's report, beside the index."""
    return f"{index.stem}-server-{server}.html"


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One server of the index: its row, its own document (see `analyze --json`) and its KV-cache usage over time in percent."""

    row: Mapping[str, Any]
    document: Mapping[str, Any]
    kv_pct: Sequence[float | None]


def write_fleet_index(
    rows: Sequence[FleetRow], lines: int, out: Path, *, made: Mapping[str, Any] | None = None
) -> None:
    """Write the index of the servers in the order given, whole or not at all; it runs no script and loads nothing."""
    css = _text("report.css")
    calm = ("healthy", "not-enough-evidence")
    text = (
        _environment()
        .get_template("fleet_index.html.j2")
        .render(
            version=__version__,
            rows=[_shown(row, out) for row in rows],
            bad=sum(r.row["verdict"] not in calm for r in rows),
            lines=number(lines),
            made=made or {},
            css=css,
            policy=_policy([css], [], _Script(None, None, None, "'none'")),
        )
    )
    write_whole(out, text.encode("utf-8", errors="replace"))


def _shown(server: FleetRow, out: Path) -> dict[str, Any]:
    row, document = server.row, server.document
    engine = worst_engine(document)
    advice = document.get("advice") or []
    count = document["preemptions"]
    verdict = VERDICTS.get(str(row["verdict"]))
    return {
        "name": clean(", ".join(row["names"]), 120) or f"server {row['server']}",
        "link": report_name(out, row["server"]),
        "title": clean(headline(document), 200),
        "tone": "critical" if is_overloaded(document) else verdict.tone if verdict else "open",
        "mark": verdict.mark if verdict else "?",
        "version": clean(str(engine.get("vllm_version") or "version not visible"), 40),
        "when": period(engine.get("start"), engine.get("end")),
        "facts": [
            (word, value)
            for word, value, known in (
                ("Preemptions", estimate(count["low"], count["value"], count["high"]), count["low"]),
                ("E2E p99", duration(row["p99_e2e_s"]), row["p99_e2e_s"]),
                ("TTFT p99", duration(row["p99_ttft_s"]), row["p99_ttft_s"]),
            )
            if known is not None
        ],
        "advice": label_of(advice[0]) if advice else "",
        "engines": row["engines"],
        "imbalance": clean(str(row["imbalance"] or ""), 300),
        "spark": _spark(server.kv_pct),
        "peak": percent(max(known) / 100) if (known := [v for v in server.kv_pct if v is not None]) else "",
    }


def _spark(values: Sequence[float | None], columns: int = 60) -> str:
    """The points of a small curve, 0 to 100 % in a box of 120 by 24; of each stretch the highest value."""
    if not any(v is not None for v in values):
        return ""
    many = min(columns, len(values))
    points = []
    for place in range(many):
        part = values[
            place * len(values) // many : max((place + 1) * len(values) // many, place * len(values) // many + 1)
        ]
        known = [v for v in part if v is not None]
        if known:
            x = 1 + 118 * place / max(1, many - 1)
            points.append(f"{x:.1f},{23 - 22 * min(100.0, max(0.0, max(known))) / 100:.1f}")
    return " ".join(points)


TableRows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header and rows of text."""


def write_tables(
    title: str, sentences: Sequence[str], tables: Sequence[TableRows], out: Path, chart: Mapping[str, Any] | None = None
) -> None:
    """Write a page of a few sentences and tables, whole or not at all; it runs no script and loads nothing. See `_curves` for the chart."""
    css = _text("report.css")
    text = (
        _environment()
        .get_template("tables.html.j2")
        .render(
            version=__version__,
            title=clean(title, 300),
            sentences=[clean(s, 400) for s in sentences],
            tables=[
                ([clean(h, 60) for h in header], [[clean(c, 120) for c in row] for row in rows])
                for header, rows in tables
            ],
            chart=chart,
            css=css,
            policy=_policy([css], [], _Script(None, None, None, "'none'")),
        )
    )
    write_whole(out, text.encode("utf-8", errors="replace"))


def write_capacity(document: Mapping[str, Any], out: Path) -> None:
    """Write what `capacity --json` holds as a page: the answer, the latency over the rate beside its target, the tables."""
    lead, *more = capacity_sentences(document)
    write_tables(lead, more, capacity_tables(document), out, _curves(document))


def _curves(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Each target's latency over the rate, as shares of the target, in a box of 600 by 200; the target is a line across."""
    rates = document["rates"]
    if len(rates) < 2:
        return None
    top, widest = 3.0, max(r["rate_per_s"] for r in rates)
    lines = []
    for place, (name, limit) in enumerate(document["slo"].items()):
        metric, _, point = name.rpartition("_")
        known = [(r["rate_per_s"], r[f"{metric}_s"][point]) for r in rates if r[f"{metric}_s"][point] is not None]
        points = " ".join(f"{600 * x / widest:.1f},{200 - 200 * min(top, y / limit) / top:.1f}" for x, y in known)
        lines.append(
            {"points": points, "name": f"{metric.upper()} {point}, target {duration(limit)}", "dash": "6 3" * place}
        )
    best = document["highest"][0]["rate_per_s"]["value"]
    marks = [
        (600 * r / widest, word)
        for r, word in ((document["now"]["rate_per_s"], "this log"), (best, "highest"))
        if r is not None
    ]
    return {"lines": lines, "target": 200 - 200 / top, "marks": marks, "widest": per_second(widest)}
