"""Colours that stay apart for colour-blind eyes, in light and in dark (after Okabe and Ito, and Paul Tol).

Figures are drawn in the light colours; the report's script exchanges each for its dark twin where the reader's
screen is dark, so a figure stays a plain plotly figure.
"""

from __future__ import annotations

__all__ = ["DARK_TWIN", "INK", "LEDGER", "SERIES", "SPIKE"]

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
