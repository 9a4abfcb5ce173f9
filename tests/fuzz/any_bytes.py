"""Any bytes in any option that names a file: status 0, 2, 3 or 4, and no output that contradicts the contract.

Half of the bytes are real forms with something in them replaced, the rest is what no form has.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logscope.sanitize import OBEYED
from tests.fuzz.cases import Case, Target, mutated, pressed, run, text_of
from tests.fuzz.contract import violations
from tests.fuzz.mutations import HOSTILE, seeds
from tests.fuzz.option_targets import CONFIG, LATENCIES, METRICS, WORKLOAD, mangled, no_number, numbers
from tests.fuzz.workload_files import WORKLOADS
from tests.logs import stats_v1, v1_start

__all__ = ["BYTES_TARGETS", "PLACES", "any_bytes", "check_bytes"]

HONEST = "\n".join([*v1_start(), *(stats_v1(10 * i, 4, i % 3, 90.0) for i in range(1, 9)), ""]).encode()
_ENDINGS = ("", "", "", ".log", ".gz", ".zst", ".xz", ".bz2", ".json", ".csv", ".journal", ".parquet")

# What stands in a command's place of a file: {} is the file of any bytes, {honest} a log, {out} a folder for results.
PLACES: dict[str, tuple[str, ...]] = {
    "analyze": ("analyze", "{}", "--no-replay", "-v", "--json", "{out}/answer.json", "--html", "{out}/page.html"),
    "analyze to standard output": ("analyze", "{}", "--no-replay", "--json", "-", "-q"),
    "frames": ("analyze", "{}", "--no-replay", "-q", "--frames", "{out}/frames", "--json", "{out}/answer.json"),
    "beside an honest one": ("analyze", "{honest}", "{}", "--no-replay", "--json", "{out}/answer.json"),
    "parse": ("parse", "{}", "--all", "--include-prompts"),
    "parse to csv": ("parse", "{}", "--format", "csv"),
    "parse to files": ("parse", "{}", "--output", "{out}/frames"),
    "standard input": ("parse", "-"),
    "whatif": ("whatif", "{}", "--set", "max_num_seqs=12", "--json", "{out}/whatif.json"),
    "before": ("compare", "{}", "{honest}", "--no-replay", "--json", "{out}/compared.json"),
    "after": ("compare", "{honest}", "{}", "--no-replay", "--json", "{out}/compared.json"),
    "metrics": ("analyze", "{honest}", "--no-replay", "--metrics", "{}", "--json", "{out}/answer.json"),
    "latencies": ("analyze", "{honest}", "--no-replay", "--latencies", "{}", "--json", "{out}/answer.json"),
    "workload": ("replay", "{}", "--json", "{out}/replayed.json"),
    "config": ("replay", "{work}", "--config", "{}", "--json", "{out}/replayed.json"),
    "state of analyze": (
        "analyze",
        "{honest}",
        "--no-replay",
        "-q",
        "--state",
        "{state}",
        "--json",
        "{out}/answer.json",
    ),
    "state of parse": ("parse", "{honest}", "--state", "{state}"),
}
_STATE_FILES = ("state.json", "parse/state.json", "lock", "parse/lock", "frames/stats.parquet", "x")
_FORMS: dict[str, Callable[[random.Random], bytes]] = {
    "metrics": lambda chance: chance.choice(METRICS),
    "latencies": lambda chance: chance.choice(LATENCIES),
    "workload": lambda chance: chance.choice([WORKLOAD, *WORKLOADS.values()]),
    "config": lambda chance: CONFIG,
}


def any_bytes(chance: random.Random, place: str) -> bytes:
    """Bytes for a place: noise, a form of its own or of another place with something replaced, a real log, any of it compressed."""
    what = chance.random()
    if what < 0.15:
        data = chance.randbytes(chance.choice((0, 1, 2, 7, 100, 3000)))
    elif what < 0.25:
        data = b"".join(chance.choice(HOSTILE) + chance.choice((b"\n", b"", b"\r", b" ")) for _ in range(9))
    elif what < 0.35:
        line = chance.choice(seeds()["forms"])
        data = mangled(chance, HONEST[: chance.randrange(len(HONEST))] + line)
    elif what < 0.5:
        data = text_of(mutated(chance, short=True, most=40))
    else:
        form = _FORMS.get(place if what < 0.9 else chance.choice(sorted(_FORMS)))
        data = mangled(chance, form(chance) if form is not None else HONEST)
    return pressed(chance, data) if chance.random() < 0.3 else data


def _make(chance: random.Random) -> Case:
    place = chance.choice(sorted(PLACES))
    name = f"any{chance.choice(_ENDINGS)}"
    return Case({name: any_bytes(chance, place)}, {"place": place, "state": chance.choice(_STATE_FILES)})


def check_bytes(case: Case, folder: Path) -> None:
    """Run the command over the case's bytes. Raises AssertionError where what it gives is not as the contract says."""
    ((name, data),) = case.files.items()
    place, state, out = case.facts["place"], folder / "state", folder / "out"
    out.mkdir()
    given = state / case.facts["state"] if "{state}" in PLACES[place] else folder / name
    for path, text in ((given, data), (folder / "honest.log", HONEST), (folder / "work.jsonl", WORKLOAD)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    places = {"honest": folder / "honest.log", "work": folder / "work.jsonl", "state": state, "out": out}
    arguments = [part.format(given, **places) for part in PLACES[place]]
    result = run(*arguments, stdin=data if "-" in arguments[1:2] else None)
    assert (folder / "honest.log").read_bytes() == HONEST
    if result is None:
        return
    for text in (result.output, *(p.read_text(encoding="utf-8") for p in out.iterdir() if p.is_file())):
        assert not OBEYED.search(text.replace("\n", " ").replace("\r", " ")), "a character that a terminal obeys"
    for path in out.glob("*.json"):
        _check_document(json.loads(path.read_text(encoding="utf-8"), parse_constant=no_number), path.stem)
    if place == "analyze to standard output" and result.stdout:
        _check_document(json.loads(result.stdout, parse_constant=no_number), "answer")
    elif place in ("parse", "standard input", "state of parse"):
        for line in result.stdout.splitlines():
            assert isinstance(json.loads(line, parse_constant=no_number), dict)
    elif place == "parse to csv":
        assert len({len(row) for row in csv.reader(io.StringIO(result.stdout))}) <= 1


def _check_document(document: Any, kind: str) -> None:
    for part in {"answer": [document], "compared": [document.get("before"), document.get("after")]}.get(kind, []):
        assert violations(part) == []
        for where, number in numbers(part):
            assert number >= 0, (where, number)
    if kind == "replayed":
        for where, number in numbers(document):
            assert number >= 0, (where, number)


BYTES_TARGETS = {"bytes": Target(_make, check_bytes, share=4)}
