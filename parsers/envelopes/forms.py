"""A time stamp before each line, alone or with a word or two: docker, kubectl, CI, log viewers, exports.

All of these are weak: loggers other than vLLM's stamp their own lines in the same ways.
"""

from __future__ import annotations

import re

from parsers.envelopes.form import Envelope, Peeled, of_each_line
from parsers.envelopes.stamps import ISO, Clock
from parsers.lines_part import Outer

__all__ = ["PARTICULAR", "PLAIN_STAMPS"]

# 2026-05-12T08:01:39.331095044Z INFO ...
_STAMP = re.compile(rf"(?P<iso>{ISO})(?:[ \t]|$)", re.A)
# [2024-07-08 15:17:34] INFO ...
_BRACKETED = re.compile(rf"\[(?P<iso>{ISO})\](?: |$)", re.A)
# 2026-05-08 17:47:03.906 info INFO: ...
_VIEWER = re.compile(
    rf"(?P<iso>{ISO})[ \t](?P<label>\[?(?:info|warn|warning|error|err|debug|notice|unknown|default|stdout|stderr)\]?)(?:[ \t]|$)",
    re.A,
)
# 2026-05-08T17:47:03Z {app="vllm", pod="vllm-0"} INFO ...
_LOGCLI = re.compile(
    rf'(?P<iso>{ISO}) \{{(?P<labels>(?:[^{{}}"]|"(?:[^"\\]|\\.)*")*)\}}(?:[ \t]|$)', re.A
)
_LABEL = re.compile(r'(?<!\w)(\w{1,100})="((?:[^"\\]|\\.)*)"', re.A)
# 2026-05-08T17:47:03.906000+00:00 vllm/vllm/0123abcd INFO ...   (aws logs tail)
_STREAM = re.compile(
    rf"(?P<iso>{ISO}) (?P<stream>[\w.$@#-]+/[\w./$@#\[\]-]+|i-[0-9a-f]{{8,17}}) ", re.A
)
# > - 2024-06-22T20:16:34.700+00:00 ERROR ...
_QUOTE = re.compile(r"(?:> ?(?:[-*] )?|[-*] (?=\d{4}-)|[\u201c\u2018])", re.A)


def _shape(iso: str) -> str:
    """What stays the same in all stamps of one writer: the separator, a fraction or none, the zone's form."""
    return iso[10] + iso[19:20] + (iso[-1] if iso[-1] in "ZCT" else iso[-3:-2].strip("0123456789"))


def _stamp(text: str, clock: Clock) -> Peeled | None:
    found = _STAMP.match(text)
    if found is None:
        return None
    iso = found["iso"]
    return Peeled(Outer("timestamp", clock.stamp(iso)), text[found.end() :], shape=_shape(iso))


def _bracketed(text: str, clock: Clock) -> Peeled | None:
    found = _BRACKETED.match(text)
    if found is None:
        return None
    iso = found["iso"]
    return Peeled(
        Outer("bracketed-timestamp", clock.stamp(iso)), text[found.end() :], shape=_shape(iso)
    )


def _viewer(text: str, clock: Clock) -> Peeled | None:
    found = _VIEWER.match(text)
    if found is None:
        return None
    label = found["label"].strip("[]")
    outer = Outer(
        "viewer", clock.stamp(found["iso"]), stream=label if label.startswith("std") else None
    )
    return Peeled(outer, text[found.end() :], shape=_shape(found["iso"]))


def _logcli(text: str, clock: Clock) -> Peeled | None:
    found = _LOGCLI.match(text)
    if found is None:
        return None
    labels: dict[str, str] = dict(_LABEL.findall(found["labels"]))
    outer = Outer(
        "loki",
        clock.stamp(found["iso"]),
        host=labels.get("node_name")
        or labels.get("node")
        or labels.get("host")
        or labels.get("instance"),
        unit=labels.get("unit"),
        pod=labels.get("pod") or labels.get("pod_name"),
        container=labels.get("container") or labels.get("container_name"),
        stream=labels.get("stream"),
    )
    return Peeled(outer, text[found.end() :])


def _stream(text: str, clock: Clock) -> Peeled | None:
    found = _STREAM.match(text)
    if found is None:
        return None
    outer = Outer("cloudwatch", clock.stamp(found["iso"]), container=found["stream"])
    return Peeled(outer, text[found.end() :], shape=found["stream"])


def _quote(text: str, clock: Clock) -> Peeled | None:
    found = _QUOTE.match(text)
    return found and Peeled(Outer("quote"), text[found.end() :])


_DIGITS = frozenset("0123456789")
PARTICULAR = (
    Envelope("loki", _DIGITS, _logcli),
    Envelope("cloudwatch", _DIGITS, _stream, weak=True),
    Envelope("viewer", _DIGITS, _viewer, weak=True),
)
PLAIN_STAMPS = (
    Envelope("timestamp", _DIGITS, _stamp, True, True, of_each_line(_STAMP)),
    Envelope(
        "bracketed-timestamp", frozenset("["), _bracketed, True, False, of_each_line(_BRACKETED)
    ),
    Envelope("quote", frozenset(">-*\u201c\u2018"), _quote, weak=True),
)
