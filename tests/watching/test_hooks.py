"""Alerts go to programs, web addresses and a textfile; whoever hangs or fails there loses nothing and holds nobody up."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from logscope.live import hooks
from logscope.live.hooks import Command, Hook, HookError, Webhook, prometheus_text
from logscope.live.monitor import Monitor
from tests.logs import stats_v1, v1_start
from tests.running import invoke
from tests.watching.test_command import CALM, FULL, start

CRASH = "(EngineCore pid=2) ERROR 05-09 00:51:30 [core.py:5] EngineCore encountered a fatal error.\n"


@contextmanager
def server(answer: Callable[[int], int | None]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A web server on the loopback. `answer` gives the status for the n-th request, None to hang; the bodies that it took."""
    taken: list[dict[str, Any]] = []
    count = iter(range(10**6))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = answer(next(count))
            if status is None:
                time.sleep(3)
                return
            if status == 200:
                taken.append(body)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{web.server_address[1]}/hook?key=secret", taken
    finally:
        web.shutdown()
        web.server_close()


def told(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All alerts in their order, also those that were told with a later one."""
    return [alert for body in bodies for alert in [*body["earlier"], body]]


def test_a_server_that_hangs_fails_and_comes_back_misses_nothing() -> None:
    statuses = {0: None, 1: 500, 2: 503, 3: 404}
    with server(lambda n: statuses.get(n, 200)) as (address, taken):
        hook = Hook(Webhook(address, timeout_s=0.5), retry_s=0.05)
        for number in range(50):
            before = time.monotonic()
            hook.send([{"event": "thrash", "number": number}])
            assert time.monotonic() - before < 0.2
        hook.close()
    assert [alert["number"] for alert in told(taken)] == list(range(50))
    assert all(body["lost"] == 0 for body in taken)


def test_deliveries_are_limited_and_nothing_is_left_out() -> None:
    with server(lambda _: 200) as (address, taken):
        hook = Hook(Webhook(address), each_s=0.3)
        hook.send([{"number": number} for number in range(5000)])
        hook.close()
    assert [alert["number"] for alert in told(taken)] == list(range(5000))
    assert len(taken) <= hooks.BURST + 3


def test_a_receiver_that_is_never_there_is_said_and_bounded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MAX_PENDING", 100)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        hook = Hook(Webhook(f"http://127.0.0.1:{closed.getsockname()[1]}/secret"), retry_s=0.05)
        hook.send([{"number": number} for number in range(300)])
        before = time.monotonic()
        hook.close(wait_s=0.5)
    assert time.monotonic() - before < 3
    said = capsys.readouterr().err
    assert "300 alerts could not be delivered" in said
    assert said.count("trying again") == 1
    assert "secret" not in said


def test_a_server_that_speaks_slowly_is_given_up() -> None:
    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        for _ in range(100):
            time.sleep(0.1)
            try:
                connection.sendall(b"H")
            except OSError:
                return

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        threading.Thread(target=drip, args=(listening,), daemon=True).start()
        before = time.monotonic()
        assert Webhook(f"http://127.0.0.1:{listening.getsockname()[1]}/", timeout_s=0.6).deliver(b"{}") is not None
        assert time.monotonic() - before < 3


PROGRAMS = [
    ("import sys; sys.exit(0)", None),
    ("import sys; sys.exit(3)", "ended with status 3"),
    ("import time; time.sleep(60)", "took longer than 1 s"),
]


@pytest.mark.parametrize(("code", "failure"), PROGRAMS)
def test_a_program_that_works_fails_or_hangs(code: str, failure: str | None) -> None:
    before = time.monotonic()
    assert (
        Command(f'{sys.executable} -c "{code}"', timeout_s=1.0 if "sleep" in code else 30).deliver(b"x" * 10**6)
        == failure
    )
    assert time.monotonic() - before < 30


@pytest.mark.parametrize("line", ["", "no-such-program-anywhere", "'unbalanced"])
def test_what_is_no_program(line: str) -> None:
    with pytest.raises(HookError):
        Command(line)


@pytest.mark.parametrize("address", ["ftp://x/", "http://", "x", "http://a b/", "file:///etc/passwd", "http://[::1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(HookError, match="--webhook takes an address"):
        Webhook(address)
    assert invoke("watch", "-", "--webhook", address, stdin="").exit_code == 2


def test_no_shell_has_a_part_in_it(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(FULL)
    note = tmp_path / "note.py"
    note.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).open('a').write(sys.argv[2] + sys.stdin.read())")
    done = start("-", "--exec", f"{sys.executable} {note} {tmp_path / 'out'} '$(id);`id`'", stdin=subprocess.PIPE)
    done.communicate((FULL + CALM).encode(), timeout=60)
    lines = (tmp_path / "out").read_text().splitlines()
    assert all(line.startswith("$(id);`id`{") for line in lines)
    events = [json.loads(line[len("$(id);`id`") :])["event"] for line in lines]
    assert events == ["pressure-started", "thrash", "pressure-ended"]


def test_a_storm_loses_no_alert_and_waits_for_nobody() -> None:
    """More than 10,000 lines a second, with a receiver that hangs at first."""
    rest = "(APIServer pid=1) INFO 05-09 00:49:01 [x.py:1] something that nobody needs to know\n"
    episodes = []
    for place in range(12):
        at = 100 * place
        episodes += [stats_v1(at + 10 * i, 6, 4, 97.0) + "\n" for i in range(1, 5)] + [rest * 1500]
        episodes += [stats_v1(at + 10 * i, 2, 0, 20.0) + "\n" for i in range(5, 8)] + [rest * 1500]
    text = "".join(["\n".join(v1_start()) + "\n", *episodes])
    statuses = {0: None, 1: 500}
    with server(lambda n: statuses.get(n, 200)) as (address, taken):
        process = start("-", "--json", "-", "--webhook", address, stdin=subprocess.PIPE)
        out, errors = process.communicate(text.encode(), timeout=100)
        assert process.returncode == 0, errors
    printed = [json.loads(line) for line in out.splitlines()]
    expected = [p for p in printed if p["event"] in hooks.HOOKED]
    assert len(expected) >= 24
    assert [(a["event"], a["time"]) for a in told(taken)] == [(e["event"], e["time"]) for e in expected]


KINDS = [
    ("pressure", FULL, 1),
    ("thrash", FULL, 1),
    ("crash", FULL + CRASH + stats_v1(200, 1, 0, 1.0), 1),
    ("pressure", CALM, 0),
]


@pytest.mark.parametrize(("kind", "text", "status"), KINDS)
def test_it_ends_when_what_is_named_begins(kind: str, text: str, status: int) -> None:
    process = start("-", "--exit-on", kind, stdin=subprocess.PIPE)
    out, _ = process.communicate(text.encode(), timeout=60)
    assert process.returncode == status
    assert b"summary: " in out


def test_several_sources_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(FULL)
    (tmp_path / "b.log").write_text("\n".join(v1_start()) + "\n" + CALM)
    process = start(tmp_path / "a.log", tmp_path / "b.log", "--json", "-", "--exit-on", "thrash")
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    told = [json.loads(line) for line in out.splitlines()]
    alerts = {d["event"]: d["source"] for d in told if d["kind"] == "alert"}
    assert alerts["pressure-started"] == str(tmp_path / "a.log")
    summaries = [d["source"] for d in told if d["kind"] == "summary"]
    assert sorted(summaries) == [str(tmp_path / "a.log"), str(tmp_path / "b.log")]


def test_the_textfile_holds_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "logscope.prom"
    process = start("-", "--prometheus", path, stdin=subprocess.PIPE)
    process.communicate(FULL.encode(), timeout=60)
    text = path.read_text()
    for line in (
        'logscope_pressure{source="-",server="0",engine="0"} 2',
        'logscope_verdict{source="-",server="0",engine="0",verdict="kv-capacity"} 1',
        'logscope_alerts_total{event="pressure-started"} 1',
        "# TYPE logscope_preemptions gauge",
    ):
        assert line in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["logscope.prom"]


def test_a_name_cannot_break_the_textfile() -> None:
    text = prometheus_text({'a"b\\c\nd': Monitor()}, {"thrash": 2})
    assert text.endswith('logscope_alerts_total{event="thrash"} 2\n')


def test_a_textfile_is_not_written_over_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(FULL)
    assert invoke("watch", tmp_path / "log", "--prometheus", tmp_path / "log").exit_code == 2
