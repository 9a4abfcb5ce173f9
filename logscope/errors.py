"""Errors that a user can do something about: one sentence each, and the exit status of the contract.

What is said on standard error: one line, in which nothing is left that a terminal obeys (names of files may come from strangers).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import click

__all__ = ["LogscopeError", "NothingToWorkOn", "fault_of", "remark", "tried"]

T = TypeVar("T")


class LogscopeError(Exception):
    """A failure whose text says what is wrong and what to do; `status` is the exit status."""

    status = 2


class NothingToWorkOn(LogscopeError):  # noqa: N818 - the contract's words
    """No source could be read, or none holds a vLLM record."""

    status = 3


def fault_of(error: BaseException) -> str:
    """An unexpected exception's class and where in logscope it rose. Its message may quote a log, and so a prompt: it is left out."""
    place = ""
    at = error.__traceback__
    while at is not None:
        module = str(at.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("logscope", "parsers", "reference_engine"):
            place = f" at {module}:{at.tb_lineno}"
        at = at.tb_next
    return f"{type(error).__name__}{place}"


def tried(work: Callable[[], T]) -> tuple[T | None, str | None]:
    """What `work` gives, or the `fault_of` its failure: on a log that nobody foresaw the rest of the answer is said all the same.

    Raises LogscopeError (that is the processes or the cluster that should do it, not the log), and with LOGSCOPE_DEBUG whatever comes.
    """
    try:
        return work(), None
    except LogscopeError:
        raise
    except Exception as error:
        if os.environ.get("LOGSCOPE_DEBUG"):
            raise
        return None, fault_of(error)


MAX_REMARK = 4_000


def remark(text: str) -> None:
    """Write `logscope: text` to standard error."""
    from logscope.sanitize import visible

    click.echo(f"logscope: {visible(text, MAX_REMARK)}", err=True)
