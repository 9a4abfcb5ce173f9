"""Compressed logs, recognised by their first bytes and decoded in bounded blocks.

gzip with several members, zstd with several frames, xz and bzip2 with several streams. Memory stays
bounded whatever the ratio: every decoder is asked for a limited output. Time is bounded by a ratio that no log
reaches: a decompression bomb is read to its 128th MiB and no further. A stream that ends too early, or is damaged, gives what could be decoded and
then raises `DamagedError`.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO, Protocol

__all__ = ["BLOCK", "DamagedError", "compression_of", "decoded", "open_blocks", "unsupported"]

BLOCK = 1 << 20
_ZSTD_FEED = 1 << 10  # zstd has no output limit: a kilobyte in is at most 256 blocks of 128 KiB out
_XZ_MEMORY = 1 << 28
# What follows a member's end is copied once a member: in a file of many small ones (a shipper that compresses line by line) a large
# piece would be copied a thousand times.
_PIECE = 1 << 16
_CAREFUL = 1 << 6
# Logs are compressed 10 to 50 times, the same few lines again and again up to 350 times; a bomb a thousand times and more.
BOMB_BYTES = 1 << 27
BOMB_RATIO = 500

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
)
_UNSUPPORTED: tuple[tuple[bytes, str], ...] = (
    (b"\x04\x22\x4d\x18", "lz4 compressed; decompress it first (lz4 -d)"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
)


class DamagedError(Exception):
    """A compressed stream that is cut short or damaged; `lost` compressed bytes were not decoded."""

    def __init__(self, reason: str, lost: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lost = lost


class _Decoder(Protocol):
    """One member (frame, stream) of a compressed file."""

    def feed(self, data: bytes) -> bytes: ...

    @property
    def hungry(self) -> bool: ...

    @property
    def done(self) -> bool: ...

    @property
    def rest(self) -> bytes: ...


class _Gzip:
    """A gzip member through zlib, which keeps what it could not yet decode in `unconsumed_tail`."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self._damage: zlib.error | None = None

    def feed(self, data: bytes) -> bytes:
        if self._damage is not None:
            raise self._damage
        data = self._zlib.unconsumed_tail + data
        before = self._zlib.copy()
        try:
            return self._zlib.decompress(data, BLOCK)
        except zlib.error as error:
            self._damage = error
            return self._before_damage(before, data)

    def _before_damage(self, decoder: zlib._Decompress, data: bytes) -> bytes:
        """What stands before the damage in a piece: zlib gives nothing of a piece that holds some."""
        parts: list[bytes] = []
        with suppress(zlib.error):
            parts.extend(decoder.decompress(data[at : at + _CAREFUL]) for at in range(0, len(data), _CAREFUL))
        return b"".join(parts)

    @property
    def hungry(self) -> bool:
        return self._damage is None and not self._zlib.unconsumed_tail

    @property
    def done(self) -> bool:
        return self._zlib.eof

    @property
    def rest(self) -> bytes:
        return self._zlib.unused_data


class _Standard:
    """An xz or bzip2 stream: the standard library's decoders share one interface."""

    def __init__(self, decoder: lzma.LZMADecompressor | bz2.BZ2Decompressor) -> None:
        self._decoder = decoder

    def feed(self, data: bytes) -> bytes:
        return self._decoder.decompress(data, BLOCK)

    @property
    def hungry(self) -> bool:
        return self._decoder.needs_input

    @property
    def done(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data


class _Zstd:
    """A zstd frame, fed in small pieces so that each answer is bounded."""

    def __init__(self) -> None:
        import zstandard  # only who has such a file pays for the import

        self._decoder = zstandard.ZstdDecompressor().decompressobj()
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        pending = self._pending + data
        piece, self._pending = pending[:_ZSTD_FEED], pending[_ZSTD_FEED:]
        return self._decoder.decompress(piece) if piece else b""

    @property
    def hungry(self) -> bool:
        return not self._pending

    @property
    def done(self) -> bool:
        return self._decoder.eof

    @property
    def rest(self) -> bytes:
        return self._decoder.unused_data + self._pending


def _zstd_errors() -> tuple[type[Exception], ...]:
    import zstandard

    return (zstandard.ZstdError,)


def _new_decoder(kind: str) -> _Decoder:
    if kind == "gzip":
        return _Gzip()
    if kind == "zstd":
        return _Zstd()
    if kind == "xz":
        return _Standard(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY))
    return _Standard(bz2.BZ2Decompressor())


def compression_of(head: bytes) -> str | None:
    """The compression that a file's first bytes tell: gzip, zstd, xz, bzip2, or None."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5:
        return "zstd"  # a skippable frame (pzstd, seekable zstd) before the first one
    return None


def unsupported(head: bytes) -> str | None:
    """What a file is that we know and do not read, with what to do."""
    for magic, sentence in _UNSUPPORTED:
        if head.startswith(magic):
            return sentence
    return "a tar archive; unpack it first" if head[257:262] == b"ustar" else None


def decoded(kind: str, read: Callable[[], bytes]) -> Iterator[bytes]:
    """Decode a compressed stream; `read` gives its next raw bytes, b"" at the end.

    Yields blocks of bounded size. Raises `DamagedError` after the last decodable block, and for a decompression bomb.
    """
    read = _in_pieces(read)
    errors: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError)
    if kind == "zstd":
        errors += _zstd_errors()
    decoder = _new_decoder(kind)
    raw = read()
    eaten, given = len(raw), 0
    while True:
        try:
            block = decoder.feed(raw)
        except errors as error:
            reason = f"damaged {kind} stream"
            if "memory" in str(error).lower():
                reason = f"the {kind} stream needs too much memory; decompress it first"
            raise DamagedError(reason, len(raw) + _count(read)) from error
        for at in range(0, len(block), BLOCK):
            yield block[at : at + BLOCK]
        given += len(block)
        if given > BOMB_BYTES and given > BOMB_RATIO * eaten:
            raise DamagedError(
                f"a decompression bomb? {given >> 20} MiB out of {eaten:,} bytes, and more follows; if it is a log, decompress it first",
                0,
            )
        if decoder.done:
            rest = decoder.rest
            raw = _next_member(rest, read)
            eaten += max(0, len(raw) - len(rest))
            if not raw:
                return
            if compression_of(raw) != kind:
                raise DamagedError(f"bytes after the end of the {kind} stream are no {kind}", len(raw) + _count(read))
            decoder = _new_decoder(kind)
        elif decoder.hungry:
            raw = read()
            eaten += len(raw)
            if not raw:
                raise DamagedError(f"the {kind} stream is cut short", 0)
        else:
            raw = b""


def _in_pieces(read: Callable[[], bytes]) -> Callable[[], bytes]:
    """The same bytes, at most `_PIECE` of them at a time."""
    held = b""
    at = 0

    def piece() -> bytes:
        nonlocal held, at
        if at >= len(held):
            held, at = read(), 0
        at += _PIECE
        return held[at - _PIECE : at]

    return piece


def _next_member(rest: bytes, read: Callable[[], bytes]) -> bytes:
    """The first bytes of the next member; padding with NULs between members is passed over."""
    rest = rest.lstrip(b"\0")
    while len(rest) < 8:
        more = read()
        if not more:
            break
        rest = (rest + more).lstrip(b"\0")
    return rest


def _count(read: Callable[[], bytes]) -> int:
    lost = 0
    while data := read():
        lost += len(data)
    return lost


def open_blocks(
    stream: BinaryIO, size: int = BLOCK, *, live: bool = False, until: int | None = None
) -> Callable[[], bytes]:
    """A reader of blocks from a binary stream, b"" at its end; `live`: of what there is, without waiting for more.

    `until` is the place in a file at which to stop, None for its end.
    """
    take = getattr(stream, "read1", stream.read) if live else stream.read

    def read() -> bytes:
        if until is None:
            return take(size) or b""
        return take(max(0, min(size, until - stream.tell()))) or b""

    return read
