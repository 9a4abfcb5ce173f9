"""Targets that read mutated logs: alone, growing, several together, from a store, piped, compared, reported."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

from logscope.execution.executors import Serial
from logscope.execution.fleet import read_fleet
from logscope.live.follow import live_lines, needed_lines
from logscope.live.monitor import Monitor
from logscope.log.frames import read_log
from logscope.log.span import Reading, Span
from logscope.log.state.frames import read_with_state
from logscope.output.events import to_json
from logscope.sanitize import OBEYED
from parsers.reading.by_line import read_lines
from parsers.reading.events import Coverage
from parsers.sources.object_stores import is_remote
from parsers.sources.source import expand
from tests.fuzz.cases import Case, Target, lay_out, mutated, pressed, run, text_of
from tests.fuzz.contract import violations
from tests.fuzz.mutations import HOSTILE, seeds
from tests.fuzz.pages import faults_of_page
from tests.fuzz.whole import check_log
from tests.readings import assert_same

__all__ = ["LOG_TARGETS"]

YEAR = 2026
MARKUP = (
    b"</script><script>alert(1)</script>",
    b"<img src=x onerror=alert(1)>",
    b'"><svg onload=alert(1)>',
    b"' onmouseover='alert(1)",
    b"javascript:alert(1)",
    b"<!--<script>",
    b"-->",
    b"]]>",
    b"</style><style>*{display:none}",
    b"</title><base href=//x>",
    b"{{7*7}}{% raw %}",
    b"&lt;img src=x onerror=alert(1)&gt;",
    b"&#60;script&#62;",
    b"\\u003cscript\\u003e",
    b"</textarea><iframe src=//x>",
    b"<meta http-equiv=refresh content=0>",
    b"\xe2\x80\xa8alert(1)\xe2\x80\xa9",
)


def _told(text: str) -> dict[str, Any]:
    """A JSON document that holds nothing that a terminal obeys, and only finite numbers."""
    assert not OBEYED.search(text.replace("\n", " ")), "a control character in the JSON"

    def refused(word: str) -> None:
        raise AssertionError(f"{word} in the JSON")

    found: dict[str, Any] = json.loads(text, parse_constant=refused)
    return found


# ---- one log ----


def _one(chance: random.Random) -> Case:
    return Case({"log": b"\n".join(mutated(chance))}, {"replay": chance.random() < 0.3})


def _check_one(case: Case, folder: Path) -> object:
    return check_log(case.files["log"].split(b"\n"), folder, replay=case.facts["replay"])


# ---- a log that grows ----


def _growing(chance: random.Random) -> Case:
    data = text_of(mutated(chance, short=True))
    data = data if chance.random() < 0.7 else data[:-1]
    history: list[list[Any]] = []
    for _ in range(chance.randrange(1, 7)):
        what = chance.choices(["run", "rotate", "truncate", "copy", "delete"], [8, 4, 1, 1, 1])[0]
        history.append([what, chance.random(), chance.choice(["", ".gz", ".zst"])])
    return Case({"log": data}, {"history": history})


def _check_growing(case: Case, folder: Path) -> None:
    data, logs, state = case.files["log"], folder / "logs", folder / "state"
    logs.mkdir()
    log, at, lossless = logs / "server.log", 0, True
    for what, share, press in [*sorted(case.facts["history"], key=lambda h: h[1]), ["run", 1.0, ""]]:
        to = max(at, int(share * len(data)))
        if what != "run" and to < len(data):  # a log is rotated between lines
            to = max(at, data.rfind(b"\n", 0, to) + 1)
            if to and data[to - 1 : to] != b"\n":  # the last run read half a line: its writer ends it first
                to = data.find(b"\n", to) + 1
                if not to:
                    continue
        with log.open("ab") as out:
            out.write(data[at:to])
        at = to
        if what == "run":
            found = read_with_state(state, expand([str(logs)]), Reading(year=YEAR))
        else:
            lossless &= what == "rotate"
            _happens(what, log, press)
    if not lossless:
        return
    sources = expand([str(logs)])
    expected = read_log(sources, Span(), year=YEAR)
    joined = expected.coverage.lines < data.count(b"\n")  # rows that a terminal wrapped
    if joined or any(source.newest_first for source in sources):
        return  # which the log's beginning alone may not have shown yet
    assert_same(found, expected)


def _happens(what: str, log: Path, press: str) -> None:
    if what == "truncate":
        log.write_bytes(b"")
    elif what == "delete":
        log.unlink()
        log.touch()
    elif what == "copy":
        shutil.copyfile(log, log.with_name("server.log.1"))
        log.write_bytes(b"")
    else:
        _rotate(log, press)
        log.touch()


def _rotate(log: Path, press: str) -> None:
    """server.log becomes server.log.1; what was there moves on, and is compressed at its second turn."""
    for number in range(9, 0, -1):
        for suffix in ("", ".gz", ".zst"):
            old = log.with_name(f"server.log.{number}{suffix}")
            if old.exists():
                old.rename(log.with_name(f"server.log.{number + 1}{suffix}"))
    plain = log.with_name("server.log.2")
    if plain.exists() and press:
        data = plain.read_bytes()
        data = gzip.compress(data) if press == ".gz" else zstandard.compress(data)
        log.with_name(f"server.log.2{press}").write_bytes(data)
        plain.unlink()
    log.rename(log.with_name("server.log.1"))


# ---- several logs ----


def _fleet(chance: random.Random) -> Case:
    files = {
        chance.choice(["a/", "b/", ""]) + chance.choice(_NAMES): pressed(
            chance, text_of(mutated(chance, short=True, most=120))
        )
        for _ in range(chance.randrange(2, 6))
    }
    return Case(files, {"whole": chance.random() < 0.2})


_NAMES = (
    "server.log",
    "server.log.1",
    "server.log.2.gz",
    "pod-a_default_vllm-0.log",
    "<img src=x onerror=alert(1)>.log",
    "\u202egol.log",
    "a\x1b[2J.log",
    "=1+1.log",
    "x [1].log",
    "'\"&.log",
)


def _check_fleet(case: Case, folder: Path) -> None:
    logs = folder / "logs"
    lay_out(case, logs)
    expected = read_log(expand([str(logs)]), Span(), year=YEAR)
    assert_same(read_fleet(expand([str(logs)]), Reading(year=YEAR), Serial()), expected)
    arguments: list[str | Path] = ["analyze", logs, "-v", "--jobs", "1", "--json", folder / "answer.json"]
    arguments += ["--html", folder / "out", "--plotlyjs", "cdn"]
    result = run(*arguments, *([] if case.facts["whole"] else ["--no-replay"]))
    if result is None:
        return
    assert not OBEYED.search(result.output.replace("\n", " ")), "in the terminal answer"
    document = _told((folder / "answer.json").read_text(encoding="utf-8"))
    assert violations(document) == []
    pages = list((folder / "out").glob("*.html")) if (folder / "out").is_dir() else [folder / "out"]
    assert pages
    for page in pages:
        assert list(faults_of_page(page.read_text(encoding="utf-8"))) == [], page.name


# ---- a store ----

_SCHEMES = ("memory://", "MEMORY://", "nothing://", "zip://", "simplecache::memory://", "data:")
_PIECES = (
    "logs",
    "/",
    "//",
    "..",
    ".",
    "*",
    "**",
    "?",
    "[",
    "]",
    "[!a]",
    "{a,b}",
    "::",
    "::file:///etc/passwd",
    "::memory://canary",
    "#frag",
    "?q=1",
    "%2e%2e%2f",
    "%00",
    "user:secret@",
    "a.log",
    "a.log.gz",
    " ",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "\n",
    "~",
    "é",
    "A" * 300,
    "$HOME",
    "-",
)


def _name(chance: random.Random, most: int) -> str:
    return "".join(chance.choice(_PIECES) for _ in range(chance.randrange(1, most)))


def _store(chance: random.Random) -> Case:
    files = {
        f"{number}": pressed(chance, text_of(mutated(chance, short=True, most=60)))
        for number in range(chance.randrange(1, 4))
    }
    keys = [_name(chance, 5) for _ in files]
    asked = ["memory://logs", "memory://logs/**", "memory://logs/*"]
    asked += [chance.choice(_SCHEMES) + _name(chance, 6) for _ in range(3)]
    return Case(files, {"keys": keys, "asked": asked})


def _check_store(case: Case, folder: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pipe("/canary", b"CANARY " * 20)
    for key, data in zip(case.facts["keys"], case.files.values(), strict=True):
        with suppress(Exception):  # names that the store itself refuses
            store.pipe("/logs/" + key, data)
    for asked in case.facts["asked"]:
        if not is_remote(asked):
            continue
        sources = expand([asked])
        found = read_log(sources, Span(), year=YEAR)
        if "canary" not in asked and "::" not in asked and "*" not in asked:
            assert not any("CANARY" in w["text"] for w in found.coverage.warning_samples)
        assert all("secret" not in (s.problem or "") for s in sources)
    run("analyze", "memory://logs", "--no-replay", "-v")


# ---- events as lines, from a pipe ----


def _piped(chance: random.Random) -> Case:
    more = chance.choice([[], ["--all"], ["--include-prompts"], ["--format", "csv"], ["--family", "stats"]])
    return Case({"log": pressed(chance, text_of(mutated(chance)))}, {"more": more})


def _check_piped(case: Case, folder: Path) -> None:
    result = run("parse", "-", *case.facts["more"], stdin=case.files["log"])
    if result is not None and "csv" not in case.facts["more"]:
        for line in result.stdout.splitlines():
            _told(line)
    _watch(case.files["log"], random.Random(len(case.files["log"])))


def _watch(data: bytes, chance: random.Random) -> None:
    """What `watch` says of the bytes, as they come in pieces with pauses between."""

    def chunks() -> Iterator[bytes | None]:
        at = 0
        while at < len(data):
            size = chance.choice([1, 7, 500, 100_000])
            yield data[at : at + size]
            at += size
            if chance.random() < 0.2:
                yield None

    monitor, coverage = Monitor(), Coverage()
    notices = []
    for event in read_lines(needed_lines(live_lines(chunks()), coverage), coverage, year=YEAR):
        notices += monitor.take(event)
        if chance.random() < 0.1:
            notices += monitor.quiet(chance.choice([0.25, 20.0, 1e6]))
    for notice in [*notices, *monitor.finish(), monitor.summary()]:
        _told(to_json(notice.document()))


# ---- two logs ----


def _two(chance: random.Random) -> Case:
    names = [n for n in seeds() if n.startswith("samples/v1")]
    files = {
        side: pressed(chance, text_of(mutated(chance, short=True, name=chance.choice(names), most=120)))
        if chance.random() < 0.8
        else text_of(mutated(chance))
        for side in ("before", "after")
    }
    return Case(files, {"replay": chance.random() < 0.3})


def _check_two(case: Case, folder: Path) -> None:
    lay_out(case, folder)
    arguments: list[str | Path] = ["compare", folder / "before", folder / "after"]
    arguments += [] if case.facts["replay"] else ["--no-replay"]
    result = run(*arguments, "--json", folder / "answer.json")
    if result is not None:
        assert not OBEYED.search(result.output.replace("\n", " ")), "in the terminal answer"
        _told((folder / "answer.json").read_text(encoding="utf-8"))


# ---- the report ----


def _marked(chance: random.Random) -> Case:
    lines = mutated(chance, short=True, most=100)
    texts = (*MARKUP, *HOSTILE[:30])
    for _ in range(chance.randrange(5, 60)):
        at = chance.randrange(len(lines)) if lines else 0
        if not lines:
            break
        line, text = lines[at], chance.choice(texts)
        place = chance.randrange(len(line) + 1)
        end = place + chance.choice([0, 0, 1, 5])
        lines[at] = line[:place] + text + line[end:]
    return Case({"log": text_of(lines)}, {"replay": chance.random() < 0.3})


def _check_marked(case: Case, folder: Path) -> None:
    lay_out(case, folder)
    page = folder / "report.html"
    arguments: list[str | Path] = ["analyze", folder / "log", "--jobs", "1", "--html", page]
    arguments += ["--plotlyjs", "cdn"]
    result = run(*arguments, *([] if case.facts["replay"] else ["--no-replay"]))
    if result is not None:
        assert list(faults_of_page(page.read_text(encoding="utf-8"))) == []


LOG_TARGETS = {
    "analyze": Target(_one, _check_one, share=4),
    "state": Target(_growing, _check_growing, share=3),
    "fleet": Target(_fleet, _check_fleet, share=2),
    "store": Target(_store, _check_store),
    "parse": Target(_piped, _check_piped, share=2),
    "compare": Target(_two, _check_two),
    "report": Target(_marked, _check_marked, share=2),
}
