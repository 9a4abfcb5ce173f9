"""Rows of exported tables: an operator's `time host >> text`, and CSV as log viewers offer it for download."""

from __future__ import annotations

import csv
import re

from parsers.envelopes.form import Envelope, Peeled, looks_like_record
from parsers.envelopes.stamps import ISO, Clock
from parsers.lines_part import Outer

__all__ = ["ENVELOPES"]

#   |   | 2025-11-04 10:08:01.172743 master-0 >> INFO ...
_TABLE = re.compile(rf"[| \t]{{0,20}}(?P<iso>{ISO}) (?P<host>\S{{1,255}}) >>(?: |$)", re.A)
# "2026-05-08T17:47:03.906Z","gpu-node-3","vllm","INFO ..."   2026-05-08T17:47:03.906Z,gpu-node-3,"INFO ..."
_CSV = re.compile(rf'(?:"[^"]{{0,200}}"|{ISO}|\d{{10,19}})[,;]', re.A)
_STAMP = re.compile(rf"{ISO}\Z|\d{{10,19}}\Z", re.A)


def _table(text: str, clock: Clock) -> Peeled | None:
    found = _TABLE.match(text)
    if found is None:
        return None
    outer = Outer("table", clock.stamp(found["iso"]), host=found["host"])
    return Peeled(outer, text[found.end() :])


def _csv(text: str, clock: Clock) -> Peeled | None:
    """The cell that looks like a record, else the longest text, else the last, of a row that has a stamp."""
    found = _CSV.match(text)
    if found is None:
        return None
    try:
        cells = next(csv.reader([text], delimiter=text[found.end() - 1], strict=True), [])
    except csv.Error:
        return None
    stamps = [cell for cell in cells if _STAMP.match(cell)]
    texts = [cell for cell in cells if not _STAMP.match(cell)]
    if not stamps or not texts:
        return None
    payload = next((cell for cell in texts if looks_like_record(cell)), None)
    if payload is None:
        payload = max((cell for cell in texts if " " in cell), key=len, default=texts[-1])
    return Peeled(Outer("csv", clock.any(stamps[0])), payload, shape=str(len(cells)))


_DIGITS = frozenset("0123456789")
ENVELOPES = (
    Envelope("table", _DIGITS | frozenset("| \t"), _table, weak=True),
    Envelope("csv", _DIGITS | {'"'}, _csv, weak=True),
)
