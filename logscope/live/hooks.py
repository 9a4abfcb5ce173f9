"""Who else hears of alerts: a command, a web address, a textfile for Prometheus. Each in a thread of its own, so that reading never waits.

What cannot be delivered is kept and delivered with the next try; a receiver that hangs is given up after a few seconds, each time.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from logscope.atomic_files import write_whole
from logscope.errors import remark
from logscope.live.monitor import Monitor, Notice
from logscope.output.events import to_json

__all__ = [
    "EXIT_KINDS",
    "Command",
    "Hook",
    "HookError",
    "Receiver",
    "Textfile",
    "Webhook",
    "exits_on",
    "prometheus_text",
]

TIMEOUT_S = 5.0
"""After which a receiver that does not answer is given up for this time."""

BURST, EACH_S = 20, 1.0
"""So many deliveries at once, then one a second; what comes meanwhile goes with the next."""

FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
MAX_PENDING = 10_000
"""Alerts that wait for a receiver; of more the oldest are counted as lost."""

FLUSH_S = 8.0
"""How long the end of a watch waits for deliveries."""

TEXTFILE_S = 5.0

EXIT_KINDS = {
    "pressure": ("pressure-started", "thrash"),
    "thrash": ("thrash",),
    "stall": ("silent",),
    "crash": ("error",),
}
"""What `--exit-on` may name, and the events that are it."""


HOOKED = frozenset(("pressure-started", "thrash", "pressure-ended", "silent", "silence-ended", "error", "restarted"))
"""Events that a receiver hears of: pressure, stall, crash, and their end."""


class HookError(ValueError):
    """A receiver that cannot be one."""


class Receiver(Protocol):
    """Takes one JSON document."""

    name: str

    def deliver(self, body: bytes) -> str | None:
        """None where it was taken, else why not; in bounded time."""


def exits_on(kind: str | None, notices: Iterable[Notice]) -> bool:
    """Whether one of the notices is of the kind that ends the watch."""
    return kind is not None and any(n.event in EXIT_KINDS[kind] for n in notices)


class Command:
    """A program that gets the document on its standard input; no shell has a part in it. What it prints goes to standard error.

    Raises HookError where there is no such program.
    """

    def __init__(self, line: str, timeout_s: float = TIMEOUT_S) -> None:
        try:
            self._words = shlex.split(line)
        except ValueError as error:
            raise HookError(f"{line}: {error}") from None
        if not self._words or shutil.which(self._words[0]) is None:
            raise HookError(f"{line}: no such program")
        self.name, self._timeout_s = f"--exec {self._words[0]}", timeout_s

    def deliver(self, body: bytes) -> str | None:
        """Run it; it and its children are ended where it takes too long."""
        try:
            process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=2, stderr=2, start_new_session=True)  # noqa: S603
        except OSError as error:
            return error.strerror or str(error)
        try:
            process.communicate(body, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {self._timeout_s:g} s"
        return None if process.returncode == 0 else f"ended with status {process.returncode}"


class Webhook:
    """An http(s) address to which the document is posted. Redirects are not followed. Raises HookError for another address."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or parts.scheme not in ("http", "https") or any(c.isspace() or ord(c) < 0x20 for c in address):
            raise HookError("--webhook takes an address such as https://alerts.example/hook")
        self.name, self._timeout_s = f"--webhook {host}", timeout_s  # the path may be a secret
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connect: Callable[[], http.client.HTTPConnection] = lambda: kind(host, port, timeout=timeout_s)

    def deliver(self, body: bytes) -> str | None:
        """Post it; all of it takes no longer than the timeout, however slowly the other side speaks."""
        connection = self._connect()
        late = threading.Timer(self._timeout_s, _hang_up, (connection,))
        late.daemon = True
        try:
            late.start()
            headers = {"Content-Type": "application/json", "User-Agent": "logscope"}
            connection.request("POST", self._target, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException, ssl.SSLError, ValueError) as error:
            return str(error) or type(error).__name__
        finally:
            late.cancel()
            connection.close()
        return None if 200 <= status < 300 else f"answered {status}"


def _hang_up(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):
        connection.sock.shutdown(2)


class Hook:
    """Delivers alerts to one receiver from a thread of its own: rate-limited, tried again, in order, none lost while there is room."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = FIRST_RETRY_S,
        each_s: float = EACH_S,
    ) -> None:
        self._receiver, self._clock, self._first_s, self._each_s = receiver, clock, retry_s, each_s
        self._waiting: deque[dict[str, Any]] = deque()
        self._flying: list[dict[str, Any]] = []
        self._lost, self._ended, self._told = 0, False, False
        self._tokens, self._filled = float(BURST), clock()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Take alerts; never waits."""
        with self._changed:
            for alert in alerts:
                self._waiting.append(dict(alert))
                if len(self._waiting) > MAX_PENDING:
                    self._waiting.popleft()
                    self._lost += 1
            self._changed.notify()

    def close(self, wait_s: float = FLUSH_S) -> None:
        """Deliver what waits, for so long; says how many alerts were not delivered."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(wait_s)
        left = len(self._waiting) + len(self._flying) + self._lost
        if left:
            remark(f"{self._receiver.name}: {left} alerts could not be delivered")

    def _work(self) -> None:
        pause = self._first_s
        while True:
            with self._changed:
                while not self._waiting and not self._flying and not self._ended:
                    self._changed.wait()
                if not self._waiting and not self._flying:
                    return
            self._take_token()
            with self._changed:
                # while deliveries are free each alert has its own; else all that wait go together
                many = len(self._waiting) if self._tokens < 1 else 1 - min(1, len(self._flying))
                self._flying += [self._waiting.popleft() for _ in range(min(many, len(self._waiting)))]
                lost = self._lost
            failure = self._receiver.deliver(_body(self._flying, lost))
            with self._changed:
                if failure is None:
                    self._flying, self._told, self._lost = [], False, self._lost - lost
                    pause = self._first_s
                    continue
            if not self._told:
                self._told = True
                remark(f"{self._receiver.name}: {failure}; trying again")
            with self._changed:
                self._changed.wait_for(lambda: self._ended, pause)
            if self._ended:
                time.sleep(min(self._first_s, 0.5))
            pause = min(2 * pause, LONGEST_RETRY_S)

    def _take_token(self) -> None:
        now = self._clock()
        self._tokens = min(float(BURST), self._tokens + (now - self._filled) / self._each_s)
        self._filled = now
        if self._tokens < 1:
            time.sleep((1 - self._tokens) * self._each_s)
            self._tokens, self._filled = 1.0, self._clock()
        self._tokens -= 1


def _body(batch: Sequence[Mapping[str, Any]], lost: int) -> bytes:
    """The last alert; those that could not be told by themselves stand in `earlier`, `lost` counts those that nobody will hear."""
    *earlier, last = batch
    return (to_json({**last, "earlier": list(earlier), "lost": lost}) + "\n").encode()


class Textfile:
    """Keeps a file for Prometheus' textfile collector up to date: whole or not at all, every few seconds, from a thread of its own."""

    def __init__(self, path: Path, text: Callable[[], str], every_s: float = TEXTFILE_S) -> None:
        self._path, self._text, self._every_s, self._failed = path, text, every_s, False
        self._end = threading.Event()
        self._write()  # where it cannot be written the watch does not begin
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write it a last time."""
        self._end.set()
        self._thread.join(FLUSH_S)

    def _work(self) -> None:
        while not self._end.wait(self._every_s):
            self._try()
        self._try()

    def _try(self) -> None:
        try:
            self._write()
            self._failed = False
        except OSError as error:
            if not self._failed:
                remark(f"{self._path}: {error.strerror or error}; trying again")
            self._failed = True

    def _write(self) -> None:
        write_whole(self._path, self._text().encode())


_LEVEL = {"none": 0, "saturated": 1, "thrash": 2}
_GAUGES = (
    ("logscope_pressure", "KV pressure: 0 none, 1 saturated, 2 thrash."),
    ("logscope_verdict", "1 for what the log shows of the engine now."),
    ("logscope_requests_running", "Requests that run."),
    ("logscope_requests_waiting", "Requests that wait."),
    ("logscope_kv_usage_ratio", "Share of the KV cache in use."),
    ("logscope_preemptions", "Preemptions since the engine's start, as its basis says (V1 logs none)."),
    ("logscope_preemptions_low", "The least that they can be."),
    ("logscope_preemptions_high", "The most that they can be."),
)


def prometheus_text(monitors: Mapping[str, Monitor], alerts: Mapping[str, int]) -> str:
    """What is known of each engine now, in the text format of Prometheus; `alerts` counts those told, by event."""
    found: dict[str, list[str]] = {name: [] for name, _ in _GAUGES}
    for source, monitor in monitors.items():
        for watched in list(monitor.engines.values()):
            place = {"source": source, "server": watched.key[0], "engine": watched.key[1] or 0}
            last, count = watched.last, watched.state.preemptions
            values: dict[str, float | None] = {"logscope_pressure": _LEVEL[watched.state.pressure]}
            if last is not None:
                values |= {"logscope_requests_running": last.running, "logscope_requests_waiting": last.waiting}
                values["logscope_kv_usage_ratio"] = last.kv_usage
            found["logscope_verdict"].append(
                _sample("logscope_verdict", {**place, "verdict": monitor.verdict(watched)}, 1)
            )
            for name, value in values.items():
                if value is not None:
                    found[name].append(_sample(name, place, value))
            if count is not None:
                for name, value in zip(("_low", "", "_high"), count[:3], strict=True):
                    full = f"logscope_preemptions{name}"
                    found[full].append(_sample(full, {**place, "basis": count[3]}, value))
    lines = []
    for name, words in _GAUGES:
        if found[name]:
            lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge", *found[name]]
    lines += ["# HELP logscope_alerts_total Alerts told, by event.", "# TYPE logscope_alerts_total counter"]
    lines += [_sample("logscope_alerts_total", {"event": event}, many) for event, many in sorted(alerts.items())]
    return "\n".join(lines) + "\n"


def _sample(name: str, labels: Mapping[str, object], value: float) -> str:
    words = ",".join(f"{key}={json.dumps(str(text), ensure_ascii=False)}" for key, text in labels.items())
    return f"{name}{{{words}}} {value:g}"
