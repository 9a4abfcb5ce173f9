"""Files of object stores and web servers, through fsspec: streamed in bounded blocks, never stored.

`s3://`, `gs://`, `http://`, `https://` and whatever else fsspec knows by a scheme. Who may read what is the store's own matter:
credentials come from its usual places (environment, profile), and are never taken from, nor shown in, a name.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, BinaryIO

from parsers.rotation import natural_key

__all__ = ["RemoteError", "RemoteFile", "is_remote", "remote_files", "sentence_of"]

BLOCK = 4 << 20
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,20}://", re.I)
_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{1,20}://)[^/@]{1,500}@", re.I)
_MAGIC = re.compile(r"[*?\[]")
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
            opened: BinaryIO = files.open(path, "rb", block_size=BLOCK, cache_type="readahead")
        except Exception as error:  # each store has exceptions of its own
            raise OSError(0, sentence_of(error)) from error
        return opened


def is_remote(name: str) -> bool:
    """Whether a name has the form of a URL other than a local one."""
    return _SCHEME.match(name) is not None and not name.lower().startswith(_LOCAL)


def remote_files(name: str) -> Iterator[RemoteFile]:
    """The files that a URL means: itself, what a glob matches, what lies in a folder. Raises RemoteError."""
    try:
        files, path = _file_system(name)
        web = name.lower().startswith("http")
        if _MAGIC.search(path) and not web:
            found = files.glob(path, detail=True)
        else:
            facts = files.info(path)
            found = (
                files.find(path, detail=True) if facts.get("type") == "directory" else {path: facts}
            )
    except RemoteError:
        raise
    except Exception as error:
        raise RemoteError(sentence_of(error)) from error
    kept = {k: v for k, v in found.items() if v.get("type") != "directory"}
    if not kept:
        raise RemoteError("matches no file; check the pattern")
    for key in sorted(kept, key=natural_key):
        url = files.unstrip_protocol(key)
        yield RemoteFile(
            _USER.sub(r"\g<scheme>", url), url, kept[key].get("size"), _changed(kept[key])
        )


def _file_system(url: str) -> tuple[Any, str]:
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise RemoteError(
            "reading from a store or the web needs fsspec: pip install 'logscope[remote]'"
        ) from None
    files, path = core.url_to_fs(url)
    return files, path


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
        return "no such file; check the address"
    if isinstance(error, PermissionError):
        return "permission denied; check the credentials in the environment"
    if isinstance(error, ImportError):
        return f"{str(error)[:120]}; pip install 'logscope[remote]' (for gs:// gcsfs)"
    text = _USER.sub(r"\g<scheme>", str(error).strip().partition("\n")[0])[:200]
    return text or type(error).__name__
