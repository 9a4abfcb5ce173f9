"""All envelopes of one physical line, in the order in which they are tried: the more particular form first."""

from __future__ import annotations

from parsers.envelopes import containers, labels, syslog, tables
from parsers.envelopes import forms as stamped
from parsers.envelopes.form import Envelope
from parsers.envelopes.stamps import Clock

__all__ = ["BY_START", "possible_envelopes"]

_IN_ORDER: tuple[Envelope, ...] = (
    *containers.STRONG,
    *syslog.STRONG,
    *tables.ENVELOPES,
    *stamped.PARTICULAR,
    *labels.PARTICULAR,
    *stamped.PLAIN_STAMPS,
    *syslog.WEAK,
    *containers.WEAK,
    *labels.PLAIN_LABELS,
)

BY_START: dict[str, tuple[Envelope, ...]] = {
    start: tuple(e for e in _IN_ORDER if start in e.starts)
    for start in sorted({c for e in _IN_ORDER for c in e.starts})
}


def possible_envelopes(text: str, clock: Clock) -> set[tuple[str, str]]:
    """The envelopes whose form a line has, weak ones included: their names and shapes."""
    found = ((e.name, e.peel(text, clock)) for e in BY_START.get(text[0], ()))
    return {(name, peeled.shape) for name, peeled in found if peeled is not None}
