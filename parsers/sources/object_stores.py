"""Files of object stores and web servers, through fsspec: streamed in bounded blocks, never stored.

`s3://`, `gs://`, `http://`, `https://` and whatever else fsspec knows by a scheme. Who may read what is the store's own matter:
credentials come from its usual places (environment, profile), and are never taken from, nor shown in, a name. A name means one file system,
that of its scheme: fsspec's chains (`a::b`) are not followed, for what lies in a store is named by others.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, BinaryIO, cast

from parsers.lines import later

__all__ = [
    "RemoteError",
    "RemoteFile",
    "WebStream",
    "is_remote",
    "natural_key",
    "remote_files",
    "sentence_of",
    "without_secrets",
]

BLOCK = 4 << 20
CONNECT_S = 15.0
SILENCE_S = 60.0
MOST_UNTOLD = 4 << 30
"""Bytes that are read where no size is told: such an answer may never end."""

CUT_OFF = "the answer is cut off before its end"
_CUT = ("ClientPayloadError", "ServerDisconnectedError", "IncompleteRead")
_SCHEME = later(r"[a-z][a-z0-9+.-]{1,20}://", re.I)
_USER = later(r"(?P<scheme>[a-z][a-z0-9+.-]{1,20}://)[^/?#\s]{1,1000}@", re.I)
_QUERY = later(r"(?P<address>[a-z][a-z0-9+.-]{1,20}://[^\s?#]{1,2000})(?P<query>\?[^\s#]*)?(?:#[^\s]*)?", re.I)
_VALUE = later(r"=[^&;]+")
_MAGIC = later(r"[*?\[]")
_NUMBER_RUN = later(r"(\d+)")
_LOCAL = ("file://", "local://")
_CHANGED = ("LastModified", "mtime", "updated", "created")


class RemoteError(Exception):
    """A remote name that cannot be looked up; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that fsspec can open. `size` in bytes and `modified_us` (UTC, microseconds since the epoch), None where the store does not tell."""

    name: str
    url: str
    size: int | None = None
    modified_us: int | None = None

    def open(self) -> BinaryIO:
        """Open it to read; raises OSError with a sentence."""
        try:
            files, path = _file_system(self.url)
            if _is_web(self.url):
                return cast(BinaryIO, WebStream(files.open(path, "rb", block_size=0), self.size))
            opened: BinaryIO = files.open(path, "rb", block_size=BLOCK, cache_type="readahead")
        except Exception as error:  # each store has exceptions of its own
            raise OSError(0, sentence_of(error)) from error
        return opened


class WebStream(io.RawIOBase):
    """The body of one answer, from its start to its end: servers that know no ranges are read like others.

    It ends at `size`, which the server told before; one that tells none is read to `MOST_UNTOLD`. Raises OSError where the
    body ends early or never.
    """

    def __init__(self, body: BinaryIO, size: int | None) -> None:
        super().__init__()
        self._body, self._size, self._at = body, size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The bytes that were read."""
        return self._at

    def read(self, size: int = BLOCK, /) -> bytes:
        """At most `size` bytes, b"" at the end."""
        most = MOST_UNTOLD if self._size is None else self._size
        data = self._body.read(max(0, min(size, most - self._at))) if self._at < most else b""
        self._at += len(data)
        if not data and self._size is not None and self._at < self._size:
            raise OSError(0, CUT_OFF)
        if self._size is None and self._at >= most and self._body.read(1):
            raise OSError(0, f"more than {most >> 30} GiB, and no size is told; download it first")
        return data

    def close(self) -> None:
        """Hang up."""
        if not self.closed:
            self._body.close()
        super().close()


def is_remote(name: str) -> bool:
    """Whether a name has the form of a URL other than a local one."""
    return _SCHEME.match(name) is not None and not name.lower().startswith(_LOCAL)


def remote_files(name: str) -> Iterator[RemoteFile]:
    """The files that a URL means: itself, what a glob matches, what lies in a folder. Raises RemoteError."""
    try:
        files, path = _file_system(name)
        if _MAGIC.search(path) and not _is_web(name):
            found = files.glob(path, detail=True)
        else:
            facts = files.info(path)
            found = files.find(path, detail=True) if facts.get("type") == "directory" else {path: facts}
    except RemoteError:
        raise
    except Exception as error:
        raise RemoteError(sentence_of(error)) from error
    kept = {k: v for k, v in found.items() if v.get("type") != "directory"}
    if not kept:
        raise RemoteError("matches no file; check the pattern")
    for key in sorted(kept, key=natural_key):
        url = files.unstrip_protocol(key)
        yield RemoteFile(without_secrets(url), url, kept[key].get("size"), _changed(kept[key]))


def without_secrets(text: str) -> str:
    """The text without what may be secret in an address: user, password, fragment, and the values of its query."""
    return _QUERY.sub(
        lambda found: found["address"] + _VALUE.sub("=…", found["query"] or ""), _USER.sub(r"\g<scheme>", text)
    )


def _file_system(url: str) -> tuple[Any, str]:
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError:
        raise RemoteError("reading from a store or the web needs fsspec: pip install 'logscope[remote]'") from None
    scheme = url.partition("://")[0].lower()
    known = fsspec.get_filesystem_class(scheme)
    options = known._get_kwargs_from_urls(url)  # a host, where the file system is one
    options |= _web_options() if _is_web(url) else {}
    files = fsspec.filesystem(scheme, **options)
    return files, files._strip_protocol(url)


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _web_options() -> dict[str, Any]:
    """A server that is silent is left; a long answer is not. Proxies are those of the environment."""
    aiohttp = importlib.import_module("aiohttp")
    patience = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S)
    return {"client_kwargs": {"timeout": patience, "trust_env": True}, "headers": {"Accept-Encoding": "identity"}}


def _changed(facts: dict[str, Any]) -> int | None:
    value = next((facts[name] for name in _CHANGED if facts.get(name)), None)
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
            return int(aware.timestamp() * 1_000_000)
        return int(value * 1_000_000) if isinstance(value, (int, float)) else None
    except (ValueError, OverflowError):
        return None


def sentence_of(error: BaseException) -> str:
    """A store's exception as a short sentence with what to do."""
    if isinstance(error, FileNotFoundError):
        told = error.__cause__  # for fsspec any failure to look up an address of the web is such a one
        return _of_the_web(told) if told is not None else "no such file; check the address"
    if isinstance(error, PermissionError):
        return "permission denied; check the credentials in the environment"
    if isinstance(error, ImportError):
        return f"{str(error)[:120]}; pip install 'logscope[remote]' (for gs:// gcsfs)"
    return _of_the_web(error)


def _of_the_web(error: BaseException) -> str:
    status, kind = getattr(error, "status", None), type(error).__name__
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return "no such file; check the address"
    if status in (401, 403):
        return f"permission denied (the server answers {status})"
    if isinstance(status, int) and status >= 400:
        return f"the server answers {status}"
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return "the server is silent; try again later"
    if kind in _CUT:
        return CUT_OFF
    text = without_secrets(str(error).strip().partition("\n")[0])[:200]
    return text or kind


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts `worker-2.log` before `worker-10.log`."""
    parts = _NUMBER_RUN.split(name)
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts]
