"""`logscope watch`: a server's log while it is written, told to a screen and to a stream of JSON lines."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import click

from logscope.commands.options import (
    Display,
    TargetType,
    Verb,
    check_targets,
    clock_options,
    display_options,
    json_option,
    source_argument,
)
from logscope.errors import LogscopeError
from logscope.live.follow import live_lines, needed_lines, open_source, open_unit
from logscope.live.hooks import (
    EXIT_KINDS,
    HOOKED,
    Command,
    Hook,
    HookError,
    Receiver,
    Textfile,
    Webhook,
    exits_on,
    prometheus_text,
)
from logscope.live.monitor import Monitor, Notice
from logscope.output.events import to_json
from logscope.sanitize import clean
from parsers.reading.by_line import read_lines
from parsers.reading.events import Coverage

__all__ = ["Publisher", "Screen", "command"]
REDRAW_S = 0.25


class Screen(Protocol):
    """What shows notices to people."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def tell(self, notices: Sequence[Notice]) -> None:
        """Show notices."""

    def refresh(self) -> None:
        """Draw the state as it is now."""


class Publisher:
    """Hands notices to the screen, to the JSON stream and to hooks, and the time that passes to the monitor.

    `source` names the log where several are watched; `heard` is called with what was told.
    """

    def __init__(
        self,
        monitor: Monitor,
        screen: Screen,
        out: TextIO | None,
        *,
        told: bool = True,
        clock: Callable[[], float] = time.monotonic,
        source: str | None = None,
        heard: Callable[[str | None, Sequence[Notice]], None] | None = None,
    ) -> None:
        self._monitor, self._screen, self._out, self._told = monitor, screen, out, told
        self._clock, self._source, self._heard = clock, source, heard
        self._drawn = 0.0

    def timed(self, chunks: Iterator[bytes | None]) -> Iterator[bytes | None]:
        """The chunks, with the pauses between them told to the monitor."""
        before = self._clock()
        for chunk in chunks:
            now = self._clock()
            if chunk is None:
                self.tell(self._monitor.quiet(now - before))
                self._told = True  # what was there when it began is read
            before = now
            if now - self._drawn >= REDRAW_S:
                self._drawn = now
                self._screen.refresh()
            yield chunk

    def tell(self, notices: list[Notice]) -> None:
        """Tell some notices, unless only what is new is wanted and this is not."""
        if not self._told or not notices:
            return
        if self._heard is not None:
            self._heard(self._source, notices)
        self._screen.tell(notices)
        if self._out is not None:
            for notice in notices:
                self._out.write(to_json(named(notice, self._source)) + "\n")
            self._out.flush()

    def finish(self, *, told: bool) -> None:
        """The summary."""
        self._told = told
        self.tell(self._monitor.finish())


def named(notice: Notice, source: str | None) -> dict[str, Any]:
    """A notice's document, with its source where several are watched."""
    return notice.document() if source is None else {**notice.document(), "source": source}


class _Listeners:
    """Who hears of alerts beside the screen, and when that ends the watch."""

    def __init__(self, hooks: Sequence[Hook], exit_on: str | None) -> None:
        self._hooks, self._exit_on = hooks, exit_on
        self.alerts: Counter[str] = Counter()
        self.reached = False

    def hear(self, source: str | None, notices: Sequence[Notice]) -> None:
        """Pass on what a hook is for, and see whether the watch is to end."""
        alerts = [n for n in notices if n.kind == "alert" and n.event in HOOKED]
        self.alerts.update(n.event for n in notices if n.event is not None)
        if alerts:
            told = [named(n, source) for n in alerts]
            for hook in self._hooks:
                hook.send(told)
        if not self.reached and exits_on(self._exit_on, notices):
            self.reached = True


@click.command("watch", cls=Verb)
@source_argument
@click.option("--unit", metavar="NAME", help="Follow a systemd unit's journal (runs journalctl).")
@json_option("Write one JSON object per line, as it happens; - for standard output.")
@click.option("--new", is_flag=True, help="Report only new events (existing lines are still read for context).")
@click.option(
    "--exec",
    "programs",
    multiple=True,
    metavar="CMD",
    help="Run CMD (no shell) with the alert as JSON on standard input: at pressure, a stall, a crash, and at their end.",
)
@click.option("--webhook", "addresses", multiple=True, metavar="URL", help="Post the same JSON to URL.")
@click.option("--exit-on", type=click.Choice(list(EXIT_KINDS)), help="End with status 1 when this begins.")
@click.option(
    "--prometheus",
    type=TargetType(),
    metavar="FILE",
    help="Keep FILE up to date for the textfile collector: pressure, preemptions, verdict.",
)
@clock_options
@display_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    unit: str | None,
    json_target: str | None,
    new: bool,
    programs: tuple[str, ...],
    addresses: tuple[str, ...],
    exit_on: str | None,
    prometheus: Path | None,
    timezone: str | None,
    year: int | None,
    display: Display,
) -> None:
    """Follow vLLM servers' logs and say when their KV cache runs short, and when that is over.

    SOURCE: files, followed through rotation and truncation, or - for standard input. On a terminal a live view of a single one is drawn;
    elsewhere alerts are printed as lines (with -v each statistics line, too). Ctrl-C, SIGTERM or the end of the pipe end it with a
    summary.

    \b
    Examples:
      logscope watch server.log
      logscope watch a.log b.log --webhook https://alerts.example/hook
      journalctl -u vllm -f -o json | logscope watch - --json -
    """
    from logscope.log.span import check_something_read

    if unit is not None and sources:
        raise click.UsageError("give SOURCE or --unit, not both")
    check_targets([name for name in sources if name != "-"])
    names = [f"unit {unit}"] if unit is not None else list(dict.fromkeys(sources)) or ["-"]
    monitors = {name: Monitor() for name in names}
    counted = {name: Coverage(sources=[name]) for name in names}
    stopped = False
    with ExitStack() as stack:
        heard = _Listeners(_hooks(stack, programs, addresses), exit_on)
        if prometheus is not None:
            textfile = Textfile(prometheus, lambda: prometheus_text(monitors, dict(heard.alerts)))
            stack.callback(textfile.close)
        out = _out(stack, json_target)
        screen = _screen(monitors, json_target, display)
        stack.enter_context(screen)
        watches = []
        for name in names:
            chunks = stack.enter_context(open_unit(unit) if unit is not None else open_source(name, time.sleep))
            shown = screen if len(names) == 1 else Named(screen, name)
            publisher = Publisher(
                monitors[name], shown, out, told=not new, source=name if len(names) > 1 else None, heard=heard.hear
            )
            watches.append(_Watch(publisher, chunks, monitors[name], counted[name], timezone, year))
        try:
            _run(watches, heard)
        except KeyboardInterrupt:
            stopped = True
        except ValueError as error:
            raise LogscopeError(str(error)) from None
        for watch in watches:
            watch.publisher.finish(told=stopped or heard.reached or bool(watch.coverage.vllm_records))
    if heard.reached:
        ctx.exit(1)
    if not stopped:
        for coverage in counted.values():
            check_something_read(coverage)


def _hooks(stack: ExitStack, programs: tuple[str, ...], addresses: tuple[str, ...]) -> list[Hook]:
    try:
        receivers: list[Receiver] = [*map(Command, programs), *map(Webhook, addresses)]
    except HookError as error:
        raise click.UsageError(str(error)) from None
    hooks = [Hook(receiver) for receiver in receivers]
    for hook in hooks:
        stack.callback(hook.close)
    return hooks


@dataclass(frozen=True, slots=True)
class _Watch:
    """One source that is followed."""

    publisher: Publisher
    chunks: Iterator[bytes | None]
    monitor: Monitor
    coverage: Coverage
    timezone: str | None
    year: int | None

    def notices(self) -> Iterator[list[Notice]]:
        """Read on; the notices of each event."""
        lines = needed_lines(live_lines(self.publisher.timed(self.chunks), timezone=self.timezone), self.coverage)
        for event in read_lines(lines, self.coverage, name=self.coverage.sources[0], year=self.year):
            yield self.monitor.take(event)


def _run(watches: Sequence[_Watch], heard: _Listeners) -> None:
    """Follow all of them to their ends, or until what `--exit-on` names begins: one here, several in a thread each."""
    if len(watches) == 1:
        for notices in watches[0].notices():
            watches[0].publisher.tell(notices)
            if heard.reached:
                return
        return
    told = threading.Lock()
    failed: list[BaseException] = []

    def follow(watch: _Watch) -> None:
        try:
            for notices in watch.notices():
                with told:
                    watch.publisher.tell(notices)
        except (ValueError, OSError) as error:
            failed.append(error)

    threads = [threading.Thread(target=follow, args=(watch,), daemon=True) for watch in watches]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not heard.reached and not failed:
        time.sleep(0.1)
    told.acquire()  # what is told from here on is the summary; the threads end with the process
    if failed:
        raise failed[0]


def _out(stack: ExitStack, target: str | None) -> TextIO | None:
    if target is None:
        return None
    return sys.stdout if target == "-" else stack.enter_context(open(target, "w", encoding="utf-8"))  # noqa: PTH123


def _screen(monitors: Mapping[str, Monitor], target: str | None, display: Display) -> Screen:
    from logscope.output.terminal.watch_view import AlertLines, LiveView

    if target == "-":
        return AlertLines(None, silent=True)
    if sys.stdout.isatty() and len(monitors) == 1:
        from logscope.output.terminal.answer import make_console

        [(name, monitor)] = monitors.items()
        return LiveView(monitor, name, make_console(display.color))
    return AlertLines(sys.stdout, states=display.verbose)


class Named:
    """A screen on which each alert says whose it is."""

    def __init__(self, screen: Screen, name: str) -> None:
        self._screen, self._name = screen, name

    def __enter__(self) -> Named:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, notices: Sequence[Notice]) -> None:
        """Show notices under the name."""
        name = clean(self._name, 60)
        self._screen.tell([n if n.text is None else replace(n, text=f"{name}: {n.text}") for n in notices])

    def refresh(self) -> None:
        """Draw the state as it is now."""
        self._screen.refresh()
