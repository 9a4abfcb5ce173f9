"""What records and access lines begin with, strictly: a line that does not match is read by itself."""

from __future__ import annotations

import re

from parsers.records.prefix import LEVELS

__all__ = ["ACCESS", "CLIENT_CHARS", "HEADER", "MAX_HEAD", "WORD", "WORD_CHARS"]

WORD = r"[!-Z\\-~]"
"""A visible ASCII character but `[`, which could begin a colour code."""
WORD_CHARS = "".join(map(chr, (*range(0x21, 0x5B), *range(0x5C, 0x7F))))

_TAG = r"(?:\((?P<process>[A-Za-z_][0-9A-Za-z_]{0,60})(?: rank=[0-9]{1,4})? pid=(?P<pid>[0-9]{1,9})\) )?"
_FILE = r"[A-Za-z_][0-9A-Za-z_./-]*"
# (APIServer pid=1) INFO 05-09 00:49:33 [loggers.py:259] text
HEADER = (
    rf"^(?P<head>{_TAG}(?P<level>{'|'.join(LEVELS)}) "
    r"(?P<stamp>(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01]) (?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)) "
    rf"(?:\[(?P<origin>{_FILE}:[0-9]{{1,6}})\]|(?P<origin_old>{_FILE}\.py:[0-9]{{1,6}})\]?) )."
)
MAX_HEAD = 200
CLIENT_CHARS = "0123456789ABCDEFabcdef.:[]"
CLIENT = rf"[{re.escape(CLIENT_CHARS)}]+"
# (APIServer pid=1) INFO:     10.20.0.5:51324 - "POST /v1/chat/completions HTTP/1.1" 200 OK
ACCESS = (
    rf'^(?P<head>{_TAG}INFO:     )(?P<client>{CLIENT}) - "(?P<method>[A-Z]+) (?P<path>{WORD}+) '
    r'HTTP/[0-9.]+" (?P<status>[0-9]{3})(?: [A-Za-z -]*)?$'
)
