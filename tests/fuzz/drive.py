"""Fuzzing by hand, for as long as one likes: `python -m tests.fuzz.drive --minutes 5` (or `make fuzz MINUTES=5`).

Mutates real logs and runs everything over them, each case in a bounded time and memory. With `--coverage` atheris guides it
(pip install logscope[fuzz]). A case that fails is written to out/fuzz/, with the changes that made it; to keep it, cut it down and
put it into tests/data/fuzz/, from where the suite reads it.
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
from pathlib import Path
from types import FrameType

from tests.fuzz.mutations import CHANGES, ROOT, Change, changed, seeds
from tests.fuzz.whole import check_log

LIMIT_S = 60
SLOW_S = 10
LIMIT_BYTES = 4 << 30
OUT = ROOT / "out" / "fuzz"
_NAMES = sorted(CHANGES)


class TooSlowError(BaseException):
    """A case took more CPU time than any may. (No Exception: nothing on the way may catch it.)"""


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


def _case(chance: random.Random) -> tuple[str, list[bytes], list[Change]]:
    name = chance.choice(sorted(seeds()))
    lines = list(seeds()[name])
    if len(lines) > 150 and chance.random() < 0.8:  # the start, and a stretch of what follows
        at = chance.randrange(60, len(lines) - 40)
        lines = lines[:60] + lines[at : at + chance.randrange(20, 250)]
    count = 1 + int(chance.expovariate(0.3))
    changes = [
        (chance.choice(_NAMES), chance.random(), chance.random(), chance.randrange(1 << 16))
        for _ in range(count)
    ]
    return name, changed(lines, changes), changes


def _run(lines: list[bytes], folder: Path, *, replay: bool) -> str | None:
    """The kind of failure, or None."""
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        check_log(lines, folder, replay=replay)
    except TooSlowError:
        stack = traceback.extract_tb(sys.exc_info()[2])
        ours = [
            f for f in stack if "/tests/" not in f.filename and "site-packages" not in f.filename
        ]
        place = ours[min(len(ours) - 1, 6)] if ours else stack[-1]
        return f"more than {LIMIT_S} s of CPU time in {Path(place.filename).name}:{place.name}"
    except Exception as error:
        stack = traceback.extract_tb(error.__traceback__)
        ours = [f for f in stack if "site-packages" not in f.filename] or list(stack)
        return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno} {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def _keep(kind: str, lines: list[bytes], changes: list[Change], number: int) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{number:06d}.log").write_bytes(b"\n".join(lines) + b"\n")
    (OUT / f"{number:06d}.txt").write_text(f"{kind}\n{changes}\n", encoding="utf-8")


def _by_chance(minutes: float, seed: int, replay_share: float) -> int:
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    began, cases, slowest = time.monotonic(), 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - began < 60 * minutes:
            name, lines, changes = _case(chance)
            replay = chance.random() < replay_share
            at = time.process_time()
            kind = _run(lines, Path(folder), replay=replay)
            took = time.process_time() - at
            if took > max(SLOW_S, slowest):
                print(f"{cases + 1}: {took:.0f} s of CPU time ({name} replay={replay})", flush=True)
                _keep(f"slow: {took:.0f} s\n{name} replay={replay}", lines, changes, cases + 1)
            slowest = max(slowest, took)
            cases += 1
            if kind is not None:
                short = kind.split(" at ")[0] + kind.split(" at ")[-1][:80]
                found[short] += 1
                if found[short] <= 3:
                    _keep(f"{kind}\n{name} replay={replay}", lines, changes, cases)
                    print(f"{cases}: {kind} ({name})", flush=True)
    hours = (time.monotonic() - began) / 3600
    print(
        f"{cases} cases in {hours:.2f} hours, slowest {slowest:.1f} s of CPU time, {sum(found.values())} failures"
    )
    for kind, count in found.most_common():
        print(f"{count:6d}  {kind}")
    return 1 if found else 0


def _guided(minutes: float, arguments: list[str]) -> None:
    """atheris over the reading alone: bytes become changes, and the parsers' coverage says which bytes to go on with."""
    import atheris

    with atheris.instrument_imports(include=["parsers"]):
        from parsers.events import Coverage
        from parsers.frames import frames_of
        from parsers.reader import Keep, read_events
        from parsers.sources import Source
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
    limits = [
        f"-max_total_time={int(60 * minutes)}",
        f"-timeout={LIMIT_S}",
        "-rss_limit_mb=4096",
        "-max_len=2048",
    ]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={OUT}/", *arguments, str(corpus)], one)
    atheris.Fuzz()


def main() -> int:
    """Run for the time that was asked for; 1 where something failed."""
    parser = argparse.ArgumentParser(description="Fuzz logscope's analyze over mutated real logs.")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--replay", type=float, default=0.3, help="share of cases with inference")
    parser.add_argument("--coverage", action="store_true", help="guided by atheris")
    given, rest = parser.parse_known_args()
    os.environ["LOGSCOPE_DEBUG"] = "1"
    warnings.simplefilter("error", RuntimeWarning)
    signal.signal(signal.SIGVTALRM, _too_slow)
    if given.coverage:
        _guided(given.minutes, rest)
        return 0
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    print(f"seed {given.seed}", flush=True)
    return _by_chance(given.minutes, given.seed, given.replay)


if __name__ == "__main__":
    sys.exit(main())
