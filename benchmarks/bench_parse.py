"""How fast logs are read, and in how much memory: `parse` to frames and `analyze --no-replay` beside what others need.

A log of any size is made out of a real one: the request lines, statistics and access lines (30 %) of
samples/v1-under-pressure.log again and again, with shifted clocks and new request ids. Beside it: ripgrep counting lines of the
same patterns, and a plain loop with `re` over blocks that takes out ids and limits of requests and the gauges.
CPU time is user and system time of the whole process, its start included; the median of some runs. Python keeps its compiled
modules, as it does of an installed package.

    python benchmarks/bench_parse.py [--mb 200] [--runs 3] [--memory 100,1000]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "samples" / "v1-under-pressure.log"
LOGSCOPE = [sys.executable, "-m", "logscope"]
PATTERNS = r"Received request |Added request |HTTP/1\.1|Running: \d+ reqs"
CACHE = str(Path(tempfile.gettempdir()) / "logscope-bench-modules")
STAMP = re.compile(rb"(?<= )\d\d-\d\d \d\d:\d\d:\d\d(?= \[)")
LOOP = r"""
import re, sys
find = re.compile(
    rb"Received request (\S+): params: .*?max_tokens=(\d+)|Added request (\S+)\.\n"
    rb"|- \"([A-Z]+) (\S+) HTTP/1\.1\" (\d+)|Running: (\d+) reqs, Waiting: (\d+) reqs, .*?usage: ([\d.]+)%"
).findall
found, rest = 0, b""
with open(sys.argv[1], "rb") as log:
    while block := log.read(1 << 22):
        block = rest + block
        end = block.rfind(b"\n") + 1
        found += len(find(block[:end]))
        rest = block[end:]
print(found)
"""


def repeated() -> tuple[list[bytes], list[bytes]]:
    """The sample's start, and its lines under load, three of ten of them access lines."""
    lines = SAMPLE.read_bytes().splitlines()
    first = next(i for i, line in enumerate(lines) if b"Received request" in line)
    load = re.compile(rb"Received request|Added request|\"POST |Avg prompt|GET /metrics")
    busy = [line for line in lines[first:] if load.search(line)]
    records = sum(b" HTTP/" not in line for line in busy)
    spare = sum(b" HTTP/" in line for line in busy) - records * 3 // 7
    kept = []
    for line in busy:
        if spare > 0 and b"GET /metrics" in line:
            spare -= 1
            continue
        kept.append(line)
    return lines[:first], kept


def write_log(path: Path, megabytes: int) -> None:
    """Write a log of about `megabytes` million bytes."""
    start, load = repeated()
    times = [STAMP.search(line) for line in load]
    moments = [datetime.strptime(f"2024-{m[0].decode()}", "%Y-%m-%d %H:%M:%S") for m in times if m]
    begin, span = moments[0], moments[-1] - moments[0] + timedelta(seconds=1)
    with path.open("wb") as out:
        out.write(b"\n".join(start) + b"\n")
        turn = 0
        while out.tell() < megabytes * 1_000_000:
            shift = span * turn
            text = b"\n".join(_shifted(load, begin, shift))
            out.write(text.replace(b"cmpl-r", b"cmpl-%05d-r" % turn) + b"\n")
            turn += 1


def _shifted(lines: list[bytes], begin: datetime, shift: timedelta) -> Iterator[bytes]:
    def later(found: re.Match[bytes]) -> bytes:
        moment = datetime.strptime(f"2024-{found[0].decode()}", "%Y-%m-%d %H:%M:%S") + shift
        return moment.strftime("%m-%d %H:%M:%S").encode()

    for line in lines:
        yield STAMP.sub(later, line, count=1)


def measured(command: list[str], cores: str) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak memory (MB) of a command on these cores."""
    begin = time.monotonic()
    process = subprocess.Popen(
        ["taskset", "-c", cores, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        | {"PYTHONPYCACHEPREFIX": CACHE},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - begin, usage.ru_maxrss / 1000


def commands(log: Path, out: Path) -> dict[str, list[str]]:
    found = {
        "logscope parse --output": [*LOGSCOPE, "parse", str(log), "--output", str(out)],
        "logscope analyze --no-replay": [*LOGSCOPE, "analyze", str(log), "--no-replay"],
        "a loop with re": [sys.executable, "-c", LOOP, str(log)],
    }
    if shutil.which("rg"):
        found["rg -c"] = ["rg", "-c", "--no-config", PATTERNS, str(log)]
    return found


def speeds(log: Path, out: Path, runs: int) -> None:
    megabytes = log.stat().st_size / 1e6
    print(f"{'':32}{'cores':>6}{'CPU s':>8}{'wall s':>8}{'MB per CPU s':>14}{'to re loop':>12}")
    for cores in ("0", "0,1"):
        rows = {}
        for name, command in commands(log, out).items():
            each = [measured(command, cores) for _ in range(runs)]
            rows[name] = tuple(statistics.median(column) for column in zip(*each, strict=True))
        loop = rows["a loop with re"][0]
        for name, (cpu, wall, _) in rows.items():
            print(
                f"{name:32}{len(cores) // 2 + 1:>6}{cpu:>8.2f}{wall:>8.2f}{megabytes / cpu:>14.0f}{cpu / loop:>11.1f}x"
            )


def memory(log: Path, out: Path, sizes: list[int]) -> None:
    print(f"\n{'peak memory, MB':32}" + "".join(f"{size:>9} MB" for size in sizes))
    peaks: dict[str, list[float]] = {}
    for size in sizes:
        write_log(log, size)
        for name, command in commands(log, out).items():
            if name.startswith("logscope"):
                peaks.setdefault(name, []).append(measured(command, "0,1")[2])
    for name, row in peaks.items():
        print(f"{name:32}" + "".join(f"{peak:>12.0f}" for peak in row))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=int, default=200)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--memory", default="100,400", help="sizes in MB")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="logscope-bench-") as folder:
        log, out = Path(folder) / "server.log", Path(folder) / "frames"
        write_log(log, given.mb)
        load = repeated()[1]
        share = sum(b" HTTP/" in line for line in load) / len(load)
        width = sum(map(len, load)) / len(load)
        print(f"{given.mb} MB, {share:.0%} access lines, {width:.0f} bytes a line, {os.cpu_count()} cores")
        speeds(log, out, given.runs)
        memory(log, out, [int(size) for size in given.memory.split(",")])


if __name__ == "__main__":
    main()
