"""A systemd journal entry as fields, in whichever form they were written, and the export format's reader.

Names of fields: systemd.journal-fields(7). A value may be text, an array of byte values (when it is not
printable), null (when it was too large), or an array of several values. Lines that journald (at its LineMax) or
Docker's journald driver (at 16 kB) cut are marked, and joined again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parsers.envelopes.form import Clock, Peeled
from parsers.lines import Outer

__all__ = ["ExportReader", "journal_entry", "journal_text"]

_MAX_FIELD = 1 << 24
_LONGEST_PID = 10  # digits


def journal_text(value: object) -> str | None:
    """A field's value as text: arrays of byte values decoded, of several values the first one taken."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        if all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "replace")
        return journal_text(value[0])
    return None


def journal_entry(fields: Mapping[str, object], clock: Clock, envelope: str) -> Peeled | None:
    """The entry that the fields make, or None without a readable MESSAGE."""
    message = journal_text(fields.get("MESSAGE"))
    if message is None:
        return None

    def first(*names: str) -> str | None:
        return next((text for name in names if (text := journal_text(fields.get(name)))), None)

    pid = first("SYSLOG_PID", "_PID")
    outer = Outer(
        envelope,
        clock.any(first("__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP")),
        host=first("_HOSTNAME"),
        unit=first("_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT", "UNIT", "SYSLOG_IDENTIFIER"),
        container=first("CONTAINER_NAME"),
        pid=int(pid) if pid is not None and pid.isdecimal() and len(pid) <= _LONGEST_PID else None,
    )
    partial = first("CONTAINER_PARTIAL_MESSAGE") == "true" or first("_LINE_BREAK") == "line-max"
    return Peeled(outer, message, partial=partial)


class ExportReader:
    """Reads `journalctl -o export` from blocks of bytes; each entry comes with the number of its first line.

    A field is `NAME=value`, or `NAME`, a line feed, the length as 64-bit little endian, the value, a line
    feed. An entry ends at an empty line. Of a value over 16 MiB the rest is passed over.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._line = 1
        self._start = 1
        self._fields: dict[str, object] = {}
        self._binary: tuple[str, int] | None = None  # the field whose value is awaited, and its length

    def feed(self, block: bytes) -> Iterator[tuple[int, dict[str, object]]]:
        """The entries that this block completes."""
        data = self._rest + block
        at = 0
        while True:
            if self._binary is not None:
                field_name, length = self._binary
                if len(data) - at < length + 1:
                    break
                value = data[at : at + length]
                self._line += value.count(b"\n") + 1
                self._put(field_name, value)
                at += length + 1
                self._binary = None
                continue
            end = data.find(b"\n", at)
            if end < 0:
                break
            line = data[at:end]
            if not line:
                at, self._line = end + 1, self._line + 1
                yield from self.finish()
                continue
            field, equals, text = line.partition(b"=")
            name = field.decode("ascii", "replace")
            if not equals:
                if len(data) < end + 9:
                    break
                length = int.from_bytes(data[end + 1 : end + 9], "little")
                self._line += 1 + data.count(b"\n", end + 1, end + 9)
                at = end + 9
                # a length beyond all reason is no export format: go on with the next line
                self._binary = (name, length) if length <= _MAX_FIELD else None
                continue
            self._put(name, text)
            at, self._line = end + 1, self._line + 1
        self._rest = data[at:]

    def _put(self, name: str, value: bytes) -> None:
        if name == "MESSAGE" or name not in self._fields:
            self._fields[name] = value

    def finish(self) -> Iterator[tuple[int, dict[str, object]]]:
        """The entry in hand, at an empty line or the end of the stream."""
        if self._fields:
            yield self._start, self._fields
        self._fields = {}
        self._start = self._line
