"""The command line: `logscope VERB …`. Each verb's module is imported when it is called, so that `--help` stays quick."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
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
    "analyze": "Say what is behind the slow requests, and what to change.",
    "parse": "Give the events alone, as JSON lines, CSV or Parquet.",
    "whatif": "Replay a log's workload under a changed configuration.",
    "replay": "Run the reference engine on workload or trace files.",
    "compare": "Compare two logs, before and after a change.",
    "watch": "Follow a log as it is written and say when pressure starts.",
    "formats": "List the log formats that are known.",
    "completion": "Print the completion script of a shell.",
}


class ReaderGoneError(Exception):
    """Whoever read standard output wants no more of it."""


class StoppedError(Exception):
    """The user pressed Ctrl-C."""


class _Verbs(click.Group):
    """Finds a verb in `logscope.commands.<verb>` when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"logscope.commands.{cmd_name}")
        command: click.Command = module.command
        return command

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
    """Read a vLLM server's log and say what is behind its slow requests.

    \b
    Example:
      logscope analyze server.log
    """


def main(args: Sequence[str] | None = None) -> Any:
    """Run the command line; the one place where an exception becomes a sentence and an exit status."""
    try:
        return cli.main(args=args, prog_name="logscope", standalone_mode=True)
    except LogscopeError as error:
        remark(str(error))
        sys.exit(error.status)
    except ReaderGoneError:
        # The reader of the pipe went away: end quietly, also when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (StoppedError, KeyboardInterrupt):
        sys.exit(130)
    except MemoryError:
        remark("out of memory; give a span with --since and --until")
        sys.exit(INTERNAL)
    except OSError as error:  # sources that cannot be read are told apart where they are opened
        name = f"{error.filename}: " if error.filename else ""
        remark(f"{name}{error.strerror or error}")
        sys.exit(UNWRITTEN)
    except Exception as error:
        if os.environ.get("LOGSCOPE_DEBUG"):
            raise
        remark(f"a fault of logscope's own ({fault_of(error)}); set LOGSCOPE_DEBUG=1 to see all of it, and report it")
        sys.exit(INTERNAL)
