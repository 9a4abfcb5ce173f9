"""`logscope watch`: a server's log while it is written, told to a screen and to a stream of JSON lines."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol, TextIO

import click

from logscope.commands.options import Display, Verb, check_targets, clock_options, display_options, json_option
from logscope.live.monitor import Monitor, Notice
from logscope.output.events import to_json

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
    """Hands notices to the screen and to the JSON stream, and the time that passes to the monitor."""

    def __init__(
        self,
        monitor: Monitor,
        screen: Screen,
        out: TextIO | None,
        *,
        told: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monitor, self._screen, self._out, self._told = monitor, screen, out, told
        self._clock = clock
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
        self._screen.tell(notices)
        if self._out is not None:
            for notice in notices:
                self._out.write(to_json(notice.document()) + "\n")
            self._out.flush()

    def finish(self, *, told: bool) -> None:
        """The summary."""
        self._told = told
        self.tell(self._monitor.finish())


class _Stopped(BaseException):
    """SIGTERM came."""


@click.command("watch", cls=Verb)
@click.argument("source", required=False, metavar="[SOURCE]")
@click.option("--unit", metavar="NAME", help="Follow a systemd unit's journal (runs journalctl).")
@json_option("Write one JSON object per line, as it happens; - for standard output.")
@click.option("--new", is_flag=True, help="Report only new events (existing lines are still read for context).")
@clock_options
@display_options
def command(
    source: str | None,
    unit: str | None,
    json_target: str | None,
    new: bool,
    timezone: str | None,
    year: int | None,
    display: Display,
) -> None:
    """Follow a vLLM server's log and report when KV-cache pressure starts and ends.

    SOURCE: a file, followed through rotation and truncation, or - for standard input. On a terminal a live view is drawn; elsewhere
    alerts are printed as lines (with -v, every statistics line too). Ctrl-C, SIGTERM or the end of the pipe stop it and print a summary.

    \b
    Examples:
      logscope watch server.log
      journalctl -u vllm -f -o json | logscope watch - --json -
    """
    from logscope.errors import LogscopeError
    from logscope.live.follow import live_lines, needed, open_source, open_unit
    from logscope.live.monitor import Monitor
    from logscope.log.span import check_something_read
    from parsers.reading.by_line import read_lines
    from parsers.reading.events import Coverage

    if unit is not None and source is not None:
        raise click.UsageError("give SOURCE or --unit, not both")
    check_targets([source] if source not in (None, "-") else [])
    name = f"unit {unit}" if unit is not None else source or "-"
    coverage, monitor = Coverage(sources=[name]), Monitor()
    stopped = False
    with ExitStack() as stack:
        chunks = stack.enter_context(open_unit(unit) if unit is not None else open_source(name, time.sleep))
        screen = _screen(monitor, name, json_target, display)
        stack.enter_context(screen)
        publisher = Publisher(monitor, screen, _out(stack, json_target), told=not new)
        stack.enter_context(_sigterm())
        try:
            lines = needed(live_lines(publisher.timed(chunks), timezone=timezone), coverage)
            for event in read_lines(lines, coverage, name=name, year=year):
                publisher.tell(monitor.take(event))
        except (KeyboardInterrupt, _Stopped):
            stopped = True
        except ValueError as error:
            raise LogscopeError(str(error)) from None
        publisher.finish(told=stopped or bool(coverage.vllm_records))
    if not stopped:
        check_something_read(coverage)


@contextmanager
def _sigterm() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _out(stack: ExitStack, target: str | None) -> TextIO | None:
    if target is None:
        return None
    return sys.stdout if target == "-" else stack.enter_context(open(target, "w", encoding="utf-8"))  # noqa: PTH123


def _screen(monitor: Monitor, name: str, target: str | None, display: Display) -> Screen:
    from logscope.output.terminal.watch_view import AlertLines, LiveView

    if target == "-":
        return AlertLines(None, silent=True)
    if sys.stdout.isatty():
        from logscope.output.terminal.answer import make_console

        return LiveView(monitor, name, make_console(display.color))
    return AlertLines(sys.stdout, states=display.verbose)
