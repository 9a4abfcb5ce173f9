"""Fuzzing by hand, for as long as one likes: `python -m tests.fuzz.drive --minutes 5` (or `make fuzz MINUTES=5`).

Mutates real logs, settings and workload files and runs everything over them, each case in a bounded time and memory; `--targets`
names some of them. With `--coverage` atheris guides it (pip install logscope[fuzz]). A case that fails is a file of out/fuzz/, which
`--again FILE` runs once more; to keep it, put it into tests/data/fuzz/ (a log that fails by itself cut down, as `.log`).
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.fuzz.any_bytes import BYTES_TARGETS
from tests.fuzz.cases import Case, Target, keep, loaded
from tests.fuzz.client_text import CLIENT_TARGETS
from tests.fuzz.log_targets import LOG_TARGETS
from tests.fuzz.mutations import CHANGES, ROOT, Change, changed, seeds
from tests.fuzz.option_targets import OPTION_TARGETS
from tests.fuzz.setting_targets import SETTING_TARGETS

LIMIT_S = 60
SLOW_S = 10
LIMIT_BYTES = 4 << 30
OUT = ROOT / "out" / "fuzz"
TARGETS = BYTES_TARGETS | CLIENT_TARGETS | LOG_TARGETS | SETTING_TARGETS | OPTION_TARGETS
_NAMES = sorted(CHANGES)


class TooSlowError(BaseException):
    """A case took more CPU time than any may. (No Exception: nothing on the way may catch it.)"""


class StoppedError(BaseException):
    """Ctrl-C or SIGTERM: it ends with the counts so far. (No KeyboardInterrupt, which a command under test would take for its own.)"""


def _stopped(number: int, frame: FrameType | None) -> None:
    raise StoppedError


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


def _run(target: Target, case: Case, folder: Path) -> str | None:
    """The kind of failure, or None."""
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        target.check(case, folder)
    except TooSlowError:
        stack = traceback.extract_tb(sys.exc_info()[2])
        ours = [f for f in stack if "/tests/" not in f.filename and "site-packages" not in f.filename]
        place = ours[min(len(ours) - 1, 6)] if ours else stack[-1]
        return f"more than {LIMIT_S} s of CPU time in {Path(place.filename).name}:{place.name}"
    except Exception as error:
        stack = traceback.extract_tb(error.__traceback__)
        ours = [f for f in stack if "site-packages" not in f.filename] or list(stack)
        return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno} {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


@dataclass
class _Tally:
    cases: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)


def _by_chance(minutes: float, most: int, seed: int, names: Sequence[str]) -> int:
    chance = random.Random(seed)
    tallies = {name: _Tally() for name in names}
    turns = [name for name in names for _ in range(TARGETS[name].share)]
    began, number = time.monotonic(), 0
    with suppress(StoppedError):
        while number < most and time.monotonic() - began < 60 * minutes:
            number += 1
            name = chance.choice(turns)
            _one_case(name, tallies[name], TARGETS[name].make(chance), f"{seed}-{number:06d}")
    found = sum(sum(t.failures.values()) for t in tallies.values())
    print(f"{number} cases in {(time.monotonic() - began) / 3600:.2f} hours, {found} failures")
    for name, tally in tallies.items():
        print(f"{name:8s} {tally.cases:6d} cases {tally.seconds:7.0f} s of CPU time, slowest {tally.slowest:.1f} s")
        for kind, count in tally.failures.most_common():
            print(f"{count:15d}  {kind}")
    return 1 if found else 0


def _one_case(name: str, tally: _Tally, case: Case, number: str) -> None:
    at = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        kind = _run(TARGETS[name], case, Path(folder))
    took = time.process_time() - at
    tally.cases += 1
    tally.seconds += took
    if took > max(SLOW_S, tally.slowest):
        print(f"{name} {number}: {took:.0f} s of CPU time", flush=True)
        keep(case, f"{name}\nslow: {took:.0f} s", OUT / f"{name}-{number}-slow.json.gz")
    tally.slowest = max(tally.slowest, took)
    if kind is not None:
        short = kind.split(" at ")[0] + " " + kind.split(" at ")[-1][:80]
        tally.failures[short] += 1
        if tally.failures[short] <= 3:
            keep(case, f"{name}\n{kind}", OUT / f"{name}-{number}.json.gz")
            print(f"{name} {number}: {kind}", flush=True)


def _again(path: Path) -> int:
    """A kept case once more, with whatever it raises."""
    name, case = loaded(path)
    with tempfile.TemporaryDirectory() as place:
        TARGETS[name].check(case, Path(place))
    print(f"{path}: {name} keeps its promises")
    return 0


def _guided(minutes: float, arguments: list[str]) -> None:
    """atheris over the reading alone: bytes become changes, and the parsers' coverage says which bytes to go on with."""
    import atheris

    with atheris.instrument_imports(include=["parsers"]):
        from parsers.reading.by_line import Keep, read_events
        from parsers.reading.events import Coverage
        from parsers.reading.frames import frames_of
        from parsers.sources.source import Source
    names = sorted(seeds())

    def one(data: bytes) -> None:
        given = atheris.FuzzedDataProvider(data)
        lines = list(seeds()[names[given.ConsumeIntInRange(0, len(names) - 1)]])
        at = given.ConsumeIntInRange(0, len(lines))
        lines = lines[at : at + 12]
        changes: list[Change] = []
        while given.remaining_bytes() > 12 and len(changes) < 12:
            changes.append(
                (
                    _NAMES[given.ConsumeIntInRange(0, len(_NAMES) - 1)],
                    given.ConsumeProbability() * 0.9999,
                    given.ConsumeProbability() * 0.9999,
                    given.ConsumeIntInRange(0, 65535),
                )
            )
        text = b"\n".join([*changed(lines, changes), given.ConsumeBytes(400)])
        source = Source("-", stream=io.BytesIO(text))
        frames_of(read_events([source], Coverage(), keep=Keep(prompts=True)))

    OUT.mkdir(parents=True, exist_ok=True)
    corpus = OUT / "corpus"
    corpus.mkdir(exist_ok=True)
    limits = [f"-max_total_time={int(60 * minutes)}", f"-timeout={LIMIT_S}", "-rss_limit_mb=4096", "-max_len=2048"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={OUT}/", *arguments, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """Run for the time that was asked for; 1 where something failed."""
    parser = argparse.ArgumentParser(description="Fuzz logscope's analyze over mutated real logs.")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"some of {', '.join(TARGETS)}")
    parser.add_argument("--again", type=Path, metavar="FILE", help="run a kept case once more")
    parser.add_argument("--coverage", action="store_true", help="guided by atheris")
    given, rest = parser.parse_known_args()
    os.environ["LOGSCOPE_DEBUG"] = "1"
    warnings.simplefilter("error", RuntimeWarning)
    signal.signal(signal.SIGVTALRM, _too_slow)
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, _stopped)
    if given.again is not None:
        return _again(given.again)
    if given.coverage:
        _guided(given.minutes, rest)
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    print(f"seed {given.seed}", flush=True)
    return _by_chance(given.minutes, given.cases, given.seed, given.targets.split(","))


if __name__ == "__main__":
    sys.exit(main())
