"""Plain text read in bulk: the lines of a block as a column, most of them understood without a Python object each.

`read_frames` gives the frames that `parsers.reading.by_line.read_events` and `parsers.reading.frames` give, only sooner. What a block
holds beyond the common lines is read by those, line by line, for exactly that stretch.
"""

from __future__ import annotations

from parsers.reading.in_bulk.reader import read_frames

__all__ = ["read_frames"]
