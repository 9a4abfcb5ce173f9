"""A time stamp before each line, alone or with a word or two: docker, kubectl, CI, log viewers, exports.

All of these are weak: loggers other than vLLM's stamp their own lines in the same ways.

Container runtimes and what shows their logs: CRI, kubectl, stern, Docker Compose.

CRI log lines (Kubernetes, kubelet's container log format): time, stream, tag, text; the tag's first field is
`P` for a part of a longer line and `F` for its end.

Labels that launchers and build systems put before a line: task numbers, jobs, half a clock.

srun --label, mpirun --tag-output, torchrun's tee, foreman and PM2 (with the gutter), moreutils' ts, GitHub's
`gh run view --log`, Buildkite's time marks. All are weak.

Rows of exported tables: an operator's `time host >> text`, and CSV as log viewers offer it for download.

All envelopes of one physical line, in the order in which they are tried: the more particular form first.
"""

from __future__ import annotations

import csv
import re

from parsers.envelopes import system_log as syslog
from parsers.envelopes.form import ISO, Clock, Envelope, Unwrapped, looks_like_record, of_each_line
from parsers.lines import Outer, later

__all__ = [
    "BY_START",
    "ENVELOPES",
    "PARTICULAR",
    "PLAIN_LABELS",
    "PLAIN_STAMPS",
    "STRONG",
    "WEAK",
    "possible_envelopes",
]
# 2026-05-12T08:01:39.331095044Z INFO ...
_STAMP = later(rf"(?P<iso>{ISO})(?:[ \t]|$)", re.A)
# [2024-07-08 15:17:34] INFO ...
_BRACKETED = later(rf"\[(?P<iso>{ISO})\](?: |$)", re.A)
# 2026-05-08 17:47:03.906 info INFO: ...
_VIEWER = later(
    rf"(?P<iso>{ISO})[ \t](?P<label>\[?(?:info|warn|warning|error|err|debug|notice|unknown|default|stdout|stderr)\]?)(?:[ \t]|$)",
    re.A,
)
# 2026-05-08T17:47:03Z {app="vllm", pod="vllm-0"} INFO ...
_LOGCLI = later(rf'(?P<iso>{ISO}) \{{(?P<labels>(?:[^{{}}"]|"(?:[^"\\]|\\.)*")*)\}}(?:[ \t]|$)', re.A)
_LABEL = later(r'(?<!\w)(\w{1,100})="((?:[^"\\]|\\.)*)"', re.A)
# 2026-05-08T17:47:03.906000+00:00 vllm/vllm/0123abcd INFO ...   (aws logs tail)
_STREAM = later(rf"(?P<iso>{ISO}) (?P<stream>[\w.$@#-]+/[\w./$@#\[\]-]+|i-[0-9a-f]{{8,17}}) ", re.A)
# > - 2024-06-22T20:16:34.700+00:00 ERROR ...
_QUOTE = later(r"(?:> ?(?:[-*] )?|[-*] (?=\d{4}-)|[\u201c\u2018])", re.A)


def _shape(iso: str) -> str:
    """What stays the same in all stamps of one writer: the separator, a fraction or none, the zone's form."""
    return iso[10] + iso[19:20] + (iso[-1] if iso[-1] in "ZCT" else iso[-3:-2].strip("0123456789"))


def _stamp(text: str, clock: Clock) -> Unwrapped | None:
    found = _STAMP.match(text)
    if found is None:
        return None
    iso = found["iso"]
    return Unwrapped(Outer("timestamp", clock.stamp(iso)), text[found.end() :], shape=_shape(iso))


def _bracketed(text: str, clock: Clock) -> Unwrapped | None:
    found = _BRACKETED.match(text)
    if found is None:
        return None
    iso = found["iso"]
    return Unwrapped(Outer("bracketed-timestamp", clock.stamp(iso)), text[found.end() :], shape=_shape(iso))


def _viewer(text: str, clock: Clock) -> Unwrapped | None:
    found = _VIEWER.match(text)
    if found is None:
        return None
    label = found["label"].strip("[]")
    outer = Outer("viewer", clock.stamp(found["iso"]), stream=label if label.startswith("std") else None)
    return Unwrapped(outer, text[found.end() :], shape=_shape(found["iso"]))


def _logcli(text: str, clock: Clock) -> Unwrapped | None:
    found = _LOGCLI.match(text)
    if found is None:
        return None
    labels: dict[str, str] = dict(_LABEL.findall(found["labels"]))
    outer = Outer(
        "loki",
        clock.stamp(found["iso"]),
        host=labels.get("node_name") or labels.get("node") or labels.get("host") or labels.get("instance"),
        unit=labels.get("unit"),
        pod=labels.get("pod") or labels.get("pod_name"),
        container=labels.get("container") or labels.get("container_name"),
        stream=labels.get("stream"),
    )
    return Unwrapped(outer, text[found.end() :])


def _stream(text: str, clock: Clock) -> Unwrapped | None:
    found = _STREAM.match(text)
    if found is None:
        return None
    outer = Outer("cloudwatch", clock.stamp(found["iso"]), container=found["stream"])
    return Unwrapped(outer, text[found.end() :], shape=found["stream"])


def _quote(text: str, clock: Clock) -> Unwrapped | None:
    found = _QUOTE.match(text)
    return found and Unwrapped(Outer("quote"), text[found.end() :])


_DIGITS = frozenset("0123456789")
PARTICULAR = (
    Envelope("loki", _DIGITS, _logcli),
    Envelope("cloudwatch", _DIGITS, _stream, weak=True),
    Envelope("viewer", _DIGITS, _viewer, weak=True),
)
PLAIN_STAMPS = (
    Envelope("timestamp", _DIGITS, _stamp, True, True, of_each_line(_STAMP)),
    Envelope("bracketed-timestamp", frozenset("["), _bracketed, True, False, of_each_line(_BRACKETED)),
    Envelope("quote", frozenset(">-*\u201c\u2018"), _quote, weak=True),
)

# 2026-05-08T17:47:03.906123456Z stderr F INFO ...
_CRI = later(rf"(?P<iso>{ISO}) (?P<stream>stdout|stderr) (?P<tag>[PF])(?::[^\s:]{{1,20}}){{0,4}}(?: |$)", re.A)
_CRI_WHOLE = later(_CRI.pattern.replace("[PF]", "F"), re.A)
# [pod/vllm-0/vllm] INFO ...
_POD = later(r"\[pod/(?P<pod>[a-z0-9][a-z0-9.-]{0,252})(?:/(?P<container>[a-z0-9][a-z0-9-]{0,62}))?\](?: |$)", re.A)
# vllm-0 vllm INFO ...   and with --all-namespaces: serving vllm-0 vllm INFO ...
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_COLOUR = r"(?:\x1b\[[0-9;]{0,12}m)*"
_RESET = r"(?:\x1b\[0?m)?"
_STERN = later(
    rf"{_COLOUR}(?P<namespace>{_NAME}){_COLOUR} {_COLOUR}(?P<pod>{_NAME}){_COLOUR} {_COLOUR}(?P<container>[a-z0-9](?:[a-z0-9-]{{0,61}}[a-z0-9])?){_COLOUR} ",
    re.A,
)
_STERN_SHORT = later(
    rf"{_COLOUR}(?P<pod>{_NAME}){_COLOUR} {_COLOUR}(?P<container>[a-z0-9](?:[a-z0-9-]{{0,61}}[a-z0-9])?){_COLOUR} ",
    re.A,
)
# vllm-1  | INFO ...   vllm.1.k2j@node-a    | INFO ...   (foreman) 10:08:01 web.1 | INFO ...   (PM2) 0|vllm  | INFO ...
_GUTTER = later(
    rf"{_COLOUR}(?:\d\d:\d\d:\d\d |\d{{1,4}}\|)?(?P<container>[A-Za-z0-9][\w.@-]{{0,127}})(?: {{1,64}}{_COLOUR}|{_COLOUR} {{1,64}})\|{_RESET}(?: |$){_RESET}",
    re.A,
)
# "  | INFO ..." of a CI's log view
_BARE_GUTTER = later(r"[ \t]{0,40}\|(?: |$)", re.A)


def _cri(text: str, clock: Clock) -> Unwrapped | None:
    found = _CRI.match(text)
    if found is None:
        return None
    outer = Outer("cri", clock.stamp(found["iso"]), stream=found["stream"])
    return Unwrapped(outer, text[found.end() :], partial=found["tag"] == "P")


def _pod(text: str, clock: Clock) -> Unwrapped | None:
    found = _POD.match(text)
    if found is None:
        return None
    return Unwrapped(Outer("kubectl-prefix", pod=found["pod"], container=found["container"]), text[found.end() :])


def _stern(pattern: re.Pattern[str], text: str) -> Unwrapped | None:
    found = pattern.match(text)
    if found is None or "-" not in found["pod"]:
        return None
    outer = Outer("stern", pod=found["pod"], container=found["container"])
    return Unwrapped(outer, text[found.end() :], shape=f"{found['pod']} {found['container']}")


def _stern_short(text: str, clock: Clock) -> Unwrapped | None:
    return _stern(_STERN_SHORT, text)


def _stern_namespace(text: str, clock: Clock) -> Unwrapped | None:
    return _stern(_STERN, text)


def _gutter(text: str, clock: Clock) -> Unwrapped | None:
    found = _GUTTER.match(text)
    if found is None:
        return None
    return Unwrapped(Outer("compose", container=found["container"]), text[found.end() :])


def _bare_gutter(text: str, clock: Clock) -> Unwrapped | None:
    found = _BARE_GUTTER.match(text)
    return found and Unwrapped(Outer("gutter"), text[found.end() :])


_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz")
_WORD = _DIGITS | _LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ\x1b")
_STERN_STARTS = _LOWER | _DIGITS | {"\x1b"}
STRONG = (
    Envelope("cri", _DIGITS, _cri, bulk=of_each_line(_CRI_WHOLE)),
    Envelope("kubectl-prefix", frozenset("["), _pod, bulk=of_each_line(_POD)),
)
WEAK = (
    Envelope("compose", _WORD, _gutter, weak=True, bulk=of_each_line(_GUTTER)),
    Envelope("gutter", frozenset(" \t|"), _bare_gutter, weak=True),
    # the longer form first: its beginning looks like the shorter one
    Envelope("stern-namespace", _STERN_STARTS, _stern_namespace, weak=True),
    Envelope("stern", _STERN_STARTS, _stern_short, weak=True),
)

# "0: INFO ..."   "[1,0]<stderr>:INFO ..."   "[default0]:INFO ..."
_TASK = later(
    r"(?: {0,4}\d{1,5}: |\[\d{1,6},\d{1,6}\]<(?P<stream>stdout|stderr)>: ?|\[(?:default|rank)\d{1,5}\]: ?)", re.A
)
# "Sep 22 23:46:42 INFO ..."
_MONTH = later(
    r"(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) (?P<day>[ 0-3]?\d) (?:(?P<year>\d{4}) )?"
    r"(?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?: |$)",
    re.A,
)
# "1778262423.906123 INFO ..."
_EPOCH = later(r"(?P<epoch>\d{10}\.\d{1,9})(?: |$)", re.A)
# "10:08:01 INFO ..."   "[10:08:01.172] INFO ..."
_TIME = later(r"(?:\[\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?: |$)", re.A)
# "build<TAB>Run the server<TAB>2026-05-08T17:47:03.1234567Z INFO ..."
_JOB = later(rf"(?P<job>[^\t\n]{{1,100}})\t[^\t\n]{{0,200}}\t\ufeff?(?P<iso>{ISO})(?: |$)", re.A)
# ESC _bk;t=1778262423906 BEL
_BUILDKITE = later(r"\x1b_bk;t=(?P<epoch>\d{13})\x07", re.A)
# "2026-05-08T17:47:03.906123Z 01O INFO ..."
_GITLAB = later(rf"(?P<iso>{ISO}) \d\d(?P<stream>[OE])(?: |\+|$)", re.A)


def _task(text: str, clock: Clock) -> Unwrapped | None:
    found = _TASK.match(text)
    return found and Unwrapped(Outer("task", stream=found["stream"]), text[found.end() :])


def _month(text: str, clock: Clock) -> Unwrapped | None:
    found = _MONTH.match(text)
    if found is None:
        return None
    time_us = clock.month_day(found["month"], found["day"], found["time"], found["year"])
    return Unwrapped(Outer("timestamp", time_us), text[found.end() :])


def _epoch(text: str, clock: Clock) -> Unwrapped | None:
    found = _EPOCH.match(text)
    return found and Unwrapped(Outer("timestamp", clock.epoch(found["epoch"])), text[found.end() :])


def _time(text: str, clock: Clock) -> Unwrapped | None:
    found = _TIME.match(text)
    return found and Unwrapped(Outer("time-of-day"), text[found.end() :], shape=text[0])


def _job(text: str, clock: Clock) -> Unwrapped | None:
    found = _JOB.match(text)
    if found is None:
        return None
    return Unwrapped(Outer("ci-job", clock.stamp(found["iso"]), unit=found["job"]), text[found.end() :])


def _buildkite(text: str, clock: Clock) -> Unwrapped | None:
    found = _BUILDKITE.match(text)
    return found and Unwrapped(Outer("buildkite", clock.epoch(found["epoch"])), text[found.end() :])


def _gitlab(text: str, clock: Clock) -> Unwrapped | None:
    found = _GITLAB.match(text)
    if found is None:
        return None
    stream = "stdout" if found["stream"] == "O" else "stderr"
    return Unwrapped(Outer("gitlab", clock.stamp(found["iso"]), stream=stream), text[found.end() :])


_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
PARTICULAR_LABELS = (
    Envelope("gitlab", _DIGITS, _gitlab, weak=True),
    Envelope("buildkite", frozenset("\x1b"), _buildkite, weak=True),
    Envelope("ci-job", _LETTERS, _job, weak=True),
)
PLAIN_LABELS = (
    Envelope("month-timestamp", frozenset("JFMASOND"), _month, weak=True, vague=True),
    Envelope("epoch-timestamp", _DIGITS, _epoch, weak=True, vague=True),
    Envelope("time-of-day", _DIGITS | {"["}, _time, weak=True, vague=True),
    Envelope("task", _DIGITS | frozenset("[ "), _task, weak=True),
)

#   |   | 2025-11-04 10:08:01.172743 master-0 >> INFO ...
_TABLE = later(rf"[| \t]{{0,20}}(?P<iso>{ISO}) (?P<host>\S{{1,255}}) >>(?: |$)", re.A)
# "2026-05-08T17:47:03.906Z","gpu-node-3","vllm","INFO ..."   2026-05-08T17:47:03.906Z,gpu-node-3,"INFO ..."
_CSV = later(rf'(?:"[^"]{{0,200}}"|{ISO}|\d{{10,19}})[,;]', re.A)
_STAMP_ALONE = later(rf"{ISO}\Z|\d{{10,19}}\Z", re.A)


def _table(text: str, clock: Clock) -> Unwrapped | None:
    found = _TABLE.match(text)
    if found is None:
        return None
    outer = Outer("table", clock.stamp(found["iso"]), host=found["host"])
    return Unwrapped(outer, text[found.end() :])


def _csv(text: str, clock: Clock) -> Unwrapped | None:
    """The cell that looks like a record, else the longest text, else the last, of a row that has a stamp."""
    found = _CSV.match(text)
    if found is None:
        return None
    try:
        cells = next(csv.reader([text], delimiter=text[found.end() - 1], strict=True), [])
    except csv.Error:
        return None
    stamps = [cell for cell in cells if _STAMP_ALONE.match(cell)]
    texts = [cell for cell in cells if not _STAMP_ALONE.match(cell)]
    if not stamps or not texts:
        return None
    payload = next((cell for cell in texts if looks_like_record(cell)), None)
    if payload is None:
        payload = max((cell for cell in texts if " " in cell), key=len, default=texts[-1])
    return Unwrapped(Outer("csv", clock.any(stamps[0])), payload, shape=str(len(cells)))


ENVELOPES = (
    Envelope("table", _DIGITS | frozenset("| \t"), _table, weak=True),
    Envelope("csv", _DIGITS | {'"'}, _csv, weak=True),
)

_IN_ORDER: tuple[Envelope, ...] = (
    *STRONG,
    *syslog.STRONG,
    *ENVELOPES,
    *PARTICULAR,
    *PARTICULAR_LABELS,
    *PLAIN_STAMPS,
    *syslog.WEAK,
    *WEAK,
    *PLAIN_LABELS,
)

BY_START: dict[str, tuple[Envelope, ...]] = {
    start: tuple(e for e in _IN_ORDER if start in e.starts)
    for start in sorted({c for e in _IN_ORDER for c in e.starts})
}


def possible_envelopes(text: str, clock: Clock) -> set[tuple[str, str]]:
    """The envelopes whose form a line has, weak ones included: their names and shapes."""
    found = ((e.name, e.peel(text, clock)) for e in BY_START.get(text[0], ()))
    return {(name, peeled.shape) for name, peeled in found if peeled is not None}
