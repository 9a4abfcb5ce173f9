"""Targets of the options that read a file, an address or a folder: whatever stands there, the answer keeps the contract.

`witness`: --metrics and --latencies; `config`: replay --config; `damage`: a state folder; `fetch`: a server's answer; `signal`: a run that
is stopped at any moment, and then done again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from logscope.witness import metrics as fetch
from logscope.witness.metrics import read_metrics
from tests.fuzz.cases import Case, Target, run
from tests.fuzz.contract import violations
from tests.fuzz.mutations import NUMBERS, ROOT

__all__ = ["CONFIG", "LATENCIES", "METRICS", "OPTION_TARGETS", "WORKLOAD", "mangled", "no_number", "numbers"]

LOG = ROOT / "samples" / "v1-calm.log"
STATUSES = (0, 2, 3, 4)

PROM = b"""# TYPE vllm:num_preemptions_total counter
2026-11-30T01:03:30Z
vllm:num_preemptions_total{engine="0",model_name="m"} 12.0
vllm:num_requests_running{engine="0"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.97
vllm:time_to_first_token_seconds_bucket{le="0.5",engine="0"} 3.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",engine="0"} 9.0
vllm:time_to_first_token_seconds_sum{engine="0"} 4.5
vllm:time_to_first_token_seconds_count{engine="0"} 9.0
2026-11-30T01:04:30Z
vllm:num_preemptions_total{engine="0",model_name="m"} 31.0 1795993597141
"""
SCRAPES = b'{"ts": 1795993410.5, "vllm:num_preemptions_total": 3, "vllm:num_requests_running": 2}\n' * 3
ANSWER = json.dumps(
    {
        "data": {
            "resultType": "matrix",
            "result": [
                {
                    "metric": {"__name__": "vllm:num_preemptions_total", "engine": "0"},
                    "values": [[1795993410, "3"], [1795993420, "9"]],
                }
            ],
        }
    }
).encode()
BENCH = json.dumps(
    {"ttfts": [0.5, 0.7], "itls": [[0.1, 0.2], [0.3]], "errors": ["", ""], "completed": 2, "median_ttft_ms": 5.0}
).encode()
GUIDE = json.dumps(
    {
        "benchmarks": [
            {"requests": {"successful": [{"time_to_first_token_ms": 5, "request_latency": 2.5}], "errored": []}}
        ]
    }
).encode()
ROWS = b"sent,first_token,finished,max_gap\n1.0,1.5,3.0,0.2\n2.0,2.5,9.0,4.0\n"
METRICS, LATENCIES = (PROM, SCRAPES, ANSWER), (BENCH, GUIDE, ROWS)
CONFIG = json.dumps(
    {
        "num_blocks": 300,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_model_len": 4096,
        "policy": "fcfs",
        "step_time": {"base_s": 0.01, "per_prefill_token_s": 1e-5, "per_decode_s": 1e-4, "per_kv_token_s": 0},
    }
).encode()
WORKLOAD = b'{"arrival_s": 0, "prompt_tokens": 40, "output_tokens": 9}\n{"arrival_s": 1, "prompt_tokens": 400, "output_tokens": 30}\n'
_ODD = (
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'"x"',
    b"[[[]]]",
    b"[" * 5000,
    b'{"a":' * 3000,
    b"\xff\xfe",
    b"\x00",
    b"\x1b[31m",
    b"NaN",
    b"-",
)


def mangled(chance: random.Random, data: bytes) -> bytes:
    """Some numbers, bytes or spans of a real form replaced by what nobody expects there."""
    for _ in range(1 + int(chance.expovariate(0.5))):
        digits = [i for i, c in enumerate(data) if chr(c).isdigit()]
        what = chance.random()
        if what < 0.5 and digits:
            at = end = chance.choice(digits)
            while end < len(data) and data[end : end + 1] in b"0123456789.":
                end += 1
            data = data[:at] + chance.choice((*NUMBERS, *_ODD)) + data[end:]
        elif what < 0.7 and data:
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice((*_ODD, chance.randbytes(3))) + data[at + chance.randrange(4) :]
        elif what < 0.85:
            data = data[: chance.randrange(len(data) + 1)]
        else:
            data += chance.choice((data, *_ODD))
    return data


def _witnesses(chance: random.Random) -> Case:
    files = {}
    if chance.random() < 0.7:
        files["metrics"] = mangled(chance, chance.choice(METRICS))
    if not files or chance.random() < 0.4:
        files["latencies"] = mangled(chance, chance.choice(LATENCIES))
    return Case(files)


def _check_witnesses(case: Case, folder: Path) -> None:
    arguments: list[str | Path] = [
        "analyze",
        LOG,
        "--no-replay",
        "-q",
        "--year",
        "2026",
        "--json",
        folder / "answer.json",
    ]
    for name, data in case.files.items():
        (folder / name).write_bytes(data)
        arguments += [f"--{name}", folder / name]
    if run(*arguments) is None:
        return
    document = json.loads((folder / "answer.json").read_text(), parse_constant=no_number)
    assert violations(document) == []
    for place, number in numbers(document):
        assert number >= 0 or place[-1].endswith("change"), (place, number)


def no_number(text: str) -> None:
    raise AssertionError(f"{text} in an answer")


def numbers(value: Any, place: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], float]]:
    if isinstance(value, dict):
        return [found for key, part in value.items() for found in numbers(part, (*place, str(key)))]
    if isinstance(value, list):
        return [found for part in value for found in numbers(part, place)]
    return [(place, value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def _configs(chance: random.Random) -> Case:
    return Case({"config.json": mangled(chance, CONFIG), "requests.jsonl": WORKLOAD})


def _check_configs(case: Case, folder: Path) -> None:
    for name, data in case.files.items():
        (folder / name).write_bytes(data)
    answer = folder / "answer.json"
    if run("replay", folder / "requests.jsonl", "--config", folder / "config.json", "--json", answer, "-q") is not None:
        json.loads(answer.read_text(), parse_constant=no_number)


def _damages(chance: random.Random) -> Case:
    return Case(
        {}, {"file": chance.random(), "at": chance.random(), "how": chance.randrange(4), "odd": chance.randrange(99)}
    )


def _check_damages(case: Case, folder: Path) -> None:
    command = ("analyze", LOG, "--no-replay", "-q", "--json", "-", "--state", folder / "state")
    whole = run(*command)
    assert whole is not None
    files = sorted(p for p in (folder / "state").rglob("*") if p.is_file() and p.name != "lock")
    path = files[int(case.facts["file"] * len(files))]
    data = path.read_bytes()
    at, odd = int(case.facts["at"] * len(data)), _ODD[case.facts["odd"] % len(_ODD)]
    damaged = (data[:at], data[:at] + odd + data[at:], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], odd)
    path.write_bytes(damaged[case.facts["how"]])
    after = run(*command)
    assert after is None or after.stdout == whole.stdout, path.name


def _answers(chance: random.Random) -> Case:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(PROM)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(PROM), PROM)
    return Case({"answer": mangled(chance, chance.choice((head + PROM, chunked)))})


def _check_answers(case: Case, folder: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listening, listening.accept()[0] as caller, contextlib.suppress(OSError):
            caller.recv(65536)
            caller.sendall(case.files["answer"])

    threading.Thread(target=answer, daemon=True).start()
    with contextlib.suppress(fetch.WitnessError):
        read_metrics([f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"])


_PARSE = [sys.executable, "-m", "logscope", "parse", str(LOG), "-q", "--state"]


def _signals(chance: random.Random) -> Case:
    return Case(
        {}, {"after_s": chance.random() * 2, "signal": chance.choice(["SIGINT", "SIGTERM", "SIGKILL", "SIGHUP"])}
    )


@cache
def _whole() -> bytes:
    """What a run prints that nobody stops."""
    with TemporaryDirectory() as folder:
        return subprocess.run([*_PARSE, f"{folder}/state"], capture_output=True, cwd=ROOT, check=True).stdout


def _check_signals(case: Case, folder: Path) -> None:
    command = [*_PARSE, str(folder / "state")]
    environment = {**os.environ, "TMPDIR": str(folder)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment)
    time.sleep(case.facts["after_s"])
    running.send_signal(getattr(signal, case.facts["signal"]))
    first, _ = running.communicate(timeout=60)
    second = subprocess.run(command, capture_output=True, cwd=ROOT, check=True, env=environment).stdout
    told = first[: first.rfind(b"\n") + 1]
    # What was given before it was stopped is given again, or the folder has taken note of all of it.
    assert second == _whole() or (told == _whole() and not second), case.facts


OPTION_TARGETS = {
    "witness": Target(_witnesses, _check_witnesses, share=3),
    "config": Target(_configs, _check_configs, share=2),
    "damage": Target(_damages, _check_damages),
    "fetch": Target(_answers, _check_answers, share=2),
    "signal": Target(_signals, _check_signals),
}
