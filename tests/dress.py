"""The envelopes in which logs travel, by name: how each is put on, and what it tells beside the lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.dressers import (
    CONTAINER,
    HOST,
    PID,
    POD,
    UNIT,
    Stamped,
    compact,
    cri,
    docker_json,
    document,
    each,
    gcloud_blocks,
    gcloud_yaml,
    gcp_console,
    gcp_entry,
    insights,
    iso,
    journal_export,
    journal_fields,
    journal_json,
    journal_pretty,
    journal_verbose,
    loki_answer,
    nano,
    newest_first,
)


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
        each(lambda s: f"{iso(s.time_us, '%Y-%m-%dT%H:%M:%S+0000')} {_SYSLOG}{s.text}"), _SECOND, _OF_SYSLOG
    ),
    "journal short-iso-precise": Dress(
        each(lambda s: f"{iso(s.time_us + 7_200_000_000, '%Y-%m-%dT%H:%M:%S.%f+02:00')} {_SYSLOG}{s.text}"),
        1,
        _OF_SYSLOG,
    ),
    "journal short-full": Dress(
        each(lambda s: f"{iso(s.time_us, '%a %Y-%m-%d %H:%M:%S UTC')} {_SYSLOG}{s.text}"), _SECOND, _OF_SYSLOG
    ),
    "journal with-unit": Dress(
        each(lambda s: f"{iso(s.time_us, '%a %Y-%m-%d %H:%M:%S UTC')} {HOST} {UNIT}.service[{PID}]: {s.text}"),
        _SECOND,
        _OF_UNIT,
    ),
    "journal short-unix": Dress(
        each(lambda s: f"{s.time_us // _SECOND}.{s.time_us % _SECOND:06} {_SYSLOG}{s.text}"), 1, _OF_SYSLOG
    ),
    "journal short-monotonic": Dress(
        each(lambda s: f"[{s.time_us % 10**9 / 1e6:12.6f}] {_SYSLOG}{s.text}"), 0, _OF_SYSLOG
    ),
    "journal json": Dress(each(lambda s: json.dumps(journal_json(s))), 1, _OF_UNIT),
    "journal json-sse": Dress(each(lambda s: "data: " + json.dumps(journal_json(s))), 1, _OF_UNIT),
    "journal json-seq": Dress(each(lambda s: "\x1e" + json.dumps(journal_json(s))), 1, _OF_UNIT),
    "journal json of bytes": Dress(
        each(lambda s: json.dumps({**journal_fields(s), "MESSAGE": list(s.text.encode())})), 1, _OF_UNIT
    ),
    "journal json-pretty": Dress(journal_pretty, 1, _OF_UNIT),
    "journal verbose": Dress(journal_verbose, 1, _OF_UNIT),
    "journal export": Dress(journal_export, 1, _OF_UNIT),
    "syslog 3164": Dress(
        each(lambda s: f"<134>{iso(s.time_us, '%b %d %H:%M:%S')} {_SYSLOG}{s.text}"), _SECOND, _OF_SYSLOG
    ),
    "syslog 5424": Dress(
        each(lambda s: f'<134>1 {iso(s.time_us)} {HOST} {UNIT} {PID} - [meta seq="1" a="x\\"]y"] {s.text}'),
        1,
        _OF_SYSLOG,
    ),
    "syslog 5424 with octet count": Dress(
        each(lambda s: f"187 <134>1 {iso(s.time_us)} {HOST} {UNIT} {PID} - - \ufeff{s.text}"), 1, _OF_SYSLOG
    ),
    "docker json-file": Dress(docker_json, 1, {"stream": "stderr"}),
    "docker logs -t": Dress(each(lambda s: f"{nano(s.time_us)} {s.text}")),
    "docker logs -t, local zone": Dress(
        each(lambda s: f"{iso(s.time_us + 8 * 3_600_000_000, '%Y-%m-%dT%H:%M:%S.%f')}044+08:00 {s.text}")
    ),
    "compose": Dress(each(lambda s: f"{CONTAINER}  | {s.text}"), 0, {"container": CONTAINER}),
    "compose coloured": Dress(each(lambda s: f"\x1b[36m{CONTAINER}  |\x1b[0m {s.text}"), 0, {"container": CONTAINER}),
    "compose -t": Dress(each(lambda s: f"{CONTAINER}  | {nano(s.time_us)} {s.text}"), 1, {"container": CONTAINER}),
    "swarm service": Dress(each(lambda s: f"vllm.1.k2jq@node-a    | {s.text}"), 0, {"container": "vllm.1.k2jq@node-a"}),
    "cri": Dress(cri, 1, {"stream": "stderr"}),
    "docker in cri": Dress(
        lambda lines: cri([s._replace(text=docker_json([s], 1 << 30).decode().rstrip("\n")) for s in lines])
    ),
    "kubectl --timestamps": Dress(each(lambda s: f"{nano(s.time_us)} {s.text}")),
    "kubectl --prefix": Dress(each(lambda s: f"[pod/{POD}/{CONTAINER}] {s.text}"), 0, _OF_POD),
    "kubectl --prefix --timestamps": Dress(
        each(lambda s: f"[pod/{POD}/{CONTAINER}] {nano(s.time_us)} {s.text}"), 1, _OF_POD
    ),
    "stern": Dress(each(lambda s: f"{POD} {CONTAINER} {s.text}"), 0, _OF_POD),
    "stern -t": Dress(each(lambda s: f"{POD} {CONTAINER} {nano(s.time_us)} {s.text}"), 1, _OF_POD),
    "stern --all-namespaces": Dress(each(lambda s: f"serving {POD} {CONTAINER} {s.text}"), 0, _OF_POD),
    "stern json": Dress(
        each(
            lambda s: compact(
                {"message": s.text, "nodeName": HOST, "namespace": "x", "podName": POD, "containerName": CONTAINER}
            )
        ),
        0,
        {**_OF_POD, "host": HOST},
    ),
    "ci": Dress(each(lambda s: f"[{iso(s.time_us, '%Y-%m-%dT%H:%M:%SZ')}] {s.text}"), _SECOND),
    "ci gutter": Dress(each(lambda s: f"  | [{iso(s.time_us, '%Y-%m-%dT%H:%M:%SZ')}] {s.text}"), _SECOND),
    "wrapper's clock": Dress(each(lambda s: f"[{iso(s.time_us, '%Y-%m-%d %H:%M:%S')}] {s.text}"), _SECOND),
    "web viewer": Dress(each(lambda s: f"{iso(s.time_us, '%Y-%m-%d %H:%M:%S.%f')[:-3]} info {s.text}"), _MILLI),
    "web viewer, newest first": Dress(
        newest_first(each(lambda s: f"{iso(s.time_us, '%Y-%m-%d %H:%M:%S.%f')[:-3]} info {s.text}")), _MILLI
    ),
    "table": Dress(
        each(lambda s: f"  |   | {iso(s.time_us, '%Y-%m-%d %H:%M:%S.%f')} {HOST} >> {s.text}"), 1, {"host": HOST}
    ),
    "csv": Dress(each(lambda s: f'"{iso(s.time_us)}","{HOST}","vllm","{s.text.replace(chr(34), 2 * chr(34))}"')),
    "csv, newest first": Dress(
        newest_first(each(lambda s: f'{iso(s.time_us)},info,"{s.text.replace(chr(34), 2 * chr(34))}"'))
    ),
    "docker json-file without line feeds": Dress(
        each(lambda s: compact({"log": s.text, "stream": "stderr", "time": nano(s.time_us)}))
    ),
    "ts": Dress(each(lambda s: f"{iso(s.time_us, '%b %d %H:%M:%S')} {s.text}"), _SECOND),
    "ts %.s": Dress(each(lambda s: f"{s.time_us // _SECOND}.{s.time_us % _SECOND:06} {s.text}")),
    "time of day": Dress(each(lambda s: f"[{iso(s.time_us, '%H:%M:%S')}] {s.text}"), 0),
    "srun --label": Dress(each(lambda s: f"0: {s.text}"), 0),
    "mpirun --tag-output": Dress(each(lambda s: f"[1,0]<stderr>: {s.text}"), 0, {"stream": "stderr"}),
    "foreman": Dress(each(lambda s: f"{iso(s.time_us, '%H:%M:%S')} vllm.1  | {s.text}"), 0, {"container": "vllm.1"}),
    "pm2": Dress(each(lambda s: f"0|vllm  | {s.text}"), 0, {"container": "vllm"}),
    "github": Dress(
        each(lambda s: f"build\tRun server\t{iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f')}4Z {s.text}"), 1, {"unit": "build"}
    ),
    "gitlab": Dress(each(lambda s: f"{iso(s.time_us)} 01E {s.text}"), 1, {"stream": "stderr"}),
    "buildkite": Dress(each(lambda s: f"\x1b_bk;t={s.time_us // 1000}\x07{s.text}"), _MILLI),
    "heroku": Dress(
        each(lambda s: f"{iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f+00:00')} app[web.1]: {s.text}"), 1, {"unit": "app"}
    ),
    "quoted list": Dress(each(lambda s: f"> - {iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f')[:-3]}+00:00 {s.text}"), _MILLI),
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
        newest_first(each(lambda s: f'{iso(s.time_us, "%Y-%m-%dT%H:%M:%SZ")} {{pod="{POD}"}} {s.text}')),
        _SECOND,
        {"pod": POD},
    ),
    "loki raw, newest first": Dress(newest_first(each(lambda s: s.text)), 0),
    "loki jsonl": Dress(
        each(
            lambda s: compact(
                {"labels": {"pod": POD, "container": CONTAINER}, "line": s.text, "timestamp": nano(s.time_us)}
            )
        ),
        1,
        _OF_POD,
    ),
    "loki query answer": Dress(loki_answer, 1, {**_OF_POD, "stream": "stderr"}),
    "aws logs tail": Dress(
        each(lambda s: f"{iso(s.time_us, '%Y-%m-%dT%H:%M:%S.%f+00:00')} vllm/{CONTAINER}/0f3a {s.text}"),
        1,
        {"container": f"vllm/{CONTAINER}/0f3a"},
    ),
    "aws get-log-events": Dress(
        document(
            lambda s: {"timestamp": s.time_us // 1000, "message": s.text, "ingestionTime": 1}, nextForwardToken="f/3"
        ),
        _MILLI,
    ),
    "aws event lines": Dress(
        each(
            lambda s: compact(
                {"logStreamName": "vllm/0f3a", "timestamp": s.time_us // 1000, "message": s.text, "ingestionTime": 1}
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
                {"_index": "logs", "_source": {"@timestamp": iso(s.time_us), "message": s.text, "host": {"name": HOST}}}
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
