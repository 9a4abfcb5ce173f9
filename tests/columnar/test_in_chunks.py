"""A file that is read in chunks, each by somebody who knows only what is expected to stand before it, is read as it is in order."""

from __future__ import annotations

import gzip
import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from parsers.reading import in_bulk
from parsers.reading.by_line import Keep
from parsers.reading.events import Coverage, Event
from parsers.reading.frames import FrameBuilder
from parsers.reading.in_bulk import chunks, read_frames
from parsers.sources.source import Source, expand
from tests.columnar.test_same_as_line_by_line import ORDINARY, PARAMS, TRACEBACK, UNUSUAL, record, request_lines
from tests.conftest import SAMPLES
from tests.dress import DRESSES
from tests.dressers import Stamped, real_log
from tests.logs import access, stats_v0, stats_v1, v0_warning, v1_start

pytestmark = pytest.mark.usefixtures("short_stretches")


@dataclass
class Others:
    """Stands for the processes beside this one: so many tasks are handed out before the first result is taken, all sent and sent back."""

    ahead: int = 3
    taken: list[bool] = field(default_factory=list)

    def begin(self) -> bool:
        return True

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        items = iter(items)
        waiting: deque[Any] = deque()
        while True:
            waiting.extend(itertools.islice(items, self.ahead - len(waiting)))
            if not waiting:
                return
            found = function(pickle.loads(pickle.dumps(waiting.popleft())))
            self.taken.append(found is not None)
            yield pickle.loads(pickle.dumps(found))


def reading(sources: list[Source], beside: Others | None) -> tuple[dict[str, pl.DataFrame], Coverage, list[Any]]:
    counts, builder = Coverage(), FrameBuilder()
    single: list[Any] = []

    def take(event: Event) -> None:
        if event.family == "exception":
            single.append(event)
        else:
            builder.add(event)
        if event.family == "stats":
            note(event.source, event.line, event.text)

    def note(*text: object) -> None:
        single.append(text)

    keep = Keep(exceptions=True)
    read_frames(sources, counts, builder, year=None, keep=keep, take=take, evidence=note, beside=beside)
    return builder.frames(), counts, single


def assert_same(path: Path, ahead: int = 3, *, block: int = 700, chunk: int = 3) -> tuple[int, int]:
    """How many chunks others read, and how many of them counted."""
    want = reading(expand([str(path)]), None)
    taken: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_bulk, "SHARED", 0)
        patch.setattr(chunks, "BLOCK", block)
        patch.setattr(chunks, "CHUNK", chunk)
        took = chunks._Shared._taken
        patch.setattr(chunks._Shared, "_taken", lambda *given: (taken.append(took(*given)), taken[-1])[1])
        others = Others(ahead)
        found = reading(expand([str(path)]), others)
    assert set(found[0]) == set(want[0])
    for family, frame in want[0].items():
        assert_frame_equal(found[0][family], frame)
    assert found[1] == want[1]
    assert sorted(map(str, found[2])) == sorted(map(str, want[2]))
    return len(others.taken), taken.count(None)


@pytest.mark.parametrize("name", sorted(p.name for p in SAMPLES.glob("*.log*")))
@pytest.mark.parametrize("ahead", [1, 4])
def test_real_logs(name: str, ahead: int, tmp_path: Path) -> None:
    data = (SAMPLES / name).read_bytes()
    path = tmp_path / "server.log"
    path.write_bytes(gzip.decompress(data) if name.endswith(".gz") else data)
    assert_same(path, ahead, block=4096)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.sampled_from(ORDINARY),
            st.sampled_from(ORDINARY),
            st.sampled_from([*UNUSUAL, "\n".join(TRACEBACK), *TRACEBACK]),
        ),
        min_size=5,
        max_size=80,
    ),
    st.integers(40, 2000),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["\n", "\n", "\n", "\r\n"]),
    st.booleans(),
)
def test_any_lines_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block: int, chunk: int, ahead: int, end: str, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.write_bytes(end.join([*lines, ""] if ends else lines).encode("utf-8", "surrogatepass"))
    assert_same(path, ahead, block=block, chunk=chunk)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(DRESSES)), st.integers(300, 9000), st.integers(1, 4))
def test_any_envelope_cut_anywhere(
    tmp_path_factory: pytest.TempPathFactory, dress: str, block: int, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "server.log"
    path.write_bytes(DRESSES[dress].dress(real_log()[:300]))
    assert_same(path, block=block, chunk=chunk)


def busy(count: int, at: str = "05-09 00:49:33", name: str = "c") -> list[str]:
    return [line for i in range(count) for line in request_lines(f"{name}-{i}", at)]


PROMPT = record(
    f"Received request cmpl-p: prompt: 'one\ntwo\n{record('Added request forged.')}\nthree', params: {PARAMS}"
)
BORDERS = {
    "a server that starts again": [*v1_start(), *busy(60), *v1_start(500), *busy(90)],
    "a year that ends, a clock that goes back": [
        line
        for stamp in (
            "12-30 23:59:58",
            "12-31 23:59:59",
            "01-01 00:00:01",
            "12-31 23:59:59",
            "01-02 00:00:00",
            "02-29 12:00:00",
        )
        for line in busy(25, stamp)
    ],
    "counters of V0": [
        line for i in range(40) for line in (v0_warning(100 + i, 1 + 50 * (i % 9)), stats_v0(90, 3, 1, 45.5))
    ],
    "prompts with line breaks": [line for i in range(40) for line in (PROMPT, *busy(1))],
    "a prompt that no line closes": [*busy(60), record("Received request cmpl-q: prompt: 'open"), *busy(60)],
    "tracebacks": [line for i in range(40) for line in (*TRACEBACK, *busy(1))],
    "engines of another kind, and warnings": [
        line
        for i in range(50)
        for line in (UNUSUAL[11], record(f"Unknown {i}", level="WARNING", origin="serving_chat.py:9"), *busy(1))
    ],
    "nothing but access lines": [access()] * 300,
    "access lines behind statistics": [line for i in range(30) for line in (stats_v1(i, 3, 1, 45.5), *[access()] * 9)],
    "carriage returns within lines": ["50%|#####     | 1/2 [00:01<00:01,  1.00s/it]\r" + line for line in busy(60)],
    "a line that is longer than a block": [*busy(40), "x" * 5000, *busy(40), "{" + "y" * 9000, *busy(40)],
}


@pytest.mark.parametrize("name", sorted(BORDERS))
@pytest.mark.parametrize("block", [300, 700, 1111])
def test_chunks_that_end_anywhere_in(name: str, block: int, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes("\n".join(BORDERS[name]).encode())
    assert_same(path, block=block, chunk=2)


@pytest.mark.parametrize("dress", ["plain", "docker json-file", "cri", "journal json", "kubectl --timestamps"])
def test_of_a_server_at_work_nearly_all_that_others_read_counts(dress: str, tmp_path: Path) -> None:
    lines = [Stamped(1_778_287_773_000_000 + i, line) for i, line in enumerate([*v1_start(), *busy(900)])]
    path = tmp_path / "server.log"
    path.write_bytes(DRESSES[dress].dress(lines) if dress in DRESSES else "\n".join(ln.text for ln in lines).encode())
    read, right = assert_same(path, block=4096, chunk=4)
    assert read > 10
    assert right > 0.8 * read
