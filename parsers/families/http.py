"""What uvicorn prints: access lines and the server's life. None of these bears a time.

`client` is `address:port`. The lines about a shutdown are of the family `shutdown`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import regex

from parsers.families.formats import Fields, Format, Kind, Reader, compile_template
from parsers.lines import later_regex

if TYPE_CHECKING:
    import polars as pl

__all__ = ["FORMATS", "PROBE_PATHS", "SCHEMA", "endpoint"]

PROBE_PATHS = ("/health", "/ping", "/metrics")
"""Paths that health checks and metrics scrapers call."""

SCHEMA: dict[str, Kind] = {
    "client": Kind.TEXT,
    "method": Kind.TEXT,
    "path": Kind.TEXT,
    "status": Kind.WHOLE,
    "event": Kind.TEXT,
    "pid": Kind.WHOLE,
    "address": Kind.TEXT,
}

# kserve's format puts the process id after the client; a Unix socket has no client.
_ACCESS = later_regex(
    r"""\s*+(?P<client>\S++)?(?:\s\d++)?\s?-\s["“](?P<method>[A-Z]++)\s(?P<path>\S++)\sHTTP/[\d.]++["”]\s(?P<status>\d{3})\b""",
    regex.VERBOSE,
)


def endpoint() -> pl.Expr:
    """The last part of an access line's path, without its query: `completions` of `/v1/chat/completions?x=1`."""
    import polars as pl  # reading alone needs none

    path = pl.col("path").str.split("?").list.first().str.strip_chars_end("/")
    return path.str.split("/").list.last()


def _access(text: str) -> Fields | None:
    found = _ACCESS.match(text)
    if found is None:
        return None
    return {"client": found["client"], "method": found["method"], "path": found["path"], "status": int(found["status"])}


def _event(name: str, template: str) -> Reader:
    return partial(_lifecycle, name, template)


def _lifecycle(name: str, template: str, text: str) -> Fields | None:
    fields = compile_template(template).read(text)
    return None if fields is None else {"event": name, **fields}


# Family, event, text.
_LIFE = (
    ("http", "server_started", "Started server process [{pid:d}]", "Started server process [4217]"),
    ("http", "startup_wait", "Waiting for application startup.", None),
    ("http", "startup_complete", "Application startup complete.", None),
    (
        "http",
        "listening",
        "Uvicorn running on {address:s} (Press CTRL+C to quit)",
        "Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)",
    ),
    ("shutdown", "shutdown", "Shutting down", None),
    ("shutdown", "shutdown_wait", "Waiting for application shutdown.", None),
    ("shutdown", "shutdown_complete", "Application shutdown complete.", None),
    ("shutdown", "server_finished", "Finished server process [{pid:d}]", "Finished server process [4217]"),
)

FORMATS = (
    Format(
        "http",
        "access",
        "any",
        "0.1.0..0.33.0",
        "INFO",
        '{client} - "{method} {path} HTTP/1.1" {status:d}...',
        'INFO:     10.20.0.5:51324 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        read=_access,
        anchor=" HTTP/",
        foreign=True,
    ),
    *(
        Format(
            family,
            "uvicorn",
            "any",
            "0.1.0..0.33.0",
            "INFO",
            template,
            "INFO:     " + (example or template),
            read=_event(event, template),
            foreign=True,
        )
        for family, event, template, example in _LIFE
    ),
)
