"""A real log, and the tools that carry logs: each dresser takes stamped lines and gives the bytes that its tool prints or writes."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

HOST, UNIT, POD, CONTAINER, PID = ("gpu-node-3", "vllm", "vllm-7d9f6c5b8-x2x7k", "vllm-server", 361991)


NO_JOURNAL = "no journal tools here (Debian: apt install systemd systemd-journal-remote)"


_DATA = Path(__file__).parent / "data" / "envelopes" / "v0.32.0-base.stamped.log.gz"


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


_MICRO = timedelta(microseconds=1)


class Stamped(NamedTuple):
    """A payload line and when it was printed, in UTC microseconds."""

    time_us: int
    text: str


def real_log() -> list[Stamped]:
    """A cut of a real vLLM 0.32 server's log with the time at which each line came."""
    lines = gzip.decompress(_DATA.read_bytes()).decode().removesuffix("\n").split("\n")
    return [Stamped((datetime.fromisoformat(line[:32]) - _EPOCH) // _MICRO, line[33:]) for line in lines]


def when(us: int) -> datetime:
    return _EPOCH + us * _MICRO


def iso(us: int, form: str = "%Y-%m-%dT%H:%M:%S.%fZ") -> str:
    return when(us).strftime(form)


def nano(us: int) -> str:
    return iso(us, "%Y-%m-%dT%H:%M:%S.%f") + "789Z"


def each(line: Callable[[Stamped], str]) -> Callable[[Sequence[Stamped]], bytes]:
    """A dresser of one output line for each payload line."""
    return lambda lines: "".join(line(s) + "\n" for s in lines).encode()


def document(line: Callable[[Stamped], object], **around: object) -> Callable[[Sequence[Stamped]], bytes]:
    """A dresser of one pretty-printed JSON document."""

    def dress(lines: Sequence[Stamped]) -> bytes:
        events = [line(s) for s in lines]
        value = {**around, "events": events} if around else events
        return (json.dumps(value, indent=4) + "\n").encode()

    return dress


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def journal_fields(s: Stamped) -> dict[str, str]:
    return {
        "__CURSOR": f"s=0c4e;i={s.time_us:x}",
        "__REALTIME_TIMESTAMP": str(s.time_us),
        "__MONOTONIC_TIMESTAMP": "12345678",
        "_BOOT_ID": "0" * 31 + "1",
        "_TRANSPORT": "stdout",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": UNIT,
        "_PID": str(PID),
        "_SYSTEMD_UNIT": f"{UNIT}.service",
        "_HOSTNAME": HOST,
        "MESSAGE": s.text,
    }


def is_printable(text: str) -> bool:
    """Whether the journal writes a value as text: no control characters."""
    return all(c >= " " or c == "\t" for c in text)


def journal_json(s: Stamped) -> dict[str, object]:
    fields: dict[str, object] = dict(journal_fields(s))
    if not is_printable(s.text):
        fields["MESSAGE"] = list(s.text.encode())
    return fields


def journal_export(lines: Sequence[Stamped]) -> bytes:
    out = bytearray()
    for s in lines:
        for name, text in journal_fields(s).items():
            value = text.encode()
            if is_printable(text):
                out += name.encode() + b"=" + value + b"\n"
            else:
                out += name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
        out += b"\n"
    return bytes(out)


def journal_verbose(lines: Sequence[Stamped]) -> bytes:
    out = []
    for s in lines:
        out.append(f"{iso(s.time_us, '%a %Y-%m-%d %H:%M:%S.%f')} UTC [s=0c4e;i=1a;b=9f;m=1;t={s.time_us:x};x=1]")
        out += [f"    {k}={v}" for k, v in journal_fields(s).items() if not k.startswith("__")]
    return ("\n".join(out) + "\n").encode()


def journal_pretty(lines: Sequence[Stamped]) -> bytes:
    return "".join(json.dumps(journal_json(s), indent="\t") + "\n" for s in lines).encode()


def docker_json(lines: Sequence[Stamped], limit: int = 16384) -> bytes:
    """Docker's json-file driver: a line over 16 kB stands in several objects, the last ends with a line feed."""
    out = []
    for s in lines:
        text = s.text + "\n"
        parts = [text[i : i + limit] for i in range(0, len(text), limit)]
        out += [compact({"log": p, "stream": "stderr", "time": nano(s.time_us)}) for p in parts]
    return ("\n".join(out) + "\n").encode()


def cri(lines: Sequence[Stamped], limit: int = 16384) -> bytes:
    out = []
    for s in lines:
        parts = [s.text[i : i + limit] for i in range(0, max(len(s.text), 1), limit)]
        out += [f"{nano(s.time_us)} stderr {'F' if i == len(parts) - 1 else 'P'} {p}" for i, p in enumerate(parts)]
    return ("\n".join(out) + "\n").encode()


def gcloud_yaml(lines: Sequence[Stamped]) -> bytes:
    return "".join(
        f"---\ninsertId: abc{s.time_us}\nlabels:\n  k8s-pod/app: vllm\nlogName: projects/p/logs/stderr\n"
        f"receiveTimestamp: '{iso(s.time_us + 900000)}'\nresource:\n  labels:\n    container_name: {CONTAINER}\n"
        f"    pod_name: {POD}\n  type: k8s_container\nseverity: ERROR\ntextPayload: {json.dumps(s.text)}\n"
        f"timestamp: '{iso(s.time_us)}'\n"
        for s in lines
    ).encode()


def gcloud_blocks(lines: Sequence[Stamped]) -> bytes:
    """Texts as YAML blocks, which is how the tool writes those with line feeds."""
    out = []
    for s in lines:
        body = f"textPayload: |-\n  {s.text}" if s.text and s.text[0] != " " else f"textPayload: {json.dumps(s.text)}"
        out.append(f"---\ninsertId: abc{s.time_us}\n{body}\ntimestamp: '{iso(s.time_us)}'")
    return ("\n".join(out) + "\n").encode()


def gcp_console(lines: Sequence[Stamped]) -> bytes:
    return "".join(
        f'{{\n  textPayload: {json.dumps(s.text)}\n  insertId: "abc"\n  resource: {{\n    type: "k8s_container"\n'
        f'    labels: {{\n      pod_name: "{POD}"\n    }}\n  }}\n  timestamp: "{iso(s.time_us)}"\n'
        f'  logName: "projects/p/logs/stderr"\n}}\n'
        for s in lines
    ).encode()


def gcp_entry(s: Stamped) -> dict[str, object]:
    return {
        "insertId": "abc",
        "logName": "projects/p/logs/stderr",
        "resource": {"labels": {"container_name": CONTAINER, "pod_name": POD}, "type": "k8s_container"},
        "severity": "ERROR",
        "textPayload": s.text,
        "timestamp": iso(s.time_us),
    }


def loki_answer(lines: Sequence[Stamped]) -> bytes:
    rows = [[str(s.time_us * 1000), s.text] for s in lines]
    stream = {"pod": POD, "container": CONTAINER, "stream": "stderr"}
    result = {"resultType": "streams", "result": [{"stream": stream, "values": rows}]}
    return (compact({"status": "success", "data": result}) + "\n").encode()


def insights(s: Stamped) -> list[dict[str, str]]:
    return [
        {"field": "@timestamp", "value": iso(s.time_us, "%Y-%m-%d %H:%M:%S.") + f"{s.time_us // 1000 % 1000:03}"},
        {"field": "@message", "value": s.text},
        {"field": "@ptr", "value": "Cl8KJgoi"},
    ]


def newest_first(dress: Callable[[Sequence[Stamped]], bytes]) -> Callable[[Sequence[Stamped]], bytes]:
    return lambda lines: dress(list(reversed(lines)))
