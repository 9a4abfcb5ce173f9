"""A web server of this process with the habits of good and bad ones."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Site", "serving"]

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Site:
    """`files` by path; the first part of a path is the server's habit. `asked` counts the bodies that were asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.address, self.asked = files, "", 0


class _Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        habit, data = self._file()
        if habit == "no-head":
            self._refuse(405)
        elif data is not None:
            self.send_response(200)
            if habit not in ("chunked", "endless"):
                self.send_header("Content-Length", str(len(data)))
            if habit == "ranges":
                self.send_header("Accept-Ranges", "bytes")
            self.end_headers()

    def do_GET(self) -> None:
        habit, data = self._file()
        if data is None:
            return
        self.site.asked += 1
        with suppress(BrokenPipeError, ConnectionResetError):
            getattr(self, "_" + habit.replace("-", "_"), self._plain)(data)

    def _file(self) -> tuple[str, bytes | None]:
        _, habit, name = self.path.split("?")[0].split("/", 2)
        if habit.isdecimal():
            self._refuse(int(habit))
            return habit, None
        data = self.site.files.get(name)
        if data is None:
            self._refuse(404)
        return habit, data

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/plain/" + self.path.split("/", 2)[2])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _plain(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _ranges(self, data: bytes) -> None:
        asked = _RANGE.match(self.headers.get("Range", ""))
        if asked is None:
            self._plain(data)
            return
        start, end = int(asked[1]), int(asked[2] or len(data) - 1)
        part = data[start : end + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def _chunked(self, data: bytes) -> None:
        self._begin_chunks()
        for at in range(0, len(data), 5000):
            self._chunk(data[at : at + 5000])
        self._chunk(b"")

    def _endless(self, data: bytes) -> None:
        self._begin_chunks()
        while True:
            self._chunk(data)

    def _begin_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _slow(self, data: bytes) -> None:
        """A pause before each tenth."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for at in range(0, len(data), len(data) // 10 + 1):
            time.sleep(0.05)
            self.wfile.write(data[at : at + len(data) // 10 + 1])
            self.wfile.flush()

    def _silent(self, data: bytes) -> None:
        """Half of it, then nothing, with the line held open."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        time.sleep(3)

    def _cut(self, data: bytes) -> None:
        """Half of it, then the line is closed."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.close_connection = True


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Site]:
    """Serve until the end of the context."""
    site = Site(files)
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
