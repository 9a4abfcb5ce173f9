"""What is told while a log goes by: states, alerts, the summary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from logscope.evidence.pressure import HISTORY, EnginePressure, Reading
from logscope.live.monitor import MAX_ENGINES, Monitor, Notice
from logscope.output.terminal.watch_view import alert_line
from parsers.lines import Line
from parsers.reading.by_line import read_events, read_lines
from parsers.reading.events import Coverage
from parsers.sources.source import expand
from tests.conftest import SAMPLES
from tests.logs import stats_v1, v0_warning, v1_start

DEAD = "(APIServer pid=1) ERROR 05-09 00:49:40 [async_llm.py:906] AsyncLLM output_handler failed."
SIGNAL = "(EngineCore pid=2) INFO 05-09 00:49:40 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM"
FULL = [stats_v1(10 * i, 6, 4, 97.0) for i in range(1, 5)]
CALM = [stats_v1(10 * i, 2, 0, 20.0) for i in range(5, 9)]


def watch(monitor: Monitor, *lines: str | None) -> list[Notice]:
    stream: Iterator[Line | None] = (None if text is None else Line(n, text) for n, text in enumerate(lines, 1))
    events = read_lines(stream, Coverage(), year=2026)
    return [notice for event in events for notice in monitor.take(event)]


def told(*lines: str | None) -> list[str | None]:
    monitor = Monitor()
    notices = watch(monitor, *lines) + monitor.finish()
    return [n.event for n in notices if n.kind == "alert"]


def test_pressure_starts_repeats_and_ends() -> None:
    assert told(*v1_start(), *FULL, *CALM) == ["pressure-started", "thrash", "pressure-ended"]


@pytest.mark.parametrize(
    "line",
    [
        stats_v1(10, 6, 0, 99.0),  # full, but nobody waits
        stats_v1(10, 8, 9, 97.0),  # a queue, but all 8 seats are taken
        stats_v1(10, 3, 9, 20.0),  # a queue in an empty cache: not for space
    ],
)
def test_what_is_no_pressure(line: str) -> None:
    assert told(*v1_start(seats=8), *[line] * 4) == []


def test_a_cache_that_looks_nearly_full_counts_when_it_stays_so() -> None:
    assert told(*v1_start(), stats_v1(10, 6, 4, 80.0), stats_v1(20, 2, 0, 20.0)) == []
    assert told(*v1_start(), *[stats_v1(10 * i, 6, 4, 80.0) for i in (1, 2)])[:1] == ["pressure-started"]


def test_a_single_calmer_line_does_not_end_the_pressure() -> None:
    lines = [*FULL, stats_v1(50, 6, 0, 60.0), stats_v1(60, 6, 4, 97.0)]
    assert "pressure-ended" not in told(*v1_start(), *lines)


def test_logged_warnings_are_alerts_and_bound_the_count() -> None:
    monitor = Monitor()
    notices = watch(monitor, v0_warning(1, 1), v0_warning(2, 51), v0_warning(3, 1))
    assert [n.event for n in notices] == ["preemption-logged"] * 2 + ["restarted", "preemption-logged"]
    assert monitor.summary().preemptions is not None
    low, value, high, basis = monitor.summary().preemptions or (0, 0, 0, "")
    assert (low, high, basis) == (52, 150, "measured")
    assert low <= value <= high


def test_the_field_of_patched_builds_is_the_count() -> None:
    monitor = Monitor()
    watch(monitor, *[stats_v1(10 * i, 6, 4, 97.0, extra="Preemptions: 3, ") for i in (1, 2)])
    assert monitor.summary().preemptions == (6, 6, 6, "measured")


def test_without_the_cache_size_nothing_is_counted() -> None:
    monitor = Monitor()
    watch(monitor, *FULL)
    assert monitor.summary().document()["preemptions"] is None
    assert monitor.summary().pressure == "saturated"


def test_an_engine_that_dies_is_told_and_a_clean_stop_is_not() -> None:
    assert told(*v1_start(), stats_v1(10, 2, 0, 5.0), DEAD, stats_v1(60, 0, 0, 0.0)) == ["error"]
    assert told(*v1_start(), stats_v1(10, 2, 0, 5.0), DEAD) == ["error"]
    assert told(*v1_start(), stats_v1(10, 2, 0, 5.0), SIGNAL, DEAD) == []
    assert told(*v1_start(), stats_v1(10, 2, 0, 5.0), DEAD, SIGNAL) == []


def test_a_server_that_falls_silent_with_a_queue() -> None:
    monitor = Monitor()
    watch(monitor, *v1_start(), stats_v1(10, 2, 3, 5.0))
    assert monitor.quiet(59.0) == []
    assert [n.event for n in monitor.quiet(2.0)] == ["silent"]
    assert monitor.quiet(100.0) == []


def test_an_idle_server_may_be_silent() -> None:
    monitor = Monitor()
    watch(monitor, *v1_start(), stats_v1(10, 0, 0, 0.0))
    assert monitor.quiet(1e6) == []


def test_a_restart_keeps_the_count() -> None:
    monitor = Monitor()
    watch(monitor, *v1_start(), *FULL)
    before = monitor.summary().preemptions
    notices = watch(monitor, *v1_start(100), stats_v1(120, 1, 0, 1.0))
    assert before is not None
    assert before[1] > 1
    assert [n.event for n in notices if n.kind == "alert"] == []  # another reader: same run
    monitor = Monitor()
    notices = watch(monitor, *v1_start(), *FULL, *v1_start(100, pid=9), stats_v1(120, 1, 0, 1.0))
    assert "restarted" in [n.event for n in notices]
    after = monitor.summary().preemptions
    assert after is not None
    assert after[1] == pytest.approx(before[1])


def test_states_bear_the_contracts_keys() -> None:
    monitor = Monitor()
    state = watch(monitor, *v1_start(), stats_v1(10, 4, 1, 5.0), None)[0].document()
    keys = ("time", "kind", "pressure", "running", "waiting", "kv_usage", "preemptions")
    assert {k: state[k] for k in keys} == {
        "time": "2026-05-09T00:49:10",
        "kind": "state",
        "pressure": "none",
        "running": 4,
        "waiting": 1,
        "kv_usage": 0.05,
        "preemptions": 0,
    }
    assert json.dumps(state)


@pytest.mark.parametrize(
    ("name", "pressure", "true"),
    [
        ("v1-under-pressure.log", "thrash", 63),
        ("v1-under-pressure-12-seats.log.gz", "none", 0),
        ("v1-calm.log", "none", 0),
        ("v0-with-warnings.log.gz", "thrash", 63),
    ],
)
def test_real_logs_and_what_their_servers_counted(name: str, pressure: str, true: int) -> None:
    monitor = Monitor()
    for event in read_events(expand([str(SAMPLES / name)]), Coverage()):
        monitor.take(event)
    summary = monitor.summary()
    assert summary.pressure == pressure
    assert summary.preemptions is not None
    low, _, high, _ = summary.preemptions
    assert low <= true <= high


def test_memory_does_not_grow() -> None:
    state = EnginePressure(8000, 8)
    for _ in range(10 * HISTORY):
        state.take(Reading(None, 4, 1, 0.99, 1.0, 1.0))
    assert len(state.history) == HISTORY
    monitor = Monitor()
    watch(monitor, *[stats_v1(1, 1, 0, 1.0, engine=f"Engine {i:03}") for i in range(400)])
    assert len(monitor.engines) <= MAX_ENGINES


def test_the_view_shows_all_that_matters(tmp_path: Path) -> None:
    import io

    from rich.console import Console

    from logscope.output.terminal.watch_view import picture

    monitor = Monitor()
    watch(monitor, *v1_start(), *FULL)
    out = io.StringIO()
    Console(file=out, width=100).print(picture(monitor, "server.log\x1b[2J", ["an alert"]))
    text = out.getvalue()
    for word in ("thrash", "Running", "Waiting", "KV cache", "97 %", "[inferred]", "an alert", "█"):
        assert word in text
    assert "\x1b" not in text


INFO = "(EngineCore pid=2) INFO 05-09 00:49:02 [x.py:1] "
SPECULATION_V0 = (
    "INFO 05-09 00:49:33 [metrics.py:504] Speculative metrics: Draft acceptance rate: 0.612, System efficiency: 0.471, Number of speculative"
    " tokens: 5, Number of accepted tokens: 3062, Number of draft tokens: 5000, Number of emitted tokens: 2826."
)


@pytest.mark.parametrize(
    ("lines", "feature"),
    [
        ([*v1_start(more=", 'task': 'embed'")], "embeddings and other pooling"),
        ([*v1_start(), INFO + "Supported tasks: ['embed']"], "embeddings and other pooling"),
        ([*v1_start(), INFO + "Resolved architecture: NemotronHForCausalLM"], "a state instead of"),
        ([*v1_start(), INFO + "Resolved architecture: Gemma4ForCausalLM"], "sliding-window layers"),
        ([*v1_start(), FULL[0], SPECULATION_V0], "speculative decoding"),  # told by the running server
    ],
)
def test_what_the_rule_does_not_fit_is_not_counted_and_said(lines: list[str], feature: str) -> None:
    monitor = Monitor()
    notices = watch(monitor, *lines, *FULL, *CALM)
    alerts = [n for n in notices if n.kind == "alert"]
    assert [n.event for n in alerts] == ["pressure-started", "pressure-ended"]
    ended, summary = alerts[-1], monitor.summary()
    assert "preemptions cannot be counted, the server uses " in (ended.text or "")
    assert feature in (ended.text or "")
    assert summary.preemptions is None
    assert (summary.text or "").endswith(" not inferred")
    assert feature in (summary.text or "")


def test_what_the_log_itself_counts_is_counted_on_any_server() -> None:
    monitor = Monitor()
    start = v1_start(more=", 'speculative_config': {'method': 'x'}")
    watch(monitor, *start, *FULL, v0_warning(45, 1), v0_warning(50, 51))
    assert monitor.summary().preemptions == (51, 51, 100, "measured")


SPECULATION = INFO + "SpecDecoding metrics: Draft acceptance rate: 63.5%, Accepted: 5401 tokens, Drafted: 8505 tokens"
CAPACITY = INFO + "CPU KV cache size: 5,851 tokens, Maximum concurrency for 2,048 tokens per request: 2.86x"


@pytest.mark.parametrize(
    "lines",
    [
        [*v1_start(more=", 'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 4}"), SPECULATION],
        [
            *v1_start(more=", 'max_model_len': 2048, 'max_num_batched_tokens': 512, 'block_size': 32, 'num_gpu_blocks_override': 300"),
            "(EngineCore pid=2) WARNING 05-09 00:49:02 [x.py:1] kv cache group sizes (32, 32)",
            CAPACITY,
        ],
        [*v1_start(), INFO + "Resolved architecture: GptOssForCausalLM"],
    ],
    ids=["drafts", "windows by their lines", "windows by name"],
)  # fmt: skip
def test_drafts_and_known_groups_are_counted(lines: list[str]) -> None:
    monitor = Monitor()
    watch(monitor, *lines, *FULL, *CALM)
    count = monitor.summary().preemptions
    assert count is not None
    low, value, high, basis = count
    assert 0 < low < value < high
    assert basis == "inferred"


def test_a_plain_server_is_counted() -> None:
    monitor = Monitor()
    watch(monitor, *v1_start(more=", 'speculative_config': None, 'task': 'generate'"), *FULL)
    count = monitor.summary().preemptions
    assert count is not None
    assert count[3] == "inferred"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (None, "x"),
        ((0, 0), "x"),  # the only one there is
        ((0, None), "x"),
        ((2, None), "server 3: x"),
        ((0, 3), "server 1, engine 3: x"),
    ],
)
def test_an_alert_names_its_engine_where_there_are_others(place: tuple[int, int | None] | None, said: str) -> None:
    notice = Notice("alert", None, "none", None, None, None, None, place, "x", "error")
    assert alert_line(notice) == f"-  {said}"
