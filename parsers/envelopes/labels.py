"""Labels that launchers and build systems put before a line: task numbers, jobs, half a clock.

srun --label, mpirun --tag-output, torchrun's tee, foreman and PM2 (with the gutter), moreutils' ts, GitHub's
`gh run view --log`, Buildkite's time marks. All are weak.
"""

from __future__ import annotations

import re

from parsers.envelopes.form import Envelope, Peeled
from parsers.envelopes.stamps import ISO, Clock
from parsers.lines_part import Outer

__all__ = ["PARTICULAR", "PLAIN_LABELS"]

# "0: INFO ..."   "[1,0]<stderr>:INFO ..."   "[default0]:INFO ..."
_TASK = re.compile(
    r"(?: {0,4}\d{1,5}: |\[\d{1,6},\d{1,6}\]<(?P<stream>stdout|stderr)>: ?|\[(?:default|rank)\d{1,5}\]: ?)",
    re.A,
)
# "Sep 22 23:46:42 INFO ..."
_MONTH = re.compile(
    r"(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) (?P<day>[ 0-3]?\d) (?:(?P<year>\d{4}) )?"
    r"(?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?: |$)",
    re.A,
)
# "1778262423.906123 INFO ..."
_EPOCH = re.compile(r"(?P<epoch>\d{10}\.\d{1,9})(?: |$)", re.A)
# "10:08:01 INFO ..."   "[10:08:01.172] INFO ..."
_TIME = re.compile(
    r"(?:\[\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]|\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?: |$)", re.A
)
# "build<TAB>Run the server<TAB>2026-05-08T17:47:03.1234567Z INFO ..."
_JOB = re.compile(
    rf"(?P<job>[^\t\n]{{1,100}})\t[^\t\n]{{0,200}}\t\ufeff?(?P<iso>{ISO})(?: |$)", re.A
)
# ESC _bk;t=1778262423906 BEL
_BUILDKITE = re.compile(r"\x1b_bk;t=(?P<epoch>\d{13})\x07", re.A)
# "2026-05-08T17:47:03.906123Z 01O INFO ..."
_GITLAB = re.compile(rf"(?P<iso>{ISO}) \d\d(?P<stream>[OE])(?: |\+|$)", re.A)


def _task(text: str, clock: Clock) -> Peeled | None:
    found = _TASK.match(text)
    return found and Peeled(Outer("task", stream=found["stream"]), text[found.end() :])


def _month(text: str, clock: Clock) -> Peeled | None:
    found = _MONTH.match(text)
    if found is None:
        return None
    time_us = clock.month_day(found["month"], found["day"], found["time"], found["year"])
    return Peeled(Outer("timestamp", time_us), text[found.end() :])


def _epoch(text: str, clock: Clock) -> Peeled | None:
    found = _EPOCH.match(text)
    return found and Peeled(Outer("timestamp", clock.epoch(found["epoch"])), text[found.end() :])


def _time(text: str, clock: Clock) -> Peeled | None:
    found = _TIME.match(text)
    return found and Peeled(Outer("time-of-day"), text[found.end() :], shape=text[0])


def _job(text: str, clock: Clock) -> Peeled | None:
    found = _JOB.match(text)
    if found is None:
        return None
    return Peeled(
        Outer("ci-job", clock.stamp(found["iso"]), unit=found["job"]), text[found.end() :]
    )


def _buildkite(text: str, clock: Clock) -> Peeled | None:
    found = _BUILDKITE.match(text)
    return found and Peeled(Outer("buildkite", clock.epoch(found["epoch"])), text[found.end() :])


def _gitlab(text: str, clock: Clock) -> Peeled | None:
    found = _GITLAB.match(text)
    if found is None:
        return None
    stream = "stdout" if found["stream"] == "O" else "stderr"
    return Peeled(Outer("gitlab", clock.stamp(found["iso"]), stream=stream), text[found.end() :])


_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
PARTICULAR = (
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
