"""The timeline of one engine: Running and Waiting, KV usage, throughput and preemptions over one clock.

What the log printed is drawn solid, what the replay says dotted on the same axes; spikes are shaded.

Drawing a long series with few points, honestly: what is kept are real points, the extremes among them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl

from logscope.inference.result import FAIR_FIT
from logscope.output.report.chart import INK, SERIES, SPIKE, Chart, Table, figure_json, iso
from logscope.wording import BINDING, moment, percent, plural

__all__ = ["MAX_POINTS", "keep_extremes", "timeline"]
MAX_POINTS = 1_200
"""Of one curve: on a wide screen a run of four is 3 to 4 pixels, hardly more than the curve's own width."""


def keep_extremes(values: Sequence[float | None], limit: int = MAX_POINTS) -> list[int]:
    """Positions of at most `limit` points to draw: of each of `limit // 4` equal runs the first, lowest, highest, last.

    Ascending; all positions where the series is short enough. Unknown values (None) are kept only as a run's ends, so
    that a gap stays a gap. Raises ValueError for a limit below 4.
    """
    if limit < 4:
        raise ValueError(f"a limit of {limit} points cannot keep the extremes; at least 4")
    size = len(values)
    if size <= limit:
        return list(range(size))
    runs = limit // 4
    kept: set[int] = set()
    for run in range(runs):
        start, end = run * size // runs, (run + 1) * size // runs
        kept |= {start, end - 1}
        known = [(value, i) for i in range(start, end) if (value := values[i]) is not None]
        if known:
            kept |= {min(known)[1], max(known)[1]}
    return sorted(kept)


TABLE_ROWS = 240
MAX_SPIKES = 40
MAX_BARS = 360
GOOD_FIT = 0.85
FEW_REQUESTS = 4
MAX_LANE = 2_000
GAP = 3.0  # so many usual intervals without a line, and the curve is broken

# column of the statistics, of the replay's steps, name, colour, shape of the line
# (throughputs are means over the interval that ends with the line, the others stand for its instant)
ROWS: tuple[tuple[str, tuple[tuple[str, str, str, str, str], ...]], ...] = (
    (
        "requests",
        (
            ("running", "running", "Running", SERIES["running"], "linear"),
            ("waiting", "waiting", "Waiting", SERIES["waiting"], "linear"),
        ),
    ),
    (
        "KV cache used, %",
        (("gpu_kv_cache_usage_pct", "kv_usage_pct", "KV usage", SERIES["kv"], "linear"),),
    ),
    (
        "tokens per second",
        (
            ("generation_throughput", "generation_throughput", "Generated", SERIES["generation"], "vh"),
            ("prompt_throughput", "prompt_throughput", "Prompt", SERIES["prompt"], "vh"),
        ),
    ),
)  # fmt: skip


def timeline(
    chart_id: str,
    title: str,
    stats: pl.DataFrame,
    engine: dict[str, Any],
    steps: pl.DataFrame | None = None,
    span: tuple[datetime, datetime] | None = None,
) -> Chart | None:
    """The chart of one engine from its rows of the `stats` frame (and the replay's steps); None without such rows.

    `stats`: `time` (datetime), `running`, `waiting`, `gpu_kv_cache_usage_pct` (0..100), `prompt_throughput`,
    `generation_throughput` (tokens/s); a column that is absent is left out. `steps`: the same for the replay, with
    `kv_usage_pct`. `engine`: its entry of the analysis, for spikes, preemptions and fit. `span`: the time to show, where several
    charts stand below each other.
    """
    if "time" in stats.columns:
        stats = stats.filter(pl.col("time").is_not_null()).sort("time", maintain_order=True)
    if stats.is_empty() or "time" not in stats.columns:
        return None
    counted = (engine.get("preemptions") or {}).get("timeline") or []
    rows = [(name, [s for s in series if s[0] in stats.columns]) for name, series in ROWS]
    rows = [(name, series) for name, series in rows if series]
    traces: list[dict[str, Any]] = []
    for number, (_, series) in enumerate(rows, 1):
        for column, replayed, name, color, shape in series:
            drawn = _curve(stats, column, name, color, number, shape)
            traces.append(drawn)
            if steps is not None and replayed in steps.columns and not steps.is_empty():
                traces.append(_replayed_curve(steps, replayed, name, color, number))
    if any(trace["name"].endswith("replayed") for trace in traces):
        traces.append(_legend_of_dots(traces[0]["x"][:1]))
    names = [name for name, _ in rows]
    if counted:
        names.append(_per_window(counted, engine))
        traces.append(_preemption_bars(counted, len(names)))
    if lane := _lane(engine.get("binding") or [], len(names) + 1):
        names.append(LANE)
        traces += lane
    spikes = (engine.get("spikes") or [])[:MAX_SPIKES]
    height = 60 + 128 * len(names)
    most: Any = stats["running"].max() if "running" in stats.columns else None
    busiest = math.inf if most is None else float(most)
    return Chart(
        id=chart_id,
        title=title,
        says=_says(stats, spikes, any(trace["name"] == "replayed" for trace in traces)),
        figure=figure_json(traces, _layout(names, spikes, span), height),
        table=_table(stats, rows),
        height=height,
        notes=_notes(engine, stats.height, busiest),
        readout=True,
    )


def _curve(stats: pl.DataFrame, column: str, name: str, color: str, row: int, shape: str) -> dict[str, Any]:
    times: list[datetime] = stats["time"].to_list()
    values = [None if v is None else round(float(v), 2) for v in stats[column].to_list()]
    times, values = _with_gaps(times, values)
    keep = keep_extremes(values)
    few = len(keep) <= 60
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": name,
        "legendgroup": name,
        "x": [iso(times[i]) for i in keep],
        "y": [values[i] for i in keep],
        "yaxis": _axis("y", row),
        "line": {"color": color, "width": 2, "shape": shape},
        "marker": {"size": 4, "color": color},
        "meta": _meta(column, name, replayed=False),
        "hoverinfo": "none",
    }


def _replayed_curve(steps: pl.DataFrame, column: str, name: str, color: str, row: int) -> dict[str, Any]:
    values = [None if v is None else round(float(v), 2) for v in steps[column].to_list()]
    keep = keep_extremes(values)
    times = steps["time"].to_list()
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, replayed",
        "legendgroup": name,
        "showlegend": False,
        "x": [iso(times[i]) for i in keep],
        "y": [values[i] for i in keep],
        "yaxis": _axis("y", row),
        "line": {"color": color, "width": 1.5, "dash": "dot"},
        "opacity": 0.75,
        "meta": _meta(column, name, replayed=True),
        "hoverinfo": "none",
    }


def _meta(column: str, name: str, *, replayed: bool) -> dict[str, Any]:
    """How the page's script words a value of the curve."""
    unit = " %" if "kv" in column else " tok/s" if "throughput" in column else ""
    return {
        "key": f"{column}{replayed}",
        "name": name,
        "unit": unit,
        "digits": 1 if unit == " %" else 0,
        "replayed": replayed,
    }


def _legend_of_dots(x: list[str]) -> dict[str, Any]:
    """A curve without a point: its only use is the legend's line "replayed"."""
    line = {"color": INK["muted"], "width": 1.5, "dash": "dot"}
    return {"type": "scatter", "mode": "lines", "name": "replayed", "x": x, "y": [None], "line": line}


def _with_gaps(times: list[datetime], values: list[float | None]) -> tuple[list[datetime], list[float | None]]:
    """The series with an unknown value put into each stretch where no line was printed for long."""
    steps = sorted((b - a).total_seconds() for a, b in itertools.pairwise(times))
    usual = steps[len(steps) // 2] if steps else 0.0
    if usual <= 0:
        return times, values
    out_times, out_values = times[:1], values[:1]
    for before, after, value in zip(times, times[1:], values[1:], strict=False):
        if (after - before).total_seconds() > GAP * usual:
            out_times.append(before + (after - before) / 2)
            out_values.append(None)
        out_times.append(after)
        out_values.append(value)
    return out_times, out_values


def _preemption_bars(counted: Sequence[dict[str, Any]], row: int) -> dict[str, Any]:
    windows = [(moment(w.get("start")), moment(w.get("end")), w.get("value")) for w in counted]
    known = _gathered([(a, b, float(v)) for a, b, v in windows if a and b and v is not None])
    whole = (known[-1][1] - known[0][0]).total_seconds() if known else 0.0
    least = max(whole * 2, 1.0)  # milliseconds: an instant is drawn, too
    return {
        "type": "bar",
        "name": "Preemptions",
        "x": [iso(start + (end - start) / 2) for start, end, _ in known],
        "y": [round(value, 2) for _, _, value in known],
        "width": [max(least, (end - start).total_seconds() * 900) for start, end, _ in known],
        "yaxis": _axis("y", row),
        "marker": {"color": SERIES["preemptions"]},
        "meta": {"key": "preemptions", "name": "Preemptions", "unit": "", "digits": 1, "replayed": False},
        "hoverinfo": "none",
    }


LANE = "what held requests back"
_LANE_COLORS = {"kv": "kv", "seats": "waiting", "budget": "prompt"}


def _lane(stretches: Sequence[Mapping[str, Any]], row: int) -> list[dict[str, Any]]:
    """A bar for each stretch, coloured by its limit; grey where nothing queued, white where the cause is not visible. Empty where nothing ever queued."""
    known = [(a, b, s["limit"]) for s in stretches if (a := moment(s["start"])) and (b := moment(s["end"])) and b > a]
    if all(limit == "arrivals" for *_, limit in known) or len(known) > MAX_LANE:
        return []
    traces = []
    for limit in (*_LANE_COLORS, "arrivals"):
        own = [(a, b) for a, b, held in known if held == limit]
        if own:
            traces.append(
                {
                    "type": "bar",
                    "name": BINDING[limit],
                    "x": [iso(a + (b - a) / 2) for a, b in own],
                    "y": [1] * len(own),
                    "width": [(b - a).total_seconds() * 1000 for a, b in own],
                    "yaxis": _axis("y", row),
                    "marker": {"color": SERIES[_LANE_COLORS[limit]] if limit in _LANE_COLORS else INK["grid"]},
                    "hoverinfo": "none",
                }
            )
    return traces


def _per_window(counted: Sequence[dict[str, Any]], engine: dict[str, Any]) -> str:
    """What one bar of the preemptions stands for."""
    lengths = sorted(
        (b - a).total_seconds() for w in counted if (a := moment(w.get("start"))) and (b := moment(w.get("end")))
    )
    usual = lengths[len(lengths) // 2] if lengths else 0.0
    inferred = (engine.get("preemptions") or {}).get("basis") == "inferred"
    return f"preemptions{f' per {usual:g} s' if usual else ''}{', average over the replays' if inferred else ''}"


def _gathered(windows: list[tuple[datetime, datetime, float]]) -> list[tuple[datetime, datetime, float]]:
    """At most `MAX_BARS` windows: neighbours as one with their sum, so that no preemption is lost."""
    per = -(-len(windows) // MAX_BARS)
    if per <= 1:
        return windows
    parts = [windows[i : i + per] for i in range(0, len(windows), per)]
    return [(part[0][0], part[-1][1], sum(value for *_, value in part)) for part in parts]


def _axis(letter: str, number: int) -> str:
    return letter if number == 1 else f"{letter}{number}"


def _layout(
    names: list[str], spikes: Sequence[dict[str, Any]], span: tuple[datetime, datetime] | None
) -> dict[str, Any]:
    total, gap = len(names), 0.085
    share = (1 - gap * (total - 1)) / total
    layout: dict[str, Any] = {
        "hovermode": "x",
        "hoverdistance": -1,
        "spikedistance": -1,
        "margin": {"l": 48, "r": 12, "t": 24, "b": 32},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.06, "yanchor": "bottom"},
        "xaxis": {
            "type": "date",
            "anchor": _axis("y", total),
            "showgrid": True,
            "showspikes": True,
            "spikemode": "across",
            "spikesnap": "cursor",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": INK["axis"],
        },
        "shapes": [],
        "annotations": [],
    }
    if span is not None:
        layout["xaxis"]["range"] = [iso(end) for end in span]
    for number, name in enumerate(names, 1):
        top = 1 - (number - 1) * (share + gap)
        axis: dict[str, Any] = {
            "domain": [round(max(0.0, top - share), 4), round(top, 4)],
            "rangemode": "tozero",
            "nticks": 4,
        }
        if name.endswith("%"):
            axis["range"] = [0, 104]
            axis["tickvals"] = [0, 50, 100]
        if name == LANE:
            axis |= {"range": [0, 1], "showticklabels": False, "showgrid": False}
        layout[f"yaxis{number if number > 1 else ''}"] = axis
        layout["annotations"].append(
            {
                "text": name,
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": top,
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 12, "color": INK["muted"]},
            }
        )
    for spike in spikes:
        start, end = moment(spike.get("start")), moment(spike.get("end"))
        if start and end:
            layout["shapes"].append(
                {
                    "type": "rect",
                    "xref": "x",
                    "yref": "paper",
                    "x0": iso(start),
                    "x1": iso(end),
                    "y0": 0,
                    "y1": 1,
                    "fillcolor": SPIKE,
                    "opacity": 0.09,
                    "line": {"width": 0},
                    "layer": "below",
                }
            )
    return layout


def _says(stats: pl.DataFrame, spikes: Sequence[object], replayed: bool) -> str:
    parts = [plural(stats.height, "statistics line") + "."]
    peaks = []
    for column, name in (("running", "running"), ("waiting", "waiting"), ("gpu_kv_cache_usage_pct", "% KV cache")):
        peak: Any = stats[column].max() if column in stats.columns else None
        if peak is not None:
            peaks.append(f"{float(peak):g} {name}")
    if peaks:
        parts.append(f"Peaks: {', '.join(peaks)}.")
    if spikes:
        parts.append(f"Shaded: {plural(len(spikes), 'latency spike')}.")
    if replayed:
        parts.append("Dotted: replay.")
    return " ".join(parts)


def _grade(fit: float) -> str:
    return "good" if fit >= GOOD_FIT else "fair" if fit >= FAIR_FIT else "poor, so do not rely on the replayed figures"


def _few(busiest: float) -> str:
    """Why a percentage may be low although nothing is wrong."""
    if busiest > FEW_REQUESTS:
        return ""
    return " So few requests ran at a time that one more or less changes these percentages a lot."


def _notes(engine: dict[str, Any], lines: int, busiest: float) -> tuple[str, ...]:
    notes = []
    if lines > MAX_POINTS:
        notes.append(
            f"Of {lines:,} points about {MAX_POINTS:,} are drawn; each run of points keeps its first, lowest, "
            "highest and last."
        )
    fit = (engine.get("replay") or {}).get("fit") or {}
    named = (
        ("running", "running"),
        ("waiting", "waiting"),
        ("kv_usage", "KV usage"),
        ("generation", "generated tokens"),
    )
    parts = [f"{name} {percent(fit[key])}" for key, name in named if fit.get(key) is not None]
    if parts:
        known = [v for key, _ in named if (v := fit.get(key)) is not None]
        notes.append(
            f"Replay fit: {_grade(sum(known) / len(known))}. 100 % = identical to the log: {', '.join(parts)}.{_few(busiest)}"
        )
    spikes = engine.get("spikes") or []
    if len(spikes) > MAX_SPIKES:
        notes.append(f"The first {MAX_SPIKES} of {len(spikes):,} spikes are shaded.")
    return tuple(notes)


def _table(stats: pl.DataFrame, rows: Sequence[tuple[str, Sequence[tuple[str, str, str, str, str]]]]) -> Table:
    series = [s for _, group in rows for s in group]
    units = {"gpu_kv_cache_usage_pct": ", %", "generation_throughput": ", tok/s", "prompt_throughput": ", tok/s"}  # fmt: skip
    head = ["Time", *(f"{name}{units.get(column, '')}" for column, _, name, _, _ in series)]
    note = ""
    shown = stats.select("time", *(column for column, *_ in series))
    if stats.height > TABLE_ROWS:
        per = -(-stats.height // TABLE_ROWS)
        shown = (
            shown.with_row_index("_row")
            .group_by(pl.col("_row") // per, maintain_order=True)
            .agg(pl.col("time").first(), *(pl.col(column).max() for column, *_ in series))
            .drop("_row")
        )
        note = f"Each row is the peak of {per} lines, from its time on."
    body = [
        [f"{time:%Y-%m-%d %H:%M:%S}", *("–" if v is None else f"{float(v):g}" for v in values)]
        for time, *values in shown.iter_rows()
    ]
    return Table("The log's statistics lines", head, body, frozenset(range(1, len(head))), note)
