"""The text of a file or of an address, within limits. What is fetched is only read: never run, never followed anywhere but http(s)."""

from __future__ import annotations

import base64
import http.client
import threading
import urllib.error
import urllib.request
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from urllib.parse import unquote, urlsplit

from logscope.errors import LogscopeError
from logscope.sanitize import visible
from parsers.sources.compression import DamagedError, compression_of, decoded
from parsers.sources.object_stores import without_secrets
from parsers.sources.source import open_file, pushed_back

__all__ = ["WitnessError", "text_of"]

MAX_BYTES = 1 << 28
MAX_FETCHED = 1 << 25
PATIENCE_S = 15.0
LONGEST_S = 60.0


class WitnessError(LogscopeError):
    """A second witness could not be read."""

    status = 3


def text_of(name: str) -> str:
    """The text of a file (also compressed) or of an http(s) address; a server's bare address means its /metrics.

    Raises WitnessError where it cannot be had.
    """
    scheme = name.partition("://")[0].lower() if "://" in name else ""
    if scheme in ("http", "https"):
        return _fetched(name)
    if scheme:
        raise WitnessError(f"{without_secrets(name)}: only files, http and https addresses are read")
    return _read(name)


def _read(name: str) -> str:
    try:
        file, head = open_file(Path(name))
        with file:
            while len(head) < 16 and (more := file.read(16 - len(head))):
                head += more
            kind = compression_of(head)
            rest = pushed_back(head, lambda: file.read(1 << 20) or b"")
            blocks = decoded(kind, rest) if kind else iter(rest, b"")
            parts, size = [], 0
            for block in blocks:
                parts.append(block)
                size += len(block)
                if size > MAX_BYTES:
                    raise WitnessError(f"{name}: more than {MAX_BYTES >> 20} MiB; give a shorter stretch")
    except OSError as error:
        raise WitnessError(f"{name}: {error.strerror or error}") from None
    except ValueError:
        raise WitnessError(f"{visible(name)}: no valid file name") from None
    except DamagedError as error:
        raise WitnessError(f"{name}: {error.reason}") from None
    return b"".join(parts).decode("utf-8-sig", "replace")


class _OnlyWeb(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to http(s) and to nothing else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError(f"redirected to {without_secrets(newurl)[:80]}, which is not read")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(address: str) -> str:
    """The text at an address, in `LONGEST_S` seconds in all: a server may hang up, stutter or talk for ever at any point of its answer."""
    shown = without_secrets(address)
    answers: Queue[str | Exception] = Queue(1)

    def ask() -> None:
        try:
            answers.put(_asked(address, shown))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, name="fetch", daemon=True).start()  # a thread that hangs must not hold up the end
    try:
        found = answers.get(timeout=LONGEST_S)
    except Empty:
        raise WitnessError(f"{shown}: not read to its end in {LONGEST_S:.0f} s") from None
    if isinstance(found, WitnessError):
        raise found
    if isinstance(found, urllib.error.HTTPError):
        raise WitnessError(f"{shown}: the server answers {found.code} {visible(str(found.reason))[:80]}")
    if isinstance(found, (OSError, ValueError, http.client.HTTPException)):
        raise WitnessError(f"{shown}: {_reason(found)}")
    if isinstance(found, Exception):
        raise found
    return found


def _reason(error: Exception) -> str:
    """Why nothing was had of a server, without an address that may hold a password."""
    if isinstance(error, http.client.InvalidURL) or (isinstance(error, ValueError) and not isinstance(error, OSError)):
        return "not an address that can be asked"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "the server's answer is not HTTP, or is broken off"
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    if isinstance(reason, TimeoutError):
        return f"no answer in {PATIENCE_S:.0f} s"
    return without_secrets(visible(str(getattr(reason, "strerror", None) or reason)))[:200]


def _asked(address: str, shown: str) -> str:
    parts = urlsplit(address)
    if parts.path in ("", "/") and not parts.query:
        address = address.rstrip("/") + "/metrics"
    headers = {"User-Agent": "logscope", "Accept": "text/plain"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        address = address.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _OnlyWeb(),
    ):
        opener.add_handler(handler)
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (http or https, see text_of)
    with opener.open(request, timeout=PATIENCE_S) as answer:
        data, announced = b"", answer.headers.get("Content-Length", "")
        while block := answer.read1(1 << 16):
            data += block
            if len(data) > MAX_FETCHED:
                raise WitnessError(f"{shown}: more than {MAX_FETCHED >> 20} MiB, which is no scrape")
    if announced.isdecimal() and len(announced) < 20 and len(data) < int(announced):
        raise WitnessError(f"{shown}: the answer is cut off before its end")
    return data.decode("utf-8", "replace")
