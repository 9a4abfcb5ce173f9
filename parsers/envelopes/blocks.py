"""From blocks of bytes to payload lines: what is plain stays in blocks, so that it can be read in bulk.

Envelopes taken off a whole block at once, where every line wears the same ones.

A block of a stamped log becomes plain text at the speed of one substitution; the facts of a line (its
`Outer`) are made when they are asked for. Only where this gives what line by line would give: each line
wears the envelopes, and those whose payload does not begin as a record are compared one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from parsers.envelopes import Clock, Unwrapper
from parsers.envelopes.form import Envelope
from parsers.envelopes.forms import BY_START
from parsers.envelopes.json_blocks import JsonForm, UnwrappedLines, json_form
from parsers.envelopes.rare import Rows, inner_clocks, is_falling, oldest_first, rows_of
from parsers.envelopes.structured import from_line
from parsers.envelopes.system_log import ExportReader, journal_entry
from parsers.envelopes.unwrapper import SAMPLE, merged_outer
from parsers.lines import Heads, Line, Loss, Outer, TextBlock, later, text_blocks

__all__ = [
    "Envelopes",
    "is_newest_first",
    "oldest_first_pieces",
    "unwrapped",
    "without_envelopes",
    "without_same_envelopes",
]
_LAYERS = 3
_FEWEST_LINES = 8
_MOST_UNUSUAL = 3  # one line in so many may be worth a look; with more of them line by line is as fast
_MOST_FORMS = 8
_MOST_BARE = 1 << 12
_DIGITS = np.frombuffer(b"0123456789", np.uint8)
_RECORD = later(rb"^(?:\([A-Z]|INFO |DEBUG |WARNING |ERROR |CRITICAL )", re.M)


class Envelopes:
    """The envelopes that were taken off a block, and its lines as they were (`wrapped`).

    `heads` are the parts of the lines in which the envelopes stand, or what tells their facts.
    """

    def __init__(self, wrapped: TextBlock, layers: tuple[Envelope, ...], clock: Clock, heads: Heads) -> None:
        self.wrapped = wrapped
        self.layers = layers
        self.names = tuple(envelope.name for envelope in layers)
        self.heads = heads
        self._clock = clock

    def outer(self, index: int) -> Outer:
        """The facts of the block's line `index` (from 0)."""
        return self.facts(self.wrapped.line(index))

    def facts(self, text: str) -> Outer:
        """The facts of a line in these envelopes."""
        outer: Outer | None = None
        for envelope in self.layers:
            peeled = envelope.peel(text, self._clock)
            if peeled is None:  # undecodable bytes in the envelope itself
                break
            outer = peeled.outer if outer is None else merged_outer(outer, peeled.outer)
            text = peeled.text
        return outer if outer is not None else Outer(self.layers[0].name)

    def with_head(self, index: int, head: bytes) -> str:
        """The block's line `index` with another head of the same size."""
        line = self.wrapped.line_bytes(index)
        return (head + line[len(head) :]).decode("utf-8", "replace")


class JsonEnvelopes(Envelopes):
    """JSON objects that were taken off a block."""

    def __init__(self, wrapped: TextBlock, form: JsonForm, clock: Clock, taken: UnwrappedLines) -> None:
        super().__init__(wrapped, (), clock, taken.heads)
        self.form, self._within = form, taken.within
        self.names = (form.name, form.text)

    def facts(self, text: str) -> Outer:
        """The facts of a line in these envelopes."""
        return from_line(text, self._clock)[0].outer

    def with_head(self, index: int, head: bytes) -> str:
        """The block's line `index` with another head of the same size."""
        line = self.wrapped.line_bytes(index)
        if self._within:
            at = int(self.heads.starts[index] - self.wrapped.starts[index])
            return (line[:at] + head + line[at + len(head) :]).decode("utf-8", "replace")
        return self.form.with_head(line, head).decode("utf-8", "replace")


def without_envelopes(block: TextBlock, unwrapper: Unwrapper, forms: list[JsonForm]) -> TextBlock | None:
    """The block without its envelopes, or None when its lines must be looked at one by one.

    `unwrapper` has surveyed the block; it is not changed. A form of JSON that is met for the first time is added to `forms`.
    """
    clock = unwrapper.clock
    if block.data.startswith(b"{"):
        bare = _without_json(block, clock, forms)
        return bare if bare is not None and _as_by_line(bare, unwrapper.copy_of_survey()) else None
    layers: list[Envelope] = []
    data = block.data
    while len(layers) < _LAYERS and (envelope := _first_of(data, clock)) is not None:
        taken = _taken_off(data, (envelope,), len(block.ends))
        if taken is None:
            return None
        data = taken
        layers.append(envelope)
    if not layers or len(block.ends) < _FEWEST_LINES:
        return None
    if _RECORD.search(data) is None and (data.strip() or any(envelope.weak for envelope in layers)):
        return None  # nothing but blank lines prove no envelope that is weak
    bare = _bare(block, data, tuple(layers), clock)
    return bare if _as_by_line(bare, unwrapper.copy_of_survey()) else None


def without_same_envelopes(block: TextBlock, before: Envelopes, clock: Clock) -> TextBlock | None:
    """The block without the envelopes that the block before had to its last line, or None where it must be looked at.

    What all lines have that begin as records in them needs no survey: line by line each is taken to have what the line before had.
    """
    if isinstance(before, JsonEnvelopes):
        bare = _without_json(block, clock, [before.form])
    else:
        data = _taken_off(block.data, before.layers, len(block.ends))
        bare = _bare(block, data, before.layers, clock) if data is not None else None
    return None if bare is None or len(bare.ends) != len(block.ends) or len(bare.unusual()) else bare


def _taken_off(data: bytes, layers: Sequence[Envelope], total: int) -> bytes | None:
    for envelope in layers:
        if envelope.bulk is None:
            return None
        shorter = _without_columns(data, envelope.bulk)
        if shorter is None:
            shorter, count = envelope.bulk.subn(b"\n", b"\n" + data)
            shorter = shorter[1:]
            if count != total:
                return None
        data = shorter
    return data


def _without_columns(data: bytes, pattern: re.Pattern[bytes]) -> bytes | None:
    """The lines without an envelope that differs in digits alone; None where it is to be found line by line.

    Ten times as fast as a substitution.
    """
    first = pattern.match(b"\n" + data.partition(b"\n")[0])
    width = first.end() - 1 if first is not None else 0
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    if width < 1 or (ends - starts < width).any():
        return None
    head = data[:width]
    digits = np.isin(codes[:width], _DIGITS)
    if any(_end(pattern, re.sub(rb"\d", digit, head)) != width for digit in (b"0", b"9")):
        return None
    heads = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))[starts].view(np.uint8)
    heads = heads.reshape(len(starts), width)
    if (heads[:, ~digits] != codes[:width][~digits]).any() or (heads[:, digits] - np.uint8(ord("0")) > 9).any():
        return None
    after = zip((starts + width).tolist(), (ends + 1).tolist(), strict=True)
    return b"".join([data[start:end] for start, end in after])


def _end(pattern: re.Pattern[bytes], head: bytes) -> int:
    found = pattern.match(b"\n" + head)
    return found.end() - 1 if found is not None else 0


def _bare(block: TextBlock, data: bytes, layers: tuple[Envelope, ...], clock: Clock) -> TextBlock:
    bare = TextBlock(block.number, data)
    if len(bare.ends) == len(block.ends):
        heads = Heads(block.data, block.starts, block.ends - block.starts - (bare.ends - bare.starts))
        bare.envelopes = Envelopes(block, layers, clock, heads)
    return bare


def _without_json(block: TextBlock, clock: Clock, forms: list[JsonForm]) -> TextBlock | None:
    def taken_off(form: JsonForm) -> TextBlock | None:
        taken = form.taken_off(block, clock)
        if taken is None:
            return None
        return TextBlock(block.number, taken.data, JsonEnvelopes(block, form, clock, taken))

    for form in forms:
        bare = taken_off(form)
        if bare is not None:
            return bare
    new = (
        json_form(block.line_bytes(0), clock) if len(forms) < _MOST_FORMS and len(block.ends) >= _FEWEST_LINES else None
    )
    bare = taken_off(new) if new is not None else None
    if new is not None and bare is not None:
        forms.append(new)
    return bare


def _first_of(data: bytes, clock: Clock) -> Envelope | None:
    line = data.partition(b"\n")[0].decode("utf-8", "replace")
    candidates = BY_START.get(line[:1], ())
    return next((e for e in candidates if e.peel(line, clock) is not None), None)


def _as_by_line(bare: TextBlock, unwrapper: Unwrapper) -> bool:
    """Whether the lines that begin unlike records come out as they would line by line."""
    envelopes = bare.envelopes
    if envelopes is None or len(bare.ends) != len(
        envelopes.wrapped.ends
    ):  # the last line is empty within, and unfinished
        return False
    unusual = bare.unusual()
    if len(unusual) > len(bare.ends) // _MOST_UNUSUAL:
        return False
    for index in unusual.tolist():
        lines = unwrapper.feed(index, envelopes.wrapped.line(index))
        if len(lines) != 1 or lines[0].text != bare.line(index) or lines[0].outer is None:
            return False
    return True


Piece = TextBlock | list[Line]

_CLOCKS = 2000  # so many lines show whether a clock goes back
_EXPORT = later(rb"(?:__[A-Z_]+=[^\n]*\n)+[A-Z_]")


def unwrapped(
    blocks: Iterator[bytes], loss: Loss, clock: Clock, *, by_entry: Callable[[], bool], bulk: bool
) -> Iterator[Piece]:
    """The pieces of a source: text in which no line wears an envelope, or lines taken out of theirs.

    `by_entry` tells, once blocks were read, whether lines are numbered by journal entry instead of by line.
    With `bulk`, text in which all lines wear the same envelopes comes as a block too, without them.
    """
    first = next(blocks, None)
    if first is None:
        return
    blocks = chain((first,), blocks)
    if _EXPORT.match(first):
        yield from _exported(blocks, clock, by_entry=by_entry())
        return
    unwrapper = Unwrapper(clock)
    lines = text_blocks(blocks, loss)
    head = next(lines, None)
    if head is None:
        return
    lines = chain((head,), lines)
    rows = rows_of(head.head(SAMPLE)[:-1])
    if rows is not None:
        yield from _rejoined(lines, rows, unwrapper)
    else:
        pieces = _Pieces(unwrapper, bulk)
        yield from map(pieces.of, lines)
        yield unwrapper.finish()
    loss.truncated += unwrapper.cut_lines
    loss.bytes += unwrapper.cut


class _Pieces:
    """Blocks as they are, without their envelopes (`bulk`), or as lines."""

    def __init__(self, unwrapper: Unwrapper, bulk: bool) -> None:
        self.unwrapper, self.bulk = unwrapper, bulk
        self._before: Envelopes | None = None  # of the last block, if its last line was a usual one
        self._forms: list[JsonForm] = []
        self._bare: set[bytes] = set()  # lines that wear no envelope, as long as the survey finds the same
        self._state: object = None

    def of(self, block: TextBlock) -> Piece:
        """The form in which a block can be read."""
        unwrapper, before = self.unwrapper, self._before
        if not unwrapper.busy:
            bare = without_same_envelopes(block, before, unwrapper.clock) if before is not None else None
            if bare is not None:
                return self._went_past(bare)
            unusual = block.unusual()
            self._before = None
            if not len(unusual) and not unwrapper.wraps(block.line(0)):
                return block
            unwrapper.survey(block.head(SAMPLE))
            if self._is_plain(block, unusual):
                return block
            bare = without_envelopes(block, unwrapper, self._forms) if self.bulk else None
            if bare is not None:
                return self._went_past(bare)
        self._before = None
        return unwrapper.feed_block(block.number, block.texts())

    def _is_plain(self, block: TextBlock, unusual: NDArray[np.int64]) -> bool:
        """Whether no line wears an envelope. Those of tracebacks come again and again: each is looked at once."""
        state = self.unwrapper.survey_state
        if state != self._state or len(self._bare) > _MOST_BARE:
            self._state, self._bare = state, set()
        lines = {block.line_bytes(0), *block.lines_at(unusual)}
        new = lines - self._bare
        if any(self.unwrapper.wraps(line.decode("utf-8", "replace")) for line in new):
            return False
        self._bare |= new
        return True

    def _went_past(self, bare: TextBlock) -> TextBlock:
        last = len(bare.ends) - 1
        envelopes = bare.envelopes
        assert isinstance(envelopes, Envelopes)
        self._before = envelopes if last not in bare.unusual()[-1:] else None
        # what follows may have what its last line has
        self.unwrapper.feed(bare.number + last, envelopes.wrapped.line(last))
        return bare


def _rejoined(blocks: Iterator[TextBlock], rows: Rows, unwrapper: Unwrapper) -> Iterator[list[Line]]:
    """Lines that a terminal wrapped: joined, then taken out of their envelopes."""
    for block in blocks:
        joined = list(rows.join(enumerate(block.texts(), block.number)))
        unwrapper.survey([text for _, text in joined[:SAMPLE]])
        yield [line for number, text in joined for line in unwrapper.feed(number, text)]
    last = [line for number, text in rows.rest() for line in unwrapper.feed(number, text)]
    yield last + unwrapper.finish()


def _exported(blocks: Iterator[bytes], clock: Clock, *, by_entry: bool) -> Iterator[list[Line]]:
    """Entries of the journal's export format; a payload may itself wear an envelope."""
    reader, unwrapper, entry = ExportReader(), Unwrapper(clock), 0
    for block in blocks:
        lines: list[Line] = []
        for start, fields in reader.feed(block):
            entry += 1
            lines += _entry_lines(unwrapper, entry if by_entry else start, fields, clock)
        yield lines
    lines = []
    for start, fields in reader.finish():
        lines += _entry_lines(unwrapper, entry + 1 if by_entry else start, fields, clock)
    yield lines + unwrapper.finish()


def _entry_lines(unwrapper: Unwrapper, number: int, fields: dict[str, object], clock: Clock) -> list[Line]:
    peeled = journal_entry(fields, clock, "journal-export")
    return unwrapper.entry(number, peeled) if peeled is not None else []


def is_newest_first(piece: Piece) -> bool:
    """Whether the clock of a source's first piece goes back nearly always."""
    if isinstance(piece, TextBlock) and piece.envelopes is None:
        return is_falling(inner_clocks(piece.data))
    head = islice(_lines(piece), _CLOCKS)
    return is_falling((ln.outer.time_us for ln in head if ln.outer and ln.outer.time_us is not None), _CLOCKS)


def oldest_first_pieces(first: Piece, rest: Iterator[Piece]) -> Iterator[list[Line]]:
    """The lines of a newest-first source, oldest first."""
    lines = oldest_first(line for piece in chain((first,), rest) for line in _lines(piece))
    while part := list(islice(lines, 4096)):
        yield part


def _lines(piece: Piece) -> Iterator[Line]:
    return piece.lines() if isinstance(piece, TextBlock) else iter(piece)
