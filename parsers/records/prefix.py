"""vLLM's own record prefix, all forms from 0.1.0 to 0.33.0, and what damages it on the way.

    INFO 02-01 06:36:05 llm_engine.py:921] text                          (up to 0.7.3)
    INFO 07-28 06:40:59 [loggers.py:118] text                            (0.8.0 on)
    (EngineCore_DP0 pid=7) [node-a] DEBUG 05-09 00:49:33 [v1/core/sched/scheduler.py:88] text
    (ServeReplica:app pid=1) (RayWorkerWrapper pid=9, ip=192.0.2.4) INFO … text [repeated 2x across cluster]

The prefix has no year and no fraction of a second. Source: vllm/logging_utils/formatter.py and vllm/logger.py of the
releases, system_utils.decorate_logs for the process tags.
"""

from __future__ import annotations

from dataclasses import dataclass

from parsers.lines import later

__all__ = ["Header", "Stamp", "find_glued", "parse_header", "split_tags", "strip_ansi", "without_colours"]

Stamp = tuple[int, int, int, int, int]
"""Month, day, hour, minute, second."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# ESC[1;36m; the caret form ^[[1;36m and arrow keys ^[[B; and SGR codes whose ESC was lost: [0;0m [1;36m [32m.
_CODE = r"\x1b\[[0-9;?]{0,16}[A-Za-z]"
_ESCAPED = later(_CODE.encode())
_ANSI = later(_CODE + r"|\^\[\[[0-9;]{0,16}[A-Za-z]|\[(?:[01];)?(?:0|1|3[0-7]|9[0-7])m")

# (APIServer pid=1) (VllmWorker rank=1 pid=2) (MapWorker(MapBatches(F)) pid=9, ip=192.0.2.4) (pid=12)
_TAG = later(
    r"\((?:(?P<name>[A-Za-z_][^\s()]{0,80}(?:\([^()]{0,80}(?:\([^()]{0,80}\)[^()]{0,80})?\))?)"
    r"(?P<extra>(?: (?:rank|engine_index|local_rank)=\d+)*) )?pid=(?P<pid>\d{1,9})"
    r"(?:, ip=(?P<ip>[0-9A-Fa-f.:]+))?\) ?"
)
_HEADER = later(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<month>[01]\d)-(?P<day>[0-3]\d) (?P<hour>[0-2]\d):(?P<minute>[0-5]\d):(?P<second>[0-6]\d) "
    r"(?:\[(?P<file>[^\s\]:]{1,200}):(?P<line>\d{1,6})\]|(?P<file_old>[^\s\]\[:]{1,200}\.py):(?P<line_old>\d{1,6})\]?)"
    r"(?: |$)"
)
# The first record of a source may have lost its level.
_CUT_HEADER = later(r"(?P<level>)" + _HEADER.pattern[_HEADER.pattern.index(r"(?P<month>") :])
_CUT_LEVEL = later(r"[A-Z]{0,7} ?(?=[01]\d-[0-3]\d )")
# VLLM_LOGGING_PREFIX: any text; only "[node-a] " or one word are accepted, or prose that quotes a log would be a record.
_USER_PREFIX = later(r"(?:\[[^\]\s][^\]]{0,60}\] ?|[^\s\"'()\[\]{}]{1,60}[|>:] ?)")
_REPEATED = later(r"\[repeated (?P<count>\d{1,9})x across cluster\](?: \(Ray deduplicates .*\))?\s*$")
_GLUED = later(
    r"(?:\([A-Za-z_][^()\s]{0,80}(?: rank=\d+)? pid=\d{1,9}\) )?"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [01]\d-[0-3]\d [0-2]\d:[0-5]\d:[0-6]\d "
    r"(?:\[[^\s\]:]{1,200}:\d{1,6}\]|[^\s\]\[:]{1,200}\.py:\d{1,6}\])"
)


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed prefix. `actors` are the outer tags (Ray), outermost first; `process` and `pid` the innermost one."""

    level: str
    stamp: Stamp
    origin: str
    start: int
    process: str | None = None
    pid: int | None = None
    actors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tags:
    """Process tags at the start of a line: the innermost process, the outer actors, and where the text begins."""

    process: str | None
    pid: int | None
    actors: tuple[str, ...]
    start: int


_NO_TAGS = Tags(None, None, (), 0)


def strip_ansi(text: str) -> str:
    """Return `text` without terminal colour codes, also the damaged ones."""
    if "\x1b" in text or "[0" in text or "[1" in text or "[3" in text or "[9" in text or "^[" in text:
        return _ANSI.sub("", text)
    return text


def without_colours(data: bytes) -> bytes:
    """Lines without the codes that begin with an escape character; `strip_ansi` of each line finds no more of these."""
    return _ESCAPED.sub(b"", data) if b"\x1b" in data else data


def split_tags(text: str, start: int = 0) -> Tags:
    """Read the process tags at `start`."""
    if not text.startswith("(", start):
        return _NO_TAGS if start == 0 else Tags(None, None, (), start)
    found: list[tuple[str | None, int]] = []
    at = start
    while match := _TAG.match(text, at):
        found.append((match["name"], int(match["pid"])))
        at = match.end()
    if not found:
        return Tags(None, None, (), start)
    process, pid = found[-1]
    return Tags(process, pid, tuple(f"{n} pid={p}" for n, p in found[:-1]), at)


def parse_header(text: str, *, cut: bool = False) -> Header | None:
    """Parse the prefix at the start of `text` (ANSI removed), or return None. `start` of the result is the message's.

    `cut`: the text may have lost its beginning, up to the level; it counts as INFO then.
    """
    tags = split_tags(text)
    match = _HEADER.match(text, tags.start)
    if match is None and cut:
        level = _CUT_LEVEL.match(text)
        match = _CUT_HEADER.match(text, level.end()) if level else None
    if match is None:
        user = _USER_PREFIX.match(text, tags.start)
        if user is None:
            return None
        if tags.process is None:
            tags = split_tags(text, user.end())
        else:
            tags = Tags(tags.process, tags.pid, tags.actors, user.end())
        match = _HEADER.match(text, tags.start)
        if match is None:
            return None
    stamp = (int(match["month"]), int(match["day"]), int(match["hour"]), int(match["minute"]), int(match["second"]))
    if not (1 <= stamp[0] <= 12 and 1 <= stamp[1] <= 31 and stamp[2] < 24 and stamp[4] < 61):
        return None
    file, line = match["file"] or match["file_old"], match["line"] or match["line_old"]
    return Header(match["level"] or "INFO", stamp, f"{file}:{line}", match.end(), tags.process, tags.pid, tags.actors)


def split_repeated(message: str) -> tuple[str, int]:
    """Take Ray's `[repeated Nx across cluster]` off the end; the count is 1 where it is absent."""
    if "x across cluster]" not in message:
        return message, 1
    at = message.rfind("[repeated ")
    match = _REPEATED.match(message, at) if at >= 0 else None
    return (message[:at].removesuffix(" "), int(match["count"])) if match else (message, 1)


def find_glued(text: str, start: int) -> int:
    """Return where a second record begins inside `text` at or after `start`, or -1."""
    at = text.find("] ", start)
    if at < 0 and ".py:" not in text[start:]:
        return -1
    match = _GLUED.search(text, start)
    return match.start() if match else -1
