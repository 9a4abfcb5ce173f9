"""vLLM's message families: what a record's text says, as fields.

`match` reads one message; `GATE` and `ANCHORS` let a caller skip most lines before that; `FORMATS` is the table of all
that is known (family, variant, versions); `schema` gives the frame of a family's fields.
"""

from __future__ import annotations

from parsers.families.dispatch import ANCHORS, FAMILIES, FORMATS, GATE, match, schema
from parsers.families.formats_part import Fields, Format, Match

__all__ = ["ANCHORS", "FAMILIES", "FORMATS", "GATE", "Fields", "Format", "Match", "match", "schema"]
