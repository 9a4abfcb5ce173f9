"""What `watch` shows: a view that is drawn again and again on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from logscope.live.monitor import Monitor, Notice, Watched
from logscope.sanitize import clean
from logscope.wording import bars, estimate, number, percent

__all__ = ["AlertLines", "LiveView", "alert_line", "picture"]

MAX_ALERTS = 8
MAX_SHOWN = 8
_COLOURS = {"none": "green", "saturated": "yellow", "thrash": "red"}
_WORDS = {
    "none": "no pressure",
    "saturated": "saturated: the KV cache is full and requests queue",
    "thrash": "thrashing: running requests are being preempted repeatedly",
}


def alert_line(notice: Notice) -> str:
    """An alert or the summary as one line of text."""
    time = notice.time.strftime("%Y-%m-%d %H:%M:%S") if notice.time else "-"
    text = clean(notice.text or _state(notice), 300)
    place = notice.engine
    if place is not None and (place[0] or place[1]):
        text = f"{_name(place)}: {text}"
    return f"{time}  {'summary: ' if notice.kind == 'summary' else ''}{text}"


def _name(place: tuple[int, int | None]) -> str:
    """A server counted from 1, as everywhere on screens, and vLLM's own number of its engine."""
    server, engine = place
    return f"server {server + 1}" + ("" if engine is None else f", engine {engine}")


def _state(notice: Notice) -> str:
    usage = "?" if notice.kv_usage is None else percent(notice.kv_usage)
    count = estimate(*notice.preemptions[:3]) if notice.preemptions else "?"
    return f"{notice.pressure}: {number(notice.running, '?')} running, {number(notice.waiting, '?')} waiting, KV cache {usage}, preempted {count}"


class AlertLines:
    """Writes alerts and the summary as lines, each at once; with `states` each statistics line, too."""

    def __init__(self, out: TextIO | None, *, states: bool = False, silent: bool = False) -> None:
        self._out = out if out is not None else sys.stdout
        self._states, self._silent = states, silent

    def __enter__(self) -> AlertLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, notices: Sequence[Notice]) -> None:
        """Write what is to be told."""
        for notice in notices:
            if not self._silent and (self._states or notice.kind != "state"):
                self._out.write(alert_line(notice) + "\n")
                self._out.flush()

    def refresh(self) -> None:
        """Lines need none."""


class LiveView:
    """Draws the state of all engines and the last alerts; the summary is printed below when it ends."""

    def __init__(self, monitor: Monitor, name: str, console: Console) -> None:
        self._monitor, self._name = monitor, name
        self._alerts: deque[str] = deque(maxlen=MAX_ALERTS)
        self._live = Live(console=console, auto_refresh=False, screen=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def tell(self, notices: Sequence[Notice]) -> None:
        """Keep alerts for the view, print the summary."""
        for notice in notices:
            if notice.kind == "alert":
                self._alerts.append(alert_line(notice))
            elif notice.kind == "summary":
                self.refresh()
                self._live.console.print(Text(alert_line(notice)))

    def refresh(self) -> None:
        """Draw the view as things stand."""
        self._live.update(picture(self._monitor, self._name, list(self._alerts)), refresh=True)


def picture(monitor: Monitor, name: str, alerts: Iterable[str]) -> RenderableType:
    """The view: one block an engine, the last alerts below."""
    parts: list[RenderableType] = [Text(f"logscope watch {clean(name, 80)}  (Ctrl-C to stop)", style="dim")]
    shown = list(monitor.engines.values())
    for watched in shown[:MAX_SHOWN]:
        parts += _engine(watched, alone=len(shown) == 1)
    if len(shown) > MAX_SHOWN:
        parts.append(Text(f"  and {len(shown) - MAX_SHOWN} more engines", style="dim"))
    if not shown:
        parts.append(
            Text("  waiting for the first statistics line (vLLM prints one every 10 s when busy)", style="dim")
        )
    told = [Text(f"  {line}") for line in alerts]
    return Group(*parts, *([Text("")] if told else []), *told)


def _engine(watched: Watched, *, alone: bool) -> list[RenderableType]:
    state, last = watched.state, watched.last
    lines: list[RenderableType] = []
    head = Text("" if alone else f"{_name(watched.key)}  ")
    word, colon, rest = _WORDS[state.pressure].partition(":")
    since = f" since {state.since:%H:%M:%S}" if state.since is not None else ""
    head.append(f"{word}{since}{colon}{rest}", style=f"bold {_COLOURS[state.pressure]}")
    lines.append(head)
    if last is None:
        return lines
    history = list(state.history)
    for word, values, now, top in (
        (
            "Running",
            [r.running for r in history],
            number(last.running, "?"),
            float(state.seats) if state.seats else None,
        ),
        ("Waiting", [r.waiting for r in history], number(last.waiting, "?"), None),
        ("KV cache", [r.kv_usage for r in history], "?" if last.kv_usage is None else percent(last.kv_usage), 1.0),
        (
            "Tokens/s",
            [r.generation_tps for r in history],
            f"{number(last.generation_tps, '?')} generated, {number(last.prompt_tps, '?')} prompt",
            None,
        ),
    ):
        lines.append(Text(f"  {word:<9} {bars(values[-48:], top=top):<48}  {now}"))
    count = state.preemptions
    said = (
        "cannot be counted: the log does not show the size of the KV cache"
        if count is None
        else f"{estimate(*count[:3])} [{count[3]}]"
    )
    lines.append(Text(f"  Preempted {said}"))
    return lines
