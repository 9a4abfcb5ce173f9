"""Puts a real log into the envelopes in which logs travel: the tests' way to every form.

A dresser takes stamped lines and gives the bytes which that tool prints or writes.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

HOST, UNIT, POD, CONTAINER, PID = (
    "gpu-node-3",
    "vllm",
    "vllm-7d9f6c5b8-x2x7k",
    "vllm-server",
    361991,
)
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
    return [
        Stamped((datetime.fromisoformat(line[:32]) - _EPOCH) // _MICRO, line[33:]) for line in lines
    ]


def when(us: int) -> datetime:
    return _EPOCH + us * _MICRO


def iso(us: int, form: str = "%Y-%m-%dT%H:%M:%S.%fZ") -> str:
    return when(us).strftime(form)


def nano(us: int) -> str:
    return iso(us, "%Y-%m-%dT%H:%M:%S.%f") + "789Z"


def each(line: Callable[[Stamped], str]) -> Callable[[Sequence[Stamped]], bytes]:
    """A dresser of one output line for each payload line."""
    return lambda lines: "".join(line(s) + "\n" for s in lines).encode()


def document(
    line: Callable[[Stamped], object], **around: object
) -> Callable[[Sequence[Stamped]], bytes]:
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
        out.append(
            f"{iso(s.time_us, '%a %Y-%m-%d %H:%M:%S.%f')} UTC [s=0c4e;i=1a;b=9f;m=1;t={s.time_us:x};x=1]"
        )
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
        out += [
            f"{nano(s.time_us)} stderr {'F' if i == len(parts) - 1 else 'P'} {p}"
            for i, p in enumerate(parts)
        ]
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
        body = (
            f"textPayload: |-\n  {s.text}"
            if s.text and s.text[0] != " "
            else f"textPayload: {json.dumps(s.text)}"
        )
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
        "resource": {
            "labels": {"container_name": CONTAINER, "pod_name": POD},
            "type": "k8s_container",
        },
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
        {
            "field": "@timestamp",
            "value": iso(s.time_us, "%Y-%m-%d %H:%M:%S.") + f"{s.time_us // 1000 % 1000:03}",
        },
        {"field": "@message", "value": s.text},
        {"field": "@ptr", "value": "Cl8KJgoi"},
    ]


def newest_first(
    dress: Callable[[Sequence[Stamped]], bytes],
) -> Callable[[Sequence[Stamped]], bytes]:
    return lambda lines: dress(list(reversed(lines)))


class Dress(NamedTuple):
    """An envelope: how it is put on, what its clock resolves (µs, 0 without one), which facts it gives."""

    dress: Callable[[Sequence[Stamped]], bytes]
    clock_us: int = 1
    facts: dict[str, object] = {}  # noqa: RUF012 (a named tuple's default, never changed)


_SYSLOG = f"{HOST} {UNIT}[{PID}]: "
_OF_SYSLOG: dict[str, object] = {"host": HOST, "unit": UNIT, "pid": PID}
_OF_UNIT = {**_OF_SYSLOG, "unit": f"{UNIT}.service"}
_OF_POD: dict[str, object] = {"pod": POD, "container": CONTAINER}
_SECOND, _MILLI = 1_000_000, 1_000

DRESSES: dict[str, Dress] = {
    "plain, journal cat": Dress(each(lambda s: s.text), 0),
    "journal short": Dress(
        each(lambda s: f"{iso(s.time_us, '%b %d %H:%M:%S')} {_SYSLOG}{s.text}"), _SECOND, _OF_SYSLOG
    ),
    "syslog file, no pid": Dress(
        each(lambda s: f"{iso(s.time_us, '%b %d %H:%M:%S')} {HOST} {UNIT}: {s.text}"),
        _SECOND,
        {"host": HOST, "unit": UNIT, "pid": None},
    ),
    "journal short-precise": Dress(
        each(lambda s: f"{iso(s.time_us, '%b %d %H:%M:%S.%f')} {_SYSLOG}{s.text}"), 1, _OF_SYSLOG
    ),
    "journal short-iso": Dress(
        each(lambda s: f"{iso(s.time_us, '%Y-%m-%dT%H:%M:%S+0000')} {_SYSLOG}{s.text}"),
        _SECOND,
        _OF_SYSLOG,
    ),
    "journal short-iso-precise": Dress(
        each(
            lambda s: (
                f"{iso(s.time_us + 7_200_000_000, '%Y-%m-%dT%H:%M:%S.%f+02:00')} {_SYSLOG}{s.text}"
            )
        ),
        1,
        _OF_SYSLOG,
    ),
    "journal short-full": Dress(
        each(lambda s: f"{iso(s.time_us, '%a %Y-%m-%d %H:%M:%S UTC')} {_SYSLOG}{s.text}"),
        _SECOND,
        _OF_SYSLOG,
    ),
    "journal with-unit": Dress(
        each(
            lambda s: (
                f"{iso(s.time_us, '%a %Y-%m-%d %H:%M:%S UTC')} {HOST} {UNIT}.service[{PID}]: {s.text}"
            )
        ),
        _SECOND,
        _OF_UNIT,
    ),
    "journal short-unix": Dress(
        each(lambda s: f"{s.time_us // _SECOND}.{s.time_us % _SECOND:06} {_SYSLOG}{s.text}"),
        1,
        _OF_SYSLOG,
    ),
    "journal short-monotonic": Dress(
        each(lambda s: f"[{s.time_us % 10**9 / 1e6:12.6f}] {_SYSLOG}{s.text}"), 0, _OF_SYSLOG
    ),
    "journal json": Dress(each(lambda s: json.dumps(journal_json(s))), 1, _OF_UNIT),
    "journal json-sse": Dress(each(lambda s: "data: " + json.dumps(journal_json(s))), 1, _OF_UNIT),
    "journal json-seq": Dress(each(lambda s: "\x1e" + json.dumps(journal_json(s))), 1, _OF_UNIT),
    "journal json of bytes": Dress(
        each(lambda s: json.dumps({**journal_fields(s), "MESSAGE": list(s.text.encode())})),
        1,
        _OF_UNIT,
    ),
    "journal json-pretty": Dress(journal_pretty, 1, _OF_UNIT),
    "journal verbose": Dress(journal_verbose, 1, _OF_UNIT),
    "journal export": Dress(journal_export, 1, _OF_UNIT),
    "syslog 3164": Dress(
        each(lambda s: f"<134>{iso(s.time_us, '%b %d %H:%M:%S')} {_SYSLOG}{s.text}"),
        _SECOND,
        _OF_SYSLOG,
    ),
    "syslog 5424": Dress(
        each(
            lambda s: (
                f'<134>1 {iso(s.time_us)} {HOST} {UNIT} {PID} - [meta seq="1" a="x\\"]y"] {s.text}'
            )
        ),
        1,
        _OF_SYSLOG,
    ),
    "syslog 5424 with octet count": Dress(
        each(lambda s: f"187 <134>1 {iso(s.time_us)} {HOST} {UNIT} {PID} - - \ufeff{s.text}"),
        1,
        _OF_SYSLOG,
    ),
    "docker json-file": Dress(docker_json, 1, {"stream": "stderr"}),
    "docker logs -t": Dress(each(lambda s: f"{nano(s.time_us)} {s.text}")),
    "docker logs -t, local zone": Dress(
        each(
            lambda s: (
                f"{iso(s.time_us + 8 * 3_600_000_000, '%Y-%m-%dT%H:%M:%S.%f')}044+08:00 {s.text}"
            )
        )
    ),
    "compose": Dress(each(lambda s: f"{CONTAINER}  | {s.text}"), 0, {"container": CONTAINER}),
    "compose coloured": Dress(
        each(lambda s: f"\x1b[36m{CONTAINER}  |\x1b[0m {s.text}"), 0, {"container": CONTAINER}
    ),
    "compose -t": Dress(
        each(lambda s: f"{CONTAINER}  | {nano(s.time_us)} {s.text}"), 1, {"container": CONTAINER}
    ),
    "swarm service": Dress(
        each(lambda s: f"vllm.1.k2jq@node-a    | {s.text}"), 0, {"container": "vllm.1.k2jq@node-a"}
    ),
    "cri": Dress(cri, 1, {"stream": "stderr"}),
    "docker in cri": Dress(
        lambda lines: cri(
            [s._replace(text=docker_json([s], 1 << 30).decode().rstrip("\n")) for s in lines]
        )
    ),
    "kubectl --timestamps": Dress(each(lambda s: f"{nano(s.time_us)} {s.text}")),
    "kubectl --prefix": Dress(each(lambda s: f"[pod/{POD}/{CONTAINER}] {s.text}"), 0, _OF_POD),
    "kubectl --prefix --timestamps": Dress(
        each(lambda s: f"[pod/{POD}/{CONTAINER}] {nano(s.time_us)} {s.text}"), 1, _OF_POD
    ),
    "stern": Dress(each(lambda s: f"{POD} {CONTAINER} {s.text}"), 0, _OF_POD),
    "stern -t": Dress(each(lambda s: f"{POD} {CONTAINER} {nano(s.time_us)} {s.text}"), 1, _OF_POD),
    "stern --all-namespaces": Dress(
        each(lambda s: f"serving {POD} {CONTAINER} {s.text}"), 0, _OF_POD
    ),
    "stern json": Dress(
        each(
            lambda s: compact(
                {
                    "message": s.text,
                    "nodeName": HOST,
                    "namespace": "x",
                    "podName": POD,
                    "containerName": CONTAINER,
                }
            )
        ),
        0,
        {**_OF_POD, "host": HOST},
    ),
    "ci": Dress(each(lambda s: f"[{iso(s.time_us, '%Y-%m-%dT%H:%M:%SZ')}] {s.text}"), _SECOND),
    "ci gutter": Dress(
        each(lambda s: f"  | [{iso(s.time_us, '%Y-%m-%dT%H:%M:%SZ')}] {s.text}"), _SECOND
    ),
    "wrapper's clock": Dress(
        each(lambda s: f"[{iso(s.time_us, '%Y-%m-%d %H:%M:%S')}] {s.text}"), _SECOND
    ),
    "web viewer": Dress(
        each(lambda s: f"{iso(s.time_us, '%Y-%m-%d %H:%M:%S.%f')[:-3]} info {s.text}"), _MILLI
    ),
    "web viewer, newest first": Dress(
        newest_first(
            each(lambda s: f"{iso(s.time_us, '%Y-%m-%d %H:%M:%S.%f')[:-3]} info {s.text}")
        ),
        _MILLI,
    ),
    "table": Dress(
        each(lambda s: f"  |   | {iso(s.time_us, '%Y-%m-%d %H:%M:%S.%f')} {HOST} >> {s.text}"),
        1,
        {"host": HOST},
    ),
    "csv": Dress(
        each(
            lambda s: f'"{iso(s.time_us)}","{HOST}","vllm","{s.text.replace(chr(34), 2 * chr(34))}"'
        )
    ),
    "csv, newest first": Dress(
        newest_first(
            each(lambda s: f'{iso(s.time_us)},info,"{s.text.replace(chr(34), 2 * chr(34))}"')
        )
    ),
    "docker json-file without line feeds": Dress(
        each(lambda s: compact({"log": s.text, "stream": "stderr", "time": nano(s.time_us)}))
    ),
    "ts": Dress(each(lambda s: f"{iso(s.time_us, '%b %d %H:%M:%S')} {s.text}"), _SECOND),
    "ts %.s": Dress(each(lambda s: f"{s.time_us // _SECOND}.{s.time_us % _SECOND:06} {s.text}")),
    "time of day": Dress(each(lambda s: f"[{iso(s.time_us, '%H:%M:%S')}] {s.text}"), 0),
    "srun --label": Dress(each(lambda s: f"0: {s.text}"), 0),
    "mpirun --tag-output": Dress(
        each(lambda s: f"[1,0]<stderr>: {s.text}"), 0, {"stream": "stderr"}
    ),
    "foreman": Dress(
        each(lambda s: f"{iso(s.time_us, '%H:%M:%S')} vllm.1  | {s.text}"),
        0,
        {"container": "vllm.1"},
    ),
    "pm2": Dress(each(lambda s: f"0|vllm  | {s.text}"), 0, {"container": "vllm"}),
    "github": Dress(
        each(lambda s: f"build\tRun server\t{iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f')}4Z {s.text}"),
        1,
        {"unit": "build"},
    ),
    "gitlab": Dress(each(lambda s: f"{iso(s.time_us)} 01E {s.text}"), 1, {"stream": "stderr"}),
    "buildkite": Dress(each(lambda s: f"\x1b_bk;t={s.time_us // 1000}\x07{s.text}"), _MILLI),
    "heroku": Dress(
        each(lambda s: f"{iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f+00:00')} app[web.1]: {s.text}"),
        1,
        {"unit": "app"},
    ),
    "quoted list": Dress(
        each(lambda s: f"> - {iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f')[:-3]}+00:00 {s.text}"), _MILLI
    ),
    "loki logcli": Dress(
        each(
            lambda s: (
                f'{iso(s.time_us, "%Y-%m-%dT%H:%M:%SZ")} {{app="a{{b}}\\"", pod="{POD}", container="{CONTAINER}"}} {s.text}'
            )
        ),
        _SECOND,
        _OF_POD,
    ),
    "loki logcli, newest first": Dress(
        newest_first(
            each(lambda s: f'{iso(s.time_us, "%Y-%m-%dT%H:%M:%SZ")} {{pod="{POD}"}} {s.text}')
        ),
        _SECOND,
        {"pod": POD},
    ),
    "loki raw, newest first": Dress(newest_first(each(lambda s: s.text)), 0),
    "loki jsonl": Dress(
        each(
            lambda s: compact(
                {
                    "labels": {"pod": POD, "container": CONTAINER},
                    "line": s.text,
                    "timestamp": nano(s.time_us),
                }
            )
        ),
        1,
        _OF_POD,
    ),
    "loki query answer": Dress(loki_answer, 1, {**_OF_POD, "stream": "stderr"}),
    "aws logs tail": Dress(
        each(
            lambda s: (
                f"{iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f+00:00')} vllm/{CONTAINER}/0f3a {s.text}"
            )
        ),
        1,
        {"container": f"vllm/{CONTAINER}/0f3a"},
    ),
    "aws get-log-events": Dress(
        document(
            lambda s: {"timestamp": s.time_us // 1000, "message": s.text, "ingestionTime": 1},
            nextForwardToken="f/3",
        ),
        _MILLI,
    ),
    "aws event lines": Dress(
        each(
            lambda s: compact(
                {
                    "logStreamName": "vllm/0f3a",
                    "timestamp": s.time_us // 1000,
                    "message": s.text,
                    "ingestionTime": 1,
                }
            )
        ),
        _MILLI,
        {"container": "vllm/0f3a"},
    ),
    "aws insights": Dress(each(lambda s: compact(insights(s))), _MILLI),
    "gcloud json": Dress(document(gcp_entry), 1, _OF_POD),
    "gcloud json, newest first": Dress(newest_first(document(gcp_entry)), 1, _OF_POD),
    "gcp jsonl": Dress(each(lambda s: compact(gcp_entry(s))), 1, _OF_POD),
    "gcp jsonPayload": Dress(
        each(
            lambda s: compact(
                {
                    "jsonPayload": {"message": s.text},
                    "timestamp": iso(s.time_us),
                    "resource": {"labels": {"pod_name": POD}},
                }
            )
        ),
        1,
        {"pod": POD},
    ),
    "gcloud yaml": Dress(gcloud_yaml, 1, _OF_POD),
    "gcloud yaml, newest first": Dress(newest_first(gcloud_yaml), 1, _OF_POD),
    "gcloud yaml blocks": Dress(gcloud_blocks),
    "gcp console": Dress(gcp_console, 1, {"pod": POD}),
    "fluent bit": Dress(
        each(
            lambda s: compact(
                {
                    "date": s.time_us / 1e6,
                    "log": s.text,
                    "stream": "stderr",
                    "kubernetes": {"pod_name": POD, "container_name": CONTAINER, "host": HOST},
                }
            )
        ),
        1,
        {**_OF_POD, "host": HOST, "stream": "stderr"},
    ),
    "elasticsearch": Dress(
        each(
            lambda s: compact(
                {
                    "_index": "logs",
                    "_source": {
                        "@timestamp": iso(s.time_us),
                        "message": s.text,
                        "host": {"name": HOST},
                    },
                }
            )
        ),
        1,
        {"host": HOST},
    ),
    "ndjson message": Dress(each(lambda s: compact({"message": s.text}))),
    "ndjson msg": Dress(each(lambda s: compact({"ts": iso(s.time_us), "msg": s.text}))),
    "ndjson MESSAGE": Dress(each(lambda s: compact({"MESSAGE": s.text})), 0),
    "cri in journal": Dress(
        lambda lines: "".join(
            f"{iso(s.time_us, '%b %d %H:%M:%S')} {HOST} kubelet[7]: {nano(s.time_us)} stderr F {s.text}\n"
            for s in lines
        ).encode(),
        1,
        {"host": HOST, "stream": "stderr"},
    ),
}
DRESSES["ndjson message"] = DRESSES["ndjson message"]._replace(clock_us=0)
