"""Errors that a user can do something about: one sentence each, and the exit status of the contract."""

from __future__ import annotations

__all__ = ["LogscopeError", "NothingToWorkOn"]


class LogscopeError(Exception):
    """A failure whose text says what is wrong and what to do; `status` is the exit status."""

    status = 2


class NothingToWorkOn(LogscopeError):  # noqa: N818 - the contract's words
    """No source could be read, or none holds a vLLM record."""

    status = 3
