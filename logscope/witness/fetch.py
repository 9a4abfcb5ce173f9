"""The text of a file or of an address, within limits. What is fetched is only read: never run, never followed anywhere but http(s)."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from logscope.errors import LogscopeError
from parsers.sources.compression import DamagedError, compression_of, decoded

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
    scheme = urlsplit(name).scheme.lower() if "://" in name else ""
    if scheme in ("http", "https"):
        return _fetched(name)
    if scheme:
        raise WitnessError(f"{name}: only files, http and https addresses are read")
    return _read(name)


def _read(name: str) -> str:
    path = Path(name)
    try:
        with path.open("rb") as file:
            head = file.read(16)
            kind = compression_of(head)
            file.seek(0)
            blocks = decoded(kind, lambda: file.read(1 << 20)) if kind else iter(lambda: file.read(1 << 20), b"")
            parts, size = [], 0
            for block in blocks:
                parts.append(block)
                size += len(block)
                if size > MAX_BYTES:
                    raise WitnessError(f"{name}: more than {MAX_BYTES >> 20} MiB; give a shorter stretch")
    except OSError as error:
        raise WitnessError(f"{name}: {error.strerror or error}") from None
    except DamagedError as error:
        raise WitnessError(f"{name}: {error.reason}") from None
    return b"".join(parts).decode("utf-8-sig", "replace")


class _OnlyWeb(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to http(s) and to nothing else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError(f"redirected to {newurl[:80]}, which is not read")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(address: str) -> str:
    if urlsplit(address).path in ("", "/") and not urlsplit(address).query:
        address = address.rstrip("/") + "/metrics"
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
    headers = {"User-Agent": "logscope", "Accept": "text/plain"}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (http or https, see text_of)
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            data = _within_limits(address, answer)
    except urllib.error.HTTPError as error:
        raise WitnessError(f"{address}: the server answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise WitnessError(f"{address}: {reason}") from None
    return data.decode("utf-8", "replace")


def _within_limits(address: str, answer: Any) -> bytes:
    data, until = b"", time.monotonic() + LONGEST_S
    while block := answer.read1(1 << 16):
        data += block
        if len(data) > MAX_FETCHED:
            raise WitnessError(f"{address}: more than {MAX_FETCHED >> 20} MiB, which is no scrape")
        if time.monotonic() > until:
            raise WitnessError(f"{address}: not read to its end in {LONGEST_S:.0f} s")
    return data
