"""Charts over the replay's requests: how many are slower than a time, and what each did around a spike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from logscope.output.report.chart import INK, LEDGER, SERIES, Chart, Table, figure_json, iso
from logscope.sanitize import axis_text, visible
from logscope.wording import LEDGER_LABELS, duration, moment, number, plural

__all__ = ["gantt", "tail"]

MAX_LANES = 48
WHOLE_TAIL = 100
CURRENT = "current settings"
CURVE_POINTS = 300
ADVICE_COLORS = (SERIES["generation"], SERIES["kv"], SERIES["prompt"], INK["muted"])
ADVICE_DASHES = ("solid", "dash", "dashdot", "dot")
SAMPLE = "These curves show one replay; the figures above and in the advice combine several, so they differ slightly."
SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)


def tail(
    chart_id: str, title: str, column: str, now: pl.DataFrame, advised: Sequence[tuple[str, pl.DataFrame]] = ()
) -> Chart | None:
    """The share of requests that are slower than a time, on a log scale, so that the p99 has as much room as the median.

    `column` (`ttft_s` or `e2e_s`, seconds) of `now` and of each advice's replay; None when `now` has no value.
    """
    sides = [(CURRENT, now), *advised]
    known = [
        (name, sorted(frame[column].drop_nulls().drop_nans().to_list()))
        for name, frame in sides
        if column in frame.columns
    ]
    known = [(name, values) for name, values in known if values]
    if not known or known[0][0] != CURRENT:
        return None
    traces = []
    for place, (name, values) in enumerate(known):
        first = place == 0
        color = SERIES["preemptions"] if first else ADVICE_COLORS[(place - 1) % 4]
        x, y = _slower_than(values)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": axis_text(name),
                "x": x,
                "y": y,
                "line": {
                    "color": color,
                    "width": 2.5 if first else 2,
                    "dash": "solid" if first else ADVICE_DASHES[place % 4],
                    "shape": "hv",
                },
                "hovertemplate": "%{y:.1%} are slower than %{x:.2f} s",
            }
        )
    layout = {
        "hovermode": "closest",
        "margin": {"l": 48, "r": 12, "t": 8, "b": 48},
        "xaxis": {"title": {"text": "seconds", "font": {"size": 12}}, "rangemode": "tozero"},
        "yaxis": {
            "type": "log",
            "tickvals": [1, 0.5, 0.1, 0.05, 0.01, 0.001],
            "ticktext": ["all", "half", "1 in 10", "1 in 20", "1 in 100", "1 in 1000"],
        },
    }
    return Chart(
        id=chart_id,
        title=title,
        says=f"Share of the {len(known[0][1]):,} requests that took longer than the time on the x axis; further left is better.",
        figure=figure_json(traces, layout, 320),
        table=_percentiles(title, known),
        height=320,
        notes=(SAMPLE,),
    )


def _slower_than(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Points of the falling curve: at each value the share of all that are greater."""
    size = len(values)
    keep = _even_on_a_log_scale(size)
    # A log scale has no 0: the last step ends at half a request.
    shares = [max(size - 1 - i, 0.5) / size for i in keep]
    return [0.0, *(round(values[i], 4) for i in keep)], [1.0, *(round(s, 6) for s in shares)]


def _even_on_a_log_scale(size: int) -> list[int]:
    """Ranks to draw, ascending: the slowest `WHOLE_TAIL` all, the others so that the curve falls by a pixel from one to the next."""
    keep = set(range(max(0, size - WHOLE_TAIL), size))
    if size > WHOLE_TAIL:
        fall = (WHOLE_TAIL / size) ** (1 / CURVE_POINTS)
        keep |= {size - max(1, round(size * fall**step)) for step in range(CURVE_POINTS)}
    return sorted(keep)


def _percentiles(title: str, known: Sequence[tuple[str, Sequence[float]]]) -> Table:
    names = ["p50", "p90", "p95", "p99", "slowest"]
    rows = [
        [visible(name), number(len(values)), *(duration(_quantile(values, q)) for q in SHARES)]
        for name, values in known
    ]
    return Table(title, ["", "Requests", *names], rows, frozenset(range(1, 7)))


def _quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between the sorted values."""
    place = q * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def gantt(
    chart_id: str, title: str, spans: pl.DataFrame, requests: pl.DataFrame, spike: dict[str, Any]
) -> Chart | None:
    """What each request did around one spike: a lane a request, in order of arrival.

    `spans`: `id`, `label` (of the ledger), `start`, `end` (datetime); `requests`: `id`, `arrival`, `ttft_s`, `e2e_s`,
    `preemptions`. Of more than `MAX_LANES` requests the preempted and then the slowest are shown.
    """
    start, end = moment(spike.get("start")), moment(spike.get("end"))
    if start is None or end is None or spans.is_empty() or requests.is_empty():
        return None
    start, end = start.replace(tzinfo=None), end.replace(tzinfo=None)
    margin = max((end - start) / 20, timedelta(seconds=1))
    first, last = start - margin, end + margin
    inside = spans.filter(
        (pl.col("end") > first)
        & (pl.col("start") < last)
        & (pl.col("end") - pl.col("start") > (last - first) / 2000)  # less is no pixel wide
    )
    shown, total = _lanes(inside, requests)
    if shown.is_empty():
        return None
    ids = shown["id"].to_list()
    lanes = _with_interference(inside.filter(pl.col("id").is_in(ids)), shown)
    earliest, latest = lanes.select(pl.col("start").min(), pl.col("end").max()).row(0)
    first, last = max(first, earliest), min(last, latest)
    traces = _lane_bars(lanes, shown, first, last)
    height = 90 + 15 * len(ids)
    layout = {
        "barmode": "overlay",
        "bargap": 0.25,
        "hovermode": "closest",
        "xaxis": {"type": "date", "range": [iso(first), iso(last)], "showgrid": True, "side": "bottom"},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": list(range(len(ids))),
            "ticktext": [axis_text(_lane_name(row)) for row in shown.iter_rows(named=True)],
            "ticks": "",
            "showgrid": False,
            "tickfont": {"size": 10, "color": INK["muted"]},
        },
        "margin": {"l": 96, "r": 12, "t": 8, "b": 32},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
    }  # fmt: skip
    notes: tuple[str, ...] = ()
    if total != len(ids):
        notes += (f"{total:,} requests were active; the {len(ids)} that were preempted or slowest are shown.",)
    if (lanes["label"] == "interference").any():
        notes += (
            f"\u201c{LEDGER_LABELS['interference']}\u201d is drawn at the end of a request's steps: its length is known, its exact position is not.",
        )
    return Chart(
        id=chart_id,
        title=title,
        says=f"{plural(len(ids), 'replayed request')} in order of arrival, one per row, labelled with number and E2E time; queue time is coloured by its main cause.",
        figure=figure_json(traces, layout, height),
        table=_lane_table(shown),
        height=height,
        notes=notes,
    )


def _lane_name(row: Mapping[str, Any]) -> str:
    """A request and its whole time."""
    name = str(row["id"])
    short = name if len(name) <= 8 else f"…{name[-7:]}"
    return f"{short}  {duration(row.get('e2e_s'), '')}"


def _with_interference(spans: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """The spans with the share of a request's steps that others' prefill took split off their ends, as the ledger counts it."""
    own = [name for name in ("prefill", "decode", "recompute") if name in requests.columns]
    if "interference" not in requests.columns or not own:
        return spans
    steps = pl.sum_horizontal([pl.col(name).fill_null(0.0) for name in own]) + pl.col("interference").fill_null(0.0)
    share = requests.select(
        "id", _share=pl.when(steps > 0).then(pl.col("interference").fill_null(0.0) / steps).otherwise(0.0)
    )
    spans = spans.join(share, on="id", how="left").with_columns(
        _cut=pl.when(pl.col("label").is_in(own))
        .then(pl.col("end") - (pl.col("end") - pl.col("start")) * pl.col("_share").fill_null(0.0))
        .otherwise(pl.col("end"))
        .cast(spans.schema["end"])
    )
    rest = spans.filter(pl.col("_cut") < pl.col("end")).with_columns(
        start=pl.col("_cut"), label=pl.lit("interference", dtype=spans.schema["label"])
    )
    names = ("id", "label", "start", "end")
    return pl.concat([spans.with_columns(end=pl.col("_cut")).select(names), rest.select(names)])


def _lanes(spans: pl.DataFrame, requests: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The requests to draw, in order of arrival, and how many there were."""
    present = requests.filter(pl.col("id").is_in(spans["id"].unique().to_list()))
    chosen = present.sort(pl.col("preemptions") > 0, "e2e_s", descending=True, nulls_last=True).head(MAX_LANES)
    return chosen.sort("arrival", maintain_order=True), present.height


def _lane_bars(spans: pl.DataFrame, shown: pl.DataFrame, first: datetime, last: datetime) -> list[dict[str, Any]]:
    lane = {request: place for place, request in enumerate(shown["id"].to_list())}
    about = {row["id"]: _arrived(row) for row in shown.iter_rows(named=True)}
    traces = []
    for label in LEDGER_LABELS:
        part = spans.filter(pl.col("label") == label)
        if part.is_empty():
            continue
        clipped = [
            (lane[request], max(a, first), min(b, last), (b - a).total_seconds(), request)
            for request, a, b in part.select("id", "start", "end").iter_rows()
        ]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": LEDGER_LABELS[label],
                "base": [iso(a) for _, a, _, _, _ in clipped],
                "x": [round((b - a).total_seconds() * 1000, 1) for _, a, b, _, _ in clipped],
                "y": [place for place, *_ in clipped],
                "customdata": [[axis_text(about[name]), duration(length)] for *_, length, name in clipped],
                "hovertemplate": "%{customdata[1]} " + LEDGER_LABELS[label] + "<br>%{customdata[0]}<extra></extra>",
                "width": 0.8,
                "marker": {"color": LEDGER[label], "line": {"width": 0}},
            }
        )
    return traces


def _arrived(row: Mapping[str, Any]) -> str:
    arrival = f"arrived {row['arrival']:%H:%M:%S}, " if row["arrival"] is not None else ""
    return f"{row['id']}: {arrival}whole time {duration(row.get('e2e_s'))}"


def _lane_table(shown: pl.DataFrame) -> Table:
    labels = [label for label in LEDGER_LABELS if label in shown.columns]
    labels = [label for label in labels if (shown[label].sum() or 0) > 0]
    head = ["Request", "Arrival", "TTFT", "E2E", "Preempted", *(LEDGER_LABELS[k] for k in labels)]
    rows = [
        [
            visible(str(row["id"]), 80),
            f"{row['arrival']:%H:%M:%S}" if row["arrival"] is not None else "–",
            "–" if row.get("ttft_s") is None else duration(row["ttft_s"]),
            "–" if row.get("e2e_s") is None else duration(row["e2e_s"]),
            number(row.get("preemptions")),
            *("–" if row[k] is None else duration(row[k]) for k in labels),
        ]
        for row in shown.iter_rows(named=True)
    ]
    return Table("The requests around the spike", head, rows, frozenset(range(1, len(head))))
