"""Container runtimes and what shows their logs: CRI, kubectl, stern, Docker Compose.

CRI log lines (Kubernetes, kubelet's container log format): time, stream, tag, text; the tag's first field is
`P` for a part of a longer line and `F` for its end.
"""

from __future__ import annotations

import re

from parsers.envelopes.form import Envelope, Peeled, of_each_line
from parsers.envelopes.stamps import ISO, Clock
from parsers.lines_part import Outer

__all__ = ["STRONG", "WEAK"]

# 2026-05-08T17:47:03.906123456Z stderr F INFO ...
_CRI = re.compile(
    rf"(?P<iso>{ISO}) (?P<stream>stdout|stderr) (?P<tag>[PF])(?::[^\s:]{{1,20}}){{0,4}}(?: |$)",
    re.A,
)
_CRI_WHOLE = re.compile(_CRI.pattern.replace("[PF]", "F"), re.A)
# [pod/vllm-0/vllm] INFO ...
_POD = re.compile(
    r"\[pod/(?P<pod>[a-z0-9][a-z0-9.-]{0,252})(?:/(?P<container>[a-z0-9][a-z0-9-]{0,62}))?\](?: |$)",
    re.A,
)
# vllm-0 vllm INFO ...   and with --all-namespaces: serving vllm-0 vllm INFO ...
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_COLOUR = r"(?:\x1b\[[0-9;]{0,12}m)*"
_RESET = r"(?:\x1b\[0?m)?"
_STERN = re.compile(
    rf"{_COLOUR}(?P<namespace>{_NAME}){_COLOUR} {_COLOUR}(?P<pod>{_NAME}){_COLOUR} {_COLOUR}(?P<container>[a-z0-9](?:[a-z0-9-]{{0,61}}[a-z0-9])?){_COLOUR} ",
    re.A,
)
_STERN_SHORT = re.compile(
    rf"{_COLOUR}(?P<pod>{_NAME}){_COLOUR} {_COLOUR}(?P<container>[a-z0-9](?:[a-z0-9-]{{0,61}}[a-z0-9])?){_COLOUR} ",
    re.A,
)
# vllm-1  | INFO ...   vllm.1.k2j@node-a    | INFO ...   (foreman) 10:08:01 web.1 | INFO ...   (PM2) 0|vllm  | INFO ...
_GUTTER = re.compile(
    rf"{_COLOUR}(?:\d\d:\d\d:\d\d |\d{{1,4}}\|)?(?P<container>[A-Za-z0-9][\w.@-]{{0,127}})(?: {{1,64}}{_COLOUR}|{_COLOUR} {{1,64}})\|{_RESET}(?: |$){_RESET}",
    re.A,
)
# "  | INFO ..." of a CI's log view
_BARE_GUTTER = re.compile(r"[ \t]{0,40}\|(?: |$)", re.A)


def _cri(text: str, clock: Clock) -> Peeled | None:
    found = _CRI.match(text)
    if found is None:
        return None
    outer = Outer("cri", clock.stamp(found["iso"]), stream=found["stream"])
    return Peeled(outer, text[found.end() :], partial=found["tag"] == "P")


def _pod(text: str, clock: Clock) -> Peeled | None:
    found = _POD.match(text)
    if found is None:
        return None
    return Peeled(
        Outer("kubectl-prefix", pod=found["pod"], container=found["container"]), text[found.end() :]
    )


def _stern(pattern: re.Pattern[str], text: str) -> Peeled | None:
    found = pattern.match(text)
    if found is None or "-" not in found["pod"]:
        return None
    outer = Outer("stern", pod=found["pod"], container=found["container"])
    return Peeled(outer, text[found.end() :], shape=f"{found['pod']} {found['container']}")


def _stern_short(text: str, clock: Clock) -> Peeled | None:
    return _stern(_STERN_SHORT, text)


def _stern_namespace(text: str, clock: Clock) -> Peeled | None:
    return _stern(_STERN, text)


def _gutter(text: str, clock: Clock) -> Peeled | None:
    found = _GUTTER.match(text)
    if found is None:
        return None
    return Peeled(Outer("compose", container=found["container"]), text[found.end() :])


def _bare_gutter(text: str, clock: Clock) -> Peeled | None:
    found = _BARE_GUTTER.match(text)
    return found and Peeled(Outer("gutter"), text[found.end() :])


_DIGITS = frozenset("0123456789")
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
