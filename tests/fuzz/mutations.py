"""Real logs made hostile: what files, shippers, restarts and strangers do to them, one small change at a time.

A log is a list of lines (bytes, without line ends). A change is `(name, where, how_far, pick)`: two shares of the log and a
number that chooses among what there is, so that hypothesis, atheris and plain chance can all draw them.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tests.formats_data import examples, forms

__all__ = ["CHANGES", "Change", "changed", "seeds"]

Change = tuple[str, float, float, int]
Lines = list[bytes]

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).resolve().parents[1] / "data" / "fuzz"
_LOGS = (
    "samples/v1-calm.log",
    "samples/v1-under-pressure.log",
    "samples/v1-start-failed.log",
    "samples/v0-with-warnings.log.gz",
    "samples/v1-under-pressure-12-seats.log.gz",
    "tests/data/iterations/v1-under-pressure.log.gz",
    "tests/data/envelopes/v0.32.0-base.stamped.log.gz",
)
# What a number of a log may become: nothing, negative, no number, larger than any machine, a float's edge, a code point's.
NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"2",
    b"nan",
    b"inf",
    b"-inf",
    b"",
    b"0.0",
    b"1e-300",
    b"1e308",
    b"99.99",
    b"100.0",
    b"1000",
    b"1,000",
    b"65536",
    b"2147483648",
    b"4294967296",
    b"9007199254740993",
    b"99999999999999999",
    b"9223372036854775807",
    b"9" * 19,
    b"9" * 40,
    b"9" * 5000,
    b"1" + b",000" * 6,
    "٣".encode(),
    "²".encode(),
    b"0x10",
    b"1_000",
    b"None",
)
HOSTILE = (
    b"\0",
    b"\r",
    b"\x1b[2J",
    b"\x1b]0;owned\x07",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\\ud800",
    "\u202e".encode(),
    "\u2028".encode(),
    b"\x85",
    b"'",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b"<",
    b"=",
    b", ",
    b": ",
    b"%",
    b"\xef\xbb\xbf",
    b"\x0b",
    b"\x0c",
    b"\x1c",
    b"prompt: 'x', params: SamplingParams(n=1, max_tokens=16)",
    b"Traceback (most recent call last):",
    b"ValueError: ",
    b"[" * 3000,
    b'{"a":' * 500,
    b"(" * 2000,
    b"=HYPERLINK(1)",
    b"</script><script>alert(1)</script>",
    b"A" * 70_000,
)
_NUMBER = re.compile(rb"\d[\d,.]*")
_STAMP = re.compile(rb"\b\d\d-\d\d \d\d:\d\d:\d\d\b")
_STAMPS = (
    b"01-01 00:00:00",
    b"12-31 23:59:59",
    b"02-29 12:00:00",
    b"02-30 12:00:00",
    b"11-30 00:00:60",
    b"00-00 00:00:00",
    b"06-15 12:00:00",
)


@cache
def seeds() -> dict[str, tuple[bytes, ...]]:
    """Real lines by name: pieces of the sample logs, every known form of a line, and what was kept of earlier finds."""
    found: dict[str, tuple[bytes, ...]] = {}
    for name in _LOGS:
        data = (ROOT / name).read_bytes()
        lines = (gzip.decompress(data) if name.endswith(".gz") else data).split(b"\n")
        start = [ln for ln in lines[:250] if b"Route: " not in ln]
        found[name] = tuple(start + lines[250:])
    rows = [*examples(), *forms()]
    found["forms"] = tuple(str(row["line"]).encode() for row in rows if "line" in row)
    for path in sorted(KEPT.glob("*.log")):
        found[path.name] = tuple(path.read_bytes().split(b"\n"))
    return found


def changed(lines: Sequence[bytes], changes: Sequence[Change]) -> Lines:
    """The lines after all changes, in their order."""
    now = list(lines)
    for name, where, how_far, pick in changes:
        if not now:
            break
        at = min(len(now) - 1, int(where * len(now)))
        CHANGES[name](now, at, how_far, pick)
    return now


def _stretch(lines: Lines, at: int, how_far: float) -> slice:
    return slice(at, at + 1 + int(how_far * how_far * min(200, len(lines))))


def _drop(lines: Lines, at: int, how_far: float, pick: int) -> None:
    del lines[_stretch(lines, at, how_far)]


def _head_only(lines: Lines, at: int, how_far: float, pick: int) -> None:
    del lines[at + 1 :]


def _tail_only(lines: Lines, at: int, how_far: float, pick: int) -> None:
    del lines[:at]


def _repeat(lines: Lines, at: int, how_far: float, pick: int) -> None:
    part = lines[_stretch(lines, at, how_far)]
    place = pick % (len(lines) + 1)
    lines[place:place] = part * (1 + pick % 3)


def _shuffle(lines: Lines, at: int, how_far: float, pick: int) -> None:
    where = _stretch(lines, at, how_far)
    part = lines[where]
    random.Random(pick).shuffle(part)
    lines[where] = part


def _backwards(lines: Lines, at: int, how_far: float, pick: int) -> None:
    where = _stretch(lines, at, how_far)
    lines[where] = lines[where][::-1]


def _cut(lines: Lines, at: int, how_far: float, pick: int) -> None:
    lines[at] = lines[at][: int(how_far * len(lines[at]))]


def _behead(lines: Lines, at: int, how_far: float, pick: int) -> None:
    lines[at] = lines[at][int(how_far * len(lines[at])) :]


def _glue(lines: Lines, at: int, how_far: float, pick: int) -> None:
    if at + 1 < len(lines):
        lines[at : at + 2] = [lines[at] + (b"\r" if pick % 3 == 0 else b"") + lines[at + 1]]


def _wrap(lines: Lines, at: int, how_far: float, pick: int) -> None:
    width = 40 + pick % 160
    line = lines[at][:20_000]
    lines[at : at + 1] = [line[i : i + width] for i in range(0, len(line), width)] or [b""]


def _insert(lines: Lines, at: int, how_far: float, pick: int) -> None:
    place = int(how_far * len(lines[at]))
    lines[at] = lines[at][:place] + HOSTILE[pick % len(HOSTILE)] + lines[at][place:]


def _garble(lines: Lines, at: int, how_far: float, pick: int) -> None:
    noise = random.Random(pick).randbytes(1 + pick % 40)
    place = int(how_far * len(lines[at]))
    lines[at] = lines[at][:place] + noise.replace(b"\n", b"") + lines[at][place + pick % 7 :]


def _number(lines: Lines, at: int, how_far: float, pick: int) -> None:
    numbers = list(_NUMBER.finditer(lines[at]))
    if numbers:
        found = numbers[min(len(numbers) - 1, int(how_far * len(numbers)))]
        lines[at] = lines[at][: found.start()] + NUMBERS[pick % len(NUMBERS)] + lines[at][found.end() :]


def _numbers(lines: Lines, at: int, how_far: float, pick: int) -> None:
    """The same place of a line's shape, in all lines of that shape."""
    shape = _NUMBER.sub(b"#", lines[at])[-60:]
    for index, line in enumerate(lines):
        if _NUMBER.sub(b"#", line)[-60:] == shape:
            _number(lines, index, how_far, pick)


def _clock(lines: Lines, at: int, how_far: float, pick: int) -> None:
    where = _stretch(lines, at, how_far) if pick % 2 else slice(at, None)
    stamp = _STAMPS[pick % len(_STAMPS)]
    lines[where] = [_STAMP.sub(stamp, line, count=1) for line in lines[where]]


def _foreign(lines: Lines, at: int, how_far: float, pick: int) -> None:
    """Lines of another log, of another version."""
    names = sorted(seeds())
    other = seeds()[names[pick % len(names)]]
    start = int(how_far * len(other))
    lines[at:at] = other[start : start + 1 + pick % 40]


def _enveloped(lines: Lines, at: int, how_far: float, pick: int) -> None:
    where = _stretch(lines, at, how_far) if pick % 2 else slice(0, None)
    wear = _ENVELOPES[pick % len(_ENVELOPES)]
    lines[where] = [wear(line.decode("utf-8", "replace")).encode() for line in lines[where]]


def _docker(text: str) -> str:
    return json.dumps({"log": text + "\n", "stream": "stderr", "time": "2026-11-29T23:56:30.1Z"})


def _vllm_json(text: str) -> str:
    return json.dumps(
        {
            "asctime": "2026-11-29 23:56:30",
            "levelname": "INFO",
            "name": "vllm.core",
            "process": 10**30,
            "message": text.split("] ")[-1],
        }
    )


_ENVELOPES: tuple[Callable[[str], str], ...] = (
    lambda text: "2026-11-29T23:56:30.331095044Z " + text,
    lambda text: "Nov 29 23:56:30 node-a vllm[7]: " + text,
    lambda text: "2026-11-29T23:56:30.331095044Z stdout P " + text,
    lambda text: "vllm-0  | " + text,
    lambda text: "[pod/vllm-0/vllm] " + text,
    lambda text: "<14>1 2026-11-29T23:56:30Z node-a vllm 7 - - " + text,
    lambda text: "(ServeReplica:app pid=1) (RayWorkerWrapper pid=9, ip=192.0.2.4) " + text,
    _docker,
    _vllm_json,
    lambda text: json.dumps({"MESSAGE": [text, text], "__REALTIME_TIMESTAMP": "9" * 30, "_PID": "9" * 30}),
    lambda text: '{"log": "' + text.replace('"', "'").replace("\\", "") + '\\ud800", "time": 1e400}',
)

CHANGES: dict[str, Callable[[Lines, int, float, int], None]] = {
    "drop": _drop,
    "keep only the head": _head_only,
    "keep only the tail": _tail_only,
    "repeat": _repeat,
    "shuffle": _shuffle,
    "turn round": _backwards,
    "cut a line": _cut,
    "cut a line's head": _behead,
    "glue": _glue,
    "wrap": _wrap,
    "insert": _insert,
    "garble": _garble,
    "change a number": _number,
    "change a number everywhere": _numbers,
    "change the clock": _clock,
    "mix in another log": _foreign,
    "put into an envelope": _enveloped,
}
