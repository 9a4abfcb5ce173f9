"""Takes envelopes off line by line, however they are mixed and nested.

Rules:

* A strong envelope's form alone is proof (`{"log": ...}`, CRI, `host name[pid]:`, `[pod/...]`).
* A weak one (a stamp, a gutter, stern's two words) is taken off when what is left looks like a vLLM record or
  wears a further envelope; when the sample of lines around shows most lines wearing it; when the line before
  wore the very same (same form of stamp, same pod); or when most of the next lines do, one around a record. So a foreign logger's own stamp, an access line or a
  prompt's text stays as it is.
* At most four layers are taken off. Parts of a cut line are joined before the next layer is looked at.
* A line that begins with `(` or a level is a payload, at once: this is what nearly all lines cost.
* Within a source that wears an envelope, a bare line that is no record continues the entry before it, and
  keeps that entry's facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from parsers.envelopes import structured
from parsers.envelopes.documents import Collector, Progress, collector_for
from parsers.envelopes.form import MAX_LENGTH, Clock, Envelope, Partials, Unwrapped, looks_like_record
from parsers.envelopes.forms import BY_START
from parsers.lines import Line, Outer, later

__all__ = ["SAMPLE", "Unwrapper", "merged_outer", "unwrap"]

SAMPLE = 200
_LAYERS = 4
_LOOK_AHEAD = 8
_DOCKER_PART = 16_000
_MAX_COLLECTED = 4 << 20
_MAX_COLLECTED_LINES = 20_000
_PLAIN = later(r"\(|(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)[ :]|\Z")

_STARTS = frozenset(BY_START) | frozenset("{_\x1ed-itMTWFS \t")


class _Layer:
    """What is known of one layer of the stream: what is worn by most lines, and what the last line wore."""

    __slots__ = ("last", "shape", "worn")

    def __init__(self) -> None:
        self.worn: frozenset[str] = frozenset()
        self.last: Envelope | None = None
        self.shape = ""


class Unwrapper:
    """Turns physical lines into payload lines, one stream at a time."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock if clock is not None else Clock()
        self._layers = [_Layer() for _ in range(_LAYERS + 1)]
        self._partials = Partials()
        self._collector: Collector | None = None
        self._held: list[tuple[int, str]] = []
        self._held_size = 0
        self._outer: Outer | None = None  # of the entry before, where bare lines may continue it
        self._indent = 0
        self._ahead: Sequence[str] = ()  # the block in hand, and where in it the line in hand stands
        self._at = 0
        self._feeds_seen = False  # whether Docker's lines end with line feeds in this stream
        self._cut = self._cut_lines = 0
        self._spaced = False  # the line before was a server-sent event, an empty line ends it
        self._blobs = 0

    @property
    def busy(self) -> bool:
        """Whether an entry is unfinished."""
        return self._collector is not None or bool(self._partials)

    @property
    def cut(self) -> int:
        """Characters left out of lines that were too long."""
        return self._cut + self._partials.cut

    @property
    def cut_lines(self) -> int:
        """Lines that were cut, and messages that journalctl left out ("[216B blob data]")."""
        return self._cut_lines + self._partials.cut_lines + self._blobs

    @property
    def survey_state(self) -> object:
        """What `wraps` depends on beside the line, while nothing is `busy`."""
        return [(layer.last, layer.shape, layer.worn) for layer in self._layers], self._outer is None

    def copy_of_survey(self) -> Unwrapper:
        """A new one that knows what this one's survey found."""
        copy = Unwrapper(self.clock)
        for layer, own in zip(copy._layers, self._layers, strict=True):
            layer.worn = own.worn
        return copy

    def survey(self, sample: Sequence[str]) -> None:
        """Look at some lines of the stream to see which weak envelopes most of them wear."""
        texts: Sequence[str] = [text for text in sample if text]
        for layer in self._layers[:_LAYERS]:
            worn: Counter[str] = Counter()
            proven: set[str] = set()
            inner: list[str] = []
            for text in texts:
                for envelope, peeled in self._possible(text):
                    inner.append(peeled.text)
                    self._feeds_seen |= envelope is None and peeled.text.endswith("\n")
                    if envelope is not None and envelope.weak:
                        worn[envelope.name] += 1
                        if looks_like_record(peeled.text):
                            proven.add(envelope.name)
            layer.worn = frozenset(n for n in proven if 2 * worn[n] > len(texts))
            texts = [text for text in inner if text]
            if not texts:
                break

    def _possible(self, text: str) -> Iterator[tuple[Envelope | None, Unwrapped]]:
        """What a text may wear, strong envelopes first; None for JSON."""
        if text[0] == "{":
            yield from ((None, peeled) for peeled in structured.from_line(text, self.clock))
            return
        for envelope in BY_START.get(text[0], ()):
            peeled = envelope.peel(text, self.clock)
            if peeled is not None:
                yield envelope, peeled
                if not envelope.weak:
                    return

    def feed_block(self, number: int, texts: Sequence[str]) -> list[Line]:
        """The payload lines of successive physical lines, the first of which is line `number`."""
        lines: list[Line] = []
        self._ahead = texts
        for self._at, text in enumerate(texts):
            lines += self.feed(number + self._at, text)
        self._ahead = ()
        return lines

    def feed(self, number: int, text: str) -> list[Line]:
        """The payload lines that this physical line completes."""
        if self._collector is not None:
            return self._collect(number, text)
        line = self._as_before(number, text)
        if line is not None:
            return [line]
        if _PLAIN.match(text):
            if not text and self._spaced:
                self._spaced = False
                return []
            if text:
                self._outer, self._indent, self._layers[0].last = None, 0, None
            return [Line(number, text, self._outer)]
        if text[0] in _STARTS:
            collector = collector_for(text)
            if collector is not None:
                self._collector = collector
                return self._collect(number, text)
        return self._single(number, text)

    def _as_before(self, number: int, text: str) -> Line | None:
        """The payload of a line that wears what the line before wore, which is what most lines do."""
        outer: Outer | None = None
        for layer in self._layers:
            last = layer.last
            if last is None or text[:1] not in last.starts:
                return None
            peeled = last.peel(text, self.clock)
            if peeled is None or not self._is_whole(peeled):
                return None
            outer = peeled.outer if outer is None else merged_outer(outer, peeled.outer)
            text = peeled.text
            if _PLAIN.match(text):
                self._outer, self._indent = outer, peeled.indent
                return Line(number, text, outer)
            if last.weak and (last.vague or layer.shape != peeled.shape):
                return None
        return None

    def wraps(self, text: str) -> bool:
        """Whether a line wears an envelope, or begins or continues an entry of several lines."""
        if self.busy or len(text) > MAX_LENGTH:
            return True
        if _PLAIN.match(text) or text[0] not in _STARTS:
            return False
        before = [(layer.last, layer.shape) for layer in self._layers]
        wraps = collector_for(text) is not None or bool(self._find(text, 0))
        for layer, (last, shape) in zip(self._layers, before, strict=True):
            layer.last, layer.shape = last, shape  # looking leaves no trace
        return wraps or (self._outer is not None and not looks_like_record(text))

    def entry(self, number: int, peeled: Unwrapped) -> list[Line]:
        """The payload lines of an entry that was read elsewhere (a journal's)."""
        return self._emit(number, peeled, None, 0)

    def finish(self) -> list[Line]:
        """What is left at the end of the stream."""
        lines: list[Line] = []
        if self._collector is not None:
            lines += self._close()
        for number, text, outer in self._partials.rest():
            lines += self._payload(number, text, outer, 1)
        return lines

    # -- one physical line ---------------------------------------------------------------------------

    def _single(self, number: int, text: str) -> list[Line]:
        if self._indent and text[0] == " " and text.startswith(" " * self._indent):
            return [Line(number, text[self._indent :], self._outer)]
        found = self._find(text, 0)
        if found:
            first = found[0]
            self._spaced = text.startswith("data: ")
            if len(found) == 1 and _PLAIN.match(first.text) and self._is_whole(first):
                self._outer, self._indent = first.outer, first.indent
                return [Line(number, first.text, first.outer)]
            lines: list[Line] = []
            for peeled in found:
                lines += self._emit(number, peeled, None, 0)
            self._indent = found[-1].indent
            self._outer = found[-1].outer if lines == [] else lines[-1].outer
            return lines
        if looks_like_record(text):
            self._outer, self._indent = None, 0
        if len(text) > MAX_LENGTH:  # was let through since it looked like JSON
            self._cut += len(text) - MAX_LENGTH
            self._cut_lines += 1
            text = text[:MAX_LENGTH]
        return [Line(number, text, self._outer)]

    def _is_whole(self, peeled: Unwrapped) -> bool:
        """Whether an entry is one payload line, neither cut nor a formatter's record."""
        if peeled.partial or peeled.record is not None or self._partials:
            return False
        return "\n" not in peeled.text and "\r" not in peeled.text

    def _emit(self, number: int, peeled: Unwrapped, around: Outer | None, depth: int) -> list[Line]:
        outer = peeled.outer if around is None else merged_outer(around, peeled.outer)
        if peeled.record is not None:
            return [Line(number, peeled.text, outer, peeled.record)]
        if peeled.partial and not self._is_cut(peeled):
            peeled = peeled._replace(partial=False)
        whole = self._partials.add(number, peeled, outer)
        if whole is None:
            return []
        return self._payload(*whole, depth + 1)

    def _is_cut(self, peeled: Unwrapped) -> bool:
        """Whether a part is one: shippers drop the line feeds that end Docker's lines, then only size tells."""
        if peeled.outer.envelope != "docker-json" or self._feeds_seen:
            return True
        return len(peeled.text.encode()) >= _DOCKER_PART

    def _payload(self, number: int, text: str, outer: Outer, depth: int) -> list[Line]:
        if "\n" not in text:
            return self._inner(number, text.rstrip("\r"), outer, depth)
        lines: list[Line] = []
        for part in text.removesuffix("\n").split("\n"):
            lines += self._inner(number, part.rstrip("\r"), outer, depth)
        return lines

    def _inner(self, number: int, text: str, outer: Outer, depth: int) -> list[Line]:
        if depth < _LAYERS and not _PLAIN.match(text):
            found = self._find(text, depth)
            if found:
                lines: list[Line] = []
                for peeled in found:
                    lines += self._emit(number, peeled, outer, depth)
                return lines
            self._blobs += text.endswith(" blob data]")
        return [Line(number, text, outer)]

    def _find(self, text: str, depth: int) -> list[Unwrapped]:
        """The entries in a text at a layer, empty when it wears no envelope (that can be told)."""
        layer = self._layers[depth]
        last = layer.last
        first = text[0]
        if last is not None and first in last.starts:
            peeled = last.peel(text, self.clock)
            if peeled is not None and (
                not last.weak or _PLAIN.match(peeled.text) or (not last.vague and layer.shape == peeled.shape)
            ):
                layer.shape = peeled.shape
                return [peeled]
        if first in "{\x1e" or text.startswith(("data: {", "[{")):
            return structured.from_line(text, self.clock)
        for envelope in BY_START.get(first, ()):
            peeled = envelope.peel(text, self.clock)
            if peeled is not None and (not envelope.weak or self._believed(envelope, peeled, depth)):
                layer.last, layer.shape = envelope, peeled.shape
                return [peeled]
        layer.last = None
        return []

    def _believed(self, envelope: Envelope, peeled: Unwrapped, depth: int) -> bool:
        """Whether a weak envelope is one here."""
        layer = self._layers[depth]
        if envelope.name in layer.worn or looks_like_record(peeled.text):
            return True
        if layer.last is envelope and layer.shape == peeled.shape:
            return True
        if self._wears_more(peeled, depth):
            return True
        return depth == 0 and self._worn_ahead(envelope, peeled.shape)

    def _wears_more(self, peeled: Unwrapped, depth: int) -> bool:
        inner = peeled.text
        return bool(inner) and depth + 1 < _LAYERS and bool(self._find(inner, depth + 1))

    def _worn_ahead(self, envelope: Envelope, shape: str) -> bool:
        """Whether most of the next lines wear the same, one around a record: a section begins."""
        ahead = self._ahead[self._at + 1 : self._at + 1 + _LOOK_AHEAD]
        same = proven = 0
        for text in ahead:
            if not text or text[0] not in envelope.starts:
                continue
            peeled = envelope.peel(text, self.clock)
            if peeled is not None and peeled.shape == shape:
                same += 1
                proven += looks_like_record(peeled.text) or self._wears_more(peeled, 0)
        return proven > 0 and 2 * same > len(ahead)

    # -- entries of several lines --------------------------------------------------------------------

    def _collect(self, number: int, text: str) -> list[Line]:
        collector = self._collector
        assert collector is not None
        progress = collector.take(text)
        self._held_size += len(text)
        too_much = self._held_size > _MAX_COLLECTED or len(self._held) > _MAX_COLLECTED_LINES
        if progress == Progress.MORE and not too_much:
            self._held.append((number, text))
            return []
        if progress == Progress.DONE:
            self._held.append((number, text))
            return self._close()
        if not self._held:  # no entry begins with this line
            self._release()
            return self._single(number, text)
        lines = self._close() if progress == Progress.BEFORE else self._give_back()
        return lines + self.feed(number, text)

    def _close(self) -> list[Line]:
        """The entry that was collected, or its lines as they are when it is none."""
        collector, held = self._collector, self._held
        entries = collector.entries(self.clock) if collector is not None else []
        if not entries:
            return self._give_back()
        self._release()
        lines: list[Line] = []
        for peeled in entries:
            lines += self._emit(held[0][0], peeled, None, 0)
        self._outer, self._indent = None, 0
        return lines

    def _give_back(self) -> list[Line]:
        held = self._held
        self._release()
        lines: list[Line] = []
        for number, text in held:
            lines += self._single(number, text) if text else [Line(number, text)]
        return lines

    def _release(self) -> None:
        self._collector, self._held, self._held_size = None, [], 0


def merged_outer(around: Outer, inside: Outer) -> Outer:
    """Facts of nested envelopes: the outermost's, but the innermost's time, the nearest to the process."""
    merged = around.completed(inside)
    return merged if inside.time_us is None else merged._replace(time_us=inside.time_us)


def unwrap(lines: Iterable[tuple[int, str]], clock: Clock | None = None) -> Iterator[Line]:
    """The payload lines of numbered physical lines, taken `SAMPLE` at a time."""
    numbered = iter(lines)
    unwrapper = Unwrapper(clock)
    while block := list(islice(numbered, SAMPLE)):
        texts = [text for _, text in block]
        unwrapper.survey(texts)
        first = block[0][0]
        if block[-1][0] - first == len(block) - 1:
            yield from unwrapper.feed_block(first, texts)
        else:  # numbers with gaps
            for number, text in block:
                yield from unwrapper.feed(number, text)
    yield from unwrapper.finish()
