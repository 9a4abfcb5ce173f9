"""What every chart of the report is made of: a plotly figure, the words around it, and the table that lies under it.

Colours that stay apart for colour-blind eyes, in light and in dark (after Okabe and Ito, and Paul Tol).

Figures are drawn in the light colours; the report's script exchanges each for its dark twin where the reader's
screen is dark, so a figure stays a plain plotly figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

__all__ = ["DARK_TWIN", "INK", "LEDGER", "SERIES", "SPIKE", "Chart", "Key", "Table", "engine_key", "figure_json", "iso"]
INK = {"text": "#1d2228", "muted": "#5a6470", "grid": "#e4e7eb", "axis": "#aab2bc"}

SERIES = {
    "running": "#0068a5",
    "waiting": "#c4500b",
    "kv": "#8a3d91",
    "generation": "#00785a",
    "prompt": "#946800",
    "preemptions": "#c4280b",
}
SPIKE = "#c4280b"

# Lost time in colours, the request's own work in greys; the same in light and dark, as the page's bars have them, too.
LEDGER = {
    "queued_for_kv": "#d1350f",
    "preempted_wait": "#ee7733",
    "recompute": "#f0b429",
    "queued_for_seat": "#0077bb",
    "queued_for_budget": "#33bbee",
    "interference": "#aa4499",
    "prefill": "#66717e",
    "decode": "#a9b3be",
}

DARK_TWIN = {
    "#1d2228": "#e8eaed",
    "#5a6470": "#a3adb8",
    "#e4e7eb": "#2e343c",
    "#aab2bc": "#59636f",
    "#0068a5": "#62b5ef",
    "#c4500b": "#f5935a",
    "#8a3d91": "#d49adb",
    "#00785a": "#4fcfa6",
    "#946800": "#dfb24c",
    "#c4280b": "#ff7d66",
    "#ffffff": "#181b20",
}

Key = tuple[int, int, int]  # (server, run, engine index)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as they are printed. `numeric`: positions of the columns that are set flush right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """`figure` is plotly's own JSON (data and layout); `height` in CSS pixels; `notes` are printed below it, and with `readout` what it says where one points."""

    id: str
    title: str
    says: str
    figure: dict[str, Any]
    table: Table
    height: int = 320
    notes: tuple[str, ...] = field(default=())
    readout: bool = False


def engine_key(entry: dict[str, Any]) -> Key:
    """Which engine an entry of `engines`, or a row of a frame, belongs to; absent numbers are 0."""
    server, run, index = (int(entry.get(k) or 0) for k in ("server", "run", "engine_index"))
    return server, run, index


def iso(time: datetime) -> str:
    """A time as plotly's date axes read it, on the log's own clock."""
    # most clocks have whole seconds, and files are smaller without ".000"
    finest = "milliseconds" if time.microsecond else "seconds"
    return time.replace(tzinfo=None).isoformat(sep=" ", timespec=finest)


def figure_json(traces: Sequence[Any], layout: dict[str, Any], height: int) -> dict[str, Any]:
    """Traces and layout, checked by plotly and in the report's quiet style, as plain JSON without a template."""
    import plotly.graph_objects as go  # slow to load: only who writes a report pays for it

    axis = {
        "gridcolor": INK["grid"],
        "linecolor": INK["axis"],
        "tickcolor": INK["axis"],
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": INK["muted"], "size": 12},
    }
    base: dict[str, Any] = {
        "template": "none",
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": INK["text"]},
        "margin": {"l": 48, "r": 12, "t": 8, "b": 36},  # legends push it as far as they need
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "xanchor": "left"},
        "hoverlabel": {"font": {"family": FONT, "size": 13}},
        "dragmode": "zoom",
    }
    axes = {name: {**axis, **layout[name]} for name in layout if name[1:].startswith("axis")}
    figure = go.Figure(data=list(traces), layout={**base, **layout, **axes})
    drawn: dict[str, Any] = figure.to_plotly_json()
    drawn["layout"].pop("template", None)
    return {"data": [dict(trace) for trace in drawn["data"]], "layout": drawn["layout"]}
