"""The commands: each reads its options and calls the library."""

from __future__ import annotations

import sys
from types import TracebackType


def _quiet_at_ctrl_c(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Ctrl-C while the modules are still imported ends the command as it does later: with status 130 and without a word."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _quiet_at_ctrl_c
