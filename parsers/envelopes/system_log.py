"""Syslog and systemd's journal: a stamp, a host, `name[pid]: `, the message, or all of these as fields.

journalctl -o short, short-precise, short-iso, short-iso-precise, short-full, with-unit, short-unix,
short-monotonic, short-delta (systemd, journalctl(1)); RFC 3164 and RFC 5424 with or without octet counts;
rsyslog's traditional and RFC 3339 file formats; Heroku's `app[web.1]:`.

Fields are named as in systemd.journal-fields(7). A value may be text, an array of byte values (when it is not
printable), null (when it was too large), or an array of several values. Lines that journald (at its LineMax) or
Docker's journald driver (at 16 kB) cut are marked, and joined again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from parsers.envelopes.form import ISO, Clock, Envelope, Unwrapped, of_each_line
from parsers.lines import Outer, later

__all__ = ["STRONG", "WEAK", "ExportReader", "journal_entry", "journal_text"]
_HOST = r"(?P<host>[A-Za-z0-9][\w.:-]{0,254})"
_UNIT = r"(?P<unit>[A-Za-z0-9_.@/\\~(-][^\s\[\]:]{0,200})(?:\[(?P<pid>[\w.-]{1,20})\])?:(?: |$)"
_MONTH = r"(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"

# Sep 22 23:46:42 host-a vllm[361991]: INFO ...   <134>Sep 22 2026 23:46:42.123456 host-a vllm: INFO ...
_SHORT = later(
    rf"(?:<(?P<priority>\d{{1,3}})>)?{_MONTH} (?P<day>[ 0-3]?\d) (?:(?P<year>\d{{4}}) )?"
    rf"(?P<time>\d\d:\d\d:\d\d(?:\.\d{{1,9}})?) (?:{_HOST} )?{_UNIT}",
    re.A,
)
# 2026-05-08T17:47:03.906123+0000 host-a vllm[361991]: INFO ...   (with <134> also some RFC 3164 senders)
_ISO = later(rf"(?:<(?P<priority>\d{{1,3}})>)?(?P<iso>{ISO}) (?:{_HOST} )?{_UNIT}", re.A)
# Fri 2026-05-08 17:47:03 UTC host-a vllm.service[361991]: INFO ...
_FULL = later(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)"
    rf"(?: (?P<zone>[A-Z]{{2,5}}|[+-]\d\d(?::?\d\d)?))? {_HOST} {_UNIT}",
    re.A,
)
# 1778262423.906123 host-a vllm[361991]: INFO ...
_UNIX = later(rf"(?P<epoch>\d{{9,10}}\.\d{{6}}) {_HOST} {_UNIT}", re.A)
# [   12.345678] host-a vllm[361991]: INFO ...   [   12.345678 <    0.000012 >] host-a vllm[361991]: ...
_MONOTONIC = later(rf"\[ {{0,8}}\d{{1,9}}\.\d{{6}}(?: < {{0,8}}[\d. ]{{1,16}}>)?\] {_HOST} {_UNIT}", re.A)
# <134>1 2026-05-08T17:47:03.906Z host-a vllm 361991 - [meta k="v"] INFO ...
_RFC5424 = later(
    rf"(?:\d{{1,7}} )?<\d{{1,3}}>1 (?P<iso>{ISO}|-) (?P<host>\S{{1,255}}) (?P<unit>\S{{1,64}}) "
    r'(?P<pid>\S{1,128}) \S{1,64} (?:-|(?:\[[^\s\]"=]{1,64}(?: [^\s\]"=]{1,64}="(?:[^"\\]|\\.)*")*\])+)(?: \ufeff?|$)',
    re.A,
)
_OCTAL = later(r"#(0[0-3][0-7]|177)", re.A)  # rsyslog's escapes of control characters: #015 is CR, #033 ESC


def _with_pid(pattern: re.Pattern[str]) -> re.Pattern[bytes]:
    """For blocks: only with a pid, and without rsyslog's escapes, which need a look at each line."""
    optional = r"(?:\[(?P<pid>[\w.-]{1,20})\])?"
    required = pattern.pattern.replace(optional, optional[3:-2])
    return of_each_line(later(required + r"(?![^\n]*#0)", re.A))


def _short(text: str, clock: Clock) -> Unwrapped | None:
    found = _SHORT.match(text)
    if found is None or not (found["pid"] or found["priority"]):
        return None
    return _month_day(found, text, clock)


def _short_without_pid(text: str, clock: Clock) -> Unwrapped | None:
    found = _SHORT.match(text)
    if found is None or found["pid"] or found["priority"]:
        return None
    return _month_day(found, text, clock)._replace(shape=found["host"] or found["unit"])


def _month_day(found: re.Match[str], text: str, clock: Clock) -> Unwrapped:
    time = clock.month_day(found["month"], found["day"], found["time"], found["year"])
    name = "syslog-3164" if found["priority"] else "journal-short"
    return _peeled(name, found, text, time)


def _iso(text: str, clock: Clock) -> Unwrapped | None:
    found = _ISO.match(text)
    if found is None or not found["pid"]:
        return None
    return _peeled("journal-short-iso", found, text, clock.iso(found["iso"]))


def _iso_without_pid(text: str, clock: Clock) -> Unwrapped | None:
    found = _ISO.match(text)
    if found is None or found["pid"] or not found["host"]:
        return None
    return _peeled("journal-short-iso", found, text, clock.iso(found["iso"]))._replace(shape=found["host"])


def _full(text: str, clock: Clock) -> Unwrapped | None:
    found = _FULL.match(text)
    if found is None:
        return None
    zone = found["zone"] if found["zone"] and (found["zone"] in ("UTC", "GMT") or found["zone"][0] in "+-") else ""
    return _peeled("journal-with-unit", found, text, clock.iso(f"{found['stamp']} {zone}".rstrip()))


def _unix(text: str, clock: Clock) -> Unwrapped | None:
    found = _UNIX.match(text)
    return found and _peeled("journal-short-unix", found, text, clock.epoch(found["epoch"]))


def _monotonic(text: str, clock: Clock) -> Unwrapped | None:
    found = _MONOTONIC.match(text)
    return found and _peeled("journal-short-monotonic", found, text, None)


def _rfc5424(text: str, clock: Clock) -> Unwrapped | None:
    found = _RFC5424.match(text)
    if found is None:
        return None
    peeled = _peeled("syslog-5424", found, text, clock.iso(found["iso"]))
    outer = peeled.outer
    host = None if outer.host == "-" else outer.host
    unit = None if outer.unit == "-" else outer.unit
    return peeled._replace(outer=outer._replace(host=host, unit=unit))


def _peeled(name: str, found: re.Match[str], text: str, time_us: int | None) -> Unwrapped:
    pid = found["pid"]
    outer = Outer(
        name,
        time_us,
        host=found["host"],
        unit=found["unit"],
        pid=int(pid) if pid and pid.isdecimal() and len(pid) <= 10 else None,
    )
    payload = text[found.end() :]
    if "#0" in payload:
        payload = _OCTAL.sub(lambda code: chr(int(code[1], 8)), payload).rstrip("\r")
    return Unwrapped(outer, payload, indent=found.end())


_DIGITS = frozenset("0123456789")
_MONTHS = frozenset("JFMASOND")
STRONG = (
    Envelope("journal-short", _MONTHS | {"<"}, _short, bulk=_with_pid(_SHORT)),
    Envelope("journal-short-iso", _DIGITS | {"<"}, _iso, bulk=_with_pid(_ISO)),
    Envelope("journal-with-unit", frozenset("MTWFS"), _full),
    Envelope("journal-short-unix", _DIGITS, _unix),
    Envelope("journal-short-monotonic", frozenset("["), _monotonic),
    Envelope("syslog-5424", _DIGITS | {"<"}, _rfc5424),
)
# without a pid the form is also that of a stamp before "RuntimeError: ..."
WEAK = (
    Envelope("journal-short-iso-no-pid", _DIGITS, _iso_without_pid, weak=True),
    Envelope("journal-short-no-pid", _MONTHS, _short_without_pid, weak=True),
)

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


def journal_entry(fields: Mapping[str, object], clock: Clock, envelope: str) -> Unwrapped | None:
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
    return Unwrapped(outer, message, partial=partial)


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
