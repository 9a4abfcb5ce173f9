"""The command line: `logscope VERB …`. Each verb's module is imported when it is called, so that `--help` stays quick."""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from logscope import __version__
from logscope.errors import LogscopeError, fault_of, remark

__all__ = ["cli", "main"]

INTERNAL = 70
"""Exit status of a fault in logscope itself (EX_SOFTWARE)."""

UNWRITTEN = 73
"""Exit status where a result could not be written (EX_CANTCREAT): the log was there, so it is not 3; the answer is lost, so it is not 4."""

_VERBS = {
    "analyze": "Find out what makes requests slow, and what to change.",
    "parse": "Extract the parsed events, as JSON lines, CSV or Parquet.",
    "whatif": "Replay a log's workload under a changed configuration.",
    "report": "Show a kept answer again, without a replay.",
    "explain": "Say what a finding or a verdict means.",
    "capacity": "Find the highest request rate that keeps latency targets.",
    "replay": "Run the reference engine on workload or trace files.",
    "compare": "Compare two logs, before and after a change.",
    "watch": "Follow a live log and report when KV pressure starts and ends.",
    "formats": "List all supported log formats.",
    "completion": "Print a shell's completion script.",
}

_BESIDE = {"capacity": "whatif", "compare": "whatif", "completion": "parse", "explain": "report", "formats": "parse"}
"""Verbs that stand in the module of another."""

INTERRUPTED = 130
"""Exit status at Ctrl-C (128 + SIGINT); at SIGTERM it is 143."""

_MEANT = {"help": "--help", "version": "--version", "check": "analyze", "tail": "watch"}
"""What is meant by words that look like no verb."""


class ReaderGoneError(Exception):
    """Whoever read standard output wants no more of it."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. A class of its own: past a KeyboardInterrupt in an `exec` (each dataclass has one) Python kills itself at its end."""


class StoppedError(Exception):
    """The command was stopped; click takes a KeyboardInterrupt for a failure of its own."""


class _Verbs(click.Group):
    """Finds a verb in `logscope.commands.<verb>` when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"logscope.commands.{_BESIDE.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name if cmd_name in _BESIDE else "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the verb that a mistyped one is nearest to."""
        name = args[0] if args else ""
        if name and name not in _VERBS and not name.startswith("-"):
            from logscope.sanitize import visible

            near = _MEANT.get(name) or next(iter(difflib.get_close_matches(name, _VERBS, 1, 0.6)), None)
            hint = f" Did you mean '{near}'?" if near else f" Commands: {', '.join(_VERBS)}."
            raise click.UsageError(f"No such command {visible(name, 60)!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt:
            raise StoppedError from None

    def invoke(self, ctx: click.Context) -> Any:
        # Before click sees it: for click a reader that went away, and Ctrl-C, are failures, and its status 1 is that of --fail-on.
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None
        except KeyboardInterrupt:
            raise StoppedError from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="logscope")
def cli() -> None:
    """Read a vLLM server's log and find out what makes its requests slow.

    \b
    Example:
      logscope analyze server.log
    """


def main(args: Sequence[str] | None = None) -> Any:
    """Run the command line; the one place where an exception becomes a sentence and an exit status."""
    # What a start imports is never garbage: looking through it took a tenth of a short run, and as much again at its end.
    gc.set_threshold(20_000, 20, 100)
    atexit.register(gc.freeze)
    _guard_streams()
    with _Signals() as signals:
        try:
            return cli.main(args=args, prog_name="logscope", standalone_mode=True)
        except SystemExit:
            raise
        except BaseException as error:
            # Whatever it has become: what a signal raises in a `__set_name__` arrives as a RuntimeError, say.
            sys.exit(128 + signals.caught if signals.caught else _status_of(error))


def _status_of(error: BaseException) -> int:
    """The exit status for an exception, after its sentence was written."""
    if isinstance(error, LogscopeError):
        remark(str(error))
        return error.status
    if isinstance(error, ReaderGoneError):
        _forget_output()  # whoever read the pipe went away: end quietly
        return 0
    if isinstance(error, (StoppedError, KeyboardInterrupt)):
        return INTERRUPTED
    if isinstance(error, MemoryError):
        remark("out of memory; give a span with --since and --until")
        return INTERNAL
    if isinstance(error, OSError):  # sources that cannot be read are told apart where they are opened
        name = f"{error.filename}: " if error.filename else ""
        remark(f"{name}{error.strerror or error}")
        _forget_output()
        return UNWRITTEN
    if os.environ.get("LOGSCOPE_DEBUG") or not isinstance(error, Exception):
        raise error
    remark(f"a fault of logscope's own ({fault_of(error)}); set LOGSCOPE_DEBUG=1 to see all of it, and report it")
    return INTERNAL


class _Signals:
    """Ctrl-C and SIGTERM end a command alike: quietly, and after what it began is cleared away."""

    def __init__(self) -> None:
        self.caught = 0
        """Number of the signal that came; 0 for none."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number, default in (signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL):
                if signal.getsignal(number) is default:
                    self._before[number] = signal.signal(number, self._stop)
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = self._unheard, self._in_thread
        return self

    def __exit__(self, *error: object) -> None:
        if self.caught:
            return  # the process ends
        sys.unraisablehook, threading.excepthook = self._hooks
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, _: object) -> None:
        self.caught = number
        raise Stopped

    def _unheard(self, lost: sys.UnraisableHookArgs, /) -> None:
        """Python drops what is raised in a `__del__`: then the signal is sent once more."""
        if not self.caught:
            self._hooks[0](lost)
        elif issubclass(lost.exc_type, Stopped):
            threading.Timer(0.01, signal.raise_signal, (self.caught,)).start()

    def _in_thread(self, failed: threading.ExceptHookArgs, /) -> None:
        """Threads whose processes were stopped under them have nothing to tell."""
        if not self.caught:
            self._hooks[1](failed)


class _Heedless(io.FileIO):
    """Standard error that nobody can read (full, closed): what is said there is lost, and nothing else."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _forget_output() -> None:
    """What still waits to be written to standard output goes nowhere, or the interpreter fails at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _guard_streams() -> None:
    """Standard streams that are closed are put in their place, so that no file that is opened later takes their number.

    Writing to a standard output that is closed fails, as to one that is full: the answer would be lost without a word.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:  # noqa: PERF203 - closed
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        raw = io.BufferedWriter(_Heedless(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", line_buffering=True)
