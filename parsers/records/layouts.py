"""Records behind what no form knows: a launcher's prefix, another logger's layout, or no header at all.

Looked for only where (nearly) no record of a source's beginning stands where a line begins. The prefixes of the known messages are
compared word by word; what all of them have in common, and what changes in them, makes the pattern that is taken off.

* Behind the prefix stands vLLM's own header: the prefix is an envelope, its clock the outer one.
* Behind it stands the message: the prefix is the header, with its clock, level and logger's name.
* There is no prefix: the message alone tells. Without any clock times are counted from the statistics' interval.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache

from parsers import families
from parsers.envelopes.form import Clock
from parsers.families import FORMATS
from parsers.lines import JsonRecord, Line, Outer, later
from parsers.records.prefix import find_glued, parse_header, split_tags, strip_ansi

__all__ = ["NO_CLOCK", "Layout", "layout_of"]

NO_CLOCK = "no line has a time; times are counted from the ten seconds between statistics lines"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_INTERVAL = timedelta(seconds=10)
_FEWEST = 2  # prefixes alike
_MOST_SHAPES = 4
_LONGEST = 400  # characters of a prefix
_LEVELS = {"WARN": "WARNING", "FATAL": "CRITICAL", "TRACE": "DEBUG", "SUCCESS": "INFO"}
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "C": "CRITICAL", "F": "CRITICAL"}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_CLOCK_TIME = later(r"\d\d:\d\d:\d\d")
_KINDS = {
    "iso": rf"\d{{4}}[-/]\d\d[-/]\d\d[T ]{_CLOCK}(?: ?Z| ?[+-]\d\d:?\d\d)?",
    "short": rf"\d\d[-/]\d\d[ T]{_CLOCK}",
    "month": rf"(?:{'|'.join(_MONTHS)}) [ \d]?\d {_CLOCK}",
    "time": _CLOCK,
    "level": r"\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|TRACE|SUCCESS|debug|info|warn(?:ing)?|error|critical)\b",
    "letter": r"(?<=\[)[DIWECF](?=\])",
    "word": r"\w[\w.-]*",
    "blank": r"[ \t]+",
    "mark": r"[^\n]",
}
_TOKEN = later("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()), re.A)
_TIMES = ("iso", "short", "month", "time")
# A clock, a level and one of vLLM's loggers, in any order: a record whatever its message says.
_OWN_LOGGER = later(
    rf"(?=.{{0,120}}\bvllm\.)(?=.{{0,120}}{_KINDS['level']})[^\w\n]{{0,2}}(?:{_KINDS['iso']}|{_KINDS['short']}|{_KINDS['time']})"
    rf"(?:[^\w\n]{{1,12}}(?:{_KINDS['level']}|vllm(?:\.\w{{1,40}}){{1,8}}(?::\w{{1,60}}){{0,2}})){{2}}[^\w\n]{{1,4}}(?=\S)",
    re.A,
)
_GLOG = later(r"(?P<letter>[DIWEF])(?P<month>\d\d)(?P<day>\d\d) ", re.A)
_ACCESS = " HTTP/1.1"

# A literal beginning of this many characters tells a message.
_TELLING = 8
_FAMILIES = ("stats", "iteration", "preemption", "request", "kv_sizing", "startup", "kv_error", "runtime")


@cache
def _beginning() -> re.Pattern[str]:
    literals = {re.split(r"[{\[]", f.body, maxsplit=1)[0] for f in FORMATS if f.family in _FAMILIES and not f.floating}
    known = sorted((text for text in literals if len(text) >= _TELLING), key=len, reverse=True)
    engine = r"(?:Engine \d{1,9}: |\d{1,9} Engines(?: Aggregated)?: )?"
    return re.compile(engine + "(?:" + "|".join(map(re.escape, known)) + ")")


@dataclass(frozen=True, slots=True)
class _Found:
    """Where in a line a record stands, and whether behind vLLM's own header."""

    prefix: str
    headed: bool


def _found(text: str) -> _Found | None:
    at = find_glued(text, 0)
    if 0 < at <= _LONGEST:
        return _Found(text[:at], True)
    own = _OWN_LOGGER.match(text)
    if own is not None:
        return _Found(own[0], False)
    began = _beginning().search(text[: _LONGEST + 100])
    if began is None or families.match(text[began.start() :], prefixed=True) is None:
        return None
    return _Found(text[: began.start()], False)


def _tokens(prefix: str) -> list[tuple[str, str]]:
    return [(str(token.lastgroup), token[0]) for token in _TOKEN.finditer(prefix)]


def _shape(tokens: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(text if kind == "mark" else kind for kind, text in tokens)


def _pattern_of(samples: Sequence[Sequence[tuple[str, str]]]) -> re.Pattern[str]:
    """What matches prefixes alike; a word of letters that all of them have is one of the pattern's."""
    clocked = any(kind in (*_TIMES, "level") for kind, _ in samples[0])
    parts: list[str] = []
    named: set[str] = set()
    for place, (kind, text) in enumerate(samples[0]):
        if kind == "mark" or (
            kind == "word" and not clocked and text.isalpha() and all(s[place][1] == text for s in samples)
        ):
            parts.append(re.escape(text))
        else:
            name = "time" if kind in _TIMES else "level" if kind in ("level", "letter") else ""
            group = f"(?P<{name}>" if name and name not in named else "(?:"
            named.add(name)
            parts.append(f"{group}{_KINDS[kind]})")
    return re.compile("".join(parts), re.A)


def layout_of(sample: Sequence[Line], clock: Clock, *, live: bool = False) -> Layout | None:
    """The layout of a source whose first payload lines these are; None where its records stand where lines begin, or there are none.

    `clock` is that of the source's envelopes: its last change gives stamps without one their year or date.
    """
    if any(line.record is not None for line in sample):
        return None
    texts = [strip_ansi(line.text) for line in sample if line.text.strip()]
    headed = sum(parse_header(text) is not None for text in texts)
    if headed * 20 > len(texts):
        return None
    found = [one for text in texts if (one := _found(text)) is not None]
    if not found or headed * 20 > len(found) or (live and len(found) < _FEWEST):
        return None
    behind = [one for one in found if one.headed]
    if len(behind) * 2 >= len(found):
        patterns = _patterns([one.prefix for one in behind], len(behind))
        return Layout(patterns, True, clock) if patterns else None
    if headed:
        return None
    bare = sum(not one.prefix for one in found)
    others = sum(_ACCESS not in text for text in texts)
    if bare * 10 >= len(found) * 9 and bare * 4 >= others:
        return Layout((), False, clock)
    prefixes = [one.prefix for one in found if one.prefix]
    patterns = _patterns([p for p in prefixes if _tells(p)], len(found))
    return Layout(patterns, False, clock) if patterns else None


def _tells(prefix: str) -> bool:
    """Whether a prefix can be a logger's: it has a clock or a level."""
    return any(kind in (*_TIMES, "level", "letter") for kind, _ in _tokens(prefix)) or _GLOG.match(prefix) is not None


def _patterns(prefixes: Sequence[str], records: int) -> tuple[re.Pattern[str], ...]:
    """The few shapes that nearly all prefixes have; none where there are more."""
    alike: defaultdict[tuple[str, ...], list[list[tuple[str, str]]]] = defaultdict(list)
    for prefix in prefixes:
        tokens = _tokens(prefix)
        alike[_shape(tokens)].append(tokens)
    common = Counter({shape: len(samples) for shape, samples in alike.items()}).most_common(_MOST_SHAPES)
    kept = [shape for shape, count in common if count >= max(_FEWEST, records // 20)]
    if sum(len(alike[shape]) for shape in kept) * 10 < records * 8:
        return ()
    return tuple(_pattern_of(alike[shape]) for shape in kept)


@dataclass(slots=True)
class Layout:
    """How a source's lines are laid out: `patterns` of what stands before each record, which is `headed` if vLLM's own header follows."""

    patterns: tuple[re.Pattern[str], ...]
    headed: bool
    clock: Clock
    reference: datetime = field(init=False)
    counted: bool = False
    _now: datetime | None = None
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        known = self.clock.reference_us
        utc = datetime.now(timezone.utc) if known is None else _EPOCH + timedelta(microseconds=known)
        self.reference = utc.astimezone(self.clock.zone).replace(tzinfo=None)

    def over(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines as records; what does not have the layout cannot open one."""
        for line in lines:
            if line.record is not None:
                yield line
            else:
                yield self._bare(line) if not self.patterns else self._laid_out(line)

    def _laid_out(self, line: Line) -> Line:
        text = strip_ansi(line.text)
        prefix = next((found for pattern in self.patterns if (found := pattern.match(text)) is not None), None)
        if prefix is None:
            return line._replace(inside=True)
        rest, stamp = text[prefix.end() :], prefix.groupdict().get("time")
        if self.headed:
            full = stamp is not None and stamp[:4].isdecimal()
            outer = Outer("prefix", self.clock.iso(stamp.replace("/", "-")) if full and stamp else None)
            return line._replace(text=rest, outer=outer if line.outer is None else line.outer.completed(outer))
        tags = split_tags(text)
        level = (prefix.groupdict().get("level") or "").upper()
        glog = _GLOG.match(text)
        if glog is not None:
            level = glog["letter"]
        logger = next((word for kind, word in _tokens(prefix[0]) if kind == "word" and _is_logger(word)), None)
        record = JsonRecord(
            _LETTERS.get(level) or _LEVELS.get(level, level) or "INFO",
            self._moment(stamp, glog, line.outer) or self._counted(rest),
            logger,
            tags.process,
            tags.pid,
            rest,
        )
        return line._replace(text=rest, record=record, outer=line.outer)

    def _bare(self, line: Line) -> Line:
        text = strip_ansi(line.text)
        if _ACCESS in text or families.match(text, prefixed=True) is None or families.match(text, prefixed=False):
            return line
        moment = self._moment(None, None, line.outer) or self._counted(text)
        record = JsonRecord("INFO", moment, None, None, None, text)
        return line._replace(record=record, outer=line.outer)

    def _moment(self, stamp: str | None, glog: re.Match[str] | None, outer: Outer | None) -> datetime | None:
        """The time that a line's clock shows, its year or date from the source's last change where there is none."""
        if stamp is None:
            if outer is None or outer.time_us is None:
                return None
            return datetime(1970, 1, 1) + timedelta(microseconds=outer.time_us)
        try:
            clock, _, fraction = stamp[-_clock_length(stamp) :].replace(",", ".").partition(".")
            micros = int("".join(c for c in fraction if c.isdecimal()).ljust(6, "0")[:6])
            hour, minute, second = (int(part) for part in clock[:8].split(":"))
            year, month, day = self._date(stamp, glog)
            moment = datetime(year, month, day, hour, minute, min(second, 59), micros)
        except ValueError:
            return None
        if not 1 < moment.year < 9999:
            return None
        if moment > self.reference + timedelta(days=1) and not stamp[:4].isdecimal():
            moment -= timedelta(days=365 if "-" in stamp or "/" in stamp or glog else 1)
        return moment

    def _date(self, stamp: str, glog: re.Match[str] | None) -> tuple[int, int, int]:
        if glog is not None:
            return self.reference.year, int(glog["month"]), int(glog["day"])
        if stamp[:3] in _MONTHS:
            return self.reference.year, _MONTHS.index(stamp[:3]) + 1, int(stamp[4:6])
        if stamp[:4].isdecimal():
            return int(stamp[:4]), int(stamp[5:7]), int(stamp[8:10])
        if stamp[2] in "-/":
            return self.reference.year, int(stamp[:2]), int(stamp[3:5])
        return self.reference.year, self.reference.month, self.reference.day

    def _counted(self, message: str) -> datetime:
        """A time where no line has one: each engine's statistics come after ten seconds."""
        self.counted = True
        if self._now is None:
            self._now = self.reference.replace(hour=0, minute=0, second=0, microsecond=0)
        if "throughput: " in message[:60]:
            engine = message.partition(":")[0]
            if engine in self._seen:
                self._now += _INTERVAL
                self._seen.clear()
            self._seen.add(engine)
        return self._now


def _clock_length(stamp: str) -> int:
    found = _CLOCK_TIME.search(stamp)
    return len(stamp) - found.start() if found else 0


def _is_logger(word: str) -> bool:
    return word.startswith("vllm") or word.endswith(".py")
