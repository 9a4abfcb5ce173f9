"""An address is read within limits: http(s) only, also after a redirect."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from logscope.witness import fetch
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
