"""An address is read within limits: http(s) only, also after a redirect."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from logscope.witness import metrics as fetch
from logscope.witness.metrics import read_metrics


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.answer(200, b'vllm:num_preemptions_total{engine="0"} 12.0\n')
        elif self.path == "/away":
            self.answer(302, b"", ("Location", "/metrics"))
        elif self.path == "/file":
            self.answer(302, b"", ("Location", "file:///etc/passwd"))
        elif self.path == "/large":
            self.answer(200, b"x" * 4096)
        else:
            self.answer(404, b"")

    def answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["/metrics", "", "/", "/away"])
def test_a_servers_metrics(address: str, path: str) -> None:
    growth = read_metrics([address + path]).preemptions()
    assert growth is not None
    assert growth.from_zero == 12


@pytest.mark.parametrize(("path", "word"), [("/nope", "404"), ("/file", "not read|file")])
def test_answers_that_are_none(address: str, path: str, word: str) -> None:
    with pytest.raises(fetch.WitnessError, match=word):
        fetch.text_of(address + path)


def test_a_large_answer_is_not_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_FETCHED", 1000)
    with pytest.raises(fetch.WitnessError, match="more than"):
        fetch.text_of(address + "/large")


# --- servers that misbehave: one socket a case, on the loopback


def served(*sends: bytes, pause_s: float = 0.0, close: bool = True) -> str:
    """The address of a server that answers its one caller with these bytes, however wrong they are."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listening, listening.accept()[0] as caller, contextlib.suppress(OSError):
            caller.recv(65536)
            for part in sends:
                caller.sendall(part)
                time.sleep(pause_s)
            if not close:
                time.sleep(30)

    threading.Thread(target=answer, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"


OK = b"HTTP/1.1 200 OK\r\n"
SAMPLE = b"vllm:num_preemptions_total 3.0\n"


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param((), id="hangs up at once"),
        pytest.param((b"SSH-2.0-OpenSSH_9.6\r\n",), id="not HTTP"),
        pytest.param((b"\x16\x03\x01" * 20,), id="TLS to a plain question"),
        pytest.param((OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n" + SAMPLE,), id="a header too long"),
        pytest.param((OK + b"".join(b"A%d: b\r\n" % i for i in range(300)) + b"\r\n" + SAMPLE,), id="too many headers"),
        pytest.param((OK + b"Content-Length: 500\r\n\r\n" + SAMPLE,), id="shorter than announced"),
        pytest.param((OK + b"Content-Length: -5\r\n\r\n" + SAMPLE,), id="a negative length"),
        pytest.param((OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n" + SAMPLE,), id="a length of 5,000 digits"),
        pytest.param((OK + b"Content-Length: 5\r\nContent-Length: 31\r\n\r\n" + SAMPLE,), id="two lengths"),
        pytest.param((OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + SAMPLE,), id="a chunk of no size"),
        pytest.param((OK + b"Transfer-Encoding: chunked\r\n\r\n40\r\n" + SAMPLE,), id="cut within a chunk"),
        pytest.param((OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"9" * 70_000,), id="a chunk line without end"),
        pytest.param((b"HTTP/1.1 abc OK\r\n\r\n" + SAMPLE,), id="a status that is no number"),
        pytest.param((b"HTTP/1.1 500 \x1b[31mred\r\n\r\n",), id="an error in colours"),
        pytest.param((b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",), id="sent on to no address"),
    ],
)
def test_nothing_of_a_wrong_answer_is_believed(sends: tuple[bytes, ...]) -> None:
    with pytest.raises(fetch.WitnessError) as told:
        read_metrics([served(*sends)])
    assert told.value.status == 3
    assert "\n" not in str(told.value)
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize(
    "sends",
    [
        pytest.param(tuple(bytes([c]) for c in OK * 9), id="headers, byte by byte"),
        pytest.param((OK + b"Transfer-Encoding: chunked\r\n\r\n", *[b"0"] * 90), id="a chunk line, byte by byte"),
        pytest.param((OK + b"\r\n", *[SAMPLE] * 90), id="a body that goes on"),
    ],
)
def test_a_stuttering_server_is_left(sends: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "LONGEST_S", 0.5)
    began = time.monotonic()
    with pytest.raises(fetch.WitnessError, match="not read to its end"):
        fetch.text_of(served(*sends, pause_s=0.05, close=False))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "address", ["http://[::1", "http://h:99999999/m", "http://a b/", "http:///metrics", "https://\x00/"]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(fetch.WitnessError):
        fetch.text_of(address)


def test_a_password_reaches_the_server_and_nobody_else(address: str) -> None:
    with pytest.raises(fetch.WitnessError) as told:
        fetch.text_of(address.replace("http://", "http://scraper:hunter2@") + "/nope?token=s3cret")
    assert "hunter2" not in str(told.value)
    assert "s3cret" not in str(told.value)
    assert "scraper" not in str(told.value)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics")
    with pytest.raises(fetch.WitnessError, match="nobody writes"):
        fetch.text_of(str(tmp_path / "metrics"))
