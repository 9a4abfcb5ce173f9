"""Plain text read in bulk: the lines of a block as a column, most of them understood without a Python object each.

`read_frames` gives the frames that `parsers.reading.by_line.read_events` and `parsers.reading.frames` give, only sooner. What a block
holds beyond the common lines is read by those, line by line, for exactly that stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from parsers.reading.by_line import KEEP_EVENTS, Keep, LogSource, readers

if TYPE_CHECKING:
    from parsers.reading.events import Coverage, Event
    from parsers.reading.frames import FrameBuilder
    from parsers.reading.in_bulk.block_rows import Evidence

__all__ = ["read_frames"]
_LARGEST = 31 << 20
_SMALL = 1 << 16  # of sources with fewer bytes nothing is learnt: line by line their events share frames


def read_frames(
    sources: Sequence[LogSource],
    coverage: Coverage,
    builder: FrameBuilder,
    *,
    year: int | None = None,
    keep: Keep = KEEP_EVENTS,
    take: Callable[[Event], None] | None = None,
    evidence: Evidence | None = None,
) -> None:
    """Read `sources` into `builder`; `coverage` is filled as by `parsers.reading.by_line.read_events`.

    `take` gets the events that are read one by one in the builder's stead, and may hand them on to it; `evidence` gets the
    texts of the statistics lines that are not.
    """
    bytes(_LARGEST)  # glibc gives freed memory back at once until a piece of that size was freed
    for source, reader in readers(sources, coverage, year=year, keep=keep):
        pieces = getattr(source, "pieces", None)
        if pieces is None or keep.other or keep.prompts or not _is_worth_it(source):
            for event in reader.read(source.lines()):
                (take or builder.add)(event)
        else:
            from parsers.reading.in_bulk.reader import SourceInBulk

            chars = source.size is None
            SourceInBulk(reader, builder, take or builder.add, evidence, chars).read(pieces())


def _is_worth_it(source: LogSource) -> bool:
    """Whether a source is to be read in bulk; what that needs is imported only then."""
    if source.size is not None and source.size < _SMALL:
        return False
    from parsers.reading.in_bulk.block import is_available

    return is_available()
